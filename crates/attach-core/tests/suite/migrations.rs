//! Migration: the rules of the field, and the record that makes recovery a decision.

use expect_test::expect;

use crate::scene::check;

#[test]
fn starts_when_attached_with_a_ticket_here_and_one_for_a_ready_node() {
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1",
        expect![
            "migrate n1>n2 (Migrating); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1; nodes n1 n2-",
        expect!["keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting MigrationTargetNotReady"],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1; nodes n1",
        expect!["keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting MigrationTargetNotReady"],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1; no-nodes",
        expect![
            "migrate n1>n2 (Migrating); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2 csi@n3; engines n1; nodes n1 n2- n3",
        expect![
            "migrate n1>n3 (Migrating); csi@n1 +holding; csi@n2 waiting MigrationTargetNotReady; csi@n3 selected MigrationPreparing; record n1>n3 Preparing"
        ],
    );
    check(
        "attaching n1 migratable; csi@n1 csi@n2",
        expect![
            "wait n1 (Attaching); csi@n1 selected Attaching; csi@n2 waiting AttachingToOtherNode"
        ],
    );
    check(
        "attached n1 migratable; api@n1 csi@n2; engines n1",
        expect!["keep n1 (HeldBy); api@n1 +holding; csi@n2 waiting AttachedToOtherNode"],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2:off; engines n1",
        expect!["keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting AttachedToOtherNode"],
    );
    check(
        "attached n1 migratable; csi@n1 backup@n2:any; engines n1",
        expect!["keep n1 (HeldBy); backup@n2 waiting AttachedToOtherNode; csi@n1 +holding"],
    );
    check(
        "attached n1; csi@n1 csi@n2; engines n1",
        expect!["keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting AttachedToOtherNode"],
    );
}

#[test]
fn the_target_is_satisfied_when_its_engine_runs_with_a_replica() {
    check(
        "attached n1 migratable to=n2; csi@n1 csi@n2; engines n1",
        expect![
            "migrate n1>n2 (MigrationPreparing); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n2; engines n1 n2:wo",
        expect![
            "migrate n1>n2 (MigrationPreparing); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n2; engines n1 n2",
        expect![
            "migrate n1>n2 (MigrationReady); csi@n1 +holding; csi@n2 +coexisting; record n1>n2 Ready"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n2; no-engines; statuses csi@n1+ csi@n2+",
        expect![
            "migrate n1>n2 (MigrationReady); csi@n1 +holding; csi@n2 +coexisting; record n1>n2 Ready"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n2 backup@n1:any; engines n1 n2",
        expect![
            "migrate n1>n2 (MigrationReady); backup@n1 +coexisting; csi@n1 +holding; csi@n2 +coexisting; record n1>n2 Ready"
        ],
    );
}

#[test]
fn confirmed_when_the_source_lets_go_and_the_engines_agree() {
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1:a,b n2:a,b",
        expect![
            "confirm-migration n2 (MigrationConfirmed); csi@n2 +holding; record n1>n2 Confirming"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1:a,b n2:a",
        expect!["wait n1>n2 (MigrationSnapshotsDiffer); csi@n2 +coexisting; record n1>n2 Ready"],
    );
    // A standby lists none: it reads from the replicas of the source.
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1:a,b n2",
        expect![
            "confirm-migration n2 (MigrationConfirmed); csi@n2 +holding; record n1>n2 Confirming"
        ],
    );
    // After the hand-over the former writer has nothing to say, and need not be there.
    for engines in ["n1:a n2:!a,b", "n1 n2:!", "n2:!a"] {
        check(
            &format!("attached n1 migratable to=n2 also=n2; csi@n2; engines {engines}"),
            expect![
                "confirm-migration n2 (MigrationConfirmed); csi@n2 +holding; record n1>n2 Confirming"
            ],
        );
    }
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1 n2:wo",
        expect![
            "wait n1>n2 (MigrationPreparing); csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2 backup@n1:any; engines n1 n2",
        expect![
            "confirm-migration n2 (MigrationConfirmed); backup@n1 waiting AttachingToOtherNode; csi@n2 +holding; record n1>n2 Confirming"
        ],
    );
    // Confirmed, and the old engine is still on its way out.
    check(
        "attached n1 migratable spec=n2 also=n2; csi@n2; engines n1 n2; record n1>n2 confirming",
        expect!["wait n2 (Detaching); csi@n2 +holding; record n1>n2 Confirming"],
    );
    check(
        "attached n2 migratable; csi@n2; engines n2; record n1>n2 confirming",
        expect!["keep n2 (HeldBy); csi@n2 +holding"],
    );
}

#[test]
fn rolled_back_when_the_target_lets_go() {
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1; engines n1 n2",
        expect![
            "roll-back-migration n1 (MigrationRolledBack); csi@n1 +holding; record n1>n2 RollingBack"
        ],
    );
    check(
        "attached n1 migratable also=n2; csi@n1; engines n1 n2; record n1>n2 rolling-back",
        expect!["wait n1 (Detaching); csi@n1 +holding; record n1>n2 RollingBack"],
    );
    check(
        "attached n1 migratable; csi@n1; engines n1; record n1>n2 rolling-back",
        expect!["keep n1 (HeldBy); csi@n1 +holding"],
    );
    // The ticket came back while its engine goes: not satisfied by an engine on its way out.
    check(
        "attached n1 migratable also=n2; csi@n1 csi@n2; engines n1 n2; record n1>n2 rolling-back",
        expect![
            "wait n1 (Detaching); csi@n1 +holding; csi@n2 waiting AttachedToOtherNode; record n1>n2 RollingBack"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n3; engines n1 n2",
        expect![
            "roll-back-migration n1 (MigrationRolledBack); csi@n1 +holding; csi@n3 waiting AttachedToOtherNode; record n1>n2 RollingBack"
        ],
    );
}

#[test]
fn detached_when_the_target_is_down_or_nobody_is_left() {
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1 n2; nodes n1 n2-",
        expect![
            "detach nowhere (MigrationTargetLost); csi@n2 waiting Detaching; record n1>n2 Interrupted"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1; nodes n1",
        expect![
            "detach nowhere (MigrationTargetLost); csi@n2 waiting Detaching; record n1>n2 Interrupted"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; ; engines n1 n2",
        expect!["detach nowhere (NoMatchingTicket); record n1>n2 Interrupted"],
    );
    check(
        "attached n1 migratable to=n2 also=n2; backup@n1:any; engines n1 n2",
        expect![
            "roll-back-migration n1 (MigrationRolledBack); backup@n1 +holding; record n1>n2 RollingBack"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n2",
        expect![
            "detach nowhere (MigrationSourceLost); csi@n2 waiting Detaching; record n1>n2 Interrupted"
        ],
    );
    check(
        "attached n1 faulted migratable to=n2 also=n2; csi@n1 csi@n2",
        expect![
            "detach nowhere (VolumeFaulted); csi@n1 waiting VolumeFaulted; csi@n2 waiting VolumeFaulted; record n1>n2 Interrupted"
        ],
    );
}

#[test]
fn cancelled_when_detached_midway() {
    check(
        "detaching n1 migratable to=n2; csi@n1 csi@n2",
        expect![
            "cancel-migration nowhere (MigrationInterrupted); csi@n1 waiting Detaching; csi@n2 waiting Detaching"
        ],
    );
    check(
        "detached migratable to=n2 also=n2; csi@n1 csi@n2; record n1>n2 ready",
        expect![
            "cancel-migration nowhere (MigrationInterrupted); csi@n1 waiting Detaching; csi@n2 waiting Detaching; record n1>n2 Interrupted"
        ],
    );
    check(
        "detached migratable spec=n1 to=n2; csi@n1 csi@n2; record n1>n2 ready",
        expect![
            "cancel-migration nowhere (MigrationInterrupted); csi@n1 waiting Selected; csi@n2 waiting Selected; record n1>n2 Interrupted"
        ],
    );
}

#[test]
fn without_a_record_two_tickets_of_a_detached_volume_are_ambiguous() {
    check(
        "detached migratable; csi@n1 csi@n2",
        expect![
            "wait nowhere (AmbiguousMigration); csi@n1 waiting AmbiguousMigration; csi@n2 waiting AmbiguousMigration"
        ],
    );
    check(
        "detached migratable; csi@n1 csi@n2 api@n3",
        expect![
            "wait nowhere (AmbiguousMigration); api@n3 waiting AmbiguousMigration; csi@n1 waiting AmbiguousMigration; csi@n2 waiting AmbiguousMigration"
        ],
    );
    check(
        "detached migratable; csi@n1 csi@n2 snapshot@n3",
        expect![
            "wait nowhere (AmbiguousMigration); csi@n1 waiting AmbiguousMigration; csi@n2 waiting AmbiguousMigration; snapshot@n3 waiting AmbiguousMigration"
        ],
    );
    check(
        "detached migratable; csi@n2",
        expect!["attach n2 (Selected); csi@n2 selected Attaching"],
    );
    check(
        "detached migratable; csi@n2 snapshot@n1",
        expect![
            "attach n2 (Selected); csi@n2 selected Attaching; snapshot@n1 waiting AttachingToOtherNode"
        ],
    );
}

#[test]
fn the_record_decides_where_an_interrupted_volume_returns() {
    check(
        "detached migratable; csi@n1 csi@n2; record n2>n1 interrupted",
        expect![
            "attach n2 (MigrationRecovery) (Selected); csi@n1 waiting AttachingToOtherNode; csi@n2 selected Attaching; record n2>n1 Interrupted"
        ],
    );
    check(
        "detached migratable; csi@n1 csi@n2; record n2>n1 interrupted; nodes n1 n2-",
        expect![
            "attach n1 (MigrationRecovery) (Selected); csi@n1 selected Attaching; csi@n2 waiting AttachingToOtherNode; record n2>n1 Interrupted"
        ],
    );
    check(
        "detached migratable; csi@n1 csi@n2; record n2>n1 interrupted; nodes n1- n2-",
        expect![
            "wait nowhere (MigrationInterrupted); csi@n1 waiting MigrationInterrupted; csi@n2 waiting MigrationInterrupted; record n2>n1 Interrupted"
        ],
    );
    check(
        "detached migratable; csi@n1 csi@n3; record n2>n1 interrupted",
        expect![
            "wait nowhere (AmbiguousMigration); csi@n1 waiting AmbiguousMigration; csi@n3 waiting AmbiguousMigration"
        ],
    );
    // Back on the source: the migration is tried again, on what is left of its time.
    check(
        "attached n2 migratable; csi@n1 csi@n2; engines n2; record n2>n1 interrupted 300",
        expect![
            "migrate n2>n1 (Migrating); csi@n1 selected MigrationPreparing; csi@n2 +holding; record n2>n1 Preparing"
        ],
    );
    check(
        "attached n2 migratable; csi@n1 csi@n2; engines n2; record n2>n1 interrupted -1",
        expect![
            "keep n2 (HeldBy); csi@n1 waiting MigrationExpired; csi@n2 +holding; record n2>n1 Expired"
        ],
    );
    // Back on the target: it does not move back when the source returns.
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1; record n2>n1 interrupted",
        expect![
            "keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting MigrationRecovered; record n2>n1 Recovered"
        ],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1; record n2>n1 recovered",
        expect![
            "keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting MigrationRecovered; record n2>n1 Recovered"
        ],
    );
    check(
        "attached n1 migratable; csi@n1; engines n1; record n2>n1 recovered",
        expect!["keep n1 (HeldBy); csi@n1 +holding"],
    );
}

#[test]
fn a_target_that_does_not_come_up_is_given_up_at_the_deadline() {
    check(
        "attached n1 migratable to=n2; csi@n1 csi@n2; engines n1; record n1>n2 preparing 60",
        expect![
            "migrate n1>n2 (MigrationPreparing); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable to=n2; csi@n1 csi@n2; engines n1; record n1>n2 preparing 0",
        expect![
            "roll-back-migration n1 (MigrationExpired); csi@n1 +holding; csi@n2 waiting MigrationExpired; record n1>n2 Expired"
        ],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1; record n1>n2 expired 0",
        expect![
            "keep n1 (HeldBy); csi@n1 +holding; csi@n2 waiting MigrationExpired; record n1>n2 Expired"
        ],
    );
    check(
        "attached n1 migratable; csi@n1; engines n1; record n1>n2 expired 0",
        expect!["keep n1 (HeldBy); csi@n1 +holding"],
    );
    // A target that is up is never given up: the machine may already run there.
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n2; engines n1 n2; record n1>n2 ready -900",
        expect![
            "migrate n1>n2 (MigrationReady); csi@n1 +holding; csi@n2 +coexisting; record n1>n2 Ready"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1 n2:wo; record n1>n2 ready -900",
        expect![
            "detach nowhere (MigrationTargetLost); csi@n2 waiting Detaching; record n1>n2 Interrupted"
        ],
    );
    // Nor one that writes, while its engine is started again.
    check(
        "attached n1 migratable to=n2 also=n2; csi@n1 csi@n2; engines n1 n2:!wo; record n1>n2 ready -900",
        expect![
            "migrate n1>n2 (MigrationPreparing); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable to=n2 also=n2; csi@n2; engines n1 n2:!wo; record n1>n2 ready -900",
        expect![
            "confirm-migration n2 (MigrationConfirmed); csi@n2 selected MigrationPreparing; record n1>n2 Confirming"
        ],
    );
}

/// Found by the model: each of these told a ticket a lie, or let the volume jump.
#[test]
fn engines_are_believed_only_as_long_as_the_volume_stands() {
    check(
        "attaching n1 migratable to=n2; csi@n2; engines n2; record n1>n2 ready",
        expect!["cancel-migration nowhere (MigrationInterrupted); csi@n2 waiting Detaching"],
    );
    check(
        "detaching n1 migratable spec=n1 to=n2 also=n2; csi@n1 csi@n2; engines n2; record n1>n2 ready",
        expect![
            "cancel-migration nowhere (MigrationInterrupted); csi@n1 waiting Detaching; csi@n2 waiting Detaching; record n1>n2 Interrupted"
        ],
    );
    check(
        "attached n1 migratable to=n2; csi@n1 csi@n2; engines n1 n2; record n1>n2 preparing",
        expect![
            "migrate n1>n2 (MigrationPreparing); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
    check(
        "attached n1 migratable; csi@n1 csi@n2; engines n1 n2; record n1>n2 interrupted",
        expect![
            "migrate n1>n2 (Migrating); csi@n1 +holding; csi@n2 selected MigrationPreparing; record n1>n2 Preparing"
        ],
    );
}
