//! The few messages of the FUSE protocol that one regular file needs (linux/fuse.h; native byte order).

use bytes::{BufMut, Bytes, BytesMut};

use crate::io::{BLOCK_BYTES, IoFault, REQUEST_DATA_BYTES_MAX};

/// The kernel refuses reads from the channel into less than its largest request needs.
pub const CHANNEL_READ_BYTES: usize = REQUEST_DATA_BYTES_MAX as usize + HEADERS_BYTES_MAX;
/// An in-header and a write's own header, with room for extensions.
const HEADERS_BYTES_MAX: usize = 4096;

const IN_HEADER_BYTES: usize = 40;
const WRITE_IN_BYTES: usize = 40;

const OP_FORGET: u32 = 2;
const OP_GETATTR: u32 = 3;
const OP_OPEN: u32 = 14;
const OP_READ: u32 = 15;
const OP_WRITE: u32 = 16;
const OP_STATFS: u32 = 17;
const OP_RELEASE: u32 = 18;
const OP_FSYNC: u32 = 20;
const OP_FLUSH: u32 = 25;
const OP_INIT: u32 = 26;
const OP_INTERRUPT: u32 = 36;
const OP_DESTROY: u32 = 38;
const OP_BATCH_FORGET: u32 = 42;
const OP_FALLOCATE: u32 = 43;

const INIT_ASYNC_READ: u64 = 1 << 0;
const INIT_BIG_WRITES: u64 = 1 << 5;
const INIT_ASYNC_DIO: u64 = 1 << 15;
const INIT_MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const INIT_HAS_RESEND: u64 = 1 << 39;

const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_NOFLUSH: u32 = 1 << 5;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 16;

/// Requests that the loop device may have under way. The kernel's default of 12 would throttle it.
const BACKGROUND_REQUESTS_MAX: u16 = 1024;

/// The notification that asks the kernel to send again what was read and not answered (Linux 6.9).
const NOTIFY_RESEND: i32 = 7;

pub const ENOSYS: i32 = 38;
pub const EINVAL: i32 = 22;
pub const EOPNOTSUPP: i32 = 95;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A request from the kernel, with the number under which it is answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    pub unique: u64,
    pub body: Body,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    Init {
        minor: u32,
        flags: u64,
    },
    GetAttributes,
    Open,
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        data: Bytes,
    },
    Sync,
    Punch {
        offset: u64,
        length: u64,
    },
    ZeroRange {
        offset: u64,
        length: u64,
        may_unmap: bool,
    },
    StatFs,
    /// Answered with success and nothing else.
    Release,
    /// Needs no answer: forget, interrupt, destroy.
    Silent,
    /// Answered with this error number.
    Refused(i32),
}

/// Reads one message. `None`: shorter than it says it is, which a kernel never sends.
#[must_use]
pub fn parse(raw: &Bytes) -> Option<Message> {
    let header = raw.get(..IN_HEADER_BYTES)?;
    let unique = u64_at(header, 8)?;
    // A directory's or another file's operations cannot occur: the root is the only inode.
    let arguments = &raw[IN_HEADER_BYTES..];
    let body = match u32_at(header, 4)? {
        OP_INIT => {
            let low = u64::from(u32_at(arguments, 12)?);
            let high = if low & INIT_EXT != 0 {
                u64::from(u32_at(arguments, 16)?)
            } else {
                0
            };
            Body::Init {
                minor: u32_at(arguments, 4)?,
                flags: high << 32 | low,
            }
        }
        OP_GETATTR => Body::GetAttributes,
        OP_OPEN => Body::Open,
        OP_READ => Body::Read {
            offset: u64_at(arguments, 8)?,
            length: u32_at(arguments, 16)?,
        },
        OP_WRITE => {
            let length = u32_at(arguments, 16)? as usize;
            let start = IN_HEADER_BYTES + WRITE_IN_BYTES;
            let end = start.checked_add(length).filter(|end| *end <= raw.len())?;
            Body::Write {
                offset: u64_at(arguments, 8)?,
                data: raw.slice(start..end),
            }
        }
        OP_FSYNC => Body::Sync,
        OP_FALLOCATE => {
            let (offset, length) = (u64_at(arguments, 8)?, u64_at(arguments, 16)?);
            match u32_at(arguments, 24)? & !FALLOC_KEEP_SIZE {
                FALLOC_PUNCH_HOLE => Body::Punch { offset, length },
                FALLOC_ZERO_RANGE => Body::ZeroRange {
                    offset,
                    length,
                    may_unmap: false,
                },
                _ => Body::Refused(EOPNOTSUPP),
            }
        }
        OP_STATFS => Body::StatFs,
        OP_RELEASE | OP_FLUSH => Body::Release,
        OP_FORGET | OP_BATCH_FORGET | OP_INTERRUPT | OP_DESTROY => Body::Silent,
        _ => Body::Refused(ENOSYS),
    };
    Some(Message { unique, body })
}

