//! The structures and numbers of linux/ublk_cmd.h that one queue needs (native byte order).

use crate::io::{ByteRange, IoFault, REQUEST_DATA_BYTES_MAX, REQUEST_SPAN_BYTES_MAX};

/// Requests under way at once.
pub const QUEUE_DEPTH: u16 = 128;

pub const CONTROL_COMMAND_BYTES: usize = 32;
pub const IO_COMMAND_BYTES: usize = 16;
pub const DEVICE_INFO_BYTES: usize = 64;
pub const DESCRIPTOR_BYTES: usize = 24;
/// Up to the end of the discard parameters; what follows is for other kinds of devices.
pub const PARAMETERS_BYTES: usize = 60;

const READS: u32 = 2;
const READS_AND_WRITES: u32 = 3;

pub const GET_DEV_INFO: u32 = number(READS, 0x02, CONTROL_COMMAND_BYTES);
pub const ADD_DEV: u32 = number(READS_AND_WRITES, 0x04, CONTROL_COMMAND_BYTES);
pub const START_DEV: u32 = number(READS_AND_WRITES, 0x06, CONTROL_COMMAND_BYTES);
pub const STOP_DEV: u32 = number(READS_AND_WRITES, 0x07, CONTROL_COMMAND_BYTES);
pub const SET_PARAMS: u32 = number(READS_AND_WRITES, 0x08, CONTROL_COMMAND_BYTES);
/// Does not wait until the last user of the device has closed it (Linux 6.9).
pub const DEL_DEV_ASYNC: u32 = number(READS, 0x14, CONTROL_COMMAND_BYTES);
/// Linux 6.16.
pub const UPDATE_SIZE: u32 = number(READS_AND_WRITES, 0x15, CONTROL_COMMAND_BYTES);
pub const FETCH_REQ: u32 = number(READS_AND_WRITES, 0x20, IO_COMMAND_BYTES);
pub const COMMIT_AND_FETCH_REQ: u32 = number(READS_AND_WRITES, 0x21, IO_COMMAND_BYTES);

/// Commands are numbered as ioctls are.
const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// Data is copied with pread and pwrite on the device, so that kernel and engine share no buffers.
const F_USER_COPY: u64 = 1 << 7;

/// The kernel chooses a number for the device.
pub const ANY_DEVICE: u32 = u32::MAX;
/// No queue in particular.
const NO_QUEUE: u16 = u16::MAX;

const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
const ATTR_FUA: u32 = 1 << 3;
const PARAM_BASIC: u32 = 1 << 0;
const PARAM_DISCARD: u32 = 1 << 1;

const SECTOR_BYTES: u64 = 512;
const BLOCK_SHIFT: u8 = 12;

const OP_READ: u32 = 0;
const OP_WRITE: u32 = 1;
const OP_FLUSH: u32 = 2;
const OP_DISCARD: u32 = 3;
const OP_WRITE_ZEROES: u32 = 5;
const FLAG_FUA: u32 = 1 << 13;
const FLAG_NO_UNMAP: u32 = 1 << 15;

const IO_BUFFERS_OFFSET: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;

const EIO: i32 = 5;
pub const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;

