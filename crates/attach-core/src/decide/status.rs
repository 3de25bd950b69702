//! Statuses: what each ticket is told, from the state that the step leaves behind.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::attacher::AttacherKind;
use crate::migration::Phase;
use crate::names::{NodeName, TicketId};
use crate::plan::{Action, Judgement, Plan, Verdict};
use crate::reasons::{Party, Reason};
use crate::ticket::{Condition, Ticket, TicketStatus};
use crate::view::{Sharing, View, VolumeState};

use super::draft::Draft;
use super::tickets::Tickets;
use super::{choose, migration, not_detached};

/// The message of a migration target's ticket, as the field knows it.
pub const MIGRATING_SATISFIED: &str = "The migrating attachment ticket is satisfied";

/// Where the volume is once the step is written.
enum Situation {
    Attached {
        node: NodeName,
    },
    Attaching {
        node: NodeName,
    },
    Detaching {
        from: Option<NodeName>,
    },
    /// Nowhere, and staying there.
    Resting(Reason),
}

/// Completes the draft with a judgement and a status for each ticket.
pub(super) fn plan(view: &View, tickets: &Tickets<'_>, draft: Draft, action: Action) -> Plan {
    let bench = Bench::new(view, tickets, &draft);
    let mut sentences = Sentences::default();
    let (mut statuses, mut verdicts) = (Vec::new(), Vec::new());
    // Tickets and statuses are both in the order of their ids: walking along finds each other without searching.
    let mut known = view.statuses.iter().peekable();
    for ticket in tickets.all() {
        while let Some((id, _)) = known.next_if(|(id, _)| **id < ticket.id) {
            verdicts.push((id.clone(), leftover(id)));
        }
        let before = known.next_if(|(id, _)| **id == ticket.id);
        let answer = bench.judge(ticket);
        let status = answer.status(
            ticket,
            before.map(|(_, status)| status),
            view.now,
            &mut sentences,
        );
        statuses.push((ticket.id.clone(), status));
        let judgement = Judgement {
            verdict: answer.verdict,
            reason: answer.reason,
        };
        verdicts.push((ticket.id.clone(), judgement));
    }
    verdicts.extend(known.map(|(id, _)| (id.clone(), leftover(id))));
    let mut verdicts: BTreeMap<_, _> = verdicts.into_iter().collect();
    for id in &draft.tickets_to_remove {
        let reason = view.tickets.get(id).map(|ticket| Reason::RemovedByCordon {
            ticket: Party::from(ticket),
        });
        verdicts.insert(
            id.clone(),
            Judgement {
                verdict: Verdict::Stale,
                reason,
            },
        );
    }
    Plan {
        action,
        volume_spec: draft.spec,
        migration: draft.migration,
        attach: draft.attach,
        tickets_to_remove: draft.tickets_to_remove,
        ticket_statuses: statuses.into_iter().collect(),
        verdicts,
        recheck_after: draft.recheck_after,
        reasons: draft.reasons,
    }
}

fn leftover(id: &TicketId) -> Judgement {
    let reason = Some(Reason::StatusWithoutTicket { id: id.clone() });
    Judgement {
        verdict: Verdict::Stale,
        reason,
    }
}

/// Renders reasons. Most tickets of a busy volume wait for the same thing, and its sentence is written once.
#[derive(Default)]
struct Sentences(Option<(Reason, String)>);

impl Sentences {
    fn render(&mut self, reason: &Reason) -> String {
        match &self.0 {
            Some((last, sentence)) if last == reason => sentence.clone(),
            _ => {
                let sentence = reason.to_string();
                self.0 = Some((reason.clone(), sentence.clone()));
                sentence
            }
        }
    }
}

/// Everything that a judgement depends on and that is the same for all tickets.
struct Bench<'a> {
    view: &'a View,
    tickets: &'a Tickets<'a>,
    draft: &'a Draft,
    situation: Situation,
    leader: Option<&'a Ticket>,
    holder: Option<&'a Ticket>,
    /// The workload that makes the holders of a detaching volume let go.
    interrupter: Option<&'a Ticket>,
    /// The node that a migration brings the volume to, and whether it can be used there already.
    target: Option<(NodeName, bool)>,
}

/// A judgement that knows whether the ticket is satisfied.
struct Answer {
    verdict: Verdict,
    satisfied: bool,
    reason: Option<Reason>,
    message: Option<&'static str>,
}

