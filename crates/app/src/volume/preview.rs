//! What would happen if a ticket were filed or withdrawn: the controller's own decision, asked beforehand. Pure.

use std::collections::BTreeSet;

use attach_core::view::{NodeCondition, View};
use attach_core::{Plan, Reason, Ticket, TicketId, Verdict};

/// What a person should know before they act.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preview {
    /// What would be interrupted, lost or refused: somebody has to say that this is meant.
    pub consequences: Vec<String>,
    /// What would happen besides.
    pub remarks: Vec<String>,
}

/// With this ticket filed.
pub(crate) fn attach(view: &View, ticket: &Ticket) -> Preview {
    let mut after = view.clone();
    after.tickets.insert(ticket.id.clone(), ticket.clone());
    let (before_plan, plan) = (attach_core::decide(view), attach_core::decide(&after));
    let mut preview = Preview::default();
    match view.nodes.condition(&ticket.node) {
        NodeCondition::NotReady => preview.consequences.push(format!(
            "node {} is not ready: nothing is attached to it before it is back",
            ticket.node
        )),
        NodeCondition::Ready | NodeCondition::Gone | NodeCondition::Unknown => {}
    }
    if plan.tickets_to_remove.contains(&ticket.id) {
        preview.consequences.push(format!(
            "node {} is cordoned, and the setting detach-manually-attached-volumes-when-cordoned is true: the ticket \
             would be removed at once; uncordon the node first, or attach it to another one",
            ticket.node
        ));
    }
    if let Some(judgement) = plan.verdicts.get(&ticket.id)
        && let Some(reason) = &judgement.reason
    {
        let waits = matches!(
            judgement.verdict,
            Verdict::Waiting | Verdict::Ignored | Verdict::Unknown
        );
        if waits && !passes_by_itself(reason) {
            let advice = reason.advice().map(|advice| format!("; {advice}"));
            preview.consequences.push(format!(
                "the ticket would wait: {reason}{}",
                advice.unwrap_or_default()
            ));
        } else {
            preview.remarks.push(format!("next: {reason}"));
        }
    }
    preview.suffer(view, &before_plan, &plan, &BTreeSet::from([&ticket.id]));
    preview
}

/// Without these tickets.
pub(crate) fn detach(view: &View, tickets: &[&TicketId]) -> Preview {
    let gone: BTreeSet<&TicketId> = tickets.iter().copied().collect();
    let mut after = view.clone();
    after.tickets.retain(|id, _| !gone.contains(id));
    let (before_plan, plan) = (attach_core::decide(view), attach_core::decide(&after));
    let mut preview = Preview::default();
    let (from, to) = (&view.volume.spec.node, &plan.volume_spec.node);
    let name = &view.volume.name;
    match (from, to) {
        (Some(from), None) => {
            let next = after.tickets.values().find(|ticket| ticket.is_eligible());
            preview.remarks.push(match next {
                Some(next) => format!(
                    "volume {name} is detached from node {from}, and then goes to node {}, where {next} waits for it",
                    next.node
                ),
                None => format!("volume {name} is detached from node {from}"),
            });
        }
        (Some(from), Some(to)) if from == to => {
            let holders = plan.reasons.iter();
            let holders = holders.filter(|reason| matches!(reason, Reason::HeldBy { .. }));
            let holders: Vec<String> = holders.map(ToString::to_string).collect();
            preview.remarks.push(format!(
                "volume {name} stays on node {from}: {}",
                holders.join("; ")
            ));
        }
        (Some(from), Some(to)) => preview
            .remarks
            .push(format!("volume {name} goes from node {from} to node {to}")),
        (None, Some(to)) => preview
            .remarks
            .push(format!("volume {name} is attached to node {to}")),
        (None, None) => preview
            .remarks
            .push(format!("volume {name} stays detached")),
    }
    preview.suffer(view, &before_plan, &plan, &gone);
    preview
}

/// What is under way ends without anybody's help.
fn passes_by_itself(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Attaching { .. }
            | Reason::Detaching { .. }
            | Reason::VolumeNotReady { .. }
            | Reason::WaitingForShare { .. }
            | Reason::Selected { .. }
    )
}

/// Does this ticket have the volume, or get it next?
fn is_served(verdict: Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Holding | Verdict::Selected | Verdict::Coexisting
    )
}

impl Preview {
    /// The other tickets that would be worse off.
    fn suffer(&mut self, view: &View, before: &Plan, after: &Plan, own: &BTreeSet<&TicketId>) {
        for (id, ticket) in view.tickets.iter().filter(|(id, _)| !own.contains(id)) {
            let verdict = |plan: &Plan| plan.verdicts.get(id).map(|judgement| judgement.verdict);
            let (Some(was), Some(is)) = (verdict(before), verdict(after)) else {
                continue;
            };
            if !is_served(was) || is_served(is) {
                continue;
            }
            let word = if is == Verdict::Interrupted {
                "would be interrupted"
            } else {
                "would have to wait"
            };
            self.consequences
                .push(format!("{ticket} on node {} {word}", ticket.node));
        }
    }

