//! A small instance of the model, explored whole. `cargo run --release -p attach-core --example model` explores large ones.

mod ticket_model;
mod world;

use attach_core::AttacherKind::{Backup, Csi, Expansion, Manual};
use attach_core::view::Sharing;
use stateright::{Checker, Model};

use ticket_model::{TicketModel, WriteOrder};

fn explore(model: TicketModel) -> usize {
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn exclusive_volumes() {
    let kinds: [&[_]; 3] = [&[Csi, Backup], &[Csi, Expansion], &[Manual]];
    let states = explore(TicketModel {
        sharing: Sharing::Exclusive,
        kinds,
        changes: 3,
        crashes: 1,
        order: WriteOrder::StatusesFirst,
    });
    println!("exclusive: {states} states");
}

#[test]
fn migratable_volumes() {
    let kinds: [&[_]; 3] = [&[Csi], &[Csi], &[Backup]];
    let states = explore(TicketModel {
        sharing: Sharing::Migratable,
        kinds,
        changes: 3,
        crashes: 1,
        order: WriteOrder::StatusesFirst,
    });
    println!("migratable: {states} states");
}

#[test]
fn the_checker_notices_statuses_that_are_written_too_late() {
    let kinds: [&[_]; 3] = [&[Csi], &[Csi], &[]];
    let broken = TicketModel {
        sharing: Sharing::Exclusive,
        kinds,
        changes: 3,
        crashes: 0,
        order: WriteOrder::VolumeFirst,
    };
    let checker = broken.checker().threads(2).spawn_bfs().join();
    let lie = checker.discovery("no satisfied ticket has its volume elsewhere");
    assert!(lie.is_some(), "the checker did not find the lie");
}
