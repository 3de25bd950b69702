//! What a running cluster shows on `/metrics`, and that dashboard, alerts and `docs/metrics.md` name exactly that.

#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "the cluster's own tests use more of it")]
#[path = "../cluster/world.rs"]
mod world;

mod expressions;
mod files;
mod scrape;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::scrape::{Process, Scrape, get};
use crate::support::eventually;
use crate::world::{World, condition};

const CLASS: &str = "longhorn";

/// The processes of a cluster that show metrics.
struct Watched {
    manager: Process,
    node: Process,
    /// Every family and label that was ever seen.
    seen: Scrape,
}

impl Watched {
    fn new(world: &World) -> Self {
        let token = world.cluster.folder().join("metrics-token");
        Self {
            manager: Process::of(world.cluster.folder(), &token),
            node: Process::of(&world.node_folder("node-1"), &token),
            seen: Scrape::default(),
        }
    }

    /// Waits until the manager shows it.
    fn until_manager(&mut self, what: &str, holds: impl Fn(&Scrape) -> bool) {
        let (manager, seen) = (&self.manager, &mut self.seen);
        eventually(what, || {
            let scrape = manager.scrape();
            seen.learn(&scrape);
            holds(&scrape)
        });
    }

    fn until_node(&mut self, what: &str, holds: impl Fn(&Scrape) -> bool) {
        let (node, seen) = (&self.node, &mut self.seen);
        eventually(what, || {
            let scrape = node.scrape();
            seen.learn(&scrape);
            holds(&scrape)
        });
    }
}

#[test]
fn a_cluster_shows_what_happens_to_it() {
    let world = World::new(3);
    let mut watched = Watched::new(&world);
    only_with_the_token(&world, &watched);

    world.claim("data", CLASS, "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let pod = world.running("app");
    let volume = world.volume_of("data");
    fs::write(world.path(&pod).join("file"), "some bytes").expect("a write");
    an_attach_is_counted(&mut watched, &volume);
    a_ticket_that_waits_is_counted(&world, &mut watched, &volume);
    attachments_on_their_way_are_counted(&world, &mut watched);

    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.until_none("volumeattachment");
    let detached = [("direction", "detach"), ("hop", "volume-detached")];
    watched.until_manager("the hops of a detach", |scrape| {
        scrape.sum("lariat_hop_seconds_count", &detached) >= 1.0
            && scrape.sum("lariat_passage_seconds_count", &[("direction", "detach")]) >= 1.0
    });

    a_failover_is_counted(&world, &mut watched);
    files::name_what_is_shown(&watched.seen);
}

fn only_with_the_token(world: &World, watched: &Watched) {
    let token = world.cluster.folder().join("metrics-token");
    let mode = fs::metadata(token).expect("a token").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for process in [&watched.manager, &watched.node] {
        let status = |path, token| get(&process.address, path, token).expect("an answer").0;
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert_eq!(status(path, None), 401, "{path}");
            assert_eq!(status(path, Some("0123456789abcdef")), 401, "{path}");
            assert_eq!(status(path, Some(&process.token)), 200, "{path}");
        }
        assert_eq!(status("/", Some(&process.token)), 404);
    }
}

fn an_attach_is_counted(watched: &mut Watched, volume: &str) {
    for hop in [
        "attachment-created",
        "ticket-filed",
        "node-chosen",
        "engine-created",
        "device-ready",
        "volume-attached",
        "ticket-satisfied",
        "attachment-done",
        "pod-running",
    ] {
        let labels = [("direction", "attach"), ("hop", hop)];
        watched.until_manager(&format!("the hop {hop}"), |scrape| {
            scrape.sum("lariat_hop_seconds_count", &labels) >= 1.0
        });
    }
    watched.until_manager("the volume and who leads", |scrape| {
        let attached = [("state", "attached")];
        let calls = [("method_name", "/csi.v1.Controller/ControllerPublishVolume")];
        scrape.sum("lariat_volumes", &attached) == 1.0
            && scrape.sum("lariat_manager_leading", &[]) == 1.0
            && scrape.sum("lariat_nodes", &[("ready", "true")]) == 3.0
            && scrape.sum("csi_sidecar_operations_seconds_count", &calls) >= 1.0
            && scrape.sum(
                "lariat_reconcile_seconds_count",
                &[("controller", "volume")],
            ) >= 1.0
            && scrape.families.contains_key("lariat_findings")
    });
    watched.until_node("the node's engine, its requests and calls", |scrape| {
        let writes = [("volume", volume), ("operation", "write")];
        let stage = [("method", "NodeStageVolume"), ("code", "Ok")];
        scrape.sum("lariat_node_engines", &[("state", "serving")]) == 1.0
            && scrape.sum("lariat_volume_requests_total", &writes) > 0.0
            && scrape.sum("lariat_volume_bytes_total", &writes) > 0.0
            && scrape.sum("lariat_node_staged_volumes", &[]) == 1.0
            && scrape.sum("lariat_node_replicas", &[("state", "running")]) == 1.0
            && scrape.sum("lariat_node_disk_capacity_bytes", &[]) > 0.0
            && scrape.sum("lariat_csi_call_seconds_count", &stage) == 1.0
    });
}

