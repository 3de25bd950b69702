//! A volume moves between two nodes under load: a guest that writes until it is paused, and somebody who reads at the target
//! all the while.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::Value;

use crate::migration::{Aligned, BLOCK, Disk, migratable};
use crate::support::eventually;
use crate::world::World;

/// Requests that a guest has in flight.
const WRITERS: usize = 4;
const BLOCKS_EACH: usize = 64;
const BLOCKS: usize = WRITERS * BLOCKS_EACH;

/// What became of the guest's writes. Each has a number of its own, which fills its block; a block has one writer.
struct Journal {
    last: AtomicU64,
    begun: Vec<AtomicU64>,
    acknowledged: Vec<AtomicU64>,
    writes: AtomicU64,
}

impl Journal {
    fn new() -> Arc<Self> {
        let zeroes = || (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            last: AtomicU64::new(0),
            begun: zeroes(),
            acknowledged: zeroes(),
            writes: AtomicU64::new(0),
        })
    }

    fn write(&self, disk: &Disk, block: usize) -> Result<(), String> {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        self.begun[block].store(number, Ordering::SeqCst);
        let mut data = Aligned([0; BLOCK]);
        for word in data.0.chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        let written = disk.0.write_all_at(&data.0, (block * BLOCK) as u64);
        written.map_err(|error| format!("write {number} of block {block}: {error}"))?;
        self.acknowledged[block].store(number, Ordering::SeqCst);
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Reads what was acknowledged before, or what was begun until now. Of a write under way a read may see a part.
    fn read(&self, disk: &Disk, block: usize) -> Result<(), String> {
        let least = self.acknowledged[block].load(Ordering::SeqCst);
        let mut data = Aligned([0; BLOCK]);
        let read = disk.0.read_exact_at(&mut data.0, (block * BLOCK) as u64);
        read.map_err(|error| format!("read of block {block}: {error}"))?;
        let most = self.begun[block].load(Ordering::SeqCst);
        for word in data.0.chunks_exact(8) {
            let number = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if !(least..=most).contains(&number) {
                return Err(format!(
                    "block {block} reads {number}; {least} was acknowledged, and {most} begun"
                ));
            }
        }
        Ok(())
    }
}

/// Threads that do the same again and again until they are told to stop, or something goes wrong.
struct Loop {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Loop {
    fn start(
        threads: usize,
        turn: impl Fn(usize, usize) -> Result<(), String> + Clone + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicU64::new(0));
        let threads = (0..threads).map(|thread| {
            let (stop, turns, turn) = (stop.clone(), turns.clone(), turn.clone());
            thread::spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    turn(thread, number)?;
                    turns.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            })
        });
        Self {
            threads: threads.collect(),
            stop,
            turns,
        }
    }

    /// A guest at work on this device.
    fn writer(disk: &Arc<Disk>, journal: &Arc<Journal>) -> Self {
        let (disk, journal) = (disk.clone(), journal.clone());
        Self::start(WRITERS, move |thread, number| {
            let block = thread * BLOCKS_EACH + number % BLOCKS_EACH;
            journal.write(&disk, block)
        })
    }

    fn reader(disk: &Arc<Disk>, journal: &Arc<Journal>) -> Self {
        let (disk, journal) = (disk.clone(), journal.clone());
        Self::start(1, move |_, number| {
            // From stripe to stripe, so that it is now close behind a writer, now far.
            journal.read(&disk, number * 67 % BLOCKS)
        })
    }

    /// As many turns from now on.
    fn until_turned(&self, turns: u64) {
        let wanted = self.turns.load(Ordering::SeqCst) + turns;
        eventually("more turns", || {
            let is_at_work = !self.threads.iter().any(JoinHandle::is_finished);
            !is_at_work || self.turns.load(Ordering::SeqCst) >= wanted
        });
    }

    /// Lets every request that is in flight end, and no other begin. None of all requests had an error.
    fn pause(self) {
        self.stop.store(true, Ordering::SeqCst);
        eventually("the last requests to end", || {
            self.threads.iter().all(JoinHandle::is_finished)
        });
        for thread in self.threads {
            let ended = thread.join().expect("a thread that does not panic");
            ended.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// What hands the volume over.
#[derive(Clone, Copy)]
enum By {
    TheFirstWrite,
    TheEndOfTheSource,
}

/// One migration of the pod `from` to a new pod `to` on this node. Returns the target's device.
fn migrate(
    world: &World,
    journal: &Arc<Journal>,
    source: Arc<Disk>,
    (from, to, node): (&str, &str, &str),
    by: By,
) -> Arc<Disk> {
    let volume = world.volume_of("disk");
    let guest = Loop::writer(&source, journal);
    guest.until_turned(100);
    world.pod(to, "disk", Some(node));
    let target = Arc::new(Disk::open(&world.path(&world.running(to))));
    let reader = Loop::reader(&target, journal);
    // Both at work, as long as it takes to copy a guest's memory.
    reader.until_turned(200);
    guest.until_turned(200);
    let before = epoch(&world.get("lhv", &volume));

    // The guest is paused at the source and goes on at the target, with as many requests at once.
    guest.pause();
    let end_source = |source| {
        drop(source);
        world.delete("pod", from);
        world.until_gone("pod", from);
        eventually("the volume to be at the target alone", || {
            let object = world.get("lhv", &volume);
            object["status"]["currentNodeID"] == node
                && object["status"]["currentMigrationNodeID"] == ""
        });
    };
    let guest = match by {
        By::TheFirstWrite => {
            let guest = Loop::writer(&target, journal);
            guest.until_turned(1);
            assert!(epoch(&world.get("lhv", &volume)) > before);
            end_source(source);
            guest
        }
        By::TheEndOfTheSource => {
            end_source(source);
            reader.until_turned(200);
            // Nothing was written since the source ended: all of what it was told is written is there.
            all_is_there(&target, journal);
            let guest = Loop::writer(&target, journal);
            guest.until_turned(1);
            guest
        }
    };
    reader.until_turned(1);
    reader.pause();
    guest.until_turned(200);
    guest.pause();
    all_is_there(&target, journal);
    target
}

fn all_is_there(disk: &Disk, journal: &Journal) {
    for block in 0..BLOCKS {
        let read = journal.read(disk, block);
        read.unwrap_or_else(|error| panic!("{error}"));
        let known =
            [&journal.begun, &journal.acknowledged].map(|list| list[block].load(Ordering::SeqCst));
        assert_eq!(known[0], known[1], "no write of block {block} is under way");
    }
}

fn epoch(volume: &Value) -> u64 {
    volume["status"]["epoch"].as_u64().expect("an epoch")
}

#[test]
fn a_hand_over_under_load_is_seen_by_nobody() {
    let world = World::new(3);
    migratable(&world);
    world.pod("first", "disk", Some("node-1"));
    let disk = Arc::new(Disk::open(&world.path(&world.running("first"))));
    let journal = Journal::new();
    let pods = ("first", "second", "node-2");
    let disk = migrate(&world, &journal, disk, pods, By::TheFirstWrite);
    let pods = ("second", "third", "node-1");
    let disk = migrate(&world, &journal, disk, pods, By::TheEndOfTheSource);
    let writes = journal.writes.load(Ordering::SeqCst);
    eprintln!("{writes} writes were acknowledged");

    drop(disk);
    world.delete("pod", "third");
    world.delete("pvc", "disk");
    world.until_none("lhv");
    eventually("nothing to be left behind", || world.leftovers().is_empty());
}
