//! Snapshots as people ask for them, with a `Snapshot` object: of a detached volume, which is attached for it and let go again, and of
//! one that a pod writes to; and what becomes of their data when the object is deleted.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{SeekFrom, seek};
use serde_json::{Value, json};

use crate::support::{eventually, lariat};
use crate::watched::{
    ENGINES, Recorder, Seen, TICKETS, VOLUMES, assert_in_order, first, is_of, last, statuses,
    tickets,
};
use crate::world::World;

const SNAPSHOTS: &str = "snapshots.longhorn.io";
/// The name of a ticket is the operation's and the object's.
const TICKET: &str = "snapshot-controller-before";

pub fn ask(world: &World, name: &str, volume: &str) {
    world.create(&json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot", "metadata": {"name": name},
        "spec": {"volume": volume, "createSnapshot": true},
    }));
}

pub fn until_ready(world: &World, name: &str) -> Value {
    eventually(&format!("snapshot {name} to be ready"), || {
        let found = world.try_get("lhsnap", name);
        found.is_some_and(|found| found["status"]["readyToUse"] == true)
    });
    world.get("lhsnap", name)
}

fn write(folder: &Path, name: &str, content: &str) {
    let mut file = File::create(folder.join(name)).expect("a file");
    file.write_all(content.as_bytes()).expect("a write");
    file.sync_all().expect("a sync");
}

#[test]
fn a_detached_volume_is_attached_for_a_snapshot_and_let_go_again() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let path = world.path(&world.running("app"));
    write(&path, "one", "written before the snapshot");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    let volume = world.volume_of("data");
    let until_detached = || {
        eventually("the volume to be detached", || {
            world.volume_state(&volume) == "detached"
        });
    };
    until_detached();

    let recorder = Recorder::start(&world, &[SNAPSHOTS, TICKETS, VOLUMES, ENGINES]);
    // Every watch has something to see before it matters.
    ask(&world, "of-nothing", "no-such-volume");
    recorder.until("something", |seen| {
        let sees = |kind: &str| seen.iter().any(|one| one.kind == kind);
        [SNAPSHOTS, TICKETS, VOLUMES, ENGINES].into_iter().all(sees)
    });
    ask(&world, "before", &volume);
    let snapshot = until_ready(&world, "before");
    assert_eq!(snapshot["status"]["userCreated"], true);
    assert_eq!(snapshot["status"]["restoreSize"], 1_i64 << 30);
    assert_eq!(snapshot["status"]["children"], json!({"volume-head": true}));
    assert!(snapshot["status"]["size"].as_i64() > Some(0), "{snapshot}");
    until_detached();
    assert!(
        world.list("volumeattachment").is_empty(),
        "Kubernetes has no part in it"
    );
    let seen = recorder.until("the last hop", |seen| is_over(seen, &volume));
    each_hop(&seen, &volume);
    let error = &world.get("lhsnap", "of-nothing")["status"]["error"];
    assert_eq!(error, "its volume does not exist");
    world.until_told("Snapshot", "before", "SnapshotTaken", &volume);

    // The live data builds upon it: the volume is not attached to copy all of it. It goes with the next use.
    world.delete("lhsnap", "before");
    eventually("the reason to be told", || {
        let told = world.get("lhsnap", "before")["status"]["error"].clone();
        told == "the live data builds upon it: it goes when the volume is attached next"
    });
    assert_eq!(world.volume_state(&volume), "detached");
    world.pod("app", "data", Some("node-2"));
    let path = world.path(&world.running("app"));
    world.until_gone("lhsnap", "before");
    let read = fs::read_to_string(path.join("one")).expect("the file");
    assert_eq!(read, "written before the snapshot");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    until_detached();

    // The engine would refuse it for ever: the volume is not held for that.
    ask(&world, "rebuild-1-1", &volume);
    eventually("the refusal to be told", || {
        let error = world.get("lhsnap", "rebuild-1-1")["status"]["error"].clone();
        error
            .as_str()
            .is_some_and(|error| error.contains("choose another name"))
    });
    let attachment = world.get("lhva", &volume);
    assert_eq!(attachment["spec"]["attachmentTickets"], json!({}));
    world.delete("lhsnap", "rebuild-1-1");
    world.delete("lhsnap", "of-nothing");
    world.until_none("lhsnap");
}

fn has_snapshot(engine: &Seen) -> bool {
    engine.object["status"]["snapshots"]["before"]["removed"] == false
}

fn is_ready(one: &Seen) -> bool {
    one.object["metadata"]["name"] == "before" && one.object["status"]["readyToUse"] == true
}

