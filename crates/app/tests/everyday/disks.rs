//! Nodes and disks.

use serde_json::json;

use crate::shell::Shell;
use crate::support::eventually;
use crate::world::World;

pub fn disks_and_nodes(world: &World, shell: &Shell) {
    shell
        .ask("node cordon node-3")
        .ends_with(0)
        .has(&["cordoned", "drain-plan node-3"]);
    shell
        .ask("node cordon node-3")
        .ends_with(0)
        .has(&["already"]);
    eventually("node-3 to be shown as cordoned", || {
        shell.json("node list")[2]["cordoned"] == json!(true)
    });
    shell.ask("node list").ends_with(0).has(&["Ready,Cordoned"]);
    shell
        .ask("node uncordon node-3")
        .ends_with(0)
        .has(&["open"]);
    assert_eq!(
        world.get("node", "node-3")["spec"]["unschedulable"],
        json!(null)
    );

    shell
        .ask("volume create only --size 64Mi --replicas 1")
        .ends_with(0);
    let detail = shell.json("volume show only");
    let node = detail["replicas"][0]["node"]
        .as_str()
        .expect("a replica")
        .to_owned();
    shell
        .ask(&format!("node drain-plan {node}"))
        .ends_with(3)
        .has(&["its only replica is on this node", "blocked by 1 thing"]);
    shell
        .ask(&format!("disk remove {node} default"))
        .ends_with(3)
        .has(&["only-r-", "disk evict"]);
    shell
        .ask(&format!("disk evict {node} default --no-wait"))
        .ends_with(0);
    let disk = world.get("lhn", &node)["spec"]["disks"]["default"].clone();
    assert_eq!(
        (&disk["allowScheduling"], &disk["evictionRequested"]),
        (&json!(false), &json!(true))
    );
    shell
        .ask(&format!("disk list {node}"))
        .ends_with(0)
        .has(&["Evicting,NoReplicas"]);
    shell
        .ask(&format!("disk evict {node} default --cancel"))
        .ends_with(0);
    let disk = world.get("lhn", &node)["spec"]["disks"]["default"].clone();
    assert_eq!(
        (&disk["allowScheduling"], &disk["evictionRequested"]),
        (&json!(true), &json!(false))
    );
    shell.ask("volume delete only --yes").ends_with(0);

    shell
        .ask("disk add node-1 fast srv")
        .ends_with(1)
        .has(&["not an absolute path"]);
    let missing = world.cluster.folder().join("fast");
    let missing = missing.display();
    shell
        .ask(&format!(
            "disk add node-1 fast {missing} --reserve 1Gi --tags ssd"
        ))
        .ends_with(4)
        .has(&["there is no folder", "lariat disk remove node-1 fast"]);
    let disk = world.get("lhn", "node-1")["spec"]["disks"]["fast"].clone();
    assert_eq!(
        (&disk["path"], &disk["storageReserved"]),
        (&json!(missing.to_string()), &json!(1 << 30))
    );
    shell
        .ask("disk remove node-1 fats")
        .ends_with(5)
        .has(&["\"fast\""]);
    shell
        .ask("disk remove node-1 fast")
        .ends_with(0)
        .has(&["was left alone"]);
    assert_eq!(
        world.get("lhn", "node-1")["spec"]["disks"]["fast"],
        json!(null)
    );
}
