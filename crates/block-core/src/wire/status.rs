//! How requests fail, and why a connection is ended.

use super::body::cut_text;

/// The longest explanation that travels with an error.
pub const TEXT_BYTES_MAX: usize = 512;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $type:ty { $($(#[$variant_doc:meta])* $variant:ident = $code:literal => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($type)]
        pub enum $name { $($(#[$variant_doc])* $variant = $code,)* }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            #[must_use]
            pub fn from_code(code: $type) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

codes!(
    /// Why one request failed. The connection goes on.
    StatusCode: u16 {
        /// A newer engine owns the volume: stop, for ever.
        StaleEpoch = 1 => "stale epoch",
        /// The replica's disk is full.
        NoSpace = 2 => "no space left on the replica's disk",
        /// The replica's disk failed.
        Io = 3 => "input/output error on the replica's disk",
        OutOfRange = 4 => "out of the volume's range",
        /// The frame was sound but its message was not.
        BadRequest = 5 => "bad request",
        /// Another operation of the kind is running: try again later.
        Busy = 6 => "busy",
        NotFound = 7 => "not found",
        AlreadyExists = 8 => "already exists",
        /// The volume was not opened on this connection, or is not in the mode that the request needs.
        WrongMode = 9 => "not possible in this mode",
        /// A checksum did not match: data on this replica's disk has changed by itself.
        Corrupt = 10 => "checksum mismatch",
        /// The request needs more than this replica allows, such as too many layers.
        LimitReached = 11 => "limit reached",
        NotPermitted = 12 => "not permitted",
        /// The same engine has opened a newer connection: what came over this one is not wanted any more.
        Superseded = 13 => "superseded by a newer connection",
    }
);

codes!(
    /// Why a side ends a connection. Sent in the last frame, where the line still allows it.
    GoodbyeReason: u16 {
        /// The sender is done.
        Finished = 1 => "finished",
        ShuttingDown = 2 => "shutting down",
        BadFrame = 3 => "bad frame",
        AuthenticationFailed = 4 => "authentication failed",
        UnknownVolume = 5 => "unknown volume",
        VersionMismatch = 6 => "no common protocol version",
        /// The peer took too long to send a frame or to read a reply.
        TooSlow = 7 => "too slow",
        /// The engine's epoch is not the newest any more.
        StaleEpoch = 8 => "stale epoch",
        TooManyConnections = 9 => "too many connections",
        /// A message was not allowed at this point of the conversation.
        OutOfOrder = 10 => "message out of order",
        /// The same engine has opened a newer connection.
        Superseded = 11 => "superseded by a newer connection",
    }
);

/// A failed request: the code that a program acts on and a text for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct Failure {
    pub code: StatusCode,
    pub text: String,
}

impl Failure {
    #[must_use]
    pub fn new(code: StatusCode, text: impl AsRef<str>) -> Self {
        Self {
            code,
            text: cut_text(text.as_ref(), TEXT_BYTES_MAX).to_owned(),
        }
    }
}
