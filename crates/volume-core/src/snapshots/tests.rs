//! Rows: the objects, what the engine has, what follows.

use super::*;

/// Words are objects: `a+` asks for a snapshot, `a?` too and the engine may have been told, `a` only shows one; `!` says that it was taken, `_` that the live volume builds
/// upon it, `%` that branches do, `~` that it is being deleted, `=` that its volume is gone and has a successor.
fn view(objects: &str, listed: Option<&str>) -> SnapshotsView {
    let name = |word: &str| {
        word.trim_end_matches(['+', '?', '!', '~', '_', '%', '-', '*', '='])
            .to_owned()
    };
    let asked = |word: &str| {
        let asked = Asked {
            create: word.contains(['+', '?']),
            handed_over: word.contains('?'),
            taken: word.contains('!'),
            deleting: word.contains('~'),
            below_live: word.contains('_'),
            has_branches: word.contains('%'),
            of_former_volume: word.contains('='),
        };
        (name(word), asked)
    };
    // In a list `a-` is marked, and `a*` the engine's own.
    let found = |word: &str| {
        let found = Listed {
            user_created: !word.contains('*'),
            marked: word.contains('-'),
        };
        (name(word), found)
    };
    SnapshotsView {
        volume: Presence::There,
        limit: 3,
        merging_disabled: false,
        objects: objects.split_whitespace().map(asked).collect(),
        engine: EngineView {
            exists: listed.is_some(),
            listed: listed.map(|listed| listed.split_whitespace().map(found).collect()),
            taking: BTreeSet::new(),
            errors: BTreeMap::new(),
        },
    }
}

fn with(mut view: SnapshotsView, change: impl FnOnce(&mut SnapshotsView)) -> SnapshotsView {
    change(&mut view);
    view
}

fn requests(view: &SnapshotsView) -> String {
    let show = |(name, request): (String, Request)| match request {
        Request::Take => format!("+{name}"),
        Request::Remove => format!("-{name}"),
    };
    let words: Vec<String> = view.requests().into_iter().map(show).collect();
    words.join(" ")
}

fn outcome(view: &SnapshotsView) -> String {
    let sentence =
        |trouble: Option<Trouble>| trouble.map_or_else(String::new, |t| format!(": {t}"));
    match view.outcome("a") {
        Outcome::Release => "release".to_owned(),
        Outcome::Show { trouble } => format!("show{}", sentence(trouble)),
        Outcome::Absent { trouble } => format!("absent: {trouble}"),
        Outcome::Wait { trouble } => format!("wait{}", sentence(trouble)),
    }
}

#[test]
fn only_what_is_not_there_is_asked_for() {
    let rows = [
        ("", ""),
        ("a?", "+a"),
        // The object has to say so before.
        ("a+", ""),
        ("a", ""),
        ("a?!", ""),
        ("a?! b? c", "+b"),
        ("a?!~ b~ c?~", "-a -b -c"),
        // Three is the limit here, and one that is being removed is still there.
        ("a! b! c!~ d?", "-c"),
        // Of two that do not fit together the first one is taken, also while its object does not show that yet.
        ("a! b! c? d?", "+c"),
        ("a! b? c d? e?", "+b +d"),
        ("rebuild-2-1? reconcile-2? volume-head? z?", "+z"),
        ("a?= b?!~= c?", "+c"),
    ];
    for (objects, expected) in rows {
        assert_eq!(requests(&view(objects, None)), expected, "{objects}");
    }
    assert_eq!(requests(&view("a! c? b? d?", Some("a c"))), "+b +c");
    // What has no object counts as well.
    assert_eq!(requests(&view("a?", Some("x y z-"))), "");
    let leaving = |view: &mut SnapshotsView| view.volume = Presence::Leaving;
    assert_eq!(requests(&with(view("a? b!~", None), leaving)), "");
    let disabled = |view: &mut SnapshotsView| view.merging_disabled = true;
    assert_eq!(requests(&with(view("a? b!~", None), disabled)), "+a");
}

#[test]
fn an_object_says_that_an_engine_is_asked_before_it_is() {
    let rows = [
        ("a+", Some(""), true),
        ("a?", Some(""), true),
        ("a+", None, false),
        ("a", Some(""), false),
        ("a+~", Some(""), false),
        ("a+!", Some("a"), false),
        ("a+ b! c! d!", Some("b c d"), false),
        ("a+=", Some(""), false),
    ];
    for (objects, listed, expected) in rows {
        let view = view(objects, listed);
        assert_eq!(view.hands_over("a"), expected, "{objects} {listed:?}");
    }
}

