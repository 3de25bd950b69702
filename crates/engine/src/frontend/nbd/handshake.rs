//! The part of an NBD connection before the first request: options, one by one.

use bytes::{BufMut, Bytes, BytesMut};

use super::wire;
use crate::io::BLOCK_BYTES;

/// Options are short; more than this in one of them is no honest client.
const OPTION_BYTES_MAX: u32 = 16 << 10;

/// What both sides have agreed on so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    pub no_zeroes: bool,
    pub structured_replies: bool,
}

/// What the server offers.
#[derive(Clone, Debug)]
pub struct Export {
    pub name: String,
    pub size_bytes: u64,
    pub sector_bytes: u32,
}

/// What the input so far leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    NeedMore,
    /// `used` bytes are dealt with; send `reply` and go on.
    Reply {
        used: usize,
        reply: Bytes,
    },
    /// As `Reply`, and requests follow.
    Transmission {
        used: usize,
        reply: Bytes,
    },
    /// Send `reply` and hang up.
    HangUp {
        reply: Bytes,
    },
}

/// Reads the client's flags, which come first.
#[must_use]
pub fn client_flags(input: &[u8], agreement: &mut Agreement) -> Step {
    let Some(raw) = input.get(..4) else {
        return Step::NeedMore;
    };
    let flags = wire::be_u32(raw);
    let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
    if flags & !known != 0 {
        return Step::HangUp {
            reply: Bytes::new(),
        };
    }
    agreement.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
    Step::Reply {
        used: 4,
        reply: Bytes::new(),
    }
}

/// Deals with the next option.
#[must_use]
pub fn option(input: &[u8], export: &Export, agreement: &mut Agreement) -> Step {
    let Some(header) = input.get(..wire::OPTION_HEADER_BYTES) else {
        return Step::NeedMore;
    };
    if wire::be_u64(header) != wire::OPTION_MAGIC {
        return Step::HangUp {
            reply: Bytes::new(),
        };
    }
    let option = wire::be_u32(&header[8..]);
    let length = wire::be_u32(&header[12..]);
    if length > OPTION_BYTES_MAX {
        return Step::HangUp {
            reply: wire::option_reply(option, wire::REP_ERR_TOO_BIG, b""),
        };
    }
    let used = wire::OPTION_HEADER_BYTES + length as usize;
    let Some(data) = input.get(wire::OPTION_HEADER_BYTES..used) else {
        return Step::NeedMore;
    };
    let answer = |reply: u32, data: &[u8]| Step::Reply {
        used,
        reply: wire::option_reply(option, reply, data),
    };
    match option {
        wire::OPT_EXPORT_NAME if !serves(export, data) => Step::HangUp {
            reply: Bytes::new(),
        },
        wire::OPT_EXPORT_NAME => Step::Transmission {
            used,
            reply: export_name_reply(export, *agreement),
        },
        wire::OPT_ABORT => Step::HangUp {
            reply: wire::option_reply(option, wire::REP_ACK, b""),
        },
        wire::OPT_LIST if !data.is_empty() => answer(wire::REP_ERR_INVALID, b"LIST takes no data"),
        wire::OPT_LIST => {
            let mut entry = BytesMut::new();
            entry.put_u32(u32::try_from(export.name.len()).expect("volume names are short"));
            entry.put_slice(export.name.as_bytes());
            let mut reply = BytesMut::new();
            reply.put_slice(&wire::option_reply(option, wire::REP_SERVER, &entry));
            reply.put_slice(&wire::option_reply(option, wire::REP_ACK, b""));
            Step::Reply {
                used,
                reply: reply.freeze(),
            }
        }
        wire::OPT_STRUCTURED_REPLY if data.is_empty() => {
            agreement.structured_replies = true;
            answer(wire::REP_ACK, b"")
        }
        wire::OPT_STRUCTURED_REPLY => answer(wire::REP_ERR_INVALID, b"takes no data"),
        wire::OPT_INFO | wire::OPT_GO => match requested_name(data) {
            None => answer(wire::REP_ERR_INVALID, b"malformed request for information"),
            Some(name) if !serves(export, name) => answer(
                wire::REP_ERR_UNKNOWN,
                b"this socket serves one volume, under its own name",
            ),
            Some(_) => {
                let reply = info_reply(option, export);
                if option == wire::OPT_GO {
                    Step::Transmission { used, reply }
                } else {
                    Step::Reply { used, reply }
                }
            }
        },
        // We know of no context; an empty list of them is the way to say so.
        wire::OPT_LIST_META_CONTEXT | wire::OPT_SET_META_CONTEXT
            if agreement.structured_replies =>
        {
            answer(wire::REP_ACK, b"")
        }
        _ => answer(wire::REP_ERR_UNSUP, b"this server does not know the option"),
    }
}

