//! Every version of every object, in the order in which they were written: one number counts all writes, so what several watches show
//! can be put in order.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::eventually;
use crate::world::World;

/// What is watched, by the names that the documents use.
pub const PODS: &str = "pods";
pub const KUBERNETES: &str = "volumeattachments.storage.k8s.io";
pub const TICKETS: &str = "volumeattachments.longhorn.io";
pub const VOLUMES: &str = "volumes.longhorn.io";
pub const ENGINES: &str = "engines.longhorn.io";

/// Watches that write down what they see; they end with this.
pub struct Recorder {
    watches: Vec<(&'static str, PathBuf, Child)>,
}

/// One version of one object.
pub struct Seen {
    pub revision: u64,
    pub kind: &'static str,
    pub gone: bool,
    pub object: Value,
}

impl Recorder {
    /// Of kinds by the names that `kubectl get` takes.
    pub fn start(world: &World, kinds: &[&'static str]) -> Self {
        let watch = |kind: &'static str| {
            let file = world.cluster.folder().join(format!("watched-{kind}"));
            let arguments = [
                "get",
                kind,
                "--all-namespaces",
                "--watch",
                "--output-watch-events",
                "-o",
                "json",
            ];
            let child = world
                .kubectl
                .command(&arguments)
                .stdout(File::create(&file).expect("a file"))
                .stderr(Stdio::null())
                .spawn()
                .expect("kubectl starts");
            (kind, file, child)
        };
        Self {
            watches: kinds.iter().copied().map(watch).collect(),
        }
    }

    /// All that was seen so far, oldest first.
    pub fn seen(&self) -> Vec<Seen> {
        let mut all = Vec::new();
        for (kind, file, _) in &self.watches {
            let text = std::fs::read_to_string(file).expect("what was seen");
            let events = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            // The last one may not be whole yet.
            for event in events.map_while(Result::ok) {
                let object = event["object"].clone();
                let revision = object["metadata"]["resourceVersion"].as_str();
                all.push(Seen {
                    revision: revision.and_then(|it| it.parse().ok()).expect("a revision"),
                    kind,
                    gone: event["type"] == "DELETED",
                    object,
                });
            }
        }
        all.sort_by_key(|seen| seen.revision);
        all
    }

    /// All that was seen, once that is enough. The watches do not wait for one another: each has to have shown its own last hop.
    #[track_caller]
    pub fn until(&self, what: &str, is_enough: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let mut seen = Vec::new();
        eventually(&format!("the watches to see {what}"), || {
            seen = self.seen();
            is_enough(&seen)
        });
        seen
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for (_, _, child) in &mut self.watches {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The place of the first version of a kind that is as described.
#[track_caller]
pub fn first(seen: &[Seen], what: &str, kind: &str, is: impl Fn(&Seen) -> bool) -> usize {
    let found = seen.iter().position(|one| one.kind == kind && is(one));
    found.unwrap_or_else(|| panic!("no version of {kind} shows: {what}"))
}

/// The last version of a kind that is as described.
pub fn last<'a>(seen: &'a [Seen], kind: &str, is: impl Fn(&Seen) -> bool) -> Option<&'a Seen> {
    seen.iter().rfind(|one| one.kind == kind && is(one))
}

#[track_caller]
pub fn assert_in_order(hops: &[(&str, usize)]) {
    for pair in hops.windows(2) {
        let ((earlier, at), (later, then)) = (pair[0], pair[1]);
        assert!(at < then, "{earlier:?} was not written before {later:?}");
    }
}

/// Whether it is the volume, its tickets, an engine of it, or Kubernetes' VolumeAttachment of it.
pub fn is_of(one: &Seen, volume: &str) -> bool {
    let spec = &one.object["spec"];
    match one.kind {
        VOLUMES | TICKETS => one.object["metadata"]["name"] == volume,
        ENGINES => spec["volumeName"] == volume,
        KUBERNETES => spec["source"]["persistentVolumeName"] == volume,
        _ => false,
    }
}

/// The tickets that are filed, in the order of their ids.
pub fn tickets(one: &Seen) -> impl Iterator<Item = &Value> {
    let tickets = one.object["spec"]["attachmentTickets"].as_object();
    tickets.into_iter().flat_map(|all| all.values())
}

/// The nodes of the tickets that are filed, in order.
pub fn ticket_nodes(one: &Seen) -> Vec<&str> {
    let nodes = tickets(one).filter_map(|ticket| ticket["nodeID"].as_str());
    let mut nodes: Vec<&str> = nodes.collect();
    nodes.sort_unstable();
    nodes
}

/// The statuses of tickets, in the order of the tickets' ids.
pub fn statuses(one: &Seen) -> Vec<&Value> {
    let statuses = one.object["status"]["attachmentTicketStatuses"].as_object();
    statuses.into_iter().flat_map(|all| all.values()).collect()
}

/// Where a VolumeAttachment of Kubernetes is deleted, and where it is gone.
pub struct Detached {
    pub deleted: usize,
    pub gone: usize,
}

/// The only holder's detachment, from the deletion of Kubernetes' VolumeAttachment on: each hop, in its place.
pub fn detached(seen: &[Seen], volume: &str, node: &str) -> Detached {
    let of_node = |one: &Seen| is_of(one, volume) && one.object["spec"]["nodeName"] == node;
    let deleted = first(seen, "deletion", KUBERNETES, |one| {
        of_node(one) && one.object["metadata"]["deletionTimestamp"].is_string()
    });
    let attachment = &seen[deleted].object;
    assert_eq!(
        attachment["status"]["attached"], true,
        "the driver has not answered yet"
    );
    let id = attachment["metadata"]["name"].as_str().expect("a name");
    let is_later = |one: &Seen| is_of(one, volume) && one.revision > seen[deleted].revision;
    let withdrawn = first(seen, "no ticket", TICKETS, |one| {
        is_later(one) && tickets(one).next().is_none()
    });
    let forgotten = first(seen, "no status of the ticket", TICKETS, |one| {
        is_later(one) && one.object["status"]["attachmentTicketStatuses"][id].is_null()
    });
    let released = first(seen, "no node", VOLUMES, |one| {
        is_later(one) && one.object["spec"]["nodeID"] == ""
    });
    let ended = first(seen, "stopped", ENGINES, |one| {
        is_later(one) && one.object["status"]["currentState"] == "stopped"
    });
    let left = first(seen, "no current node", VOLUMES, |one| {
        is_later(one) && one.object["status"]["currentNodeID"] == ""
    });
    // It closes its device by itself: nobody starts it again without one only to end it twice.
    let again = seen.iter().find(|one| {
        one.kind == ENGINES && is_of(one, volume) && one.object["spec"]["disableFrontend"] == true
    });
    assert!(again.is_none(), "{:?}", again.map(|one| &one.object));
    let gone = first(seen, "gone", KUBERNETES, |one| of_node(one) && one.gone);
    assert_in_order(&[
        ("the deletion", deleted),
        ("the withdrawn ticket", withdrawn),
        ("the end of its status", forgotten),
        ("Volume.spec.nodeID", released),
        ("the stopped engine", ended),
        ("Volume.status.currentNodeID", left),
        ("the end of the VolumeAttachment", gone),
    ]);
    // The replicas end after the engine. Kubernetes does not wait for them, so that this comes before its answer or after.
    let at_rest = first(seen, "state detached", VOLUMES, |one| {
        is_of(one, volume)
            && one.revision >= seen[left].revision
            && one.object["status"]["state"] == "detached"
    });
    assert_eq!(seen[at_rest].object["status"]["currentNodeID"], "");
    Detached { deleted, gone }
}
