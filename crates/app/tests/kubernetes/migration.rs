//! A volume moves while it is in use: two pods on two nodes, as a virtual machine's launchers are.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde_json::json;

use crate::flow::{claim, mount_of, pod};
use crate::installation::{Attacher, Installation};
use crate::support::eventually;

const BLOCK: usize = 4096;

/// Direct I/O wants memory that is aligned.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// Past the page cache, which another node's writes do not reach.
fn open(path: &Path) -> File {
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag");
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .custom_flags(direct)
        .open(path);
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(device: &File, byte: u8) {
    let written = device.write_all_at(&Aligned([byte; BLOCK]).0, 0);
    written.expect("a writable device");
}

fn read(device: &File) -> u8 {
    let mut data = Aligned([0; BLOCK]);
    device
        .read_exact_at(&mut data.0, 0)
        .expect("a readable device");
    data.0[0]
}

pub fn a_volume_moves_to_another_node_while_it_is_used(attacher: Attacher) {
    let cluster = Installation::new(1, attacher);
    let mut claim = claim("disk", "longhorn-migratable", "Block");
    claim["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    cluster.create(&claim);
    cluster.create(&pod("source", "disk", Some("node-1")));
    let source = open(&mount_of(&cluster.running("source")));
    write(&source, 1);
    cluster.create(&pod("target", "disk", Some("node-2")));
    let target = open(&mount_of(&cluster.running("target")));
    assert_eq!(read(&target), 1, "the target sees what the source wrote");
    write(&source, 2);
    assert_eq!(read(&target), 2, "and what it writes while both are there");
    drop(source);
    cluster.delete("pod", "source");
    cluster.until_gone("pod", "source");
    write(&target, 3);
    assert_eq!(read(&target), 3);
    eventually("the volume to be on the target's node alone", || {
        let volumes = cluster.list(&["-n", "longhorn-system", "volumes.longhorn.io"]);
        let attachments = cluster.list(&["volumeattachments.storage.k8s.io"]);
        volumes[0]["spec"]["nodeID"] == "node-2"
            && volumes[0]["spec"]["migrationNodeID"]
                .as_str()
                .unwrap_or_default()
                .is_empty()
            && attachments.len() == 1
    });
    drop(target);
    cluster.delete("pod", "target");
    cluster.until_gone("pod", "target");
    cluster.delete("pvc", "disk");
    cluster.until_nothing_is_left();
    cluster.finish();
}