/// To a node that does not exist: it waits for as long as it is there.
fn a_ticket_that_waits_is_counted(world: &World, watched: &mut Watched, volume: &str) {
    let file = |ticket: &str| {
        let patch = format!("{{\"spec\":{{\"attachmentTickets\":{{\"stray\":{ticket}}}}}}}");
        let kind = "volumeattachments.longhorn.io";
        world.kubectl.prints(&[
            "--namespace",
            "longhorn-system",
            "patch",
            kind,
            volume,
            "--type=merge",
            "--patch",
            &patch,
        ]);
    };
    let by_hand = [("type", "longhorn-api")];
    let waiting = watched.manager.scrape();
    assert_eq!(waiting.sum("lariat_unsatisfied_tickets", &by_hand), 0.0);
    file(
        r#"{"id":"stray","type":"longhorn-api","nodeID":"node-9","generation":0,"parameters":{"disableFrontend":"false"}}"#,
    );
    watched.until_manager("the ticket to be counted, and found", |scrape| {
        scrape.sum("lariat_unsatisfied_tickets", &by_hand) == 1.0
            && scrape.sum("lariat_unsatisfied_ticket_seconds", &by_hand) > 0.0
            && scrape.sum("lariat_unsatisfied_ticket_oldest_seconds", &by_hand) > 0.0
            && scrape.sum("lariat_findings", &[("code", "LAR-104")]) == 1.0
    });
    file("null");
    watched.until_manager("the ticket to be counted no more", |scrape| {
        scrape.sum("lariat_unsatisfied_tickets", &by_hand) == 0.0
            && scrape.sum("lariat_findings", &[("code", "LAR-104")]) == 0.0
    });
}

/// An inline volume to a node that does not exist is attached by nobody, and Lariat takes nothing away that somebody else
/// made; somebody else's finalizer then keeps it from going.
fn attachments_on_their_way_are_counted(world: &World, watched: &mut Watched) {
    let are = |scrape: &Scrape, direction: &str, count: f64| {
        let labels = [("direction", direction)];
        let oldest = scrape.sum("lariat_pending_attachment_oldest_seconds", &labels);
        scrape.sum("lariat_pending_attachments", &labels) == count
            && (oldest > 0.0) == (count > 0.0)
    };
    watched.until_manager("nothing to be on its way", |scrape| {
        are(scrape, "attach", 0.0) && are(scrape, "detach", 0.0)
    });
    let inline = json!({
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "driver.longhorn.io", "volumeHandle": "inline"},
    });
    world.create(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": "on-its-way", "finalizers": ["example.com/hold"]},
        "spec": {"attacher": "driver.longhorn.io", "nodeName": "node-9", "source": {"inlineVolumeSpec": inline}},
    }));
    watched.until_manager("the attach to be counted", |scrape| {
        are(scrape, "attach", 1.0) && are(scrape, "detach", 0.0)
    });
    world.delete("volumeattachment", "on-its-way");
    watched.until_manager("the detach to be counted", |scrape| {
        are(scrape, "attach", 0.0) && are(scrape, "detach", 1.0)
    });
    world.kubectl.prints(&[
        "patch",
        "volumeattachments.storage.k8s.io",
        "on-its-way",
        "--type=merge",
        "--patch",
        r#"{"metadata":{"finalizers":null}}"#,
    ]);
    world.until_gone("volumeattachment", "on-its-way");
    watched.until_manager("nothing to be on its way any more", |scrape| {
        are(scrape, "attach", 0.0) && are(scrape, "detach", 0.0)
    });
}

fn a_failover_is_counted(world: &World, watched: &mut Watched) {
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let before = watched.manager.scrape();
    assert_eq!(before.sum("lariat_fences_total", &[]), 0.0);
    assert_eq!(before.sum("lariat_failovers_total", &[]), 0.0);
    world.power_off("node-1");
    eventually("node-1 to be lost", || {
        condition(&world.get("lhn", "node-1"), "Ready") == "False"
    });
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-2"));
    world.running("app");
    watched.until_manager("the failover to be counted", |scrape| {
        scrape.sum("lariat_fences_total", &[]) == 1.0
            && scrape.sum("lariat_failovers_total", &[]) == 1.0
            && scrape.sum("lariat_nodes", &[("ready", "false")]) == 1.0
    });
    // Its leftovers are taken away by the node itself.
    world.power_on("node-1");
    eventually("node-1 to be back", || {
        condition(&world.get("lhn", "node-1"), "Ready") == "True"
    });
}
