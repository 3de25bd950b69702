//! The epoch and in-sync protocol, checked exhaustively with the real `decide`, `commit_in_sync` and
//! `required`. `docs/model.md` explains what is modelled and lists the state counts.
//!
//! `LARIAT_MODEL=large` checks the large instances too; build with `--release` then.

#[path = "epoch_model/controller.rs"]
mod controller;
#[path = "epoch_model/engine.rs"]
mod engine;
#[path = "epoch_model/model.rs"]
mod model;
#[path = "epoch_model/world.rs"]
mod world;

use std::time::Instant;

use controller::Controller;
use model::{EpochModel, Flaw};
use stateright::{Checker, HasDiscoveries, Model};
use world::Budget;

const FAILOVER: &[&str] = &[
    "failover while the old engine lives",
    "a fence proof while the old engine lives",
    "a fenced engine attempts a write",
    "a new engine leaves a silent member behind",
];

const MEMBERS: &[&str] = &["the in-sync set shrinks", "a rebuilt replica joins"];

/// A node is believed lost, the volume moves, and the old engine goes on trying.
fn failover() -> EpochModel {
    EpochModel {
        flaw: None,
        budget: Budget {
            crashes: 0,
            health_changes: 1,
            moves: 1,
            migrations: 0,
            suspicions: 0,
        },
        nodes_lost: 0b001,
        writes_max: 1,
        epochs_max: 3,
        versions_max: 4,
        plans_max: 1,
        reached: FAILOVER,
        controller: Controller::default(),
    }
}

/// Replicas leave, are rebuilt and join again while writes are in flight.
fn members() -> EpochModel {
    EpochModel {
        budget: Budget {
            crashes: 0,
            health_changes: 0,
            moves: 0,
            migrations: 0,
            suspicions: 2,
        },
        writes_max: 2,
        epochs_max: 1,
        versions_max: 5,
        reached: MEMBERS,
        ..failover()
    }
}

/// Engines and controllers crash at any point.
fn crashes() -> EpochModel {
    EpochModel {
        budget: Budget {
            crashes: 1,
            health_changes: 0,
            moves: 0,
            migrations: 0,
            suspicions: 1,
        },
        writes_max: 1,
        epochs_max: 2,
        versions_max: 4,
        reached: &["the in-sync set shrinks"],
        ..failover()
    }
}

/// A live migration: handed over by the first write on the target, confirmed, or rolled back.
fn migration() -> EpochModel {
    EpochModel {
        budget: Budget {
            migrations: 1,
            moves: 0,
            health_changes: 0,
            ..failover().budget
        },
        epochs_max: 2,
        versions_max: 3,
        reached: &["a migration hands over while the source lives"],
        ..failover()
    }
}

/// Checks every reachable state, and prints how many there are.
fn check(name: &str, model: EpochModel) {
    let started = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "model {name}: {} states, {} distinct, depth {}, {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f32()
    );
    checker.assert_properties();
}

/// Checks that a protocol with a flaw is caught, and how.
fn check_caught(flaw: Flaw, model: EpochModel, property: &'static str) {
    let model = EpochModel {
        flaw: Some(flaw),
        writes_max: 1,
        reached: &[],
        ..model
    };
    let checker = model
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([property].into()))
        .spawn_bfs()
        .join();
    let history = checker.assert_any_discovery(property).into_actions();
    println!(
        "model with the flaw {flaw:?}: {} states, then\n  {history:?}",
        checker.state_count()
    );
}

#[test]
fn one_writer_and_no_lost_write_through_failover() {
    check("failover", failover());
}

#[test]
fn one_writer_and_no_lost_write_through_changes_of_the_set() {
    check("members", members());
}

#[test]
fn one_writer_and_no_lost_write_through_crashes() {
    check("crashes", crashes());
}

#[test]
fn one_writer_and_no_lost_write_through_migration() {
    check("migration", migration());
}

#[test]
fn without_the_epoch_check_the_source_of_a_migration_writes_on() {
    check_caught(Flaw::NoEpochCheck, migration(), "one writer");
}

#[test]
fn without_the_epoch_check_two_engines_write() {
    check_caught(Flaw::NoEpochCheck, failover(), "one writer");
}

#[test]
fn without_compare_and_swap_a_replaced_controller_brings_back_an_old_set() {
    check_caught(
        Flaw::NoCompareAndSwap,
        EpochModel {
            plans_max: 2,
            ..members()
        },
        "members have every acknowledged write",
    );
}

#[test]
fn without_remembering_proposals_a_late_commit_adds_a_stale_replica() {
    check_caught(
        Flaw::ForgetsProposals,
        members(),
        "members have every acknowledged write",
    );
}

#[test]
fn without_committing_first_the_next_engine_lacks_a_write() {
    check_caught(
        Flaw::ShrinksBeforeCommit,
        members(),
        "members have every acknowledged write",
    );
}

#[test]
fn without_waiting_for_the_rebuilt_replica_it_joins_stale() {
    check_caught(
        Flaw::JoinsTooEarly,
        members(),
        "members have every acknowledged write",
    );
}

/// The large instances run when asked for; the smaller ones above run always.
fn check_large(name: &str, model: EpochModel) {
    if std::env::var("LARIAT_MODEL").as_deref() == Ok("large") {
        check(name, model);
    } else {
        println!("model {name}: not asked for (LARIAT_MODEL=large)");
    }
}

fn failover_from_any_node() -> EpochModel {
    EpochModel {
        nodes_lost: 0b111,
        ..failover()
    }
}

#[test]
fn large_failover_from_any_node() {
    check_large("failover from any node", failover_from_any_node());
}

#[test]
fn large_failover_shrink_and_rebuild() {
    let model = EpochModel {
        budget: Budget {
            suspicions: 1,
            ..failover().budget
        },
        versions_max: 5,
        ..failover_from_any_node()
    };
    check_large("failover, shrink and rebuild", model);
}

#[test]
fn large_failover_with_a_crash() {
    let model = EpochModel {
        budget: Budget {
            crashes: 1,
            ..failover().budget
        },
        ..failover()
    };
    check_large("failover with a crash", model);
}

/// A third epoch: the source starts again after a roll-back that came too late.
#[test]
fn large_migration_and_roll_back() {
    let model = EpochModel {
        epochs_max: 3,
        versions_max: 5,
        ..migration()
    };
    check_large("migration and roll-back", model);
}

#[test]
fn large_failover_with_two_writes() {
    let model = EpochModel {
        writes_max: 2,
        ..failover()
    };
    check_large("failover with two writes", model);
}

#[test]
fn large_failover_with_two_controllers() {
    let model = EpochModel {
        plans_max: 2,
        reached: &["two controllers write"],
        ..failover()
    };
    check_large("failover with two controllers", model);
}

#[test]
fn large_members_with_a_crash() {
    let model = EpochModel {
        budget: Budget {
            crashes: 1,
            suspicions: 3,
            ..members().budget
        },
        epochs_max: 2,
        versions_max: 7,
        writes_max: 1,
        ..members()
    };
    check_large("members, longer, with a crash", model);
}
