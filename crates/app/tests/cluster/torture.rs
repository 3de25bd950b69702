//! A writer in a pod, while random parts are killed: what was acknowledged is there, every time.
//!
//! `LARIAT_TORTURE_ROUNDS` says how many rounds; `LARIAT_TORTURE_SEED` repeats one choice of them.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, OpenOptions};
use std::hash::{Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::eventually;
use crate::world::World;

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// In so many rounds every blow and every companion has come.
const ROUNDS_OF_ALL: u64 = 20;

/// What a round does to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    KillManager,
    KillAgentOfPod,
    KillAgentElsewhere,
    KillEngine,
    KillKeeper,
    PowerOffPodNode,
    PowerOffOther,
    /// Everything on the pod's node stands still until the pod is elsewhere, and then goes on as if nothing had been.
    FreezePodNode,
    /// The replica on the other node: its connections stay open, and nothing comes over them.
    SilenceOther,
    MovePod,
    /// The API, the manager and all agents; engines go on.
    KillUp,
}

impl Blow {
    /// Whether the pod's writer goes on through all of it, with nothing worse than a pause.
    fn leaves_the_pod(self) -> bool {
        match self {
            Self::KillManager
            | Self::KillAgentOfPod
            | Self::KillAgentElsewhere
            | Self::KillEngine
            | Self::KillKeeper
            | Self::PowerOffOther
            | Self::SilenceOther
            | Self::KillUp => true,
            Self::PowerOffPodNode | Self::FreezePodNode | Self::MovePod => false,
        }
    }

    /// Whether it may fall right after another one.
    fn can_follow(self, first: Self) -> bool {
        match (first, self) {
            // The one pair that costs a pod its device: see `engine/src/frontend/keeper.rs`.
            (Self::KillKeeper, Self::KillEngine)
            // Who is killed does not stand still any more.
            | (Self::SilenceOther, Self::KillAgentElsewhere)
            | (Self::FreezePodNode, Self::KillEngine | Self::KillAgentOfPod)
            // And who has no power cannot be killed.
            | (Self::PowerOffOther, Self::KillAgentElsewhere)
            | (Self::PowerOffPodNode, Self::KillEngine | Self::KillAgentOfPod) => false,
            (first, second) => first != second,
        }
    }
}

const BLOWS: [Blow; 11] = [
    Blow::KillManager,
    Blow::KillAgentOfPod,
    Blow::KillAgentElsewhere,
    Blow::KillEngine,
    Blow::KillKeeper,
    Blow::PowerOffPodNode,
    Blow::PowerOffOther,
    Blow::FreezePodNode,
    Blow::SilenceOther,
    Blow::MovePod,
    Blow::KillUp,
];

/// What every other round adds to its blow, right after it.
const COMPANIONS: [Blow; 4] = [
    Blow::KillManager,
    Blow::KillAgentOfPod,
    Blow::KillAgentElsewhere,
    Blow::KillEngine,
];