    /// For standard error, before anything is done.
    pub(crate) fn text(&self) -> String {
        let remarks = self.remarks.iter().map(|remark| format!("  {remark}\n"));
        let consequences = self.consequences.iter().map(|text| format!("! {text}\n"));
        consequences.chain(remarks).collect()
    }
}

#[cfg(test)]
mod tests {
    use attach_core::view::{Engine, Engines, Node, Nodes, Settings, Volume, VolumeState};
    use attach_core::{AttacherKind, Frontend};

    use super::*;
    use crate::inventory::sample;
    use crate::output::golden;

    /// `attached n1; csi t1 n1; snapshot t2 n1`: where the volume is, then its tickets.
    fn view(script: &str) -> View {
        let mut parts = script.split("; ");
        let mut volume = Volume::detached("v1");
        let place = parts.next().unwrap_or_default();
        let node = place.strip_prefix("attached ");
        if let Some(node) = node {
            volume.spec.node = Some(node.into());
            volume.status.state = VolumeState::Attached;
            volume.status.current_node = Some(node.into());
        }
        let settings = Settings {
            detach_manual_when_cordoned: place == "leaving cordoned nodes",
            ..Settings::default()
        };
        if place == "faulted" {
            volume.status.robustness = attach_core::view::Robustness::Faulted;
        }
        let engine = node.map(|node| Engine {
            node: node.into(),
            active: true,
            running: true,
            has_rw_replica: true,
            is_sole_writer: false,
            snapshots: None,
            error: None,
        });
        let tickets = parts.map(|part| {
            let words: Vec<&str> = part.split(' ').collect();
            let kind = match words[0] {
                "csi" => AttacherKind::Csi,
                "snapshot" => AttacherKind::Snapshot,
                _ => AttacherKind::Manual,
            };
            let ticket = Ticket::new(kind, words[1], words[2]);
            (ticket.id.clone(), ticket)
        });
        let node = |name: &str, ready, cordoned| (name.into(), Node { ready, cordoned });
        View {
            now: sample::now(),
            volume,
            tickets: tickets.collect(),
            statuses: Default::default(),
            nodes: Nodes {
                complete: true,
                listed: [
                    node("n1", true, false),
                    node("n2", true, false),
                    node("n3", false, false),
                    node("n4", true, true),
                ]
                .into(),
            },
            engines: Engines {
                complete: true,
                listed: engine.into_iter().collect(),
            },
            settings,
        }
    }

    #[test]
    fn what_an_attachment_would_do_is_said_before() {
        let mut page = String::new();
        let mut check = |script: &str, node: &str, frontend: Frontend| {
            let mut ticket = Ticket::new(AttacherKind::Manual, "mine", node);
            ticket.frontend = frontend;
            let preview = attach(&view(script), &ticket);
            page += &format!(
                "# {script}: attach to {node}, {frontend:?}\n{}",
                preview.text()
            );
        };
        check("detached", "n1", Frontend::Enabled);
        check("detached", "n3", Frontend::Enabled);
        check("faulted", "n1", Frontend::Enabled);
        check("attached n1; csi pod n1", "n1", Frontend::Enabled);
        check("attached n1; csi pod n1", "n1", Frontend::Disabled);
        check("attached n1; csi pod n1", "n2", Frontend::Enabled);
        check("attached n1; snapshot daily n1", "n2", Frontend::Enabled);
        check("detached; csi pod n1", "n2", Frontend::Enabled);
        check("attached n1; manual bob n1", "n2", Frontend::Enabled);
        check("detached", "n4", Frontend::Enabled);
        check("leaving cordoned nodes", "n4", Frontend::Enabled);
        golden::check("attach-preview", &page);
    }

    #[test]
    fn what_a_detachment_would_do_is_said_before() {
        let mut page = String::new();
        let mut check = |script: &str, id: &str| {
            let preview = detach(&view(script), &[&id.into()]);
            page += &format!("# {script}: without {id}\n{}", preview.text());
        };
        check("attached n1; manual mine n1", "mine");
        check("attached n1; manual mine n1; csi pod n1", "mine");
        check("attached n1; manual mine n1; csi pod n2", "mine");
        check("attached n1; csi pod n1", "pod");
        check("detached; manual mine n1; csi pod n2", "mine");
        golden::check("detach-preview", &page);
    }
}
