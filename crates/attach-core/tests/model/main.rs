//! Small instances of the model, explored whole. The example of the same name explores large ones.

mod ticket_model;
mod world;

use stateright::{Checker, Model};

use ticket_model::{TicketModel, WriteOrder};

#[track_caller]
fn explore(name: &str, changes: u8, crashes: u8) {
    let model = TicketModel::named(name, changes, crashes).expect("an instance");
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn three_tickets_of_an_exclusive_volume() {
    explore("exclusive", 2, 0);
}

#[test]
fn a_pod_whose_node_crashes() {
    explore("exclusive-pod", 2, 1);
}

#[test]
fn a_shared_volume() {
    explore("shared", 2, 0);
}

#[test]
fn a_migration_with_a_crash() {
    explore("migrating-pair", 2, 1);
}

#[test]
fn the_checker_notices_statuses_that_are_written_too_late() {
    let model = TicketModel::named("pair", 2, 0).expect("an instance");
    let broken = TicketModel {
        order: WriteOrder::VolumeFirst,
        ..model
    };
    let checker = broken.checker().threads(2).spawn_bfs().join();
    let lie = checker.discovery("no satisfied ticket has its volume elsewhere");
    assert!(lie.is_some(), "the checker did not find the lie");
}
