//! Expected numbers are computed from the kernel's header by hand, not by the code above.

use super::*;

#[test]
fn commands_have_the_kernels_numbers() {
    for (found, expected) in [
        (GET_DEV_INFO, 0x8020_7502),
        (ADD_DEV, 0xc020_7504),
        (START_DEV, 0xc020_7506),
        (STOP_DEV, 0xc020_7507),
        (SET_PARAMS, 0xc020_7508),
        (DEL_DEV_ASYNC, 0x8020_7514),
        (UPDATE_SIZE, 0xc020_7515),
        (FETCH_REQ, 0xc010_7520),
        (COMMIT_AND_FETCH_REQ, 0xc010_7521),
    ] {
        assert_eq!(found, expected, "{found:#x} is not {expected:#x}");
    }
}

/// The structures once more as C lays them out, to compare bytes with.
#[repr(C)]
struct ControlCommand {
    device: u32,
    queue: u16,
    length: u16,
    address: u64,
    data: u64,
    path_length: u16,
    pad: u16,
    reserved: u32,
}

#[repr(C)]
struct Descriptor {
    op_flags: u32,
    sectors: u32,
    start_sector: u64,
    address: u64,
}

#[repr(C)]
struct Basic {
    attributes: u32,
    shifts: [u8; 4],
    sectors_max: u32,
    chunk_sectors: u32,
    device_sectors: u64,
    boundary_mask: u64,
}

#[repr(C)]
struct Discard {
    alignment: u32,
    granularity: u32,
    discard_sectors_max: u32,
    zeroes_sectors_max: u32,
    segments_max: u16,
    reserved: u16,
}

#[repr(C)]
struct Parameters {
    length: u32,
    types: u32,
    basic: Basic,
    discard: Discard,
}

#[test]
fn layouts_are_those_of_c() {
    use std::mem::offset_of;
    assert_eq!(size_of::<ControlCommand>(), CONTROL_COMMAND_BYTES);
    assert_eq!(offset_of!(ControlCommand, length), 6);
    assert_eq!(offset_of!(ControlCommand, address), 8);
    assert_eq!(offset_of!(ControlCommand, data), 16);
    assert_eq!(size_of::<Descriptor>(), DESCRIPTOR_BYTES);
    assert_eq!(offset_of!(Parameters, basic), 8);
    assert_eq!(
        offset_of!(Parameters, basic) + offset_of!(Basic, shifts),
        12
    );
    assert_eq!(
        offset_of!(Parameters, basic) + offset_of!(Basic, sectors_max),
        16
    );
    assert_eq!(
        offset_of!(Parameters, basic) + offset_of!(Basic, device_sectors),
        24
    );
    assert_eq!(offset_of!(Parameters, discard), 40);
    assert_eq!(
        offset_of!(Parameters, discard) + size_of::<Discard>(),
        PARAMETERS_BYTES
    );
}

