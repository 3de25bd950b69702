//! The migration record: who moves from where to where, how far, since when and until when.
//!
//! Upstream infers these roles from the tickets, and cannot any more once an engine has died: it then refuses to
//! attach the volume until a person removes one ticket (longhorn #8735, #11149). The record is an annotation
//! of the Volume, written together with its spec, so the roles survive engines and controllers alike.
//!
//! ```text
//!            target up            source's ticket gone
//! Preparing ──────────► Ready ──────────────────────────► Confirming ──► (removed)
//!     │  ▲───────────────┤ target's engine lost
//!     │                  ├─ target's ticket gone ─► RollingBack ──► (removed)
//!     │ deadline         └─ volume lost ──────────► Interrupted ──► Recovered ──► (removed)
//!     └────────► Expired ──► (removed when a ticket goes)
//! ```

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::NodeName;

/// The Volume's annotation that holds the record, as JSON.
pub const ANNOTATION: &str = "lariat.io/migration";

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigrationRecord {
    pub source: NodeName,
    pub target: NodeName,
    pub phase: Phase,
    pub since: Timestamp,
    /// When to give up on a target that does not come up. A target that *is* up is never given up: the
    /// virtual machine may already write through it.
    pub deadline: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The target's engine is on its way.
    Preparing,
    /// Both nodes can use the volume; the workload decides which ticket goes.
    Ready,
    /// The source's ticket is gone; the target becomes the volume's only node.
    Confirming,
    /// The target's ticket is gone; its engine is on its way out.
    RollingBack,
    /// The target did not come up in time. Not tried again while both tickets stay as they are.
    Expired,
    /// The volume was lost midway and is on its way back to one of the two nodes.
    Interrupted,
    /// The volume came back on the target, because the source is down. Not moved back by itself.
    Recovered,
}

impl MigrationRecord {
    #[must_use]
    pub fn is_between(&self, source: &NodeName, target: &NodeName) -> bool {
        self.source == *source && self.target == *target
    }

    pub(crate) fn in_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }
}
