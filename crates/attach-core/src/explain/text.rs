//! For a person at three in the morning: where the volume is, who holds it, who waits and for what, what happens next,
//! and what to do.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::names::TicketId;
use crate::plan::{Action, Judgement, Verdict};
use crate::reasons::Reason;
use crate::view::VolumeState;

use super::Explained;

pub(super) fn render(volumes: &[Explained]) -> String {
    if volumes.is_empty() {
        return "There is no Volume in the input that could be explained.\n".to_owned();
    }
    volumes.iter().map(volume).collect::<Vec<_>>().join("\n")
}

fn volume(explained: &Explained) -> String {
    let mut page = Page(format!(
        "Volume {}: {}\n",
        explained.view.volume.name,
        place(explained)
    ));
    let mut verdicts: Vec<_> = explained.plan.verdicts.iter().collect();
    // Whoever has the volume first, then whoever is about to, then the others.
    verdicts.sort_by_key(|(_, judgement)| judgement.verdict);
    for (id, judgement) in verdicts {
        page.line(label(judgement.verdict), &about(explained, id, judgement));
    }
    if explained.plan.verdicts.is_empty() {
        page.line("Tickets", "none");
    }
    page.line("Next", &next(explained));
    for reason in &explained.plan.reasons {
        page.line("Because", &reason.to_string());
    }
    for advice in advice(explained) {
        page.line("To do", &advice);
    }
    page.0
}

struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: &str) {
        writeln!(self.0, "  {label:<11} {text}").expect("text can be written into a string");
    }
}

fn place(explained: &Explained) -> String {
    let volume = &explained.view.volume;
    let status = &volume.status;
    let mut text = status.state.wire().to_owned();
    if let Some(node) = &status.current_node {
        let word = if status.state == VolumeState::Detaching {
            "from"
        } else {
            "to"
        };
        write!(text, " {word} node {node}").expect("text can be written into a string");
    }
    if let Some(node) = &status.current_migration_node {
        write!(text, ", and to node {node} by migration")
            .expect("text can be written into a string");
    }
    if volume.is_faulted() {
        text.push_str(", FAULTED");
    }
    text
}

fn label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holding => "Held by",
        Verdict::Selected => "Selected",
        Verdict::Coexisting => "Also here",
        Verdict::Waiting => "Waiting",
        Verdict::Interrupting => "Interrupts",
        Verdict::Interrupted => "Interrupted",
        Verdict::Ignored => "Not counted",
        Verdict::Stale => "Leftover",
        Verdict::Unknown => "Unknown",
    }
}

fn about(explained: &Explained, id: &TicketId, judgement: &Judgement) -> String {
    let who = explained.view.tickets.get(id).map_or_else(
        || format!("ticket {:?}", id.as_str()),
        |ticket| format!("{ticket} for node {}", ticket.node),
    );
    match &judgement.reason {
        Some(reason) => format!("{who}: {reason}"),
        None => format!("{who}: satisfied"),
    }
}

fn next(explained: &Explained) -> String {
    let plan = &explained.plan;
    let spec = &plan.volume_spec;
    let node =
        |node: &Option<crate::NodeName>| node.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut text = match plan.action {
        Action::Attach => format!("the volume is attached to node {}", node(&spec.node)),
        Action::Detach => "the volume is detached".to_owned(),
        Action::Keep => "nothing changes".to_owned(),
        Action::Wait => "nothing until what is under way is done".to_owned(),
        Action::Hold => "nothing: attaching is held".to_owned(),
        Action::Migrate => format!(
            "the volume migrates from node {} to node {}",
            node(&spec.node),
            node(&spec.migration_node)
        ),
        Action::ConfirmMigration => {
            format!("the volume belongs to node {} alone", node(&spec.node))
        }
        Action::RollBackMigration => format!(
            "the migration is undone, the volume stays on node {}",
            node(&spec.node)
        ),
        Action::CancelMigration => "the migration is given up".to_owned(),
    };
    if let Some(after) = plan.recheck_after {
        write!(text, " (looked at again after {} s)", after.as_secs())
            .expect("text can be written into a string");
    }
    text
}

/// Each piece of advice once, however many tickets it is for.
fn advice(explained: &Explained) -> BTreeSet<String> {
    let plan = &explained.plan;
    let of_tickets = plan
        .verdicts
        .values()
        .filter_map(|judgement| judgement.reason.as_ref());
    plan.reasons
        .iter()
        .chain(of_tickets)
        .filter_map(Reason::advice)
        .collect()
}