#[test]
fn an_object_shows_what_the_engine_has() {
    let rows = [
        ("a+", Some("a"), "show"),
        ("a+!", Some("a b"), "show"),
        ("a", Some("a-"), "show"),
        ("a+", Some("b"), "wait"),
        // The one that goes is not the one that is asked for.
        ("a?", Some("a-"), "wait"),
        ("a?!", Some("a-"), "show"),
        ("a?!=", Some("a"), "absent: its volume does not exist"),
        ("a+", None, "wait"),
        // A detached volume is not looked into, and what was seen stands.
        ("a+!", None, "wait"),
        ("a", None, "wait"),
        (
            "a+!",
            Some(""),
            "absent: the volume does not have this snapshot any more",
        ),
        (
            "a",
            Some(""),
            "absent: the volume has no snapshot of this name; with createSnapshot one would be taken",
        ),
        (
            "a+ b! c! d!",
            None,
            "wait: the volume has as many snapshots as it may have, 3: remove one, or raise the volume's snapshotMaxCount, of which up to 245 count",
        ),
    ];
    for (objects, listed, expected) in rows {
        assert_eq!(
            outcome(&view(objects, listed)),
            expected,
            "{objects} {listed:?}"
        );
    }
    // What the engine took for itself is neither shown nor removed by an object of that name.
    let own = view("rebuild-2-1+ volume-head~", Some("rebuild-2-1*"));
    let trouble = Trouble::ReservedName;
    assert_eq!(own.outcome("rebuild-2-1"), Outcome::Absent { trouble });
    assert_eq!(own.outcome("volume-head"), Outcome::Release);
    assert_eq!(requests(&own), "");
    assert_eq!(requests(&view("rebuild-2-1~", Some("rebuild-2-1*"))), "");
    let gone = |view: &mut SnapshotsView| view.volume = Presence::Gone;
    assert_eq!(
        outcome(&with(view("a+", None), gone)),
        "absent: its volume does not exist"
    );
    let refused = |view: &mut SnapshotsView| {
        view.engine.errors.insert("a".into(), "no room".into());
    };
    assert_eq!(
        outcome(&with(view("a+", Some("")), refused)),
        "wait: no room"
    );
    // It was taken at last, whatever an earlier attempt met.
    assert_eq!(outcome(&with(view("a+", Some("a")), refused)), "show");
}

#[test]
fn an_object_stays_until_its_data_is_gone() {
    let rows = [
        ("a+!~", Some(""), "release"),
        ("a+~", Some("b"), "release"),
        ("a+!~", Some("a"), "show"),
        ("a+!~", Some("a-"), "show"),
        ("a+!~", None, "wait"),
        ("a+~", None, "release"),
        ("a~", None, "release"),
        // An engine has ended before it said whether it took it.
        ("a?~", None, "wait"),
        ("a?~", Some(""), "release"),
        ("a?!~=", Some("a"), "release"),
        (
            "a!%~",
            Some("a-"),
            "show: several branches of the volume build on it, which reverts have made: it goes when one is left",
        ),
        (
            "a!_~",
            None,
            "wait: the live data builds upon it: it goes when the volume is attached next",
        ),
    ];
    for (objects, listed, expected) in rows {
        assert_eq!(
            outcome(&view(objects, listed)),
            expected,
            "{objects} {listed:?}"
        );
    }
    // The engine that is being started may have it.
    let starting = |view: &mut SnapshotsView| view.engine.exists = true;
    assert_eq!(outcome(&with(view("a?~", None), starting)), "wait");
    // The list is of a moment at which it was still to be taken.
    let taking = |view: &mut SnapshotsView| view.engine.taking = ["a".to_owned()].into();
    assert_eq!(outcome(&with(view("a?~", Some("b")), taking)), "wait");
    let disabled = |view: &mut SnapshotsView| view.merging_disabled = true;
    assert_eq!(
        outcome(&with(view("a!~", Some("a")), disabled)),
        "show: the setting disable-snapshot-purge keeps the data of removed snapshots: it goes when that is off"
    );
    for presence in [Presence::Leaving, Presence::Gone] {
        let without = |view: &mut SnapshotsView| view.volume = presence;
        assert_eq!(outcome(&with(view("a!~", Some("a")), without)), "release");
    }
}

#[test]
fn what_somebody_took_by_hand_gets_an_object() {
    // Kubernetes would not take the last one's name.
    let found = view("a!", Some("a b c- rebuild* Monday"));
    assert_eq!(found.without_object().collect::<Vec<_>>(), ["b"]);
    let leaving = with(found, |view| view.volume = Presence::Leaving);
    assert_eq!(leaving.without_object().count(), 0);
}
