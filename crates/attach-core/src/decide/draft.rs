//! The plan while it is being made.

use jiff::{SignedDuration, Timestamp};

use crate::breaker::{AttachRecord, Attempt};
use crate::migration::{MigrationRecord, Phase};
use crate::names::TicketId;
use crate::plan::Action;
use crate::reasons::{Party, Reason};
use crate::view::{View, VolumeSpec};

use super::selection::Choice;

pub(super) struct Draft {
    pub spec: VolumeSpec,
    pub migration: Option<MigrationRecord>,
    pub attach: Option<AttachRecord>,
    pub tickets_to_remove: Vec<TicketId>,
    pub recheck_after: Option<SignedDuration>,
    pub reasons: Vec<Reason>,
}

impl Draft {
    pub fn new(view: &View) -> Self {
        Self {
            spec: view.volume.spec.clone(),
            migration: view.volume.migration.clone(),
            attach: view.volume.attach.clone(),
            tickets_to_remove: Vec::new(),
            recheck_after: None,
            reasons: Vec::new(),
        }
    }

    /// The volume leaves every node. What was known about a migration's roles stays known.
    pub fn let_go(&mut self, reason: Reason) -> Action {
        if self.spec.migration_node.is_some() {
            self.migration = self
                .migration
                .take()
                .map(|record| record.in_phase(Phase::Interrupted));
        }
        self.spec = VolumeSpec::default();
        self.attach = self
            .attach
            .take()
            .filter(|record| record.failures > 0)
            .map(|record| AttachRecord {
                attempt: None,
                ..record
            });
        self.reasons.push(reason);
        Action::Detach
    }

    pub fn attach(&mut self, view: &View, choice: Choice<'_>) -> Action {
        let winner = choice.winner;
        self.spec = VolumeSpec {
            node: Some(winner.node.clone()),
            migration_node: None,
            disable_frontend: winner.frontend.disable_frontend(),
            last_attached_by: winner.last_attached_by.clone(),
        };
        if view.settings.breaker.is_some() {
            let attempt = Attempt {
                restarting: false,
                ticket: winner.id.clone(),
                node: winner.node.clone(),
                since: view.now,
                attached_since: None,
            };
            let known = self.attach.take();
            self.attach = Some(AttachRecord {
                failures: known.as_ref().map_or(0, |record| record.failures),
                attempt: Some(attempt),
                fingerprint: known.as_ref().and_then(|record| record.fingerprint.clone()),
                last_failure: known.and_then(|record| record.last_failure),
                resumed: view.volume.resume.clone(),
            });
        }
        self.reasons.extend(choice.recovery);
        self.reasons.push(Reason::Selected {
            winner: Party::from(winner),
        });
        Action::Attach
    }

    /// A new budget; an attempt that is under way goes on.
    pub fn reset_attach(&mut self, view: &View) {
        self.attach = self
            .attach
            .take()
            .filter(|record| record.attempt.is_some())
            .map(|record| AttachRecord {
                failures: 0,
                attempt: record.attempt,
                last_failure: None,
                fingerprint: None,
                resumed: view.volume.resume.clone(),
            });
    }

    pub fn wait(&mut self, reason: Reason) -> Action {
        self.reasons.push(reason);
        Action::Wait
    }

    pub fn recheck_after(&mut self, after: SignedDuration) {
        self.recheck_after = Some(self.recheck_after.map_or(after, |sooner| sooner.min(after)));
    }

    pub fn recheck_at(&mut self, now: Timestamp, at: Timestamp) {
        self.recheck_after(at.duration_since(now).max(SignedDuration::ZERO));
    }
}
