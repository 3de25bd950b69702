//! NBD's numbers and byte layouts, as its protocol document names them (all big-endian).

use bytes::{BufMut, Bytes, BytesMut};

use crate::io::IoFault;

pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub const FLAG_NO_ZEROES: u16 = 2;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Has flags, flush, forced unit access, trim, write zeroes, and several connections at once:
/// a flush on one of ours covers what was answered on every other.
pub const TRANSMISSION_FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_WRITE_ZEROES: u16 = 6;

pub const CMD_FLAG_FUA: u16 = 1;
pub const CMD_FLAG_NO_HOLE: u16 = 2;
pub const CMD_FLAG_DF: u16 = 4;

pub const REPLY_FLAG_DONE: u16 = 1;
pub const REPLY_TYPE_NONE: u16 = 0;
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub const REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;

pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ESHUTDOWN: u32 = 108;

/// The largest payload that NBD's document tells every server to take.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

pub const REQUEST_BYTES: usize = 28;
pub const OPTION_HEADER_BYTES: usize = 16;

/// One request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandHeader {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

/// Reads a request header; `None` where the magic is wrong, after which nothing can be trusted.
#[must_use]
pub fn parse_command(raw: &[u8; REQUEST_BYTES]) -> Option<CommandHeader> {
    (be_u32(&raw[0..]) == REQUEST_MAGIC).then(|| CommandHeader {
        flags: be_u16(&raw[4..]),
        command: be_u16(&raw[6..]),
        cookie: be_u64(&raw[8..]),
        offset: be_u64(&raw[16..]),
        length: be_u32(&raw[24..]),
    })
}

#[must_use]
pub fn be_u16(raw: &[u8]) -> u16 {
    u16::from_be_bytes([raw[0], raw[1]])
}

#[must_use]
pub fn be_u32(raw: &[u8]) -> u32 {
    u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]])
}

#[must_use]
pub fn be_u64(raw: &[u8]) -> u64 {
    u64::from(be_u32(raw)) << 32 | u64::from(be_u32(&raw[4..]))
}

#[must_use]
pub fn greeting() -> Bytes {
    let mut out = BytesMut::with_capacity(18);
    out.put_u64(GREETING_MAGIC);
    out.put_u64(OPTION_MAGIC);
    out.put_u16(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    out.freeze()
}

#[must_use]
pub fn option_reply(option: u32, reply: u32, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(20 + data.len());
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(reply);
    out.put_u32(u32::try_from(data.len()).expect("option replies are short"));
    out.put_slice(data);
    out.freeze()
}

#[must_use]
pub fn simple_reply(cookie: u64, error: u32) -> Bytes {
    let mut out = BytesMut::with_capacity(16);
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(cookie);
    out.freeze()
}

/// A structured reply's only chunk, without its payload's last part, `data_bytes` of it.
#[must_use]
pub fn chunk_header(cookie: u64, kind: u16, prefix: &[u8], data_bytes: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(20 + prefix.len());
    out.put_u32(STRUCTURED_REPLY_MAGIC);
    out.put_u16(REPLY_FLAG_DONE);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(u32::try_from(prefix.len() + data_bytes).expect("payloads are bounded"));
    out.put_slice(prefix);
    out.freeze()
}

/// How a client is told of a failure.
#[must_use]
pub fn error_number(fault: IoFault) -> u32 {
    match fault {
        IoFault::Invalid => EINVAL,
        IoFault::Failed => EIO,
        IoFault::NoSpace => ENOSPC,
        IoFault::ShuttingDown | IoFault::Fenced => ESHUTDOWN,
    }
}
