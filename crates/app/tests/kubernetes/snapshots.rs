//! Snapshots, which Kubernetes has no part in: that the manager and the nodes may do all that they need is what is shown here.

use std::fs;

use crate::flow::{claim, mount_of, pod};
use crate::installation::{Attacher, Installation};
use crate::support::eventually;

const EXAMPLE: &str = include_str!("../../../../examples/snapshot.yaml");
const OURS: [&str; 2] = ["-n", "longhorn-system"];

impl Installation {
    fn take_snapshot(&self, name: &str, volume: &str) {
        let object = EXAMPLE
            .replace("before-upgrade", name)
            .replace("pvc-1", volume);
        let file = self.path("snapshot.yaml");
        fs::write(&file, object).expect("a file");
        self.kubectl(&["create", "-f", &file.to_string_lossy()]);
        eventually(&format!("snapshot {name} to be ready"), || {
            let found = self.get(&[&OURS[..], &["snapshots.longhorn.io", name]].concat());
            found.is_some_and(|found| found["status"]["readyToUse"] == true)
        });
    }

    fn until_detached(&self, volume: &str) {
        eventually("the volume to be detached", || {
            let found = self.get(&[&OURS[..], &["volumes.longhorn.io", volume]].concat());
            found.is_some_and(|found| found["status"]["state"] == "detached")
        });
    }

    fn snapshots(&self) -> usize {
        self.list(&[&OURS[..], &["snapshots.longhorn.io"]].concat())
            .len()
    }
}

pub fn snapshots_come_and_go_by_the_rights_of_the_manifests(attacher: Attacher) {
    let cluster = Installation::new(1, attacher);
    cluster.create(&claim("data", "longhorn", "Filesystem"));
    cluster.create(&pod("app", "data", None));
    let path = mount_of(&cluster.running("app"));
    fs::write(path.join("greeting"), "hello").expect("a writable volume");
    let claim = cluster.get(&["pvc", "data"]).expect("the claim");
    let volume = claim["spec"]["volumeName"].as_str().expect("it is bound");
    cluster.take_snapshot("in-use", volume);
    cluster.delete("pod", "app");
    cluster.until_gone("pod", "app");
    cluster.until_detached(volume);

    cluster.take_snapshot("not-in-use", volume);
    cluster.until_detached(volume);
    let attachments = cluster.list(&["volumeattachments.storage.k8s.io"]);
    assert!(attachments.is_empty(), "{attachments:?}");
    // Attached once more, for its data to be merged away.
    let delete = ["delete", "--wait=false", "snapshots.longhorn.io", "in-use"];
    cluster.kubectl(&[&OURS[..], &delete].concat());
    eventually("one snapshot to be gone", || cluster.snapshots() == 1);
    cluster.until_detached(volume);

    cluster.create(&pod("reader", "data", None));
    let path = mount_of(&cluster.running("reader"));
    let greeting = fs::read_to_string(path.join("greeting"));
    assert_eq!(greeting.expect("what was written"), "hello");
    cluster.delete("pod", "reader");
    cluster.until_gone("pod", "reader");
    cluster.delete("pvc", "data");
    cluster.until_nothing_is_left();
    eventually("no snapshot to be left", || cluster.snapshots() == 0);
    cluster.finish();
}
