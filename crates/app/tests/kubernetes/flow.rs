//! From a claim and a pod to a mounted volume, and back to nothing.

use std::fs;

use serde_json::Value;

use crate::installation::{Attacher, Installation};
use crate::repair::a_forgotten_ticket_is_found_and_removed;
use crate::support::eventually;
use crate::support::objects;
pub use crate::support::objects::{claim, mount_of};

/// One that a kubelet would not wait long for.
pub fn pod(name: &str, claim: &str, node: Option<&str>) -> Value {
    let mut pod = objects::pod(name, claim, node);
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    pod
}

impl Installation {
    pub fn create(&self, object: &Value) {
        let file = self.path("object.json");
        fs::write(&file, object.to_string()).expect("a file");
        self.kubectl(&["create", "-f", &file.to_string_lossy()]);
    }

    /// The pod once it runs.
    pub fn running(&self, name: &str) -> Value {
        let mut found = None;
        eventually(&format!("pod {name} to run"), || {
            found = self
                .get(&["pod", name])
                .filter(|pod| pod["status"]["phase"] == "Running");
            found.is_some()
        });
        found.expect("seen just now")
    }

    pub fn delete(&self, what: &str, name: &str) {
        self.kubectl(&["delete", "--wait=false", what, name]);
    }

    pub fn until_gone(&self, what: &str, name: &str) {
        eventually(&format!("{what} {name} to be gone"), || {
            self.get(&[what, name]).is_none()
        });
    }

    /// Waits until nothing is left that claims and pods have caused.
    pub fn until_nothing_is_left(&self) {
        let kinds = [
            "persistentvolumes",
            "volumeattachments.storage.k8s.io",
            "volumes.longhorn.io",
            "volumeattachments.longhorn.io",
            "engines.longhorn.io",
            "replicas.longhorn.io",
        ];
        for kind in kinds {
            eventually(&format!("the last of {kind} to be gone"), || {
                self.list(&["--all-namespaces", kind]).is_empty()
            });
        }
        let in_use = |node: &Value| {
            node["status"]["volumesInUse"]
                .as_array()
                .map_or(0, Vec::len)
        };
        eventually("nodes to use no volume", || {
            self.list(&["nodes"]).iter().all(|node| in_use(node) == 0)
        });
    }
}

/// The type of the file system that is mounted at a path.
fn file_system_at(path: &std::path::Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
    let path = path.to_string_lossy();
    let line = mounts
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(1) == Some(&path));
    let found = line.and_then(|line| line.split(' ').nth(2));
    found.unwrap_or_default().to_owned()
}

pub fn a_claim_and_a_pod_get_a_mounted_volume_and_leave_nothing(attacher: Attacher) {
    let cluster = Installation::new(1, attacher);
    for (name, class, mode) in [
        ("plain", "longhorn", "Filesystem"),
        ("large", "longhorn-xfs", "Filesystem"),
        ("raw", "longhorn", "Block"),
    ] {
        cluster.create(&claim(name, class, mode));
        cluster.create(&pod(name, name, None));
    }
    for (name, expected) in [("plain", "ext4"), ("large", "xfs")] {
        let path = mount_of(&cluster.running(name));
        assert_eq!(file_system_at(&path), expected, "{}", path.display());
        fs::write(path.join("greeting"), name).expect("a writable volume");
    }
    let device = mount_of(&cluster.running("raw"));
    let header = fs::read(&device).map(|bytes| bytes.len());
    assert_eq!(header.expect("a readable device"), 1 << 30);
    check_questions(&cluster);
    check_questions_in_a_pod(&cluster);
    for name in ["plain", "large", "raw"] {
        cluster.delete("pod", name);
        cluster.until_gone("pod", name);
    }
    // The same claim again, on another node that has to wait for it: what was written is there.
    a_forgotten_ticket_is_found_and_removed(&cluster, "plain", "reader");
    let path = mount_of(&cluster.running("reader"));
    let greeting = fs::read_to_string(path.join("greeting"));
    assert_eq!(greeting.expect("what was written"), "plain");
    cluster.delete("pod", "reader");
    cluster.until_gone("pod", "reader");
    for name in ["plain", "large", "raw"] {
        cluster.delete("pvc", name);
    }
    cluster.until_nothing_is_left();
    cluster.finish();
}

