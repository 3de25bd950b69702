//! The attach flow as the API saw it: every version of every object, in the order in which they were written.
//!
//! What an object contained at the moment of each hop is seen, not only what is left in the end.

use serde_json::Value;

use crate::support::eventually;
use crate::watched::{Recorder, Seen, assert_in_order, first};
use crate::world::World;

/// What is watched, by the names that the documents use.
const KINDS: [&str; 5] = [
    "pods",
    "volumeattachments.storage.k8s.io",
    "volumeattachments.longhorn.io",
    "volumes.longhorn.io",
    "engines.longhorn.io",
];

#[test]
fn each_hop_follows_from_the_one_before() {
    let world = World::new(3);
    let recorder = Recorder::start(&world, &KINDS);
    // A watch that has shown something will show everything.
    world.claim("first", "longhorn", "Filesystem");
    world.pod("first", "first", Some("node-2"));
    world.running("first");
    eventually("every watch to see something", || {
        let seen = recorder.seen();
        KINDS
            .iter()
            .all(|kind| seen.iter().any(|one| one.kind == *kind))
    });

    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    world.running("app");
    let volume = world.volume_of("data");
    let of_volume = |object: &Value| object["metadata"]["name"] == volume.as_str();
    let is_attachment = |seen: &Seen| {
        seen.object["spec"]["source"]["persistentVolumeName"] == volume.as_str() && !seen.gone
    };
    eventually("the watches to see the pod run", || {
        recorder.seen().iter().any(|one| {
            one.object["metadata"]["name"] == "app" && one.object["status"]["phase"] == "Running"
        })
    });
    attached(&recorder.seen(), &volume, &of_volume, &is_attachment);

    world.delete("pod", "app");
    world.until_gone("pod", "app");
    eventually("the watches to see the attachment go", || {
        recorder.seen().iter().any(|one| {
            one.gone && one.object["spec"]["source"]["persistentVolumeName"] == volume.as_str()
        })
    });
    detached(&recorder.seen(), &volume, &of_volume);
}

fn attached(
    seen: &[Seen],
    volume: &str,
    of_volume: &dyn Fn(&Value) -> bool,
    is_attachment: &dyn Fn(&Seen) -> bool,
) {
    let (kubernetes, tickets) = (
        "volumeattachments.storage.k8s.io",
        "volumeattachments.longhorn.io",
    );
    let asked = first(seen, "asked for", kubernetes, is_attachment);
    let attachment = &seen[asked].object;
    let id = attachment["metadata"]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    assert_eq!(attachment["spec"]["nodeName"], "node-1");
    assert_ne!(
        attachment["status"]["attached"], true,
        "nobody has done anything"
    );
    let finalized = first(seen, "finalizer and node id", kubernetes, |one| {
        let metadata = &one.object["metadata"];
        is_attachment(one)
            && metadata["finalizers"]
                .to_string()
                .contains("external-attacher/")
            && metadata["annotations"]["csi.alpha.kubernetes.io/node-id"] == "node-1"
    });
    assert_ne!(seen[finalized].object["status"]["attached"], true);
    let ticket = |one: &Seen| one.object["spec"]["attachmentTickets"][&id].clone();
    let filed = first(seen, "the ticket", tickets, |one| {
        of_volume(&one.object) && ticket(one)["nodeID"] == "node-1"
    });
    assert_eq!(ticket(&seen[filed])["type"], "csi-attacher");
    let placed = first(seen, "spec.nodeID", "volumes.longhorn.io", |one| {
        of_volume(&one.object) && one.object["spec"]["nodeID"] == "node-1"
    });
    assert_ne!(seen[placed].object["status"]["state"], "attached");
    let of_engine = |one: &Seen| one.object["spec"]["volumeName"] == volume && !one.gone;
    let wanted = first(seen, "an engine", "engines.longhorn.io", of_engine);
    let engine = &seen[wanted].object;
    assert_eq!(engine["spec"]["nodeID"], "node-1");
    assert_eq!(engine["spec"]["epoch"], 1);
    assert_eq!(
        engine["spec"]["inSyncReplicas"].as_array().map(Vec::len),
        Some(3)
    );
    let opened = first(seen, "a device", "engines.longhorn.io", |one| {
        of_engine(one)
            && one.object["status"]["currentState"] == "running"
            && one.object["status"]["endpoint"]
                .as_str()
                .is_some_and(|it| !it.is_empty())
    });
    let known = first(seen, "state attached", "volumes.longhorn.io", |one| {
        of_volume(&one.object) && one.object["status"]["state"] == "attached"
    });
    assert_eq!(seen[known].object["status"]["currentNodeID"], "node-1");
    let satisfied = first(seen, "the ticket satisfied", tickets, |one| {
        of_volume(&one.object)
            && one.object["status"]["attachmentTicketStatuses"][&id]["satisfied"] == true
    });
    let answered = first(seen, "attached", kubernetes, |one| {
        is_attachment(one) && one.object["status"]["attached"] == true
    });
    let runs = first(seen, "running", "pods", |one| {
        one.object["metadata"]["name"] == "app" && one.object["status"]["phase"] == "Running"
    });
    assert!(seen[runs].object["metadata"]["annotations"]["lariat.io/mounts"].is_string());
    assert_in_order(&[
        ("the VolumeAttachment", asked),
        ("its finalizer", finalized),
        ("the ticket", filed),
        ("Volume.spec.nodeID", placed),
        ("the engine", wanted),
        ("its device", opened),
        ("the volume's state", known),
        ("the satisfied ticket", satisfied),
        ("status.attached", answered),
        ("the running pod", runs),
    ]);
}

fn detached(seen: &[Seen], volume: &str, of_volume: &dyn Fn(&Value) -> bool) {
    let kubernetes = "volumeattachments.storage.k8s.io";
    let of_attachment = |one: &Seen| one.object["spec"]["source"]["persistentVolumeName"] == volume;
    let deleted = first(seen, "deletion", kubernetes, |one| {
        of_attachment(one) && one.object["metadata"]["deletionTimestamp"].is_string()
    });
    let behind = |at: usize| move |one: &Seen| one.revision > seen[at].revision;
    let is_later = behind(deleted);
    let withdrawn = first(seen, "no ticket", "volumeattachments.longhorn.io", |one| {
        let tickets = &one.object["spec"]["attachmentTickets"];
        is_later(one)
            && of_volume(&one.object)
            && tickets.as_object().is_none_or(serde_json::Map::is_empty)
    });
    let released = first(seen, "no node", "volumes.longhorn.io", |one| {
        is_later(one) && of_volume(&one.object) && one.object["spec"]["nodeID"] == ""
    });
    let ended = first(seen, "stopped", "engines.longhorn.io", |one| {
        is_later(one)
            && one.object["spec"]["volumeName"] == volume
            && one.object["status"]["currentState"] == "stopped"
    });
    // It closes its device by itself: nobody starts it again without one only to end it twice.
    let again = seen.iter().find(|one| {
        let spec = &one.object["spec"];
        spec["volumeName"] == volume && spec["disableFrontend"] == true
    });
    assert!(again.is_none(), "{:?}", again.map(|one| &one.object));
    let gone = first(seen, "gone", kubernetes, |one| {
        of_attachment(one) && one.gone
    });
    assert_in_order(&[
        ("the deletion", deleted),
        ("the withdrawn ticket", withdrawn),
        ("Volume.spec.nodeID", released),
        ("the stopped engine", ended),
        ("the end of the VolumeAttachment", gone),
    ]);
}
