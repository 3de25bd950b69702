use super::*;
use crate::csi::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

fn mount(file_system: &str, flags: &[&str]) -> Option<AccessType> {
    Some(AccessType::Mount(MountVolume {
        fs_type: file_system.to_owned(),
        mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        volume_mount_group: String::new(),
    }))
}

fn block() -> Option<AccessType> {
    Some(AccessType::Block(BlockVolume {}))
}

#[track_caller]
fn check(access_type: Option<AccessType>, mode: Mode, expected: Result<(Access, bool), &str>) {
    let capability = VolumeCapability {
        access_type,
        access_mode: Some(AccessMode { mode: mode.into() }),
    };
    match (Capability::parse(&capability), expected) {
        (Ok(found), Ok(expected)) => assert_eq!((found.access, found.read_only), expected),
        (Err(refusal), Err(part)) => assert!(refusal.sentence().contains(part), "{refusal:?}"),
        (found, expected) => panic!("{found:?}, expected {expected:?}"),
    }
}

#[test]
fn modes_become_access() {
    use Access::{ManyNodes, SingleNode, SinglePod};
    check(
        mount("", &[]),
        Mode::SingleNodeWriter,
        Ok((SingleNode, false)),
    );
    check(
        mount("xfs", &[]),
        Mode::SingleNodeMultiWriter,
        Ok((SingleNode, false)),
    );
    check(
        mount("ext4", &[]),
        Mode::SingleNodeSingleWriter,
        Ok((SinglePod, false)),
    );
    check(block(), Mode::SingleNodeReaderOnly, Ok((SingleNode, true)));
    check(block(), Mode::MultiNodeMultiWriter, Ok((ManyNodes, false)));
    check(
        mount("", &[]),
        Mode::MultiNodeMultiWriter,
        Err("volumeMode Block"),
    );
    check(
        block(),
        Mode::MultiNodeReaderOnly,
        Err("MULTI_NODE_READER_ONLY"),
    );
    check(
        block(),
        Mode::MultiNodeSingleWriter,
        Err("MULTI_NODE_SINGLE_WRITER"),
    );
    check(block(), Mode::Unknown, Err("mode is missing"));
    check(None, Mode::SingleNodeWriter, Err("access_type is missing"));
    check(
        mount("btrfs", &[]),
        Mode::SingleNodeWriter,
        Err("\"btrfs\" is not supported"),
    );
}

#[test]
fn a_capability_has_a_mode() {
    let capability = VolumeCapability {
        access_type: block(),
        access_mode: None,
    };
    let refusal = Capability::parse(&capability).expect_err("no mode");
    assert!(refusal.sentence().contains("access_mode is missing"));
    let refusal = Capability::parse_required(None).expect_err("none");
    assert!(refusal.sentence().contains("volume_capability is missing"));
}

#[test]
fn flags_are_plain_options() {
    let good = |flag: &str| {
        check(
            mount("", &[flag]),
            Mode::SingleNodeWriter,
            Ok((Access::SingleNode, false)),
        );
    };
    let bad = |flag: &str| {
        check(
            mount("", &[flag]),
            Mode::SingleNodeWriter,
            Err("mount flag"),
        );
    };
    good("noatime");
    good("commit=30");
    good("data=ordered");
    bad("");
    bad("noatime,bind");
    bad("-o");
    bad("bind");
    bad("remount");
    bad("loop=/dev/loop7");
    bad("a b");
    let long = "x".repeat(4097);
    check(
        mount("", &[&long]),
        Mode::SingleNodeWriter,
        Err("4097 bytes"),
    );
}
