//! Volumes by hand, and the record of what happened to them.

use std::io::{Read as _, Write as _};

use serde_json::Value;

use crate::shell::Shell;
use crate::support::eventually;
use crate::world::World;

/// The changes that are recorded of a volume, as `what: from → to`.
pub fn recorded(shell: &Shell, volume: &str) -> Vec<(String, Value)> {
    let history = shell.json(&format!("volume history {volume}"));
    let decisions = history
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line["decision"].clone());
    let mut changes = Vec::new();
    for decision in decisions.filter(|decision| !decision.is_null()) {
        for change in decision["changes"].as_array().expect("a list") {
            let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
            changes.push((
                format!("{}: {} → {}", text("what"), text("from"), text("to")),
                decision.clone(),
            ));
        }
    }
    changes
}

#[track_caller]
pub fn until_recorded(shell: &Shell, volume: &str, part: &str) -> Value {
    let mut found = None;
    eventually(&format!("{part:?} in the history of {volume}"), || {
        found = recorded(shell, volume)
            .into_iter()
            .find(|(change, _)| change.contains(part));
        found.is_some()
    });
    found.expect("seen just now").1
}

pub fn by_hand_and_back(world: &World, shell: &Shell) {
    shell
        .ask("volume create data --size 64Mi --replicas 2")
        .ends_with(0)
        .has(&["64Mi"]);
    shell
        .ask("volume create data --size 64Mi")
        .ends_with(1)
        .has(&["already"]);
    shell.ask("volume attach data --node node-9x").ends_with(5);
    let said = shell
        .ask("volume attach data --node node-1 --for 2h")
        .ends_with(0);
    said.has(&[
        "Volume.spec.nodeID set",
        "block device ready",
        "ticket satisfied",
        "attached to node node-1",
    ]);
    let ticket =
        &world.get("lhva", "data")["spec"]["attachmentTickets"]["longhorn-api-alice-node-1"];
    assert_eq!(ticket["type"], "longhorn-api");
    let owner = ticket["parameters"]["lariat.io/owner"]
        .as_str()
        .expect("an owner");
    assert!(owner.starts_with("User/alice@"), "{owner}");
    assert!(
        ticket["parameters"]["lariat.io/deadline"].is_string(),
        "{ticket}"
    );

    // It is a real device.
    let row = shell.json("volume show data");
    let device = row["device"].as_str().expect("a device").to_owned();
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&device)
        .expect(&device);
    file.write_all(&[7; 4096]).expect("a block is written");
    file.sync_all().expect("it is durable");
    drop(file);

    // Again is the same ticket with a new lease; elsewhere has to wait, and is not asked for by itself.
    shell
        .ask("volume attach data --node node-1 --for 3h")
        .ends_with(0);
    let again =
        &world.get("lhva", "data")["spec"]["attachmentTickets"]["longhorn-api-alice-node-1"];
    assert_eq!(again["generation"], ticket["generation"]);
    assert_ne!(again["parameters"], ticket["parameters"]);
    shell
        .ask("volume attach data --node node-2")
        .ends_with(3)
        .has(&["would wait", "held there by longhorn-api ticket", "--yes"]);
    assert_eq!(
        world.get("lhva", "data")["spec"]["attachmentTickets"]
            .as_object()
            .unwrap()
            .len(),
        1
    );
    shell
        .ask("volume attach data --node node-2 --yes --timeout 1s")
        .ends_with(4)
        .has(&["not done after 1 s", "attached to node node-1"]);
    shell.ask("volume detach data --node node-2").ends_with(0);

    // Somebody else's attachment is theirs.
    let mut other = shell.command("volume detach data");
    other.env("USER", "bob");
    crate::shell::answer("volume detach data", other.output())
        .ends_with(3)
        .has(&["was filed by alice@", "--yes"]);
    shell
        .ask("volume delete data --yes")
        .ends_with(3)
        .has(&["is in use", "longhorn-api-alice-node-1"]);
    shell
        .ask("volume detach data")
        .ends_with(0)
        .has(&["engine stopped", "volume data is detached"]);
    shell
        .ask("volume detach data")
        .ends_with(0)
        .has(&["nothing to detach"]);

    // What was written is there on another node.
    shell.ask("volume attach data --node node-3").ends_with(0);
    let row = shell.json("volume show data");
    let mut block = vec![0; 4096];
    let device = row["device"].as_str().expect("a device");
    std::fs::File::open(device)
        .expect(device)
        .read_exact(&mut block)
        .expect("a block");
    assert_eq!(block, [7; 4096]);
    shell.ask("volume detach data").ends_with(0);

    // For work on the volume itself: attached, and without a device.
    shell
        .ask("volume attach data --node node-2 --disable-frontend")
        .ends_with(0)
        .has(&["attached to node node-2"]);
    let row = shell.json("volume show data");
    assert_eq!(row["state"], "attached", "{row}");
    assert_eq!(row["device"].as_str().unwrap_or_default(), "", "{row}");
    shell.ask("volume detach data").ends_with(0);

    // All of it is on record, for kubectl too.
    let decision = until_recorded(shell, "data", "spec.nodeID:  → node-1");
    assert_eq!(decision["who"], "attachment-controller");
    let reasons = decision["reasons"].to_string();
    assert!(reasons.contains("first in line"), "{reasons}");
    until_recorded(shell, "data", "state: attaching → attached");
    until_recorded(shell, "data", "state: attached → detaching");
    until_recorded(shell, "data", "waiting: Attaching → satisfied");
    until_recorded(shell, "data", "epoch: 1 → 2");
    let story = shell.says("volume history data");
    assert!(story.contains("attached to node-3 in"), "{story}");
    let map = world.kubectl.prints(&[
        "-n",
        "longhorn-system",
        "get",
        "configmap",
        "lariat-history-data",
        "-o",
        "yaml",
    ]);
    assert!(
        map.contains("attachment-controller") && map.contains("kind: Volume"),
        "{map}"
    );
    shell
        .ask("volume timeline data")
        .ends_with(0)
        .has(&["ticket filed"]);

    shell
        .ask("volume delete data")
        .ends_with(3)
        .has(&["destroy", "64Mi"]);
    shell.ask("volume delete data --yes").ends_with(0);
    assert!(world.try_get("lhv", "data").is_none());
}

