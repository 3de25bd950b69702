//! A volume that its node has and does not mount.

use expect_test::expect;
use serde_json::json;

use super::check;
use crate::dump::{ClusterDump, Unread};
use crate::findings::world::{VOLUME, World, now};
use crate::index::Index;
use crate::subject::Subject;
use crate::verdict::Verdict;
use crate::why::{Chain, why};

#[test]
fn a_node_that_does_not_mount_it() {
    let refuses = |world: &mut World, node: &str, last: &str, phase: &str| {
        world.edit("Pod app", |pod| pod["status"]["phase"] = phase.into());
        world.add(json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "pvc-1.18a", "namespace": "longhorn-system"},
            "involvedObject": {"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "name": VOLUME, "uid": "uid-pvc-1"},
            "type": "Warning", "reason": "FailedMount", "source": {"component": "driver.longhorn.io", "host": node},
            "message": "volume pvc-1: /dev/longhorn/pvc-1 holds a signature of swap and no file system",
            "firstTimestamp": "2026-01-31T11:55:00Z", "lastTimestamp": last,
        }));
    };
    check(
        "app",
        |world| refuses(world, "node-1", "2026-01-31T11:58:30Z", "Pending"),
        &expect![[r#"
            pod default/app: stuck (volume pvc-1)
              … pod        pod default/app is to run on node node-1
                             pods/default/app status.phase=Pending, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              attachment   for Kubernetes it is attached to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=true, for 120m
              ticket       csi-attacher ticket "csi-76ed8a23…" has the volume on node node-1
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              engine       its engine runs there
                             engines.longhorn.io/pvc-1-e-1 status.currentState=running on node node-1, for 10m
              replica      3 of 3 replicas have all the data
                             volumes.longhorn.io/pvc-1 status.robustness=healthy
              ! mount      node node-1 has the device and does not mount it: volume pvc-1: /dev/longhorn/pvc-1 holds a signature of swap and no file system
                             events/pvc-1.18a reason=FailedMount, for 5m
              By itself    the node tries again, with pauses of two minutes at most, and mounts it when the cause is gone
              To do        do what it says, on node node-1 where it names a device
        "#]],
    );
    // Another node's, an old one, and those that were got over say nothing.
    let recently = "2026-01-31T11:58:30Z";
    for (node, last, phase, has_sandbox) in [
        ("node-2", recently, "Pending", false),
        ("node-1", "2026-01-31T11:51:30Z", "Pending", false),
        ("node-1", recently, "Running", false),
        ("node-1", recently, "Pending", true),
    ] {
        let mut world = World::healthy();
        refuses(&mut world, node, last, phase);
        let conditions = json!([{"type": "PodReadyToStartContainers", "status": if has_sandbox { "True" } else { "False" }}]);
        world.edit("Pod app", |pod| {
            pod["status"]["conditions"] = conditions.clone();
        });
        let chain = chain_of_app(&world.dump());
        assert_eq!(
            chain.verdict,
            Verdict::Attached,
            "{node} {last} {phase} {has_sandbox}"
        );
    }
    // What is not known is not taken for well.
    let mut world = World::healthy();
    world.edit("Pod app", |pod| pod["status"]["phase"] = "Pending".into());
    let mut dump = world.dump();
    dump.unread.push(Unread {
        what: "events".to_owned(),
        why: "forbidden".to_owned(),
        whole: true,
    });
    assert_eq!(chain_of_app(&dump).unread.len(), 1);
    world.edit("Pod app", |pod| pod["status"]["phase"] = "Running".into());
    let mut running = world.dump();
    running.unread = dump.unread;
    assert_eq!(
        chain_of_app(&running).unread.len(),
        0,
        "nothing is asked of events"
    );
}

fn chain_of_app(dump: &ClusterDump) -> Chain {
    let index = Index::new(dump, now());
    let subject = Subject::resolve(&index, "app").expect("a subject");
    why(&index, &subject)
}
