use attach_core::view::{Engines, Nodes, Settings, Volume};
use attach_core::{AttacherKind, Ticket, View};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_750_000_000 + seconds).expect("a time")
}

fn entry(number: usize, text: &str) -> Entry {
    // Words, since numbers do not tell entries apart.
    let word: String = number
        .to_string()
        .bytes()
        .map(|digit| char::from(digit - b'0' + b'k'))
        .collect();
    let changes = vec![Change::new(format!("change {word}"), "", text)];
    Entry::new(at(0), "somebody", changes, []).expect("a change")
}

#[test]
fn a_history_is_bounded_and_keeps_the_newest() {
    let mut kept = String::new();
    for number in 0..ENTRIES_MAX + 50 {
        kept = append(&kept, &[entry(number, "x")]);
    }
    let entries = read(&kept);
    assert_eq!(entries.len(), ENTRIES_MAX);
    assert_eq!(entries[0], entry(50, "x"));
    let long = "€".repeat(TEXT_BYTES_MAX);
    for number in 0..60 {
        let mut large = entry(number, &long);
        large.reasons = vec![short(&long); REASONS_MAX];
        kept = append(&kept, &[large]);
        assert!(kept.len() <= BYTES_MAX, "{}", kept.len());
    }
    let last = read(&kept).pop().expect("the newest");
    assert_eq!(last.changes, entry(59, &long).changes);
}

#[test]
fn a_loop_does_not_push_out_how_it_began() {
    let begin = entry(1, "the beginning");
    let turn = |number: usize| {
        let changes = vec![Change::new(
            format!("replica v-r-{number:08x}"),
            "",
            format!("created on node-{}", number % 3),
        )];
        Entry::new(at(0), "volume-controller", changes, []).expect("a change")
    };
    let other = entry(2, "something else");
    let mut kept = append("", std::slice::from_ref(&begin));
    for number in 0..500 {
        kept = append(&kept, &[turn(number)]);
        if number == 250 {
            kept = append(&kept, std::slice::from_ref(&other));
        }
    }
    let entries = read(&kept);
    let last = entries.last().expect("the newest");
    assert_eq!(last.changes, turn(499).changes);
    assert_eq!(last.repeated, 500 - 3);
    assert_eq!(entries[..3], [begin, turn(0), turn(1)]);
    assert!(entries.contains(&other));
    assert_eq!(entries.len(), 5);
}

#[test]
fn what_cannot_be_read_is_kept_and_passed_over() {
    let kept = append("not json\n", &[entry(1, "x")]);
    assert!(kept.starts_with("not json\n"));
    assert_eq!(read(&kept), [entry(1, "x")]);
}

#[test]
fn a_note_is_recorded_once() {
    let mut attachment = api_types::VolumeAttachment::default();
    let note = Note {
        id: "n1".to_owned(),
        at: at(0),
        who: "alice@desk".to_owned(),
        did: "removed ticket \"csi-1\"".to_owned(),
        why: "the node is scrap".to_owned(),
    };
    let text = with_note(&attachment, note);
    attachment.metadata.annotations = Some([(NOTES.to_owned(), text)].into());
    let fresh = notes(&attachment);
    let kept = append("", &fresh);
    assert_eq!(append(&kept, &fresh), kept);
    let entries = read(&kept);
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].who, "alice@desk");
    assert_eq!(entries[0].reasons, ["the node is scrap"]);
}

#[test]
fn a_decision_says_what_it_changed_and_one_that_changed_nothing_is_no_history() {
    let mut view = View {
        now: at(0),
        volume: Volume::detached("v1"),
        tickets: [Ticket::new(AttacherKind::Csi, "t1", "n1")]
            .map(|ticket| (ticket.id.clone(), ticket))
            .into(),
        statuses: Default::default(),
        nodes: Nodes::default(),
        engines: Engines::default(),
        settings: Settings::default(),
    };
    let plan = attach_core::decide(&view);
    let decision = of_attachment(&view, &plan);
    let entry = decision.entry(None, at(1)).expect("a change");
    let changes: Vec<String> = entry
        .changes
        .iter()
        .map(|change| format!("{}: {:?} -> {:?}", change.what, change.from, change.to))
        .collect();
    assert_eq!(
        changes,
        [
            "spec.nodeID: \"\" -> \"n1\"",
            "ticket t1 (csi-attacher for n1): \"filed\" -> \"waiting: Attaching\"",
        ]
    );
    assert!(
        entry.reasons[0].contains("first in line"),
        "{:?}",
        entry.reasons
    );
    view = plan.applied_to(&view);
    let plan = attach_core::decide(&view);
    let again = of_attachment(&view, &plan);
    assert_eq!(again.entry(Some(&decision.after), at(2)), None);
    assert_eq!(again.entry(None, at(2)), None);
    // Nobody was told of the first one: it is told now.
    let late = again
        .entry(Some(&decision.before), at(2))
        .expect("a change");
    assert_eq!(late.changes, entry.changes);
}
