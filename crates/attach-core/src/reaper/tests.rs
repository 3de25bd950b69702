use super::*;
use crate::lease::{Heartbeat, Lease};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_780_000_000 + seconds).unwrap()
}

/// A world in which one object of each kind is active, done, hopeless or gone, by its name.
fn world() -> World {
    let fates = |what: &str| {
        BTreeMap::from([
            (Arc::from(format!("{what}-active")), Fate::Active),
            (
                Arc::from(format!("{what}-done")),
                Fate::Final {
                    result: "Completed".into(),
                },
            ),
            (
                Arc::from(format!("{what}-stuck")),
                Fate::Hopeless {
                    reason: "snapshot s is not found".into(),
                },
            ),
        ])
    };
    World {
        kubernetes_attachments: Some(BTreeSet::from(["csi-live".into()])),
        snapshots: Some(fates("snap")),
        backups: Some(fates("backup")),
        nodes: Some(["n1", "n2"].into_iter().map(NodeName::from).collect()),
        owners: BTreeMap::from([(
            "Pod".into(),
            BTreeMap::from([("web-0".into(), "uid-1".into())]),
        )]),
        in_use: BTreeSet::new(),
    }
}

fn filed(tickets: impl IntoIterator<Item = Ticket>) -> BTreeMap<TicketId, Ticket> {
    tickets
        .into_iter()
        .map(|ticket| (ticket.id.clone(), ticket))
        .collect()
}

/// Looks once, and again after the grace period; tells what is removed then.
#[track_caller]
fn check(tickets: impl IntoIterator<Item = Ticket>, expected: &[&str]) {
    let tickets = filed(tickets);
    let volume = VolumeName::from("vol");
    let look = |before: &Suspicions, now| {
        reap(
            [(&volume, &tickets)],
            &world(),
            before,
            &Policy::default(),
            now,
        )
    };
    let first = look(&Suspicions::default(), at(0));
    assert!(first.removals.is_empty(), "removed without grace");
    let early = look(&first.suspicions, at(119));
    assert!(
        early.removals.is_empty(),
        "removed before the grace period was over"
    );
    assert_eq!(early.suspects.len(), first.suspects.len());
    let late = look(&early.suspicions, at(120));
    let told: Vec<_> = late
        .removals
        .iter()
        .map(|removal| format!("{}: {}", removal.ticket, removal.cause))
        .collect();
    assert_eq!(told, expected);
}

fn ticket(kind: AttacherKind, id: &str) -> Ticket {
    Ticket::new(kind, id, "n1")
}

#[test]
fn a_pods_ticket_lives_as_long_as_its_volume_attachment() {
    check([ticket(AttacherKind::Csi, "csi-live")], &[]);
    check(
        [ticket(AttacherKind::Csi, "csi-gone")],
        &["csi-gone: its Kubernetes VolumeAttachment \"csi-gone\" does not exist"],
    );
}

#[test]
fn snapshot_and_backup_tickets_live_as_long_as_their_objects_need_them() {
    use AttacherKind::{Backup, Snapshot};
    let filed_for =
        |kind: AttacherKind, object: &str| ticket(kind, Ticket::id_for(kind, object).as_str());
    check(
        [
            filed_for(Snapshot, "snap-active"),
            filed_for(Backup, "backup-active"),
        ],
        &[],
    );
    check(
        [filed_for(Snapshot, "snap-lost")],
        &[
            "snapshot-controller-snap-lost: the snapshot \"snap-lost\" that it was filed for does not exist",
        ],
    );
    check(
        [filed_for(Backup, "backup-done")],
        &[
            "backup-controller-backup-done: the backup \"backup-done\" that it was filed for is done: Completed",
        ],
    );
    // longhorn #10090: the backup waits for a snapshot that does not exist, and upstream retries for ever.
    check(
        [filed_for(Backup, "backup-stuck")],
        &[
            "backup-controller-backup-stuck: the backup \"backup-stuck\" that it was filed for can never be done: snapshot s is not found",
        ],
    );
    // Not filed by the rule: we cannot know what for.
    check([ticket(Backup, "by-hand")], &[]);
}

#[test]
fn ids_that_were_cut_mean_any_object_that_begins_so() {
    let long = "s".repeat(300);
    let cut = ticket(
        AttacherKind::Snapshot,
        Ticket::id_for(AttacherKind::Snapshot, &long).as_str(),
    );
    assert_eq!(cut.id.as_str().len(), 253);
    let object = cut.object().unwrap();
    assert!(!object.exact && long.starts_with(object.start));
    let done = || Fate::Final {
        result: "ready".into(),
    };
    let known = |fates: [Fate; 2]| -> BTreeMap<Arc<str>, Fate> {
        let names = [format!("{long}a").into(), format!("{long}b").into()];
        names.into_iter().zip(fates).collect()
    };
    assert_eq!(
        find(&known([done(), Fate::Active]), object).unwrap().1,
        &Fate::Active
    );
    assert_eq!(
        find(&known([Fate::Active, done()]), object).unwrap().1,
        &Fate::Active
    );
    assert_eq!(find(&known([done(), done()]), object).unwrap().1, &done());
    assert_eq!(find(&BTreeMap::new(), object), None);
}

