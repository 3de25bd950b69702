//! A scene in one line of text, and a plan in another: so that a case costs a line.
//!
//! ```text
//! attached n1 migratable to=n2; csi@n1 csi@n2:any backup@n1=b7#3; engines n1 n2; nodes n1 n2- n3!
//! ```
//!
//! First the volume: its state and node, then words and `key=value` pairs. Then its tickets: type, node, and
//! optionally frontend (`:off`, `:any`), id (`=id`) and generation (`#n`). The rest, in any order: `nodes` (`-` not
//! ready, `!` cordoned; default n1 n2 n3), `engines` (`:wo`, `:error`, `:snap,snap`), `statuses` (`+` satisfied), `record` of a
//! migration, `set cordon`, `at` seconds, `resume` token.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use attach_core::attacher::TABLE;
use attach_core::migration::{MigrationRecord, Phase};
use attach_core::ticket::Condition;
use attach_core::view::{
    Engine, Engines, Node, Nodes, Robustness, Settings, Sharing, Volume, VolumeState,
};
use attach_core::{
    Attacher, Frontend, Generation, NodeName, Plan, Ticket, TicketId, TicketStatus, View, decide,
};
use expect_test::Expect;
use jiff::{SignedDuration, Timestamp};

/// What time it is in a scene that does not say.
pub fn noon() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

pub fn seconds_after_noon(seconds: i64) -> Timestamp {
    noon() + SignedDuration::from_secs(seconds)
}

/// Decides the scene and compares the plan.
#[track_caller]
pub fn check(scene: &str, expected: Expect) {
    expected.assert_eq(&render(&decide(&view(scene))));
}

/// Decides the scene and shows the whole plan on one line.
pub fn render(plan: &Plan) -> String {
    let mut text = plan.action.to_string();
    let spec = &plan.volume_spec;
    let node = |node: &Option<NodeName>| {
        node.as_ref()
            .map_or("nowhere".to_owned(), ToString::to_string)
    };
    write!(text, " {}", node(&spec.node)).unwrap();
    if spec.migration_node.is_some() {
        write!(text, ">{}", node(&spec.migration_node)).unwrap();
    }
    if spec.disable_frontend {
        text.push_str(" without frontend");
    }
    for reason in &plan.reasons {
        write!(text, " ({})", reason.code()).unwrap();
    }
    for (id, judgement) in &plan.verdicts {
        let satisfied = plan
            .ticket_statuses
            .get(id)
            .is_some_and(|status| status.satisfied);
        write!(
            text,
            "; {id} {}{}",
            if satisfied { "+" } else { "" },
            judgement.verdict
        )
        .unwrap();
        if let Some(reason) = &judgement.reason {
            write!(text, " {}", reason.code()).unwrap();
        }
    }
    for id in &plan.tickets_to_remove {
        write!(text, "; remove {id}").unwrap();
    }
    if let Some(record) = &plan.migration {
        write!(
            text,
            "; record {}>{} {:?}",
            record.source, record.target, record.phase
        )
        .unwrap();
    }
    text
}

pub fn view(scene: &str) -> View {
    let mut parts = scene.split(';').map(str::trim);
    let mut view = View {
        now: noon(),
        volume: volume(parts.next().expect("a volume")),
        tickets: BTreeMap::new(),
        statuses: BTreeMap::new(),
        nodes: nodes(["n1", "n2", "n3"].into_iter()),
        engines: Engines {
            complete: true,
            listed: Vec::new(),
        },
        settings: Settings::default(),
    };
    for word in parts.next().unwrap_or_default().split_whitespace() {
        let ticket = ticket(word);
        assert!(
            view.tickets.insert(ticket.id.clone(), ticket).is_none(),
            "two tickets {word}"
        );
    }
    for part in parts {
        let mut words = part.split_whitespace();
        match words.next().expect("what the part is about") {
            "nodes" => view.nodes = nodes(words),
            "no-nodes" => view.nodes = Nodes::default(),
            "engines" => view.engines.listed = words.map(engine).collect(),
            "no-engines" => view.engines = Engines::default(),
            "statuses" => view.statuses = words.map(status).collect(),
            "record" => view.volume.migration = Some(record(words.collect())),
            "set" => view.settings.detach_manual_when_cordoned = words.next() == Some("cordon"),
            "at" => view.now = seconds_after_noon(words.next().unwrap().parse().unwrap()),
            "resume" => view.volume.resume = words.next().unwrap().into(),
            other => panic!("what is {other:?}?"),
        }
    }
    view
}

