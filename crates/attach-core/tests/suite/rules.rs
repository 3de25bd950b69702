//! Every rule of the decision, one `check` each.

use attach_core::Generation;
use attach_core::decide;
use expect_test::expect;

use crate::scene::{check, noon, seconds_after_noon, ticket, view};

#[test]
fn a_detached_volume_goes_to_the_highest_priority_then_to_the_smallest_id() {
    check("detached; ", expect!["keep nowhere (NoTickets)"]);
    check(
        "detached; snapshot@n1 csi@n2",
        expect![
            "attach n2 (Selected); csi@n2 selected Attaching; snapshot@n1 waiting AttachingToOtherNode"
        ],
    );
    check(
        "detached; csi@n1 api@n2",
        expect![
            "attach n2 (Selected); api@n2 selected Attaching; csi@n1 waiting AttachingToOtherNode"
        ],
    );
    check(
        "detached; csi@n1 api@n2 restore@n3:off",
        expect![
            "attach n3 without frontend (Selected); api@n2 waiting AttachingToOtherNode; csi@n1 waiting AttachingToOtherNode; restore@n3 selected Attaching"
        ],
    );
    check(
        "detached; expansion@n1 restore@n2:off",
        expect![
            "attach n1 (Selected); expansion@n1 selected Attaching; restore@n2 waiting AttachingToOtherNode"
        ],
    );
    check(
        "detached; csi@n1 salvage@n2 share-manager@n3",
        expect![
            "attach n1 (Selected); csi@n1 selected Attaching; salvage@n2 waiting AttachingToOtherNode; share-manager@n3 waiting AttachingToOtherNode"
        ],
    );
    check(
        "detached; csi@n3=csi-b csi@n2=csi-a",
        expect![
            "attach n2 (Selected); csi-a selected Attaching; csi-b waiting AttachingToOtherNode"
        ],
    );
    check(
        "detached; snapshot@n1 backup@n2 clone@n3:off eviction@n1:any rebuilding@n2 bim-ds@n3",
        expect![
            "attach n2 (Selected); backup@n2 selected Attaching; bim-ds@n3 waiting AttachingToOtherNode; clone@n3 waiting AttachingToOtherNode; eviction@n1 waiting AttachingToOtherNode; rebuilding@n2 coexisting Attaching; snapshot@n1 waiting AttachingToOtherNode"
        ],
    );
    check(
        "detached; api@n2= csi@n1",
        expect!["attach n2 (Selected);  selected Attaching; csi@n1 waiting AttachingToOtherNode"],
    );
}

#[test]
fn whoever_is_no_pod_and_may_write_is_known_before_he_gets_the_volume() {
    let check = |scene: &str, expected: bool| {
        let view = view(scene);
        assert_eq!(decide(&view).gives_to_others(&view), expected, "{scene}");
    };
    check("detached; ", false);
    check("detached; csi@n1", false);
    check("attached n1; csi@n1; engines n1", false);
    check("detached; api@n1", true);
    check("detached; api@n1:off", true);
    check("attaching n1; api@n1", true);
    check("attached n1; api@n1; engines n1", true);
    check("attached n1; csi@n1 api@n1; engines n1", true);
    check("detached rwx; share-manager@n1", true);
    // He waits, and has nothing.
    check("attached n1; csi@n1 api@n2; engines n1", false);
    check("detaching n1; api@n2", false);
    check("detached; csi@n1 api@n2 restore@n3:off", false);
    // Our own operations write no bytes of their own; of others we know nothing, and they are never served.
    check("detached; snapshot@n1", false);
    check("attached n1; csi@n1 backup@n1:any; engines n1", false);
    check("detached; somebody@n1", false);
}

#[test]
fn nothing_is_selected_before_the_volume_is_fully_detached() {
    check(
        "detaching n1; csi@n2",
        expect!["wait nowhere (Detaching); csi@n2 waiting Detaching"],
    );
    check(
        "attached n1 spec=; csi@n2",
        expect!["wait nowhere (Detaching); csi@n2 waiting Detaching"],
    );
    check(
        "detached also=n2; csi@n2",
        expect!["wait nowhere (Detaching); csi@n2 waiting Detaching"],
    );
    check(
        "creating; csi@n1",
        expect!["wait nowhere (VolumeNotReady); csi@n1 waiting VolumeNotReady"],
    );
    check(
        "deleting; csi@n1",
        expect!["wait nowhere (VolumeNotReady); csi@n1 waiting VolumeNotReady"],
    );
    check(
        "attaching spec=; csi@n1",
        expect!["wait nowhere (Detaching); csi@n1 waiting Detaching"],
    );
}

