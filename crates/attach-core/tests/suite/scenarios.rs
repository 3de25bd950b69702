//! The field's scenarios, told step by step.

use expect_test::expect;

use crate::scene::check;

#[test]
fn scenario_1_backup_during_active_pod_usage() {
    check(
        "attached n1; csi@n1 backup@n1:any",
        expect!["keep n1 (HeldBy); backup@n1 +coexisting; csi@n1 +holding"],
    );
}

#[test]
fn scenario_2_backup_interrupted_by_pod_workload() {
    check(
        "attached n1; backup@n1:any",
        expect!["keep n1 (HeldBy); backup@n1 +holding"],
    );
    check(
        "attached n1; backup@n1:any csi@n2",
        expect![
            "detach nowhere (InterruptedByWorkload); backup@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching"
        ],
    );
    check(
        "detaching n1; backup@n1:any csi@n2",
        expect![
            "wait nowhere (Detaching); backup@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching"
        ],
    );
    check(
        "detached; backup@n1:any csi@n2",
        expect![
            "attach n2 (Selected); backup@n1 waiting AttachingToOtherNode; csi@n2 selected Attaching"
        ],
    );
    check(
        "attached n2; backup@n1:any csi@n2",
        expect!["keep n2 (HeldBy); backup@n1 waiting AttachedToOtherNode; csi@n2 +holding"],
    );
    // The pod is gone; the backup gets its turn.
    check(
        "attached n2; backup@n1:any",
        expect!["detach nowhere (NoMatchingTicket); backup@n1 waiting Detaching"],
    );
    check(
        "detached; backup@n1:any",
        expect!["attach n1 (Selected); backup@n1 selected Attaching"],
    );
}

#[test]
fn scenario_3_detached_volume_snapshot() {
    check(
        "detached; snapshot@n1:any",
        expect!["attach n1 (Selected); snapshot@n1 selected Attaching"],
    );
    check(
        "attached n1; snapshot@n1:any",
        expect!["keep n1 (HeldBy); snapshot@n1 +holding"],
    );
    check(
        "attached n1; ",
        expect!["detach nowhere (NoMatchingTicket)"],
    );
    check("detached; ", expect!["keep nowhere (NoTickets)"]);
}

#[test]
fn csi_attach_and_detach_workflow() {
    check(
        "detached; csi@n1",
        expect!["attach n1 (Selected); csi@n1 selected Attaching"],
    );
    check(
        "attaching n1; csi@n1",
        expect!["wait n1 (Attaching); csi@n1 selected Attaching"],
    );
    check(
        "attached n1; csi@n1",
        expect!["keep n1 (HeldBy); csi@n1 +holding"],
    );
    check(
        "attached n1; ",
        expect!["detach nowhere (NoMatchingTicket)"],
    );
    check("detaching n1; ", expect!["wait nowhere (Detaching)"]);
    check("detached; ", expect!["keep nowhere (NoTickets)"]);
}

#[test]
fn case_1_an_unexpected_manual_ticket_keeps_pods_waiting() {
    check(
        "attached n1; api@n1=longhorn-ui csi@n2",
        expect!["keep n1 (HeldBy); csi@n2 waiting AttachedToOtherNode; longhorn-ui +holding"],
    );
    check(
        "detached; api@n1=longhorn-ui csi@n2",
        expect![
            "attach n1 (Selected); csi@n2 waiting AttachingToOtherNode; longhorn-ui selected Attaching"
        ],
    );
    // Its ticket removed, the volume follows the pod.
    check(
        "attached n1; csi@n2",
        expect!["detach nowhere (NoMatchingTicket); csi@n2 waiting Detaching"],
    );
}

#[test]
fn case_2_a_stuck_backup_does_not_keep_the_volume_from_a_pod() {
    check(
        "attached n1; backup@n1:any csi@n2",
        expect![
            "detach nowhere (InterruptedByWorkload); backup@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching"
        ],
    );
    // But it must not pull the volume back when the pod has it.
    check(
        "attached n2; backup@n1:any csi@n2",
        expect!["keep n2 (HeldBy); backup@n1 waiting AttachedToOtherNode; csi@n2 +holding"],
    );
}

#[test]
fn a_stale_ticket_of_a_deleted_pod_blocks_until_it_is_removed() {
    check(
        "attached n1; csi@n1=csi-old csi@n2=csi-new",
        expect!["keep n1 (HeldBy); csi-new waiting AttachedToOtherNode; csi-old +holding"],
    );
    check(
        "attached n1; csi@n2=csi-new; statuses csi-old+",
        expect![
            "detach nowhere (NoMatchingTicket); csi-new waiting Detaching; csi-old stale StatusWithoutTicket"
        ],
    );
}

#[test]
fn file_system_repair_by_hand_on_a_detached_volume() {
    // Attach by hand, take a snapshot, repair, detach by hand.
    check(
        "detached; api@n1",
        expect!["attach n1 (Selected); api@n1 selected Attaching"],
    );
    check(
        "attached n1; api@n1 snapshot@n1:any",
        expect!["keep n1 (HeldBy); api@n1 +holding; snapshot@n1 +coexisting"],
    );
    check(
        "attached n1; api@n1 csi@n2",
        expect!["keep n1 (HeldBy); api@n1 +holding; csi@n2 waiting AttachedToOtherNode"],
    );
    check(
        "attached n1; csi@n2",
        expect!["detach nowhere (NoMatchingTicket); csi@n2 waiting Detaching"],
    );
}

#[test]
fn eviction_of_a_detached_volumes_replica() {
    check(
        "detached; eviction@n1:any",
        expect!["attach n1 (Selected); eviction@n1 selected Attaching"],
    );
    check(
        "attached n1; eviction@n1:any csi@n2",
        expect!["keep n1 (HeldBy); csi@n2 waiting AttachedToOtherNode; eviction@n1 +holding"],
    );
    check(
        "attached n1; eviction@n1:any csi@n1",
        expect!["keep n1 (HeldBy); csi@n1 +holding; eviction@n1 +coexisting"],
    );
}