/// People ask the same here as of a cluster of `lariat up`.
fn check_questions(cluster: &Installation) {
    let (said, code) = cluster.lariat(&["why", "pod/plain"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("attached"), "{said}");
    let (said, code) = cluster.lariat(&["why", "pvc/large"]);
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = cluster.lariat(&["doctor"]);
    assert_eq!(code, Some(0), "{said}");
    let (said, code) = cluster.lariat(&["volume", "list"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("attached").count(), 3, "{said}");
    let (said, code) = cluster.lariat(&["node", "list"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("node-1"), "{said}");
}

/// `kubectl exec` into the manager's pod: its account may read all that the answers need. That nothing was refused, not
/// even something optional, is seen by [`Installation::finish`].
fn check_questions_in_a_pod(cluster: &Installation) {
    let asked = |arguments: &[&str], expected: i32| {
        let (said, code) = cluster.lariat_in_pod("lariat-manager", arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {said}");
        assert!(!said.contains("Not read"), "{arguments:?}: {said}");
        said
    };
    for subject in ["pod/plain", "pvc/large"] {
        let said = asked(&["why", subject], 0);
        assert!(said.contains("attached"), "{subject}: {said}");
    }
    asked(&["why", "pod/nobody"], 5);
    asked(&["doctor"], 0);
    let said = asked(&["volume", "list"], 0);
    assert_eq!(said.matches("attached").count(), 3, "{said}");
    // It was this account that asked, and not whoever a kubeconfig of this machine names. Nobody else has pages so large.
    let user = "system:serviceaccount:longhorn-system:lariat-manager";
    eventually("the account's question to be audited", || {
        cluster.plane.audited().iter().any(|event| {
            event["user"]["username"] == user && event["requestURI"] == "/api/v1/pods?limit=5000"
        })
    });
}

/// A node's account sees little, and the answers say what it does not see.
fn check_questions_with_few_rights(cluster: &Installation) {
    let (said, code) = cluster.lariat_in_pod("lariat-node", &["doctor"]);
    assert_eq!(code, Some(7), "{said}");
    for (what, is_read) in [
        ("pods", false),
        ("persistentvolumeclaims", false),
        ("persistentvolumes", false),
        ("nodes", false),
        ("volumeattachments.storage.k8s.io", false),
        ("csinodes.storage.k8s.io", false),
        ("csidrivers.storage.k8s.io", false),
        ("leases.coordination.k8s.io", false),
        ("volumes.longhorn.io", false),
        ("volumeattachments.longhorn.io", false),
        ("engines.longhorn.io", true),
        ("replicas.longhorn.io", true),
        ("nodes.longhorn.io", true),
    ] {
        let refused = format!(" {what}: {what} is forbidden");
        assert_eq!(!said.contains(&refused), is_read, "{what}: {said}");
    }
    let (said, code) = cluster.lariat_in_pod("lariat-node", &["why", "pod/plain"]);
    assert_eq!(code, Some(7), "{said}");
    let missed = "\"pod/plain\" is not among what could be read; not read: pods: pods is forbidden";
    assert!(said.contains(missed), "{said}");
}

/// What the other tests rely on: a right that somebody lacks is seen.
#[test]
fn a_request_without_the_right_to_it_is_noticed() {
    let cluster = Installation::new(1, Attacher::Lariat);
    for (account, what) in [
        ("lariat-node", "pods"),
        ("lariat-node", "secrets"),
        ("lariat-manager", "secrets"),
        ("lariat-manager", "serviceaccounts"),
    ] {
        let before = cluster.refusals().len();
        let answer = cluster.ask_as(account, &["get", "--namespace=longhorn-system", what]);
        assert!(answer.is_err(), "{account} can read all {what}");
        let refused = cluster.refusals();
        assert_eq!(refused.len(), before + 1, "{refused:?}");
    }
    check_questions_with_few_rights(&cluster);
}