/// The empty name asks for the default export, which is the only one.
fn serves(export: &Export, name: &[u8]) -> bool {
    name.is_empty() || name == export.name.as_bytes()
}

/// The export's name in the data of INFO or GO, if that is well formed.
fn requested_name(data: &[u8]) -> Option<&[u8]> {
    let length = wire::be_u32(data.get(..4)?) as usize;
    let name = data.get(4..4usize.checked_add(length)?)?;
    let rest = &data[4 + length..];
    let count = wire::be_u16(rest.get(..2)?) as usize;
    (rest.len() == 2 + 2 * count).then_some(name)
}

fn export_name_reply(export: &Export, agreement: Agreement) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u64(export.size_bytes);
    out.put_u16(wire::TRANSMISSION_FLAGS);
    if !agreement.no_zeroes {
        out.put_bytes(0, 124);
    }
    out.freeze()
}

fn info_reply(option: u32, export: &Export) -> Bytes {
    let mut reply = BytesMut::new();
    let mut info = BytesMut::new();
    info.put_u16(wire::INFO_EXPORT);
    info.put_u64(export.size_bytes);
    info.put_u16(wire::TRANSMISSION_FLAGS);
    reply.put_slice(&wire::option_reply(option, wire::REP_INFO, &info));
    info.clear();
    info.put_u16(wire::INFO_NAME);
    info.put_slice(export.name.as_bytes());
    reply.put_slice(&wire::option_reply(option, wire::REP_INFO, &info));
    info.clear();
    info.put_u16(wire::INFO_BLOCK_SIZE);
    info.put_u32(export.sector_bytes);
    info.put_u32(u32::try_from(BLOCK_BYTES).expect("4096"));
    info.put_u32(wire::PAYLOAD_BYTES_MAX);
    reply.put_slice(&wire::option_reply(option, wire::REP_INFO, &info));
    reply.put_slice(&wire::option_reply(option, wire::REP_ACK, b""));
    reply.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> Export {
        Export {
            name: "data".into(),
            size_bytes: 1 << 20,
            sector_bytes: 4096,
        }
    }

    fn raw_option(option: u32, data: &[u8]) -> Vec<u8> {
        let mut raw = BytesMut::new();
        raw.put_u64(wire::OPTION_MAGIC);
        raw.put_u32(option);
        raw.put_u32(data.len() as u32);
        raw.put_slice(data);
        raw.to_vec()
    }

    #[test]
    fn go_needs_the_volumes_name_or_none() {
        let request = |name: &[u8]| {
            let mut data = BytesMut::new();
            data.put_u32(name.len() as u32);
            data.put_slice(name);
            data.put_u16(0);
            raw_option(wire::OPT_GO, &data)
        };
        for (name, accepted) in [(&b""[..], true), (b"data", true), (b"other", false)] {
            let step = option(&request(name), &export(), &mut Agreement::default());
            assert_eq!(
                matches!(step, Step::Transmission { .. }),
                accepted,
                "{name:?}: {step:?}"
            );
        }
    }

    #[test]
    fn every_prefix_of_an_option_asks_for_more() {
        let raw = raw_option(wire::OPT_INFO, &[0, 0, 0, 0, 0, 0]);
        for length in 0..raw.len() {
            let step = option(&raw[..length], &export(), &mut Agreement::default());
            assert_eq!(step, Step::NeedMore, "at {length} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(input: Vec<u8>, after_magic: Vec<u8>, number in 0u32..20) {
            let mut agreement = Agreement::default();
            let _ = client_flags(&input, &mut agreement);
            let _ = option(&input, &export(), &mut agreement);
            let step = option(&raw_option(number, &after_magic), &export(), &mut agreement);
            proptest::prop_assert_ne!(step, Step::NeedMore);
        }
    }
}
