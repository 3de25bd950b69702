//! The codes of findings. A code never changes its meaning; one that is not needed any more is not used again.
//!
//! To add a finding: a row here, a page `docs/findings/LAR-NNN.md`, and a function in `findings` with its line in
//! the table there.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::finding::Severity;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $severity:ident, $title:literal;)+) => {
        /// What can be found.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $title] $name,)+
        }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name),+];

            #[must_use]
            pub fn number(self) -> u16 {
                match self { $(Self::$name => $number),+ }
            }

            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),+ }
            }

            /// What it is, in half a sentence.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title),+ }
            }

            /// The page that explains it, in Markdown.
            #[must_use]
            pub fn page(self) -> &'static str {
                match self {
                    $(Self::$name => include_str!(concat!("../../../docs/findings/LAR-", $number, ".md"))),+
                }
            }
        }
    };
}

#[rustfmt::skip]
codes! {
    OrphanCsiTicket = 101, Warning, "a pod's ticket without its Kubernetes VolumeAttachment";
    UnclaimedManualTicket = 102, Error, "a manual ticket that nobody answers for keeps a pod waiting";
    HopelessJobTicket = 103, Error, "a snapshot's or backup's ticket that can never be done with";
    TicketToMissingNode = 104, Warning, "a ticket for a node that does not exist";
    ConflictingTickets = 105, Error, "workloads on several nodes want a volume that only one may have";
    IncompatibleParameters = 106, Error, "a ticket needs the volume attached in another way than it is";
    DeadMigration = 107, Error, "two tickets of a migration that nobody finishes";
    UnusableTicket = 108, Warning, "a ticket that cannot be served as it is filed";
    ExpiredTicket = 109, Warning, "a ticket whose owner or time is gone";
    StuckFinalizer = 111, Error, "a Kubernetes VolumeAttachment that cannot be deleted";
    AttachedInKubernetesOnly = 112, Error, "attached for Kubernetes, and not in truth";
    AttachedInEngineOnly = 113, Warning, "attached in truth, and not for Kubernetes";
    WaitsForDeadNode = 114, Error, "a pod waits for a volume that a dead node still has";
    StaleAnnotation = 115, Info, "a PersistentVolume's annotation names a node that does not have it";
    NodeFull = 116, Error, "a node has as many volumes as it may have";
    TwoEngines = 121, Error, "engines of one volume run on two nodes";
    Salvageable = 122, Error, "a faulted volume with a replica that can be salvaged";
    NoSchedulableDisk = 123, Warning, "no disk can take a replica";
    AttachHeld = 124, Error, "attaching failed so often that it is held";
    LeftOver = 131, Warning, "a device or mount that a node has left over";
    AgentNotRunning = 132, Error, "a node's agent does not answer";
    ManagerNotRunning = 133, Error, "no manager is at work";
    VersionsDiffer = 134, Warning, "parts of different versions";
    LeaseFlaps = 135, Warning, "a node is lost and found again and again";
    ClockSkew = 136, Warning, "a clock that is not the API server's";
}

impl Code {
    /// About the manager, an agent, or what they need: it concerns every volume, and none in particular.
    #[must_use]
    pub fn is_of_a_part(self) -> bool {
        matches!(
            self,
            Self::AgentNotRunning
                | Self::ManagerNotRunning
                | Self::VersionsDiffer
                | Self::LeaseFlaps
                | Self::ClockSkew
        )
    }
}

/// Not a code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the code of a finding; `lariat doctor explain` lists them all{}", near(.nearest.as_ref()))]
pub struct CodeError {
    text: String,
    nearest: Option<Code>,
}

fn near(nearest: Option<&Code>) -> String {
    nearest.map_or_else(String::new, |code| format!(". Did you mean {code}?"))
}

impl FromStr for Code {
    type Err = CodeError;

    /// `LAR-104`, `lar104` or `104`.
    fn from_str(text: &str) -> Result<Self, CodeError> {
        let upper = text.trim().to_ascii_uppercase();
        let digits = upper.trim_start_matches("LAR").trim_start_matches('-');
        let found = Self::ALL
            .iter()
            .find(|code| code.number().to_string() == digits);
        found.copied().ok_or_else(|| CodeError {
            text: text.to_owned(),
            nearest: Self::ALL
                .iter()
                .copied()
                .find(|code| strsim::levenshtein(&code.number().to_string(), digits) == 1),
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("LAR-{}", self.number()))
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The parts that every page has: what it means, how it comes about, what the repair does, how to do it by hand.
    const PARTS: [&str; 4] = [
        "## What it means",
        "## How it comes about",
        "## What the repair does",
        "## By hand",
    ];

    #[test]
    fn every_code_has_a_page_of_its_own_and_every_page_a_code() {
        for code in Code::ALL {
            let page = code.page();
            let title = format!("# {code}: {}\n", code.title());
            assert!(
                page.starts_with(&title),
                "the page of {code} does not begin with {title}"
            );
            for part in PARTS {
                assert!(page.contains(part), "the page of {code} lacks {part:?}");
            }
            for paragraph in page.split("\n\n") {
                let quotes = paragraph.matches('`').count();
                let torn = paragraph.starts_with([',', '.', ':', ';']);
                assert!(
                    quotes % 2 == 0 && !torn,
                    "a sentence is torn in the page of {code}: {paragraph}"
                );
            }
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings");
        let pages: BTreeSet<String> = std::fs::read_dir(folder)
            .expect("the pages")
            .map(|entry| {
                entry
                    .expect("a page")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        let codes: BTreeSet<String> = Code::ALL.iter().map(|code| format!("{code}.md")).collect();
        assert_eq!(pages, codes);
    }

    #[test]
    fn codes_are_read_as_people_write_them() {
        for text in ["LAR-104", "lar-104", "LAR104", "104"] {
            assert_eq!(text.parse(), Ok(Code::TicketToMissingNode), "{text}");
        }
        let error = "LAR-110".parse::<Code>().expect_err("no code").to_string();
        assert!(error.contains("Did you mean LAR-1"), "{error}");
        let numbers: BTreeSet<u16> = Code::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers.len(), Code::ALL.len(), "no number twice");
    }
}
