//! How it stands with a volume, in one word.

use std::fmt;

use serde::Serialize;

/// The answer of `why`, and its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nobody asks for the volume, and it is attached nowhere.
    Idle,
    /// Whoever asks has it.
    Attached,
    /// It is on its way, without anybody's help.
    Progressing,
    /// Somebody has to do something.
    Stuck,
}

impl Verdict {
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Idle | Self::Attached => 0,
            Self::Progressing => 3,
            Self::Stuck => 4,
        }
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Attached => "attached",
            Self::Progressing => "progressing",
            Self::Stuck => "stuck",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
