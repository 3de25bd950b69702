//! The engine's rules under a seed: delays, reordering, partitions, crashes of every part, and engines that do not
//! know that they were replaced.
//!
//! `LARIAT_SIM_SCHEDULES=100000` runs more schedules, `LARIAT_SIM_SEED=n` runs one and says what it does.

mod branches;
mod endings;
mod expansions;
mod fairness;
mod late;
mod leases;
mod liars;
mod members;
mod patience;
mod progress;
mod replica;
mod rereads;
mod restarts;
mod scripted;
mod seen;
mod strangers;
mod world;

use std::time::{Duration, Instant};

use seen::Seen;
use world::World;

/// What an ordinary `cargo test` spends here.
const BUDGET: Duration = Duration::from_secs(20);
const SCHEDULES_MIN: u64 = 100;

/// Schedules that once failed, run before all others.
const ONCE_FAILED: [u64; 8] = [236, 554, 18_577, 19_008, 20_079, 20_324, 39_516, 42_358];

#[test]
fn acknowledged_writes_survive_every_schedule() {
    if let Some(seed) = variable("LARIAT_SIM_SEED") {
        println!("{:?}", World::new(seed, true).run());
        return;
    }
    let schedules = variable("LARIAT_SIM_SCHEDULES");
    let begun = Instant::now();
    let mut seen = Seen::default();
    for seed in ONCE_FAILED {
        seen.add(&run(seed));
    }
    let mut seed = 0;
    while schedules.map_or(begun.elapsed() < BUDGET || seed < SCHEDULES_MIN, |wanted| {
        seed < wanted
    }) {
        seen.add(&run(seed));
        seed += 1;
    }
    println!("{seed} schedules: {seen:?}");
    // Schedules that never reach the hard parts prove nothing about them.
    for (what, count) in seen.hard_parts() {
        assert!(count > 0, "no schedule of {seed} had {what}: {seen:?}");
    }
}

/// One schedule; if it fails, it says which.
fn run(seed: u64) -> Seen {
    std::panic::catch_unwind(|| World::new(seed, false).run()).unwrap_or_else(|panic| {
        eprintln!("schedule {seed} failed: run it with LARIAT_SIM_SEED={seed}");
        std::panic::resume_unwind(panic)
    })
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number"))
    })
}
