//! What a power failure leaves of writes that were on their way, on a real file system: blocks that are allocated and
//! were never filled.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::*;
use crate::layer_files::data_name;

const FIRST_BOOT: HostBoot = [1; 16];
const SECOND_BOOT: HostBoot = [2; 16];

fn open(path: &Path, boot: HostBoot) -> Replica<RealDisk> {
    let disk = RealDisk::open(path).expect("a disk");
    let replica = Replica::open_in(disk, boot).expect("a replica");
    replica.open_epoch(EPOCH).expect("an epoch");
    replica
}

/// A snapshot has blocks 0 to 8, and the head has written 0 to 7 and block 8 was on its way. Returns the head's file.
fn cut_off_while_writing(path: &Path) -> File {
    drop(create(RealDisk::create(path).expect("a disk"), 1 << 20));
    let replica = open(path, FIRST_BOOT);
    write(&replica, 0, 9, 1);
    snapshot(&replica, "s");
    write(&replica, 0, 8, 2);
    replica.flush(EPOCH).expect("a flush");
    let head = path.join(data_name(replica.shared().head.id));
    drop(replica);
    let head = File::options().read(true).write(true).open(head);
    let head = head.expect("the head's file");
    let (at, length) = (8 * BLOCK as u64, BLOCK as u64);
    fallocate(&head, FallocateFlags::empty(), at, length).expect("a block that nobody filled");
    head
}

/// As anybody does who reads the file from its beginning.
fn bring_into_memory(file: &File) {
    let mut bytes = vec![0; 1 << 20];
    std::os::unix::fs::FileExt::read_at(file, &mut bytes, 0).expect("a read");
}

#[test]
fn they_hide_nothing_below_them() {
    for read_before_it_is_opened in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("v");
        let head = cut_off_while_writing(&path);
        if read_before_it_is_opened {
            bring_into_memory(&head);
        }
        let replica = open(&path, SECOND_BOOT);
        assert_eq!((read(&replica, 7), read(&replica, 8)), (2, 1));
        bring_into_memory(&head);
        // A merge asks the file which blocks it has.
        snapshot(&replica, "t");
        replica
            .delete_snapshot(EPOCH, &name("t"))
            .expect("a deletion");
        replica.purge(EPOCH).expect("a merge");
        assert_eq!((read(&replica, 7), read(&replica, 8)), (2, 1));
        drop(replica);
        let replica = open(&path, SECOND_BOOT);
        assert_eq!((read(&replica, 7), read(&replica, 8)), (2, 1));
    }
}

/// What was written since the machine started and is not on the disk yet looks the same to the file system.
#[test]
fn blocks_that_wait_for_the_disk_are_not_taken_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("v");
    drop(cut_off_while_writing(&path));
    let replica = open(&path, SECOND_BOOT);
    write(&replica, 8, 4, 3);
    drop(replica);
    let replica = open(&path, SECOND_BOOT);
    assert_eq!((read(&replica, 8), read(&replica, 11)), (3, 3));
}
