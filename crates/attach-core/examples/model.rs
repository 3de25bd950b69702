//! Explores the ticket model in sizes that a test suite has no time for.
//!
//! `cargo run --release -p attach-core --example model -- INSTANCE CHANGES CRASHES`
//!
//! With `volume-first` as a fourth word the controller writes in the wrong order, and the checker
//! shows what comes of it.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use stateright::{Checker, Model};

#[path = "../tests/model/ticket_model.rs"]
mod ticket_model;
#[path = "../tests/model/world.rs"]
mod world;

use ticket_model::{TicketModel, WriteOrder};

const USAGE: &str = "usage: model exclusive-pod|pair|exclusive|shared|migrating-pair|migratable \
                     CHANGES CRASHES [volume-first]";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, changes, crashes, order) = match arguments.as_slice() {
        [name, changes, crashes] => (name, changes, crashes, WriteOrder::StatusesFirst),
        [name, changes, crashes, order] if order == "volume-first" => {
            (name, changes, crashes, WriteOrder::VolumeFirst)
        }
        _ => bail!(USAGE),
    };
    let changes = changes
        .parse()
        .context("how often tickets come, change or go")?;
    let crashes = crashes.parse().context("how often a node crashes")?;
    let model = TicketModel::named(name, changes, crashes)
        .with_context(|| format!("there is no instance {name:?}; {USAGE}"))?;
    let begin = Instant::now();
    let checker = TicketModel { order, ..model }
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    println!(
        "{name}, {changes} changes, {crashes} crashes: {} states, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.max_depth(),
        begin.elapsed().as_secs_f64()
    );
    checker.assert_properties();
    Ok(())
}