fn volume(text: &str) -> Volume {
    let mut volume = Volume::detached("vol");
    let mut words = text.split_whitespace();
    let state = words.next().expect("a state");
    volume.status.state = [
        VolumeState::Creating,
        VolumeState::Detached,
        VolumeState::Attaching,
        VolumeState::Attached,
        VolumeState::Detaching,
        VolumeState::Deleting,
    ]
    .into_iter()
    .find(|known| known.wire() == state)
    .unwrap_or_else(|| panic!("no state {state:?}"));
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("rwx", "") => volume.sharing = Sharing::Shared,
            ("migratable", "") => volume.sharing = Sharing::Migratable,
            ("healthy", "") => volume.status.robustness = Robustness::Healthy,
            ("faulted", "") => volume.status.robustness = Robustness::Faulted,
            ("shared", "") => volume.status.share_available = true,
            ("copied", "") => volume.status.clone_copied = true,
            ("no-frontend", "") => volume.spec.disable_frontend = true,
            ("spec", node) => volume.spec.node = NodeName::from_wire(node),
            ("to", node) => volume.spec.migration_node = Some(node.into()),
            ("also", node) => volume.status.current_migration_node = Some(node.into()),
            (node, "") => {
                volume.spec.node = (state != "detaching").then(|| node.into());
                let here = matches!(state, "attached" | "detaching");
                volume.status.current_node = here.then(|| node.into());
            }
            other => panic!("what is {other:?}?"),
        }
    }
    volume
}

pub fn ticket(text: &str) -> Ticket {
    let (text, generation) = text.split_once('#').unwrap_or((text, "0"));
    let (text, id) = text
        .split_once('=')
        .map_or((text, None), |(text, id)| (text, Some(id)));
    let (text, frontend) = text.split_once(':').unwrap_or((text, "on"));
    let (attacher, node) = text.split_once('@').expect("type@node");
    let attacher = TABLE.iter().find(|row| row.short == attacher).map_or_else(
        || Attacher::from_wire(attacher),
        |row| Attacher::Known(row.kind),
    );
    let mut ticket = Ticket::new(attacher, id.unwrap_or(text), node);
    ticket.generation = Generation(generation.parse().unwrap());
    ticket.frontend = match frontend {
        "on" => Frontend::Enabled,
        "off" => Frontend::Disabled,
        "any" => Frontend::Any,
        other => {
            ticket.set_parameters(&BTreeMap::from([(
                "disableFrontend".to_owned(),
                other.to_owned(),
            )]));
            ticket.frontend
        }
    };
    ticket
}

fn nodes<'a>(words: impl Iterator<Item = &'a str>) -> Nodes {
    let listed = words
        .map(|word| {
            let name = word.trim_end_matches(['-', '!']);
            (
                name.into(),
                Node {
                    ready: !word.contains('-'),
                    cordoned: word.contains('!'),
                },
            )
        })
        .collect();
    Nodes {
        complete: true,
        listed,
    }
}

fn engine(word: &str) -> Engine {
    let (node, what) = word.split_once(':').unwrap_or((word, ""));
    let is_sole_writer = what.starts_with('!');
    let what = what.trim_start_matches('!');
    Engine {
        node: node.into(),
        active: true,
        running: what != "error",
        has_rw_replica: what != "wo",
        is_sole_writer,
        snapshots: (!matches!(what, "" | "wo" | "error"))
            .then(|| what.split(',').map(Into::into).collect()),
        error: (what == "error").then(|| "no replica answers".into()),
    }
}

fn status(word: &str) -> (TicketId, TicketStatus) {
    let (word, generation) = word.split_once('#').unwrap_or((word, "0"));
    let satisfied = word.ends_with('+');
    let condition = Condition {
        status: satisfied,
        reason: "".into(),
        message: "".into(),
        last_transition: Some(seconds_after_noon(-3600)),
    };
    let status = TicketStatus {
        satisfied,
        generation: Generation(generation.parse().unwrap()),
        condition,
    };
    (word.trim_end_matches('+').into(), status)
}

fn record(words: Vec<&str>) -> MigrationRecord {
    let (source, target) = words[0].split_once('>').expect("source>target");
    let phase = serde_json::from_value::<Phase>(words[1].into()).expect("a phase");
    let left: i64 = words.get(2).map_or(600, |left| left.parse().unwrap());
    MigrationRecord {
        source: source.into(),
        target: target.into(),
        phase,
        since: seconds_after_noon(left - 600),
        deadline: seconds_after_noon(left),
    }
}
