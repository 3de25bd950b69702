//! Tickets that outlive their reason, and those that do not.

use serde_json::json;

use crate::attachments::until_recorded;
use crate::shell::Shell;
use crate::world::World;

pub fn only_what_nobody_needs_is_removed(world: &World, shell: &Shell) {
    shell
        .ask("volume create stuck --size 64Mi --replicas 1")
        .ends_with(0);
    // A pod's ticket whose Kubernetes VolumeAttachment is gone, as a broken upgrade leaves it.
    let orphan = json!({"spec": {"attachmentTickets": {"csi-orphan": {
        "id": "csi-orphan", "type": "csi-attacher", "nodeID": "node-1", "generation": 0, "parameters": {"disableFrontend": "false"},
    }}}});
    let patch = orphan.to_string();
    let patch = [
        "-n",
        "longhorn-system",
        "patch",
        "lhva",
        "stuck",
        "--type",
        "merge",
        "-p",
        &patch,
    ];
    world.kubectl.prints(&patch);
    let list = shell.json("ticket list stuck");
    assert_eq!(list[0]["id"], "csi-orphan");
    shell
        .ask("ticket show stuck csi-orphna")
        .ends_with(5)
        .has(&["\"csi-orphan\""]);
    shell
        .ask("ticket show stuck csi-orphan")
        .ends_with(0)
        .has(&["csi-attacher", "node-1"]);
    shell
        .ask("ticket remove stuck csi-orphan")
        .ends_with(0)
        .has(&[
            "Kubernetes VolumeAttachment \"csi-orphan\" does not exist",
            "is removed",
        ]);
    let decision = until_recorded(shell, "stuck", "removed ticket \"csi-orphan\"");
    assert!(
        decision["who"]
            .as_str()
            .is_some_and(|who| who.starts_with("alice@")),
        "{decision}"
    );

    // A person's lease is theirs until it ends, or until somebody takes the blame.
    shell.ask("volume attach stuck --node node-1").ends_with(0);
    let id = "longhorn-api-alice-node-1";
    shell
        .ask(&format!("ticket remove stuck {id}"))
        .ends_with(3)
        .has(&[
            "the lease of alice@",
            "lasts until",
            "lariat volume detach stuck --node node-1",
        ]);
    shell
        .ask(&format!("ticket remove stuck {id} --force"))
        .ends_with(2)
        .has(&["--reason"]);
    shell
        .ask(&format!(
            "ticket remove stuck {id} --force --reason 'the desk is on fire'"
        ))
        .ends_with(0)
        .has(&["is detached from node node-1"]);
    let decision = until_recorded(shell, "stuck", "by force");
    assert_eq!(decision["reasons"], json!(["the desk is on fire"]));
    until_recorded(shell, "stuck", "state: detaching → detached");
    shell
        .ask("ticket list stuck")
        .ends_with(0)
        .has(&["no tickets"]);
    shell.ask("volume delete stuck --yes").ends_with(0);
}