#[test]
fn a_faulted_volume_is_detached_and_not_attached() {
    check(
        "attached n1 faulted; csi@n1",
        expect!["detach nowhere (VolumeFaulted); csi@n1 waiting VolumeFaulted"],
    );
    check(
        "detaching n1 faulted; csi@n1",
        expect!["wait nowhere (Detaching); csi@n1 waiting VolumeFaulted"],
    );
    check(
        "detached faulted; csi@n1 restore@n2:off",
        expect![
            "wait nowhere (VolumeFaulted); csi@n1 waiting VolumeFaulted; restore@n2 waiting VolumeFaulted"
        ],
    );
    check("detached faulted; ", expect!["keep nowhere (NoTickets)"]);
}

#[test]
fn a_volume_that_nobody_wants_where_it_is_is_detached() {
    check(
        "attached n1; ",
        expect!["detach nowhere (NoMatchingTicket)"],
    );
    check(
        "attached n1; csi@n2",
        expect!["detach nowhere (NoMatchingTicket); csi@n2 waiting Detaching"],
    );
    check(
        "attaching n1; csi@n2",
        expect!["detach nowhere (NoMatchingTicket); csi@n2 waiting Detaching"],
    );
    check(
        "attached n1; backup@n2",
        expect!["detach nowhere (NoMatchingTicket); backup@n2 waiting Detaching"],
    );
    check(
        "attached n1; csi@n1:off",
        expect!["detach nowhere (NoMatchingTicket); csi@n1 waiting Detaching"],
    );
    check(
        "attached n1; csi@n1",
        expect!["keep n1 (HeldBy); csi@n1 +holding"],
    );
}

#[test]
fn a_volume_whose_attach_has_not_begun_is_sent_elsewhere_at_once() {
    check(
        "detached spec=n1; csi@n2",
        expect!["attach n2 (NoMatchingTicket) (Selected); csi@n2 selected Attaching"],
    );
    check(
        "detached spec=n1; backup@n1:any csi@n2",
        expect![
            "attach n2 (InterruptedByWorkload) (Selected); backup@n1 waiting AttachingToOtherNode; csi@n2 selected Attaching"
        ],
    );
    check(
        "detached spec=n1; ",
        expect!["detach nowhere (NoMatchingTicket)"],
    );
}

#[test]
fn a_workload_interrupts_snapshots_backups_and_copied_clones_elsewhere() {
    check(
        "attached n1; backup@n1:any csi@n2",
        expect![
            "detach nowhere (InterruptedByWorkload); backup@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching"
        ],
    );
    check(
        "attached n1; snapshot@n1:any api@n2",
        expect![
            "detach nowhere (InterruptedByWorkload); api@n2 interrupting Detaching; snapshot@n1 interrupted InterruptedByWorkload"
        ],
    );
    check(
        "attached n1; snapshot@n1:any backup@n1:any share-manager@n2",
        expect![
            "detach nowhere (InterruptedByWorkload); backup@n1 interrupted InterruptedByWorkload; share-manager@n2 interrupting Detaching; snapshot@n1 interrupted InterruptedByWorkload"
        ],
    );
    check(
        "attached n1 copied; clone@n1:any csi@n2",
        expect![
            "detach nowhere (InterruptedByWorkload); clone@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching"
        ],
    );
    check(
        "attached n1; backup@n1:any csi@n2 snapshot@n3",
        expect![
            "detach nowhere (InterruptedByWorkload); backup@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching; snapshot@n3 waiting Detaching"
        ],
    );
    // Still detaching: the tickets are told the same.
    check(
        "detaching n1; backup@n1:any csi@n2",
        expect![
            "wait nowhere (Detaching); backup@n1 interrupted InterruptedByWorkload; csi@n2 interrupting Detaching"
        ],
    );
}

