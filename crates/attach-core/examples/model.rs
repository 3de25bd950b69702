//! Explores the ticket model in sizes that a test suite has no time for.
//!
//! `cargo run --release -p attach-core --example model -- [exclusive|shared|migratable] CHANGES CRASHES`

use std::time::Instant;

use attach_core::AttacherKind::{Backup, Csi, Expansion, Manual, ShareManager, Snapshot};
use attach_core::view::Sharing;
use stateright::{Checker, Model};

#[path = "../tests/model/ticket_model.rs"]
mod ticket_model;
#[path = "../tests/model/world.rs"]
mod world;

use ticket_model::{TicketModel, WriteOrder};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, changes, crashes] = arguments.as_slice() else {
        eprintln!("usage: model exclusive|shared|migratable CHANGES CRASHES");
        std::process::exit(2);
    };
    let (sharing, kinds): (_, [&[_]; 3]) = match name.as_str() {
        "exclusive" => (
            Sharing::Exclusive,
            [
                &[Csi, Backup, Manual],
                &[Csi, Backup, Expansion],
                &[Csi, Snapshot],
            ],
        ),
        "shared" => (
            Sharing::Shared,
            [&[Csi], &[ShareManager, Backup], &[ShareManager, Expansion]],
        ),
        "migratable" => (
            Sharing::Migratable,
            [&[Csi], &[Csi], &[Csi, Backup, Manual]],
        ),
        other => {
            eprintln!("no instance {other:?}: exclusive, shared or migratable");
            std::process::exit(2);
        }
    };
    let number = |text: &str| {
        text.parse().unwrap_or_else(|_| {
            eprintln!("{text:?} is not a small number");
            std::process::exit(2)
        })
    };
    let model = TicketModel {
        sharing,
        kinds,
        changes: number(changes),
        crashes: number(crashes),
        order: WriteOrder::StatusesFirst,
    };
    let begin = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{name} {changes} {crashes}: {} states in {:?}",
        checker.unique_state_count(),
        begin.elapsed()
    );
    checker.assert_properties();
}