#[test]
fn a_control_command_is_encoded() {
    let raw = control_command(7, 0x1122, 0xaabb_ccdd, 64);
    assert_eq!(raw[0..4], 7u32.to_ne_bytes());
    assert_eq!(raw[4..6], [0xff, 0xff], "no queue");
    assert_eq!(raw[6..8], 64u16.to_ne_bytes());
    assert_eq!(raw[8..16], 0xaabb_ccddu64.to_ne_bytes());
    assert_eq!(raw[16..24], 0x1122u64.to_ne_bytes());
    assert!(raw[24..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_io_command_is_encoded() {
    let raw = io_command(5, -22);
    assert_eq!(raw[0..2], [0, 0], "the only queue");
    assert_eq!(raw[2..4], 5u16.to_ne_bytes());
    assert_eq!(raw[4..8], (-22i32).to_ne_bytes());
    assert_eq!(raw[8..16], [0; 8], "no address");
}

#[test]
fn a_device_is_asked_for_and_recognised() {
    let wanted = DeviceInfo::wanted("data");
    let raw = wanted.encode();
    assert_eq!(raw[0..2], 1u16.to_ne_bytes(), "one queue");
    assert_eq!(raw[8..12], (1u32 << 20).to_ne_bytes(), "buffers of 1 MiB");
    assert_eq!(DeviceInfo::decode(&raw), wanted);
    assert!(wanted.has_user_copy());
    assert_ne!(mark_of("data"), mark_of("data2"));
    assert_ne!(mark_of("data"), 0, "others leave it empty");
}

#[test]
fn parameters_describe_the_volume() {
    for (sector_bytes, shift) in [(512, 9), (4096, 12)] {
        let raw = parameters(1 << 30, sector_bytes);
        assert_eq!(raw[0..4], 60u32.to_ne_bytes());
        assert_eq!(raw[4..8], 3u32.to_ne_bytes(), "basic and discard");
        assert_eq!(raw[8..12], 12u32.to_ne_bytes(), "a cache to flush, and FUA");
        assert_eq!(raw[12..16], [shift, 12, 12, 12]);
        assert_eq!(raw[16..20], 2048u32.to_ne_bytes(), "1 MiB at once");
        assert_eq!(raw[24..32], (2u64 << 20).to_ne_bytes(), "1 GiB in sectors");
        assert_eq!(raw[44..48], 4096u32.to_ne_bytes());
        assert_eq!(raw[48..52], 131_072u32.to_ne_bytes(), "64 MiB at once");
        assert_eq!(raw[52..56], 131_072u32.to_ne_bytes());
        assert_eq!(raw[56..58], 1u16.to_ne_bytes());
    }
}

#[test]
fn descriptors_become_operations() {
    let range = ByteRange::new(8 * 512, 16 * 512);
    let large = ByteRange::new(8 * 512, 2049 * 512);
    for (op_flags, sectors, expected) in [
        (0, 16, Some(Wanted::Read(range))),
        (
            1,
            16,
            Some(Wanted::Write {
                range,
                durable: false,
            }),
        ),
        (
            1 | 1 << 13,
            16,
            Some(Wanted::Write {
                range,
                durable: true,
            }),
        ),
        // Hints that a request is metadata, or may fail fast, change nothing.
        (
            1 | 1 << 8 | 1 << 11,
            16,
            Some(Wanted::Write {
                range,
                durable: false,
            }),
        ),
        (2, 0, Some(Wanted::Flush)),
        (3, 16, Some(Wanted::Discard(range))),
        (3, 2049, Some(Wanted::Discard(large))),
        (
            5,
            16,
            Some(Wanted::WriteZeroes {
                range,
                may_unmap: true,
                durable: false,
            }),
        ),
        (
            5 | 1 << 15,
            16,
            Some(Wanted::WriteZeroes {
                range,
                may_unmap: false,
                durable: false,
            }),
        ),
        (0, 2049, None),
        (1, 2049, None),
        (3, 131_073, None),
        (4, 16, None),
        (15, 16, None),
    ] {
        let mut raw = [0; DESCRIPTOR_BYTES];
        raw[0..4].copy_from_slice(&(op_flags as u32).to_ne_bytes());
        raw[4..8].copy_from_slice(&(sectors as u32).to_ne_bytes());
        raw[8..16].copy_from_slice(&8u64.to_ne_bytes());
        assert_eq!(
            descriptor(&raw),
            expected,
            "{op_flags:#x}, {sectors} sectors"
        );
    }
}

#[test]
fn data_is_found_by_its_tag() {
    assert_eq!(data_offset(0), 0x8000_0000);
    assert_eq!(data_offset(3), 0x8000_0000 + 3 * (32 << 20));
}

proptest::proptest! {
    #[test]
    fn no_descriptor_panics(raw: [u8; DESCRIPTOR_BYTES]) {
        let _ = descriptor(&raw);
    }
}