impl<'a> Bench<'a> {
    fn new(view: &'a View, tickets: &'a Tickets<'a>, draft: &'a Draft) -> Self {
        let situation = situation(view, tickets, draft);
        let interrupter = match &situation {
            Situation::Detaching { from: Some(from) } => {
                // What holds a volume that can be interrupted does not care for the frontend.
                let here =
                    |ticket: &&Ticket| ticket.node == *from && ticket.frontend.accepts(false);
                tickets.interruption(tickets.all().filter(here), from)
            }
            _ => None,
        };
        let target = migration_target(view, draft).map(|node| {
            (
                node.clone(),
                migration::is_available_on(view, tickets, node),
            )
        });
        Self {
            view,
            tickets,
            draft,
            situation,
            leader: tickets.leader(&draft.spec),
            holder: tickets.holder(&draft.spec),
            interrupter,
            target,
        }
    }

    fn judge(&self, ticket: &Ticket) -> Answer {
        if let Some(defect) = &ticket.defect {
            return Answer::no(Verdict::Ignored, Reason::InvalidTicket(defect.clone()));
        }
        if self.tickets.is_summed_up(ticket) {
            return self.judge_shared();
        }
        if let Some(answer) = self.judge_migrating(ticket) {
            return answer;
        }
        let answer = match &self.situation {
            Situation::Attached { node } => self.judge_attached(ticket, node),
            Situation::Attaching { node } => self.judge_attaching(ticket, node),
            Situation::Detaching { from } => self.judge_detaching(ticket, from.as_ref()),
            Situation::Resting(reason) => Answer::no(Verdict::Waiting, reason.clone()),
        };
        if ticket.attacher.kind().is_some() {
            return answer;
        }
        Answer {
            verdict: Verdict::Unknown,
            reason: (!answer.satisfied).then(|| Reason::UnknownAttacher {
                attacher: ticket.attacher.clone(),
            }),
            ..answer
        }
    }

    fn judge_shared(&self) -> Answer {
        if self.view.volume.status.share_available {
            return Answer::yes(Verdict::Ignored);
        }
        Answer::no(
            Verdict::Ignored,
            Reason::WaitingForShare {
                volume: self.view.volume.name.clone(),
            },
        )
    }

    fn judge_migrating(&self, ticket: &Ticket) -> Option<Answer> {
        let (target, available) = self.target.as_ref()?;
        if !ticket.is(AttacherKind::Csi) || ticket.node != *target {
            return None;
        }
        if !ticket.frontend.accepts(self.draft.spec.disable_frontend) {
            return Some(Answer::no(
                Verdict::Waiting,
                self.incompatible(ticket, target),
            ));
        }
        // An engine that outlives its volume for a moment serves nobody.
        let attached = self.view.volume.status.state == VolumeState::Attached;
        if !available || !attached {
            return Some(Answer::no(
                Verdict::Selected,
                Reason::MigrationPreparing {
                    target: target.clone(),
                },
            ));
        }
        let confirmed = self.draft.spec.node.as_ref() == Some(target);
        let verdict = if confirmed {
            Verdict::Holding
        } else {
            Verdict::Coexisting
        };
        Some(Answer {
            message: Some(MIGRATING_SATISFIED),
            ..Answer::yes(verdict)
        })
    }

    fn judge_attached(&self, ticket: &Ticket, node: &NodeName) -> Answer {
        if ticket.node != *node {
            return Answer::no(Verdict::Waiting, self.elsewhere(ticket, node));
        }
        if !ticket.frontend.accepts(self.draft.spec.disable_frontend) {
            return Answer::no(Verdict::Waiting, self.incompatible(ticket, node));
        }
        Answer::yes(if self.is_leader(ticket) {
            Verdict::Holding
        } else {
            Verdict::Coexisting
        })
    }

    fn judge_attaching(&self, ticket: &Ticket, node: &NodeName) -> Answer {
        if ticket.node != *node {
            let holder = self.holder.map(Party::from);
            return Answer::no(
                Verdict::Waiting,
                Reason::AttachingElsewhere {
                    node: node.clone(),
                    holder,
                },
            );
        }
        if !ticket.frontend.accepts(self.draft.spec.disable_frontend) {
            return Answer::no(Verdict::Waiting, self.incompatible(ticket, node));
        }
        let verdict = if self.is_leader(ticket) {
            Verdict::Selected
        } else {
            Verdict::Coexisting
        };
        Answer::no(verdict, Reason::Attaching { node: node.clone() })
    }

    fn judge_detaching(&self, ticket: &Ticket, from: Option<&NodeName>) -> Answer {
        let (Some(workload), Some(from)) = (self.interrupter, from) else {
            return Answer::no(
                Verdict::Waiting,
                Reason::Detaching {
                    from: from.cloned(),
                },
            );
        };
        let interrupted = Reason::InterruptedBy {
            workload: Party::from(workload),
            from: from.clone(),
        };
        if ticket.node == *from {
            return Answer::no(Verdict::Interrupted, interrupted);
        }
        let verdict = if ticket.attacher.is_workload() {
            Verdict::Interrupting
        } else {
            Verdict::Waiting
        };
        Answer::no(
            verdict,
            Reason::Detaching {
                from: Some(from.clone()),
            },
        )
    }