#[test]
fn tickets_to_nodes_that_are_gone_go() {
    check(
        [
            Ticket::new(AttacherKind::Eviction, "e", "n9"),
            Ticket::new(AttacherKind::Csi, "csi-live", "n9"),
        ],
        &[
            "csi-live: node n9 does not exist",
            "e: node n9 does not exist",
        ],
    );
}

#[test]
fn leases_end_with_their_deadline_or_their_owner() {
    let leased = |lease: Lease| Ticket {
        lease,
        ..ticket(AttacherKind::Manual, "m")
    };
    check(
        [leased(Lease {
            deadline: Some(at(3600)),
            ..Lease::default()
        })],
        &[],
    );
    check(
        [leased(Lease {
            deadline: Some(at(-5)),
            ..Lease::default()
        })],
        &["m: its deadline 2026-05-28T20:26:35Z has passed"],
    );
    check([leased(Lease::owned_by("Pod", "web-0"))], &[]);
    check(
        [leased(Lease::owned_by("Pod", "web-1"))],
        &["m: its owner Pod web-1 does not exist"],
    );
    let mut namesake = Lease::owned_by("Pod", "web-0");
    namesake.owner.as_mut().unwrap().uid = Some("uid-2".into());
    check(
        [leased(namesake)],
        &["m: its owner Pod web-0 does not exist"],
    );
    // Of a kind that we do not watch nothing is concluded.
    check([leased(Lease::owned_by("Job.batch", "scan"))], &[]);
}

#[test]
fn a_silent_holder_is_gone_by_our_own_clock() {
    let beating = |beat: &str| {
        let heartbeat = Some(Heartbeat {
            beat: beat.into(),
            period: SignedDuration::from_secs(10),
        });
        filed([Ticket {
            lease: Lease {
                heartbeat,
                ..Lease::default()
            },
            ..ticket(AttacherKind::Manual, "m")
        }])
    };
    let volume = VolumeName::from("vol");
    let mut suspicions = Suspicions::default();
    let mut story = Vec::new();
    for (seconds, beat) in [
        (0, "1"),
        (25, "1"),
        (29, "2"),
        (58, "2"),
        (59, "2"),
        (178, "2"),
        (179, "2"),
    ] {
        let reaping = reap(
            [(&volume, &beating(beat))],
            &world(),
            &suspicions,
            &Policy::default(),
            at(seconds),
        );
        story.push((seconds, reaping.suspects.len(), reaping.removals.len()));
        suspicions = reaping.suspicions;
    }
    let expected = [
        (0, 0, 0),
        (25, 0, 0),
        (29, 0, 0),
        (58, 0, 0),
        (59, 1, 0),
        (178, 1, 0),
        (179, 0, 1),
    ];
    assert_eq!(story, expected);
}

#[test]
fn an_unclaimed_manual_ticket_goes_only_when_it_has_kept_a_pod_waiting_for_long() {
    // longhorn #8339: `longhorn-ui` has no owner, and the pod's volume does not come.
    let blocked = filed([
        ticket(AttacherKind::Manual, "longhorn-ui"),
        Ticket::new(AttacherKind::Csi, "csi-live", "n2"),
    ]);
    let alone = filed([ticket(AttacherKind::Manual, "longhorn-ui")]);
    let volume = VolumeName::from("vol");
    let look = |tickets, before: &Suspicions, now| {
        reap(
            [(&volume, tickets)],
            &world(),
            before,
            &Policy::default(),
            now,
        )
    };
    assert_eq!(
        look(&alone, &Suspicions::default(), at(0)),
        Reaping::default()
    );
    let first = look(&blocked, &Suspicions::default(), at(0));
    assert_eq!(
        first.suspects[0].cause.to_string(),
        "nobody answers for this manual attachment, and \"csi-live\" waits for the volume on node n2"
    );
    assert_eq!(first.recheck_after, Some(SignedDuration::from_hours(24)));
    assert!(
        look(&blocked, &first.suspicions, at(86_399))
            .removals
            .is_empty()
    );
    assert_eq!(
        look(&blocked, &first.suspicions, at(86_400)).removals.len(),
        1
    );
}