#[test]
fn nobody_else_is_interrupted_and_nobody_else_interrupts() {
    check(
        "attached n1; clone@n1:any csi@n2",
        expect!["keep n1 (HeldBy); clone@n1 +holding; csi@n2 waiting AttachedToOtherNode"],
    );
    check(
        "attached n1; eviction@n1:any csi@n2",
        expect!["keep n1 (HeldBy); csi@n2 waiting AttachedToOtherNode; eviction@n1 +holding"],
    );
    check(
        "attached n1; rebuilding@n1:any csi@n2",
        expect!["keep n1 (HeldBy); csi@n2 waiting AttachedToOtherNode; rebuilding@n1 +holding"],
    );
    check(
        "attached n1; csi@n1 api@n2",
        expect!["keep n1 (HeldBy); api@n2 waiting AttachedToOtherNode; csi@n1 +holding"],
    );
    check(
        "attached n1; backup@n1:any expansion@n1 csi@n2",
        expect![
            "keep n1 (HeldBy); backup@n1 +coexisting; csi@n2 waiting AttachedToOtherNode; expansion@n1 +holding"
        ],
    );
    // By type, never by number: restore has priority 2000 and interrupts nobody.
    check(
        "attached n1; backup@n1:any restore@n2:off",
        expect!["keep n1 (HeldBy); backup@n1 +holding; restore@n2 waiting AttachedToOtherNode"],
    );
    check(
        "attached n1; backup@n1:any snapshot@n2",
        expect!["keep n1 (HeldBy); backup@n1 +holding; snapshot@n2 waiting AttachedToOtherNode"],
    );
    // The same node is no other node.
    check(
        "attached n1; backup@n1:any csi@n1:off",
        expect![
            "keep n1 (HeldBy); backup@n1 +holding; csi@n1 waiting AttachedWithIncompatibleParameters"
        ],
    );
}

#[test]
fn parameters_must_fit_the_attachment() {
    check(
        "detached; restore@n1:off",
        expect!["attach n1 without frontend (Selected); restore@n1 selected Attaching"],
    );
    check(
        "detached; snapshot@n1:any",
        expect!["attach n1 (Selected); snapshot@n1 selected Attaching"],
    );
    check(
        "attached n1 no-frontend; restore@n1:off csi@n1",
        expect![
            "keep n1 without frontend (HeldBy); csi@n1 waiting AttachedWithIncompatibleParameters; restore@n1 +holding"
        ],
    );
    check(
        "attached n1 no-frontend; restore@n1:off snapshot@n1:any",
        expect!["keep n1 without frontend (HeldBy); restore@n1 +holding; snapshot@n1 +coexisting"],
    );
    check(
        "attached n1; csi@n1 api@n1:off",
        expect![
            "keep n1 (HeldBy); api@n1 waiting AttachedWithIncompatibleParameters; csi@n1 +holding"
        ],
    );
    check(
        "attached n1; csi@n1 api@n1:sometimes",
        expect!["keep n1 (HeldBy); api@n1 ignored InvalidTicket; csi@n1 +holding"],
    );
    check(
        "detached; api@n1:sometimes",
        expect!["keep nowhere (NoEligibleTicket); api@n1 ignored InvalidTicket"],
    );
    check(
        "attached n1; api@n1:sometimes csi@n2",
        expect![
            "keep n1 (HeldBy); api@n1 ignored InvalidTicket; csi@n2 waiting AttachedToOtherNode"
        ],
    );
}

#[test]
fn tickets_of_a_shared_volume_are_summed_up_by_the_share_manager() {
    check(
        "detached rwx; csi@n1 csi@n2",
        expect![
            "wait nowhere (WaitingForShare); csi@n1 ignored WaitingForShare; csi@n2 ignored WaitingForShare"
        ],
    );
    check(
        "detached rwx; csi@n1 csi@n2 share-manager@n3",
        expect![
            "attach n3 (Selected); csi@n1 ignored WaitingForShare; csi@n2 ignored WaitingForShare; share-manager@n3 selected Attaching"
        ],
    );
    check(
        "attached n3 rwx; csi@n1 csi@n2 share-manager@n3",
        expect![
            "keep n3 (HeldBy); csi@n1 ignored WaitingForShare; csi@n2 ignored WaitingForShare; share-manager@n3 +holding"
        ],
    );
    check(
        "attached n3 rwx shared; csi@n1 csi@n2 share-manager@n3",
        expect!["keep n3 (HeldBy); csi@n1 +ignored; csi@n2 +ignored; share-manager@n3 +holding"],
    );
    check(
        "attached n3 rwx shared; csi@n1 csi@n3",
        expect!["detach nowhere (NoMatchingTicket); csi@n1 +ignored; csi@n3 +ignored"],
    );
    check(
        "attached n3 rwx; backup@n3:any csi@n1",
        expect!["keep n3 (HeldBy); backup@n3 +holding; csi@n1 ignored WaitingForShare"],
    );
    check(
        "attached n3 rwx; backup@n3:any share-manager@n1",
        expect![
            "detach nowhere (InterruptedByWorkload); backup@n3 interrupted InterruptedByWorkload; share-manager@n1 interrupting Detaching"
        ],
    );
}

