//! Every version of every object, in the order in which they were written: one number counts all writes, so what several watches show
//! can be put in order.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::world::World;

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

#[track_caller]
pub fn assert_in_order(hops: &[(&str, usize)]) {
    for pair in hops.windows(2) {
        let ((earlier, at), (later, then)) = (pair[0], pair[1]);
        assert!(at < then, "{earlier:?} was not written before {later:?}");
    }
}
