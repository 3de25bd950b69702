//! Troubles that only last while no manager works: it hangs, for real, and is killed at last as its page says.
//!
//! - LAR-133: that is the trouble itself. What ends it is another manager, which `lariat up` starts when this one is gone.
//! - LAR-103: a manager at work withdraws such a ticket at once; one that was filed by somebody else's manager, or while
//!   there was none, stays.
//! - LAR-113: the attacher tells Kubernetes as soon as a ticket is satisfied, and runs inside the manager here.

use std::path::PathBuf;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::clinic::{Answer, fix, run, until_found, until_gone, until_noted, until_why};
use crate::support::eventually;
use crate::world::World;

impl World {
    pub fn manager(&self) -> Vec<i32> {
        let manager = self.processes(&["manager --embedded"]);
        assert!(!manager.is_empty(), "no manager runs");
        manager
    }

    /// It lives and does nothing any more: nobody starts another one.
    fn freeze_manager(&self) {
        for pid in self.manager().into_iter().filter_map(Pid::from_raw) {
            kill_process(pid, Signal::STOP).expect("the manager can be stopped");
        }
    }

    fn has_backup(&self, name: &str) -> bool {
        let asked = ["-n", "longhorn-system", "get", "backups.longhorn.io", name];
        self.kubectl.run(&asked).status.success()
    }
}

#[test]
fn while_no_manager_works() {
    let world = &World::new(3);
    let kubeconfig = world.cluster.kubeconfig();
    world.claim("data", "longhorn", "Filesystem");
    world.claim("ledger", "longhorn", "Filesystem");
    world.claim("journal", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let (volume, ledger) = (world.volume_of("data"), world.bound("ledger"));
    let journal = world.bound("journal");
    world.until_detached(&ledger);
    world.until_detached(&journal);

    world.freeze_manager();
    kubernetes_forgets_an_attach(world);
    a_backup_without_a_snapshot(world, &ledger);
    world.pod("guest", "ledger", Some("node-2"));
    until_found(&kubeconfig, "LAR-133");
    until_why(
        &kubeconfig,
        "guest",
        4,
        &["no manager is at work", "LAR-133", "LAR-103", "--fix"],
    );
    until_found(&kubeconfig, "LAR-113");
    until_why(
        &kubeconfig,
        "app",
        4,
        &["LAR-113", "Kubernetes has not been told", "LAR-133"],
    );

    a_snapshot_that_is_gone(world, &journal);

    // The backup goes, and not its ticket: that goes with a manager, for which the repair waits before it says so.
    let fixing = fixes(kubeconfig.clone(), ledger.clone());
    eventually("the backup to be gone", || !world.has_backup("b"));
    let tickets = world.get("lhva", &ledger)["spec"]["attachmentTickets"].clone();
    assert!(tickets["backup-controller-b"].is_object(), "{tickets}");
    world.kill(&world.manager());
    let fixed = fixing.join().expect("an answer");
    let said = format!("{}{}", fixed.text, fixed.errors);
    assert!(
        said.contains("LAR-103: repaired: remove backup b"),
        "{said}"
    );
    until_gone(&kubeconfig, "LAR-103");

    for (pod, volume) in [("guest", &ledger), ("visitor", &journal)] {
        world.running(pod);
        until_why(&kubeconfig, pod, 0, &["attached"]);
        until_noted(&kubeconfig, volume, "LAR-103");
    }
    until_gone(&kubeconfig, "LAR-133");
    until_gone(&kubeconfig, "LAR-113");
    world.end_pod("guest", &ledger);
    world.end_pod("visitor", &journal);
    world.end_pod("app", &volume);
    world.pod("app", "data", Some("node-3"));
    world.running("app");
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.end_pod("app", &volume);
}

fn fixes(kubeconfig: PathBuf, subject: String) -> thread::JoinHandle<Answer> {
    thread::spawn(move || run(&kubeconfig, &["doctor", &subject, "--fix"]))
}

/// LAR-113, a minute later: what the attacher wrote is taken back, and nobody writes it again.
fn kubernetes_forgets_an_attach(world: &World) {
    let attachments = world.list("volumeattachment");
    let [attachment] = attachments.as_slice() else {
        panic!("{attachments:?}");
    };
    let name = attachment["metadata"]["name"].as_str().expect("a name");
    let line = [
        "patch",
        "volumeattachments.storage.k8s.io",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status":{"attached":false}}"#,
    ];
    world.kubectl.prints(&line);
}

/// LAR-103: a backup that waits for a snapshot that is gone holds a ticket (longhorn #10090).
fn a_backup_without_a_snapshot(world: &World, volume: &str) {
    let backup = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Backup",
        "metadata": {"name": "b", "namespace": "longhorn-system", "labels": {"backup-volume": volume}},
        "spec": {"snapshotName": "gone"},
    });
    world
        .kubectl
        .feeds(&["apply", "-f", "-"], &backup.to_string());
    world.file(
        volume,
        "backup-controller-b",
        "backup-controller",
        "node-1",
        r#""disableFrontend":"any""#,
    );
}

/// LAR-103: a snapshot that was removed while it was taken leaves its ticket behind, and a pod waits elsewhere. Nobody but the
/// repair takes it out: no manager works.
fn a_snapshot_that_is_gone(world: &World, volume: &str) {
    let kubeconfig = world.cluster.kubeconfig();
    let snapshot = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot",
        "metadata": {"name": "s", "namespace": "longhorn-system"},
        "spec": {"volume": volume, "createSnapshot": true},
    });
    let made = snapshot.to_string();
    world.kubectl.feeds(&["apply", "-f", "-"], &made);
    let ticket = "snapshot-controller-s";
    let parameters = r#""disableFrontend":"any""#;
    world.file(volume, ticket, "snapshot-controller", "node-1", parameters);
    world.pod("visitor", "journal", Some("node-2"));
    // As long as the snapshot is to be taken, its ticket is needed.
    let answer = run(&kubeconfig, &["doctor", volume]);
    assert!(!answer.text.contains("LAR-103"), "{}", answer.text);
    let line = [
        "-n",
        "longhorn-system",
        "delete",
        "snapshots.longhorn.io",
        "s",
    ];
    world.kubectl.prints(&line);

    let said = [
        ticket,
        "the snapshot \"s\" that it was filed for does not exist",
        "LAR-103",
        "--fix",
    ];
    until_why(&kubeconfig, "visitor", 4, &said);
    fix(&kubeconfig, volume, "LAR-103");
    let tickets = world.get("lhva", volume)["spec"]["attachmentTickets"].clone();
    assert!(tickets[ticket].is_null(), "{tickets}");
}