#[test]
fn a_type_that_we_do_not_know_is_kept_and_never_selected() {
    check(
        "detached; teleport@n1",
        expect!["keep nowhere (NoEligibleTicket); teleport@n1 unknown UnknownAttacherType"],
    );
    check(
        "detached; teleport@n1 snapshot@n2",
        expect![
            "attach n2 (Selected); snapshot@n2 selected Attaching; teleport@n1 unknown UnknownAttacherType"
        ],
    );
    check(
        "attached n1; teleport@n1",
        expect!["keep n1 (HeldBy); teleport@n1 +unknown"],
    );
    check(
        "attached n1; teleport@n1 csi@n2",
        expect!["keep n1 (HeldBy); csi@n2 waiting AttachedToOtherNode; teleport@n1 +unknown"],
    );
    check(
        "attached n1; csi@n1 teleport@n2",
        expect!["keep n1 (HeldBy); csi@n1 +holding; teleport@n2 unknown UnknownAttacherType"],
    );
}

#[test]
fn cordon_removes_manual_tickets_if_the_setting_says_so() {
    check(
        "attached n3; api@n3; nodes n1 n3!; set cordon",
        expect![
            "detach nowhere (RemovedByCordon) (NoMatchingTicket); api@n3 stale RemovedByCordon; remove api@n3"
        ],
    );
    check(
        "attached n3; api@n3; nodes n1 n3!",
        expect!["keep n3 (KeptDespiteCordon) (HeldBy); api@n3 +holding"],
    );
    check(
        "attached n3; api@n3 csi@n3; nodes n1 n3!; set cordon",
        expect![
            "keep n3 (RemovedByCordon) (HeldBy); api@n3 stale RemovedByCordon; csi@n3 +holding; remove api@n3"
        ],
    );
    check(
        "detached; api@n3 csi@n1; nodes n1 n3!; set cordon",
        expect![
            "attach n1 (RemovedByCordon) (Selected); api@n3 stale RemovedByCordon; csi@n1 selected Attaching; remove api@n3"
        ],
    );
    check(
        "attached n3; csi@n3; nodes n1 n3!; set cordon",
        expect!["keep n3 (HeldBy); csi@n3 +holding"],
    );
}

#[test]
fn a_status_answers_one_generation_and_dates_its_last_change() {
    let before = seconds_after_noon(-3600);
    let check = |scene: &str, id: &str, expected: (bool, i64, bool)| {
        let view = view(scene);
        let plan = decide(&view);
        let status = &plan.ticket_statuses[id];
        let moved = match status.condition.last_transition {
            Some(at) if at == noon() => true,
            Some(at) if at == before => false,
            other => panic!("{scene}: {other:?}"),
        };
        assert_eq!(
            (status.satisfied, status.generation.0, moved),
            expected,
            "{scene}"
        );
        assert_eq!(status.satisfied, status.condition.status);
        assert_eq!(status.satisfies(&view.tickets[id]), status.satisfied);
    };
    check("attached n1; csi@n1", "csi@n1", (true, 0, true));
    check(
        "attached n1; csi@n1#3; statuses csi@n1+#2",
        "csi@n1",
        (true, 3, false),
    );
    check(
        "attached n1; csi@n1; statuses csi@n1",
        "csi@n1",
        (true, 0, true),
    );
    check(
        "attached n1; csi@n1 csi@n2; statuses csi@n2",
        "csi@n2",
        (false, 0, false),
    );
    check(
        "detaching n1; csi@n1; statuses csi@n1+",
        "csi@n1",
        (false, 0, true),
    );

    let stale = &view("attached n1; csi@n1#3; statuses csi@n1+#2");
    assert!(!stale.statuses["csi@n1"].satisfies(&stale.tickets["csi@n1"]));
}

#[test]
fn statuses_of_removed_tickets_go() {
    check(
        "attached n1; csi@n1; statuses csi@n1+ csi@n2+",
        expect!["keep n1 (HeldBy); csi@n1 +holding; csi@n2 stale StatusWithoutTicket"],
    );
}

#[test]
fn generations_count_changed_requests_and_not_renewed_leases() {
    use attach_core::Ticket;
    let old = ticket("csi@n1#4");
    let mut renewed = ticket("csi@n1");
    renewed.lease.deadline = Some(noon());
    assert_eq!(
        Ticket::generation_after(&renewed, Some(&old), None),
        Generation(4)
    );
    let moved = ticket("csi@n2=csi@n1");
    assert_eq!(
        Ticket::generation_after(&moved, Some(&old), None),
        Generation(5)
    );
    let status = view("detached; ; statuses csi@n1+#7").statuses["csi@n1"].clone();
    assert_eq!(
        Ticket::generation_after(&moved, None, Some(&status)),
        Generation(8)
    );
    assert_eq!(Ticket::generation_after(&moved, None, None), Generation(0));
}