#[test]
fn acknowledged_writes_survive_everything() {
    let rounds = number("LARIAT_TORTURE_ROUNDS").unwrap_or(20);
    let mut random = number("LARIAT_TORTURE_SEED").unwrap_or(1);
    eprintln!("{rounds} rounds with seed {random}");
    let mut world = World::new(3);
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", None);
    world.running("app");
    let volume = world.volume_of("data");
    let mut acknowledged = 0;
    let (mut blows, mut companions) = (Deck::of(&BLOWS), Deck::of(&COMPANIONS));
    for round in 0..rounds {
        let pod = world.running("app");
        let node = pod["spec"]["nodeName"].as_str().expect("a node").to_owned();
        let file = world.path(&pod).join("journal");
        let found = verify(&file);
        assert!(
            found >= acknowledged,
            "round {round}: {found} records, {acknowledged} were acknowledged"
        );
        let writer = Writer::start(&file, found);
        writer.until_wrote(20);
        // Only now: before an engine has acknowledged something, the volume may not say yet what the last blow has cost it. A node that is
        // lost with the only replica in sync takes the volume along.
        world.until_robust(&volume);
        let blow = blows.draw(&mut random, |_| true).expect("a blow");
        let companion = (round % 2 == 1)
            .then(|| companions.draw(&mut random, |one| one.can_follow(blow)))
            .flatten();
        let others: Vec<&str> = NODES.into_iter().filter(|name| *name != node).collect();
        let other = others[usize::from(next(&mut random) % 2 == 1)];
        eprintln!(
            "round {round}: {blow:?} and {companion:?} with the pod on {node} and {other} as another node, {found} records"
        );
        strike(&mut world, blow, &node, other);
        if let Some(companion) = companion {
            strike(&mut world, companion, &node, other);
        }
        if blow.leaves_the_pod() {
            recover(&world, blow, &volume, &node, other);
            world.until_robust(&volume);
            writer.until_wrote(20);
        } else {
            // A pod that is deleted is ended before its volume goes. That of a dead node goes on as long as it can.
            if matches!(blow, Blow::MovePod) {
                writer.tell_to_stop();
            }
            recover(&world, blow, &volume, &node, other);
            world.until_robust(&volume);
        }
        // Also what the old writer of a lost node was told since then.
        acknowledged = writer.stop(blow.leaves_the_pod()).max(found);
    }
    if rounds >= ROUNDS_OF_ALL {
        assert_eq!(blows.never_drawn(), [], "blows that have not come");
        assert_eq!(companions.never_drawn(), [], "companions");
    }
    // From the replicas, and not out of the page cache of the node that wrote it.
    for node in NODES {
        world.delete("pod", "app");
        world.until_gone("pod", "app");
        world.pod("app", "data", Some(node));
        let found = verify(&world.path(&world.running("app")).join("journal"));
        assert!(
            found >= acknowledged,
            "at the end, on {node}: {found} records, {acknowledged} were acknowledged"
        );
    }
}

fn strike(world: &mut World, blow: Blow, node: &str, other: &str) {
    match blow {
        Blow::KillManager => world.kill(&world.processes(&["manager", "--embedded"])),
        Blow::KillAgentOfPod => world.kill(&world.processes(&["--name", node])),
        Blow::KillAgentElsewhere => world.kill(&world.processes(&["--name", other])),
        Blow::KillEngine => world.kill(&world.processes(&["engine", "managed"])),
        Blow::KillKeeper => {
            let killed = keepers(world, node);
            world.kill(&killed);
            eventually("the keeper to end", || {
                let left = keepers(world, node);
                !killed.iter().any(|pid| left.contains(pid))
            });
        }
        Blow::PowerOffPodNode => world.power_off(node),
        Blow::PowerOffOther => world.power_off(other),
        Blow::FreezePodNode => world.signal(&world.of_node(node), Signal::STOP),
        Blow::SilenceOther => world.signal(&world.processes(&["--name", other]), Signal::STOP),
        Blow::MovePod => world.delete("pod", "app"),
        Blow::KillUp => {
            world.cluster.kill();
            world.cluster.start_again();
        }
    }
}

/// Brings back what was taken away; the pod on another node if it has lost its own.
fn recover(world: &World, blow: Blow, volume: &str, node: &str, other: &str) {
    match blow {
        Blow::KillManager
        | Blow::KillAgentOfPod
        | Blow::KillAgentElsewhere
        | Blow::KillEngine
        | Blow::KillUp => {}
        Blow::KillKeeper => eventually("another keeper to have the device", || {
            keepers(world, node).into_iter().any(has_channel)
        }),
        Blow::SilenceOther => {
            eventually("the set without the silent replica", || {
                !world.in_sync_nodes(volume).iter().any(|node| node == other)
            });
            world.signal(&world.processes(&["--name", other]), Signal::CONT);
        }
        Blow::PowerOffOther => world.power_on(other),
        Blow::PowerOffPodNode => {
            world.until_gone("pod", "app");
            world.pod("app", "data", Some(other));
            world.running("app");
            world.power_on(node);
        }
        Blow::FreezePodNode => {
            world.until_gone("pod", "app");
            world.pod("app", "data", Some(other));
            world.running("app");
            world.signal(&world.of_node(node), Signal::CONT);
        }
        Blow::MovePod => {
            world.until_gone("pod", "app");
            world.pod("app", "data", Some(other));
        }
    }
}

fn keepers(world: &World, node: &str) -> Vec<i32> {
    let folder = world.node_folder(node);
    world.processes(&["engine", "keeper", &folder.to_string_lossy()])
}