/// `_IOC(direction, 'u', number, size)` as most architectures have it.
const fn number(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

/// `struct ublksrv_ctrl_cmd`, with room for all that a large submission entry carries.
#[must_use]
pub fn control_command(device: u32, data: u64, address: u64, length: u16) -> [u8; 80] {
    let mut out = [0; 80];
    out[0..4].copy_from_slice(&device.to_ne_bytes());
    out[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
    out[6..8].copy_from_slice(&length.to_ne_bytes());
    out[8..16].copy_from_slice(&address.to_ne_bytes());
    out[16..24].copy_from_slice(&data.to_ne_bytes());
    out
}

/// `struct ublksrv_io_cmd` of our only queue. With data copied by pread and pwrite it has no address.
#[must_use]
pub fn io_command(tag: u16, result: i32) -> [u8; IO_COMMAND_BYTES] {
    let mut out = [0; IO_COMMAND_BYTES];
    out[2..4].copy_from_slice(&tag.to_ne_bytes());
    out[4..8].copy_from_slice(&result.to_ne_bytes());
    out
}

/// What we need of `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub device: u32,
    pub queue_depth: u16,
    pub flags: u64,
    /// For the server's own use: the kernel only keeps it. Ours tells whose device it is.
    pub mark: u64,
}

impl DeviceInfo {
    /// What a new device is asked to be.
    #[must_use]
    pub fn wanted(volume: &str) -> Self {
        Self {
            device: ANY_DEVICE,
            queue_depth: QUEUE_DEPTH,
            flags: F_CMD_IOCTL_ENCODE | F_USER_COPY,
            mark: mark_of(volume),
        }
    }

    #[must_use]
    pub fn encode(self) -> [u8; DEVICE_INFO_BYTES] {
        let mut out = [0; DEVICE_INFO_BYTES];
        out[0..2].copy_from_slice(&1u16.to_ne_bytes()); // queues
        out[2..4].copy_from_slice(&self.queue_depth.to_ne_bytes());
        out[8..12].copy_from_slice(&(REQUEST_DATA_BYTES_MAX as u32).to_ne_bytes());
        out[12..16].copy_from_slice(&self.device.to_ne_bytes());
        out[24..32].copy_from_slice(&self.flags.to_ne_bytes());
        out[32..40].copy_from_slice(&self.mark.to_ne_bytes());
        out
    }

    #[must_use]
    pub fn decode(raw: &[u8; DEVICE_INFO_BYTES]) -> Self {
        Self {
            device: u32_at(raw, 12),
            queue_depth: u16::from_ne_bytes([raw[2], raw[3]]),
            flags: u64_at(raw, 24),
            mark: u64_at(raw, 32),
        }
    }

    /// Older kernels leave out what they do not know.
    #[must_use]
    pub fn has_user_copy(self) -> bool {
        self.flags & F_USER_COPY != 0
    }
}

/// FNV-1a of the volume's name: by it a successor knows what its predecessor has left, and a device of another
/// program from both.
#[must_use]
pub fn mark_of(volume: &str) -> u64 {
    let name = b"lariat/".iter().chain(volume.as_bytes());
    name.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `struct ublk_params`: the device's shape.
#[must_use]
pub fn parameters(size_bytes: u64, sector_bytes: u32) -> [u8; PARAMETERS_BYTES] {
    let mut out = [0; PARAMETERS_BYTES];
    let mut put = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(0, PARAMETERS_BYTES as u32);
    put(4, PARAM_BASIC | PARAM_DISCARD);
    put(8, ATTR_VOLATILE_CACHE | ATTR_FUA);
    put(16, (REQUEST_DATA_BYTES_MAX / SECTOR_BYTES) as u32); // largest read or write
    put(44, 1 << BLOCK_SHIFT); // discard granularity
    put(48, (REQUEST_SPAN_BYTES_MAX / SECTOR_BYTES) as u32); // largest discard
    put(52, (REQUEST_SPAN_BYTES_MAX / SECTOR_BYTES) as u32); // largest write of zeroes
    out[12] = sector_bytes.trailing_zeros() as u8;
    out[13] = BLOCK_SHIFT; // physical block
    out[14] = BLOCK_SHIFT; // optimal I/O
    out[15] = BLOCK_SHIFT; // smallest I/O
    out[24..32].copy_from_slice(&(size_bytes / SECTOR_BYTES).to_ne_bytes());
    out[56..58].copy_from_slice(&1u16.to_ne_bytes()); // discard segments
    out
}

/// The argument of [`UPDATE_SIZE`].
#[must_use]
pub fn size_in_sectors(size_bytes: u64) -> u64 {
    size_bytes / SECTOR_BYTES
}

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Read(ByteRange),
    Write {
        range: ByteRange,
        durable: bool,
    },
    Flush,
    Discard(ByteRange),
    WriteZeroes {
        range: ByteRange,
        may_unmap: bool,
        durable: bool,
    },
}

/// Reads `struct ublksrv_io_desc`. `None`: an operation that we did not offer, or more than we asked for at once.
#[must_use]
pub fn descriptor(raw: &[u8; DESCRIPTOR_BYTES]) -> Option<Wanted> {
    let flags = u32_at(raw, 0);
    let offset = u64_at(raw, 8).checked_mul(SECTOR_BYTES)?;
    let range = ByteRange::new(offset, u64::from(u32_at(raw, 4)) * SECTOR_BYTES);
    range.end()?;
    let within = |limit: u64| (range.length <= limit).then_some(());
    let durable = flags & FLAG_FUA != 0;
    match flags & 0xff {
        OP_READ => within(REQUEST_DATA_BYTES_MAX).map(|()| Wanted::Read(range)),
        OP_WRITE => within(REQUEST_DATA_BYTES_MAX).map(|()| Wanted::Write { range, durable }),
        OP_FLUSH => Some(Wanted::Flush),
        OP_DISCARD => within(REQUEST_SPAN_BYTES_MAX).map(|()| Wanted::Discard(range)),
        OP_WRITE_ZEROES => within(REQUEST_SPAN_BYTES_MAX).map(|()| Wanted::WriteZeroes {
            range,
            may_unmap: flags & FLAG_NO_UNMAP == 0,
            durable,
        }),
        _ => None,
    }
}

/// Where in the device a request's data is, for pread and pwrite.
#[must_use]
pub fn data_offset(tag: u16) -> u64 {
    IO_BUFFERS_OFFSET + (u64::from(tag) << TAG_SHIFT)
}

#[must_use]
pub fn error_result(fault: IoFault) -> i32 {
    match fault {
        IoFault::Invalid => -EINVAL,
        IoFault::NoSpace => -ENOSPC,
        IoFault::Failed | IoFault::ShuttingDown | IoFault::Fenced => -EIO,
    }
}

fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*raw[at..].first_chunk().expect("within a fixed layout"))
}

fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*raw[at..].first_chunk().expect("within a fixed layout"))
}

#[cfg(test)]
mod tests;