#[test]
fn a_changed_or_returning_reason_ends_the_suspicion() {
    let volume = VolumeName::from("vol");
    let gone = filed([ticket(AttacherKind::Csi, "csi-gone")]);
    let look = |tickets, world: &World, before: &Suspicions, now| {
        reap([(&volume, tickets)], world, before, &Policy::default(), now)
    };
    let first = look(&gone, &world(), &Suspicions::default(), at(0));
    let mut shown = world();
    shown
        .kubernetes_attachments
        .as_mut()
        .unwrap()
        .insert("csi-gone".into());
    let cleared = look(&gone, &shown, &first.suspicions, at(60));
    assert_eq!(cleared, Reaping::default());
    assert!(
        look(&gone, &world(), &cleared.suspicions, at(130))
            .removals
            .is_empty()
    );

    let mut changed = gone.clone();
    changed
        .values_mut()
        .for_each(|ticket| ticket.generation = Generation(1));
    assert!(
        look(&changed, &world(), &first.suspicions, at(130))
            .removals
            .is_empty()
    );
}

#[test]
fn a_removal_that_failed_is_tried_again_without_another_grace() {
    let volume = VolumeName::from("vol");
    let silent = Ticket {
        lease: Lease {
            heartbeat: Some(Heartbeat {
                beat: "1".into(),
                period: SignedDuration::from_secs(10),
            }),
            ..Lease::default()
        },
        ..ticket(AttacherKind::Manual, "m")
    };
    let tickets = filed([ticket(AttacherKind::Csi, "csi-gone"), silent]);
    let look = |before: &Suspicions, seconds| {
        reap(
            [(&volume, &tickets)],
            &world(),
            before,
            &Policy::default(),
            at(seconds),
        )
    };
    let mut before = Suspicions::default();
    for seconds in [0, 30] {
        before = look(&before, seconds).suspicions;
    }
    let names = |reaping: &Reaping| -> Vec<String> {
        let removals = reaping.removals.iter();
        removals.map(|removal| removal.ticket.to_string()).collect()
    };
    let mut late = look(&before, 150);
    assert_eq!(names(&late), ["csi-gone", "m"]);
    // Nothing is remembered of what was removed: a namesake has a grace of its own.
    assert_eq!(names(&look(&late.suspicions, 151)), [""; 0]);
    for removal in &late.removals.clone() {
        late.suspicions.keep(removal, &before);
    }
    let again = look(&late.suspicions, 151);
    assert_eq!(names(&again), ["csi-gone", "m"]);
    assert_eq!(again.removals, late.removals, "suspected since then");
}

#[test]
fn nothing_is_concluded_from_what_was_not_read() {
    let volume = VolumeName::from("vol");
    let tickets = filed([
        ticket(AttacherKind::Csi, "csi-gone"),
        ticket(AttacherKind::Backup, "backup-controller-b"),
        Ticket::new(AttacherKind::Snapshot, "snapshot-controller-s", "n9"),
    ]);
    let reaping = reap(
        [(&volume, &tickets)],
        &World::default(),
        &Suspicions::default(),
        &Policy::default(),
        at(0),
    );
    assert_eq!(reaping, Reaping::default());
}

#[test]
fn a_ticket_below_a_mounted_volume_waits_for_the_end_of_its_use() {
    let volume = VolumeName::from("vol");
    let look = |tickets: &BTreeMap<TicketId, Ticket>, used: &[&str], before: &Suspicions, now| {
        let mut world = world();
        let place = |node: &&str| (NodeName::from(*node), volume.clone());
        world.in_use = used.iter().map(place).collect();
        reap(
            [(&volume, tickets)],
            &world,
            before,
            &Policy::default(),
            now,
        )
    };
    let orphan = filed([ticket(AttacherKind::Csi, "csi-gone")]);
    let first = look(&orphan, &["n1"], &Suspicions::default(), at(0));
    let later = look(&orphan, &["n1"], &first.suspicions, at(1000));
    assert!(later.removals.is_empty(), "taken from below a mount");
    assert!(later.suspects[0].in_use);
    assert_eq!(
        later.recheck_after, None,
        "there is nothing to look for at a time"
    );
    // Its grace has passed meanwhile.
    let unmounted = look(&orphan, &["n2"], &later.suspicions, at(1001));
    assert_eq!(unmounted.removals.len(), 1);

    // No pod is behind an operation's ticket.
    let over = filed([ticket(
        AttacherKind::Snapshot,
        "snapshot-controller-snap-done",
    )]);
    let first = look(&over, &["n1"], &Suspicions::default(), at(0));
    let late = look(&over, &["n1"], &first.suspicions, at(120));
    assert_eq!(late.removals.len(), 1);
}