/// Of each kind the last hop. The volume was detached at first as well, but had not been on a node yet.
fn is_over(seen: &[Seen], volume: &str) -> bool {
    let last_of = |kind: &str| last(seen, kind, |one| is_of(one, volume));
    let had = |kind: &str, is: fn(&Seen) -> bool| {
        seen.iter()
            .any(|one| one.kind == kind && is_of(one, volume) && is(one))
    };
    let is_empty = |one: &Seen| tickets(one).next().is_none() && statuses(one).is_empty();
    let is_detached = |one: &Seen| {
        one.object["spec"]["nodeID"] == "" && one.object["status"]["state"] == "detached"
    };
    last(seen, SNAPSHOTS, is_ready).is_some()
        && had(ENGINES, has_snapshot)
        && had(TICKETS, |one| tickets(one).next().is_some())
        && last_of(TICKETS).is_some_and(is_empty)
        && had(VOLUMES, |one| one.object["spec"]["nodeID"] != "")
        && last_of(VOLUMES).is_some_and(is_detached)
}

/// What the documents say that happens, with what each object contained then.
fn each_hop(seen: &[Seen], volume: &str) {
    let of_volume = |one: &Seen| is_of(one, volume);
    let of_snapshot = |one: &Seen| one.object["metadata"]["name"] == "before";
    let asked = first(seen, "asked for", SNAPSHOTS, of_snapshot);
    assert_ne!(seen[asked].object["status"]["readyToUse"], true);
    let is_later = |one: &Seen| one.revision > seen[asked].revision;
    let ticket = |one: &Seen| one.object["spec"]["attachmentTickets"][TICKET].clone();
    let filed = first(seen, "the ticket", TICKETS, |one| {
        of_volume(one) && ticket(one).is_object()
    });
    let filed_ticket = ticket(&seen[filed]);
    assert_eq!(filed_ticket["type"], "snapshot-controller");
    assert_eq!(filed_ticket["parameters"]["disableFrontend"], "any");
    let node = filed_ticket["nodeID"].as_str().expect("a node").to_owned();
    let answer = |one: &Seen| one.object["status"]["attachmentTicketStatuses"][TICKET].clone();
    let waits = first(seen, "an answer to the ticket", TICKETS, |one| {
        of_volume(one) && answer(one).is_object()
    });
    let waiting = answer(&seen[waits]);
    assert_eq!(waiting["id"], TICKET);
    assert_eq!(waiting["satisfied"], false);
    assert_eq!(waiting["conditions"][0]["type"], "Satisfied");
    assert_eq!(waiting["conditions"][0]["status"], "False");
    let placed = first(seen, "spec.nodeID", VOLUMES, |one| {
        is_later(one) && of_volume(one) && one.object["spec"]["nodeID"] == node.as_str()
    });
    let of_engine = |one: &Seen| is_later(one) && is_of(one, volume);
    let requested = first(seen, "a running engine that is asked", ENGINES, |one| {
        of_engine(one)
            && one.object["status"]["currentState"] == "running"
            && one.object["spec"]["snapshotRequests"] == json!({"before": "take"})
    });
    let listed = first(seen, "the snapshot in the engine", ENGINES, |one| {
        of_engine(one) && has_snapshot(one)
    });
    let ready = first(seen, "ready", SNAPSHOTS, is_ready);
    let withdrawn = first(seen, "no ticket", TICKETS, |one| {
        one.revision > seen[filed].revision && of_volume(one) && ticket(one).is_null()
    });
    let forgotten = first(seen, "no status of the ticket", TICKETS, |one| {
        one.revision > seen[waits].revision && of_volume(one) && answer(one).is_null()
    });
    // It counts what is asked for, and not what is answered.
    let generation = |at: usize| seen[at].object["metadata"]["generation"].as_i64();
    assert!(generation(filed).is_some());
    assert_eq!(generation(waits), generation(filed));
    assert!(generation(withdrawn) > generation(filed));
    assert_eq!(generation(forgotten), generation(withdrawn));
    let released = first(seen, "detached", VOLUMES, |one| {
        one.revision > seen[placed].revision
            && of_volume(one)
            && one.object["status"]["state"] == "detached"
            && one.object["spec"]["nodeID"] == ""
    });
    assert_in_order(&[
        ("the Snapshot", asked),
        ("its ticket", filed),
        ("the ticket that waits", waits),
        ("Volume.spec.nodeID", placed),
        ("the running engine", requested),
        ("the snapshot in the engine", listed),
        ("the ready Snapshot", ready),
        ("the withdrawn ticket", withdrawn),
        ("the end of its status", forgotten),
        ("the detached volume", released),
    ]);
}