pub fn a_pods_volume_is_left_alone(world: &World, shell: &Shell) {
    world.claim("notes", "longhorn", "Filesystem");
    world.pod("writer", "notes", Some("node-2"));
    world.running("writer");
    let volume = world.volume_of("notes");
    shell
        .ask("volume show notes")
        .ends_with(5)
        .has(&["a claim of that name", &volume]);
    let detail = shell.json(&format!("volume show {volume}"));
    assert_eq!(detail["claim"], "default/notes");
    let ticket = detail["tickets"][0]["id"]
        .as_str()
        .expect("a ticket")
        .to_owned();
    shell
        .ask(&format!("ticket remove {volume} {ticket}"))
        .ends_with(3)
        .has(&[
            "pod default/writer on node node-2",
            "node node-2 still has the volume in use",
            "Kubernetes VolumeAttachment",
            "stop the pod",
            "--force --reason",
        ]);
    shell
        .ask(&format!("volume detach {volume}"))
        .ends_with(1)
        .has(&["was not attached by hand"]);
    shell
        .ask(&format!("volume attach {volume} --node node-1"))
        .ends_with(3)
        .has(&["stop the pod on node node-2"]);
    shell.ask("node drain-plan node-2").has(&[
        "default/writer",
        "nothing starts it anew",
        "kubectl drain node-2",
    ]);
    world.delete("pod", "writer");
    world.until_gone("pod", "writer");
    world.delete("pvc", "notes");
    world.until_gone("lhv", &volume);
    // The history goes with its volume.
    let name = format!("lariat-history-{volume}");
    eventually("the history to be gone", || {
        let left =
            world
                .kubectl
                .prints(&["-n", "longhorn-system", "get", "configmap", "-o", "name"]);
        !left.contains(&name)
    });
}

pub fn a_history_survives_its_author(world: &World, shell: &Shell) {
    shell
        .ask("volume create kept --size 64Mi --replicas 1")
        .ends_with(0);
    shell.ask("volume attach kept --node node-1").ends_with(0);
    until_recorded(shell, "kept", "state: attaching → attached");
    let before = recorded(shell, "kept").len();
    world.kill(&world.processes(&["manager", "--embedded"]));
    shell.ask("volume detach kept").ends_with(0);
    until_recorded(shell, "kept", "state: detaching → detached");
    let after = recorded(shell, "kept");
    assert!(after.len() > before, "{after:?}");
    assert!(
        after
            .iter()
            .any(|(change, _)| change.contains("state: attaching → attached")),
        "{after:?}"
    );
    shell.ask("volume delete kept --yes").ends_with(0);
}
