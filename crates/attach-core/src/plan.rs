//! What the decision yields: values to write, and why. Nothing is left to choose when it is carried out.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

use crate::attacher::AttacherKind;
use crate::breaker::AttachRecord;
use crate::migration::MigrationRecord;
use crate::names::TicketId;
use crate::reasons::Reason;
use crate::ticket::TicketStatus;
use crate::view::{View, VolumeSpec};

/// The Volume's and the VolumeAttachment's next values.
///
/// `volume_spec` and the two records belong into one write of the Volume, guarded by its resource version: a
/// plan made from an outdated view must not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub action: Action,
    pub volume_spec: VolumeSpec,
    /// Annotation [`crate::migration::ANNOTATION`]; None removes it.
    pub migration: Option<MigrationRecord>,
    /// Annotation [`crate::breaker::ANNOTATION`]; None removes it.
    pub attach: Option<AttachRecord>,
    /// Tickets to take out of the VolumeAttachment's spec.
    pub tickets_to_remove: Vec<TicketId>,
    /// All statuses; one that is not in here is removed.
    pub ticket_statuses: BTreeMap<TicketId, TicketStatus>,
    /// What becomes of each ticket, those with nothing but a status left included.
    pub verdicts: BTreeMap<TicketId, Judgement>,
    /// Look again after this long even if nothing changes.
    pub recheck_after: Option<SignedDuration>,
    pub reasons: Vec<Reason>,
}

/// What becomes of one ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub verdict: Verdict,
    /// What it waits for, unless it is satisfied.
    pub reason: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    Attach,
    Detach,
    Keep,
    Wait,
    Hold,
    Migrate,
    ConfirmMigration,
    RollBackMigration,
    CancelMigration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The volume is where it is because of this ticket.
    Holding,
    /// The volume is on its way to this ticket's node because of it.
    Selected,
    /// Served by the attachment that another ticket holds.
    Coexisting,
    Waiting,
    /// A workload that makes the present holders let go.
    Interrupting,
    /// A holder that has to let go.
    Interrupted,
    /// Not counted: summed up by the share manager's ticket, or not fit to be served.
    Ignored,
    /// Only a status is left of it.
    Stale,
    /// Of a type that we do not know.
    Unknown,
}

impl Action {
    #[must_use]
    pub fn wire(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Keep => "keep",
            Self::Wait => "wait",
            Self::Hold => "hold",
            Self::Migrate => "migrate",
            Self::ConfirmMigration => "confirm-migration",
            Self::RollBackMigration => "roll-back-migration",
            Self::CancelMigration => "cancel-migration",
        }
    }
}

impl Verdict {
    #[must_use]
    pub fn wire(self) -> &'static str {
        match self {
            Self::Holding => "holding",
            Self::Selected => "selected",
            Self::Coexisting => "coexisting",
            Self::Waiting => "waiting",
            Self::Interrupting => "interrupting",
            Self::Interrupted => "interrupted",
            Self::Ignored => "ignored",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire())
    }
}

impl Plan {
    /// The Volume object must be written.
    #[must_use]
    pub fn changes_volume(&self, view: &View) -> bool {
        self.volume_spec != view.volume.spec
            || self.migration != view.volume.migration
            || self.attach != view.volume.attach
    }

    /// Somebody else than a pod has the volume, or gets it by this plan. He may write to it what he likes, and no CSI driver sees it.
    #[must_use]
    pub fn gives_to_others(&self, view: &View) -> bool {
        self.verdicts.iter().any(|(id, judgement)| {
            let kind = view
                .tickets
                .get(id)
                .and_then(|ticket| ticket.attacher.kind());
            let is_other =
                kind.is_some_and(|kind| kind != AttacherKind::Csi && kind.row().workload);
            is_other
                && matches!(
                    judgement.verdict,
                    Verdict::Holding | Verdict::Selected | Verdict::Coexisting
                )
        })
    }

    /// The VolumeAttachment's status must be written.
    #[must_use]
    pub fn changes_statuses(&self, view: &View) -> bool {
        self.ticket_statuses != view.statuses
    }

    /// The view after everything in this plan is written, and before the world reacts to it.
    #[must_use]
    pub fn applied_to(&self, view: &View) -> View {
        let mut after = view.clone();
        after.volume.spec = self.volume_spec.clone();
        after.volume.migration = self.migration.clone();
        after.volume.attach = self.attach.clone();
        for id in &self.tickets_to_remove {
            after.tickets.remove(id);
        }
        after.statuses.clone_from(&self.ticket_statuses);
        after
    }
}