/// The header of an answer with `payload_bytes` behind it; `error` is 0 or positive.
#[must_use]
pub fn answer_header(unique: u64, error: i32, payload_bytes: usize) -> [u8; 16] {
    let mut out = [0; 16];
    let length = u32::try_from(16 + payload_bytes).expect("answers are bounded");
    out[..4].copy_from_slice(&length.to_ne_bytes());
    out[4..8].copy_from_slice(&(-error).to_ne_bytes());
    out[8..].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// The message that asks for unanswered requests again.
#[must_use]
pub fn resend_notification() -> [u8; 16] {
    let mut out = answer_header(0, 0, 0);
    out[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    out
}

/// What we offer in answer to the kernel's `minor` version and `flags`.
#[must_use]
pub fn init_answer(minor: u32, flags: u64) -> Bytes {
    let wanted = INIT_ASYNC_READ
        | INIT_BIG_WRITES
        | INIT_ASYNC_DIO
        | INIT_MAX_PAGES
        | INIT_EXT
        | INIT_HAS_RESEND;
    let agreed = wanted & flags;
    let mut out = BytesMut::with_capacity(64);
    out.put_u32_ne(7);
    out.put_u32_ne(minor.min(41));
    out.put_u32_ne(0); // read-ahead: the file is never cached
    out.put_u32_ne((agreed & 0xffff_ffff) as u32);
    out.put_u16_ne(BACKGROUND_REQUESTS_MAX);
    out.put_u16_ne(BACKGROUND_REQUESTS_MAX / 4 * 3);
    out.put_u32_ne(u32::try_from(REQUEST_DATA_BYTES_MAX).expect("1 MiB"));
    out.put_u32_ne(1); // granularity of times
    out.put_u16_ne(u16::try_from(REQUEST_DATA_BYTES_MAX / BLOCK_BYTES).expect("256 pages"));
    out.put_u16_ne(0);
    out.put_u32_ne((agreed >> 32) as u32);
    out.put_bytes(0, 64 - out.len());
    out.freeze()
}

/// The file's attributes. They are valid for no time, so that a new size is seen at once.
#[must_use]
pub fn attributes_answer(size_bytes: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(104);
    out.put_bytes(0, 16);
    out.put_u64_ne(1); // inode
    out.put_u64_ne(size_bytes);
    out.put_u64_ne(size_bytes / 512);
    out.put_bytes(0, 36); // times
    out.put_u32_ne(0o100_600);
    out.put_u32_ne(1); // links
    out.put_bytes(0, 12); // owner, group, device
    out.put_u32_ne(u32::try_from(BLOCK_BYTES).expect("4096"));
    out.put_u32_ne(0);
    out.freeze()
}

#[must_use]
pub fn open_answer() -> Bytes {
    let mut out = BytesMut::with_capacity(16);
    out.put_u64_ne(1);
    out.put_u32_ne(FOPEN_DIRECT_IO | FOPEN_NOFLUSH | FOPEN_PARALLEL_DIRECT_WRITES);
    out.put_u32_ne(0);
    out.freeze()
}

#[must_use]
pub fn write_answer(length: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&length.to_ne_bytes());
    out
}

/// The loop device takes its discard granularity from the block size in here.
#[must_use]
pub fn statfs_answer(size_bytes: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(80);
    out.put_u64_ne(size_bytes / BLOCK_BYTES);
    out.put_bytes(0, 16);
    out.put_u64_ne(1);
    out.put_u64_ne(0);
    out.put_u32_ne(u32::try_from(BLOCK_BYTES).expect("4096"));
    out.put_u32_ne(255);
    out.put_u32_ne(u32::try_from(BLOCK_BYTES).expect("4096"));
    out.put_bytes(0, 28);
    out.freeze()
}

#[must_use]
pub fn error_number(fault: IoFault) -> i32 {
    match fault {
        IoFault::Invalid => EINVAL,
        IoFault::NoSpace => ENOSPC,
        IoFault::Failed | IoFault::ShuttingDown | IoFault::Fenced => EIO,
    }
}

fn u32_at(raw: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*raw.get(at..)?.first_chunk()?))
}

fn u64_at(raw: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*raw.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_kernels_sizes() {
        assert_eq!(init_answer(45, u64::MAX).len(), 64);
        assert_eq!(attributes_answer(1 << 30).len(), 104);
        assert_eq!(open_answer().len(), 16);
        assert_eq!(statfs_answer(1 << 30).len(), 80);
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(mut raw: Vec<u8>, opcode in 0u32..60) {
            let _ = parse(&Bytes::from(raw.clone()));
            if raw.len() >= 8 {
                raw[4..8].copy_from_slice(&opcode.to_ne_bytes());
                let _ = parse(&Bytes::from(raw));
            }
        }
    }
}