    fn is_leader(&self, ticket: &Ticket) -> bool {
        self.leader.is_some_and(|leader| leader.id == ticket.id)
    }

    fn incompatible(&self, ticket: &Ticket, node: &NodeName) -> Reason {
        Reason::IncompatibleParameters {
            volume: self.view.volume.name.clone(),
            node: node.clone(),
            disabled: self.draft.spec.disable_frontend,
            wanted: ticket.frontend,
        }
    }

    /// Why a volume that is attached to `node` does not come to this ticket's node.
    fn elsewhere(&self, ticket: &Ticket, node: &NodeName) -> Reason {
        let migrates = self.view.volume.sharing == Sharing::Migratable
            && ticket.is(AttacherKind::Csi)
            && self
                .tickets
                .csi_on(node, self.draft.spec.disable_frontend)
                .is_some();
        if migrates && let Some(reason) = self.no_migration(ticket, node) {
            return reason;
        }
        Reason::AttachedElsewhere {
            node: node.clone(),
            holder: self.holder.map(Party::from),
        }
    }

    fn no_migration(&self, ticket: &Ticket, source: &NodeName) -> Option<Reason> {
        let target = &ticket.node;
        match &self.draft.migration {
            Some(record) if record.phase == Phase::Expired && record.is_between(source, target) => {
                Some(Reason::MigrationExpired {
                    source_node: source.clone(),
                    target: target.clone(),
                    deadline: record.deadline,
                })
            }
            Some(record)
                if record.phase == Phase::Recovered && record.is_between(target, source) =>
            {
                Some(Reason::MigrationRecovered {
                    source_node: target.clone(),
                    target: source.clone(),
                })
            }
            _ if self.view.nodes.condition(target).is_down() => {
                Some(Reason::MigrationTargetNotReady {
                    target: target.clone(),
                })
            }
            _ => None,
        }
    }
}

fn situation(view: &View, tickets: &Tickets<'_>, draft: &Draft) -> Situation {
    if view.volume.is_faulted() {
        return Situation::Resting(Reason::VolumeFaulted {
            volume: view.volume.name.clone(),
        });
    }
    if let Some(node) = &draft.spec.node {
        let node = node.clone();
        return if view.volume.status.is_attached_on(&node) {
            Situation::Attached { node }
        } else {
            Situation::Attaching { node }
        };
    }
    match not_detached(view) {
        Some(Reason::Detaching { from }) => Situation::Detaching { from },
        Some(reason) => Situation::Resting(reason),
        None => Situation::Resting(match choose(view, tickets, draft) {
            Ok(choice) => Reason::Selected {
                winner: Party::from(choice.winner),
            },
            Err(reason) => reason,
        }),
    }
}

/// The node on which a CSI ticket counts as migrating: wanted as the second node, or just confirmed as the first
/// while the volume still reports it as the second. A node that is being rolled back does not count.
fn migration_target<'d>(view: &View, draft: &'d Draft) -> Option<&'d NodeName> {
    if view.volume.sharing != Sharing::Migratable || view.volume.is_faulted() {
        return None;
    }
    if draft.spec.node.is_some() && draft.spec.migration_node.is_some() {
        return draft.spec.migration_node.as_ref();
    }
    let status = &view.volume.status;
    draft.spec.node.as_ref().filter(|node| {
        status.current_migration_node.as_ref() == Some(*node)
            && status.current_node.as_ref() != Some(*node)
    })
}

impl Answer {
    fn yes(verdict: Verdict) -> Self {
        Self {
            verdict,
            satisfied: true,
            reason: None,
            message: None,
        }
    }

    fn no(verdict: Verdict, reason: Reason) -> Self {
        Self {
            verdict,
            satisfied: false,
            reason: Some(reason),
            message: None,
        }
    }

    fn status(
        &self,
        ticket: &Ticket,
        before: Option<&TicketStatus>,
        now: Timestamp,
        sentences: &mut Sentences,
    ) -> TicketStatus {
        let unchanged = before
            .filter(|before| before.condition.status == self.satisfied)
            .and_then(|before| before.condition.last_transition);
        TicketStatus {
            satisfied: self.satisfied,
            generation: ticket.generation,
            condition: Condition {
                status: self.satisfied,
                reason: Cow::Borrowed(self.reason.as_ref().map_or("", Reason::code)),
                message: match (&self.reason, self.message) {
                    (_, Some(message)) => Cow::Borrowed(message),
                    (Some(reason), None) => Cow::Owned(sentences.render(reason)),
                    (None, None) => Cow::Borrowed(""),
                },
                last_transition: Some(unchanged.unwrap_or(now)),
            },
        }
    }
}
