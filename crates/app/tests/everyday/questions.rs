//! Lists, settings, and what is said when something is wrong.

use serde_json::json;

use crate::shell::{Shell, answer};
use crate::world::World;

pub fn lists_messages_and_settings(world: &World, shell: &Shell) {
    let nodes = shell.json("node list");
    let names: Vec<&str> = nodes
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|node| node["name"].as_str())
        .collect();
    assert_eq!(names, ["node-1", "node-2", "node-3"]);
    assert!(nodes[0]["ready"].as_bool().unwrap());
    assert_eq!(
        shell.says("node list -o name"),
        "node/node-1\nnode/node-2\nnode/node-3\n"
    );
    // Nothing is coloured or cut where no terminal is.
    assert!(!shell.says("node list -o wide").contains('\x1b'));
    shell
        .ask("volume list")
        .ends_with(0)
        .has(&["There are no volumes"]);
    shell
        .ask("node show node-1")
        .ends_with(0)
        .has(&["Ready", "default"]);

    // Names that do not exist.
    shell
        .ask("node show node1")
        .ends_with(5)
        .has(&["did you mean \"node-1\"?"]);
    shell
        .ask("volume show nothing")
        .ends_with(5)
        .has(&["lariat volume list"]);
    shell
        .ask("disk list nod-2")
        .ends_with(5)
        .has(&["\"node-2\""]);
    shell.ask("node cordon node-4x").ends_with(5);
    shell.ask("volume lsit").ends_with(2).has(&["list"]);

    // A cluster that is not there.
    let output = shell
        .command("volume list --kubeconfig /nowhere/kubeconfig")
        .output();
    answer("…", output)
        .ends_with(6)
        .has(&["/nowhere/kubeconfig", "--kubeconfig FILE"]);
    let dead = world.cluster.folder().join("dead-kubeconfig");
    let text = std::fs::read_to_string(world.cluster.kubeconfig()).expect("a kubeconfig");
    std::fs::write(&dead, text.replace(&world.cluster.address(), "127.0.0.1:1")).expect("a file");
    for command in [
        "volume list",
        "bench attach",
        "bench failover --data-dir /nowhere",
    ] {
        let line = format!("{command} --kubeconfig {}", dead.display());
        shell.ask(&line).ends_with(6).has(&[
            "https://127.0.0.1:1",
            "dead-kubeconfig",
            "refused",
            "lariat up",
        ]);
    }

    // Settings.
    assert_eq!(shell.says("setting get default-replica-count"), "3\n");
    shell
        .ask("setting get default-replica-cuont")
        .ends_with(5)
        .has(&["default-replica-count"]);
    shell
        .ask("setting set default-replica-count lots")
        .ends_with(1)
        .has(&["whole number from 1 to 20"]);
    shell
        .ask("setting set default-replica-count 2")
        .ends_with(0)
        .has(&["is now 2"]);
    shell
        .ask("setting set default-replica-count 3")
        .ends_with(0)
        .has(&["it was 2"]);
    let list = shell.json("setting list");
    let row = list
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "default-replica-count")
        .unwrap();
    assert_eq!((&row["value"], &row["isSet"]), (&json!("3"), &json!(true)));

    // What the numbers mean, and names for the shell.
    shell
        .ask("help exit-codes")
        .ends_with(0)
        .has(&["refused", "cannot be reached"]);
    let mut completing = shell.command("-- lariat node show ");
    completing
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "3")
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "false")
        .env("_CLAP_IFS", "\n");
    answer("completion", completing.output())
        .ends_with(0)
        .has(&["node-1", "node-3"]);
}