/// Whether a process has the way to a device's file system open.
fn has_channel(pid: i32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.into_iter()
        .flatten()
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == Path::new("/dev/fuse")))
}

/// Appends numbered records with a checksum, each acknowledged by an `fdatasync`, until told to stop or an error.
struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    error: Arc<OnceLock<String>>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    fn start(path: &Path, records: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(records));
        let path = path.to_owned();
        let error = Arc::new(OnceLock::new());
        let (stopped, count, failed) = (stop.clone(), acknowledged.clone(), error.clone());
        let thread = thread::spawn(move || {
            let opened = OpenOptions::new().create(true).append(true).open(&path);
            let mut file = opened.expect("the journal can be opened");
            let mut number = records;
            while !stopped.load(Ordering::Relaxed) {
                let record = format!("{number} {:016x}\n", checksum(number));
                let written = file
                    .write_all(record.as_bytes())
                    .and_then(|()| file.sync_data());
                // An error is an answer too: this record is not acknowledged, nor is any after it.
                if let Err(error) = written {
                    failed.set(error.to_string()).ok();
                    return;
                }
                number += 1;
                count.store(number, Ordering::SeqCst);
                // A round is as long as its recovery takes, and every round reads all records.
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            stop,
            acknowledged,
            error,
            thread,
        }
    }

    /// As many records from now on, and no error so far.
    fn until_wrote(&self, records: u64) {
        let wanted = self.acknowledged.load(Ordering::SeqCst) + records;
        eventually("the writer to write", || {
            if let Some(error) = self.error.get() {
                panic!("the writer got an error although its pod was left alone: {error}");
            }
            self.acknowledged.load(Ordering::SeqCst) >= wanted
        });
    }

    fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// How many records were acknowledged. A writer that waits for the device of a lost node, which never comes back, is left to the
    /// kernel; one whose device is there ends, so that the next one does not write beside it.
    fn stop(self, has_its_device: bool) -> u64 {
        self.tell_to_stop();
        if has_its_device {
            eventually("the writer to end", || self.thread.is_finished());
        }
        for _ in 0..200 {
            if self.thread.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.acknowledged.load(Ordering::SeqCst)
    }
}

/// How many records the journal has; all of them must be whole and in order, but for a torn last one.
fn verify(path: &Path) -> u64 {
    let Ok(file) = File::open(path) else {
        return 0;
    };
    let mut number = 0;
    let mut lines = BufReader::new(file).lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.expect("the journal can be read");
        if line != format!("{number} {:016x}", checksum(number)) {
            assert!(
                lines.peek().is_none(),
                "record {number} reads {line:?}, and others follow"
            );
            // What was never acknowledged may be torn; the next writer must not append to it.
            let whole = File::options().write(true).open(path).expect("the journal");
            let length: u64 = (0..number)
                .map(|n| format!("{n} {:016x}\n", checksum(n)).len() as u64)
                .sum();
            whole
                .set_len(length)
                .expect("the torn record can be cut off");
            break;
        }
        number += 1;
    }
    number
}

fn checksum(number: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    number.hash(&mut hasher);
    hasher.finish()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
    )
}

/// Deals all cards before it deals one again: no seed leaves one out for long.
struct Deck {
    all: &'static [Blow],
    left: Vec<Blow>,
    drawn: Vec<Blow>,
}

impl Deck {
    fn of(all: &'static [Blow]) -> Self {
        Self {
            all,
            left: Vec::new(),
            drawn: Vec::new(),
        }
    }

    /// None if nothing that is left fits.
    fn draw(&mut self, random: &mut u64, fits: impl Fn(Blow) -> bool) -> Option<Blow> {
        if self.left.is_empty() {
            self.left = self.all.to_vec();
        }
        let fitting: Vec<usize> = (0..self.left.len())
            .filter(|&at| fits(self.left[at]))
            .collect();
        let count = u64::try_from(fitting.len()).expect("few");
        let choice = next(random).checked_rem(count)?;
        let at = fitting[usize::try_from(choice).expect("one of them")];
        let card = self.left.swap_remove(at);
        self.drawn.push(card);
        Some(card)
    }

    fn never_drawn(&self) -> Vec<Blow> {
        let mut never = self.all.to_vec();
        never.retain(|card| !self.drawn.contains(card));
        never
    }
}

/// xorshift: the same rounds for the same seed.
fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 8
}
