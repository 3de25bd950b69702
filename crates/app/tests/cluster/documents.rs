//! The commands that the field's own documents give to people with a stuck volume, word for word in a shell. Only the names
//! between angle brackets are put in.
//!
//! Left out, because nothing here is what they ask: `kubectl logs` of the controllers' pods (parts of the embedded mode are
//! processes, whose logs are files), and the questions to a cloud's own command line.

use std::fs::{self, File};
use std::io::Write as _;

use crate::support::eventually;
use crate::world::World;

struct Subject {
    pod: &'static str,
    volume: String,
    attachment: String,
}

impl Subject {
    fn of(world: &World, pod: &'static str, claim: &str) -> Self {
        let attachments = world.list("volumeattachment");
        let [attachment] = &attachments[..] else {
            panic!("one VolumeAttachment, not {attachments:?}");
        };
        let attachment = attachment["metadata"]["name"].as_str().expect("a name");
        Self {
            pod,
            volume: world.volume_of(claim),
            attachment: attachment.to_owned(),
        }
    }

    /// Runs lines of a document. They must succeed and print each of these.
    #[track_caller]
    fn run(&self, world: &World, lines: &str, parts: &[&str]) {
        let mut lines = lines.to_owned();
        for (placeholder, name) in [
            ("<volume-name>", self.volume.as_str()),
            ("<pv-name>", &self.volume),
            ("\"pv-name\"", &format!("\"{}\"", self.volume)),
            ("<va-name>", &self.attachment),
            ("<name>", &self.attachment),
            ("<pod-name>", self.pod),
            ("<ns>", "default"),
        ] {
            lines = lines.replace(placeholder, name);
        }
        let text = world.kubectl.shell(&lines);
        for part in parts {
            assert!(text.contains(part), "{lines}\n{part:?} is not in\n{text}");
        }
    }
}

#[test]
fn the_commands_of_the_documents_run_word_for_word() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let path = world.path(&world.running("app"));
    let mut greeting = File::create(path.join("greeting")).expect("a file");
    greeting.write_all(b"hello").expect("a write");
    greeting.sync_all().expect("a sync");
    drop(greeting);
    let subject = Subject::of(&world, "app", "data");
    questions(&world, &subject);
    the_last_resort(&world, &subject);

    eventually("the pod to have its file again", || {
        fs::read_to_string(path.join("greeting")).is_ok_and(|read| read == "hello")
    });
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    for what in ["pvc", "pv", "volumeattachment", "lhv", "lhva", "lhe", "lhr"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

/// What only looks.
fn questions(world: &World, subject: &Subject) {
    let attachment = subject.attachment.as_str();
    subject.run(
        world,
        "kubectl -n longhorn-system get volumeattachment.longhorn.io <volume-name> -o yaml",
        &[
            "attachmentTickets:",
            &format!("id: {attachment}"),
            "nodeID: node-1",
            "disableFrontend: \"false\"",
            "type: csi-attacher",
            "satisfied: true",
        ],
    );
    subject.run(
        world,
        "kubectl get volumeattachment -o wide",
        &[
            "ATTACHER",
            "driver.longhorn.io",
            &subject.volume,
            "node-1",
            "true",
        ],
    );
    subject.run(
        world,
        "kubectl describe volumeattachment <name>",
        &[attachment, "driver.longhorn.io", "Attached:", "true"],
    );
    subject.run(
        world,
        r#"kubectl get volumeattachment -o json | jq \
'.items[] | select(.spec.source.persistentVolumeName=="pv-name") |
{node:.spec.nodeName, attached:.status.attached}'"#,
        &["\"node\": \"node-1\"", "\"attached\": true"],
    );
    // The document hands the handle to a cloud's command line.
    subject.run(
        world,
        "PV_HANDLE=$(kubectl get pv <pv-name> -o jsonpath='{.spec.csi.volumeHandle}')\necho $PV_HANDLE",
        &[&subject.volume],
    );
    subject.run(
        world,
        "kubectl describe pod <pod-name> -n <ns>",
        &["Events:", "SuccessfulAttachVolume"],
    );
}

/// A person takes a living attachment away. The pod still wants its volume, so that it gets another attachment.
fn the_last_resort(world: &World, subject: &Subject) {
    let uid = || -> Option<String> {
        let found = world.try_get("volumeattachment", &subject.attachment)?;
        (found["status"]["attached"] == true).then(|| {
            let uid = found["metadata"]["uid"].as_str();
            uid.unwrap_or_default().to_owned()
        })
    };
    let delete = || {
        let before = uid().expect("it is attached");
        subject.run(
            world,
            "kubectl delete volumeattachment <va-name>",
            &["deleted"],
        );
        eventually("another attachment of the same name", || {
            uid().is_some_and(|now| now != before)
        });
    };
    // Without its finalizer, as for one that is stuck: the driver is not asked, and the engine goes on.
    let engine = world.processes(&["engine", "managed"]);
    subject.run(
        world,
        r#"kubectl patch volumeattachment <va-name> \
-p '{"metadata":{"finalizers":[]}}' --type=merge"#,
        &["patched"],
    );
    delete();
    assert_eq!(world.processes(&["engine", "managed"]), engine);
    // With it: the volume is taken from under the pod, attached again and mounted again.
    delete();
}