#[test]
fn snapshots_of_a_volume_in_use_hold_what_was_written_and_go_with_their_objects() {
    let world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some("node-1"));
    let path = world.path(&world.running("app"));
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    write(&path, "one", "marker-of-the-first-file");
    ask(&world, "first", &volume);
    until_ready(&world, "first");
    write(&path, "two", "marker-of-the-second-file");
    ask(&world, "second", &volume);
    until_ready(&world, "second");
    write(&path, "three", "marker-of-the-third-file");
    assert_eq!(world.get("lhsnap", "second")["status"]["parent"], "first");
    for node in ["node-1", "node-2", "node-3"] {
        let layers = layers(&world.node_folder(node).join("disks"));
        let holding = |marker: &str| {
            let holds = |layer: &&PathBuf| data(layer).contains(marker);
            layers.iter().filter(holds).count()
        };
        assert_eq!(holding("marker-of-the-first-file"), 1, "{node}: {layers:?}");
        assert_eq!(
            holding("marker-of-the-second-file"),
            1,
            "{node}: {layers:?}"
        );
        assert!(layers.len() >= 2, "{layers:?}");
    }

    // One that somebody takes at the engine gets an object, and can be removed by it as well.
    let folder = world.node_folder("node-1").join("run");
    let taken = Command::new(lariat())
        .args(["engine", "snapshot", &volume, "by-hand", "--runtime-dir"])
        .arg(folder)
        .status();
    assert!(taken.expect("lariat runs").success());
    until_ready(&world, "by-hand");

    // From the middle, from below all, and from right below the live data; all while the volume is in use.
    for (name, left) in [("second", 2), ("first", 1), ("by-hand", 0)] {
        world.delete("lhsnap", name);
        world.until_gone("lhsnap", name);
        let known = known_to_the_engine(&world);
        assert_eq!(
            known.len(),
            left + 1,
            "the live data and what is left: {known:?}"
        );
    }
    // Asked for and deleted in one breath, also while the agent dies that asks the engine: nothing is left behind or comes back.
    let hasty: Vec<String> = (0..6).map(|number| format!("hasty-{number}")).collect();
    for (number, name) in hasty.iter().enumerate() {
        ask(&world, name, &volume);
        if number % 3 == 2 {
            world.kill(&world.processes(&["--name", "node-1"]));
        }
        world.delete("lhsnap", name);
    }
    for name in &hasty {
        world.until_gone("lhsnap", name);
    }
    ask(&world, "last", &volume);
    until_ready(&world, "last");
    assert_eq!(known_to_the_engine(&world), ["last", "volume-head"]);
    assert_eq!(world.list("lhsnap").len(), 1);
    world.delete("lhsnap", "last");
    world.until_gone("lhsnap", "last");
    world.until_robust(&volume);
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.pod("app", "data", Some("node-3"));
    let path = world.path(&world.running("app"));
    for (name, content) in [
        ("one", "marker-of-the-first-file"),
        ("two", "marker-of-the-second-file"),
        ("three", "marker-of-the-third-file"),
    ] {
        assert_eq!(
            fs::read_to_string(path.join(name)).expect("the file"),
            content
        );
    }

    // A volume takes its snapshots along, and as many as it may have it has.
    world.kubectl.prints(&[
        "-n",
        "longhorn-system",
        "patch",
        "lhv",
        &volume,
        "--type=merge",
        "-p",
        r#"{"spec":{"snapshotMaxCount":1}}"#,
    ]);
    ask(&world, "only", &volume);
    until_ready(&world, "only");
    ask(&world, "one-too-many", &volume);
    eventually("the refusal to be told", || {
        let error = world.get("lhsnap", "one-too-many")["status"]["error"].clone();
        error
            .as_str()
            .is_some_and(|error| error.contains("as many snapshots as it may have, 1"))
    });
    world.delete("pod", "app");
    world.until_gone("pod", "app");
    world.delete("pvc", "data");
    for what in ["pvc", "pv", "lhsnap", "lhv", "lhva", "lhe", "lhr"] {
        world.until_none(what);
    }
    assert_eq!(world.leftovers(), [""; 0]);
}

/// What the only engine lists, the live data included.
fn known_to_the_engine(world: &World) -> Vec<String> {
    let engines = world.list("lhe");
    let [engine] = &engines[..] else {
        panic!("{engines:?}")
    };
    let snapshots = engine["status"]["snapshots"].as_object().expect("a list");
    snapshots.keys().cloned().collect()
}

/// The files below a folder that may hold a volume's blocks.
fn layers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(layers(&path));
        } else if entry.metadata().is_ok_and(|it| it.size() >= 1 << 30) {
            found.push(path);
        }
    }
    found
}

/// What a sparse file holds.
fn data(path: &Path) -> String {
    let mut file = File::open(path).expect("a layer");
    let (mut all, mut place) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(place)) {
        let end = seek(&file, SeekFrom::Hole(start)).expect("the end of the data");
        seek(&file, SeekFrom::Start(start)).expect("a place");
        let length = end - start;
        (&mut file)
            .take(length)
            .read_to_end(&mut all)
            .expect("data");
        place = end;
    }
    String::from_utf8_lossy(&all).into_owned()
}
