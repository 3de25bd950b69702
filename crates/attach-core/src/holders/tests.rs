use super::*;
use crate::view::{Robustness, Sharing, VolumeState};

/// Asks all holders about one subject, and tells the tickets they desire.
fn desired(volume: &VolumeFacts, tickets: &[Ticket], subject: &Subject) -> String {
    let tickets = tickets
        .iter()
        .map(|ticket| (ticket.id.clone(), ticket.clone()))
        .collect();
    let view = HolderView {
        volume,
        tickets: &tickets,
        subject,
    };
    let desired = ALL.iter().filter_map(|holder| {
        let ticket = (holder.desired_ticket)(&view)?;
        assert!(
            ticket.is(holder.kind),
            "{ticket} is not of its holder's kind"
        );
        assert!(ticket.is_eligible());
        Some(format!(
            "{}@{} {}",
            ticket.id,
            ticket.node,
            ticket.frontend.wire()
        ))
    });
    desired.collect::<Vec<_>>().join(", ")
}

/// A volume owned by n1, with these changes.
fn volume(change: impl FnOnce(&mut VolumeFacts)) -> VolumeFacts {
    let mut volume = VolumeFacts::idle("vol", "n1");
    change(&mut volume);
    volume
}

#[track_caller]
fn check(
    change: impl FnOnce(&mut VolumeFacts),
    tickets: &[Ticket],
    subject: &Subject,
    expected: &str,
) {
    assert_eq!(desired(&volume(change), tickets, subject), expected);
}

fn ticket(kind: AttacherKind, node: &str) -> Ticket {
    Ticket::new(kind, format!("{}@{node}", kind.wire()), node)
}

/// The ticket with a parameter that nobody understands, which makes it ineligible.
fn with_unknown_frontend(mut ticket: Ticket) -> Ticket {
    let parameters = [("disableFrontend".to_owned(), "perhaps".to_owned())];
    ticket.set_parameters(&parameters.into());
    assert!(!ticket.is_eligible());
    ticket
}

#[test]
fn every_attacher_type_has_one_holder() {
    for (holder, row) in ALL.iter().zip(crate::attacher::TABLE) {
        assert_eq!(holder.kind, row.kind);
    }
    check(|_| {}, &[], &Subject::Volume, "");
}

#[test]
fn publication_and_manual_requests() {
    let publication = Publication {
        attachment: "csi-1".into(),
        node: "n2".into(),
    };
    check(
        |_| {},
        &[],
        &Subject::Publication(publication),
        "csi-1@n2 false",
    );
    let request = |disable_frontend| {
        Subject::Manual(ManualRequest {
            id: "".into(),
            node: "n3".into(),
            disable_frontend,
            by: "alice".into(),
            lease: Lease::default(),
        })
    };
    check(|_| {}, &[], &request(false), "@n3 false");
    check(|_| {}, &[], &request(true), "@n3 true");
}

#[test]
fn share_manager() {
    let pod = |alive, node: &str| SharePod {
        alive,
        node: NodeName::from_wire(node),
        owner_schedulable: true,
    };
    let csi = [ticket(AttacherKind::Csi, "n3")];
    let shared = |volume: &mut VolumeFacts| volume.sharing = Sharing::Shared;
    let running = Subject::SharePod(pod(true, "n2"));
    check(
        shared,
        &csi,
        &running,
        "share-manager-controller-vol@n2 false",
    );
    check(shared, &[], &running, "");
    check(|_| {}, &csi, &running, "");
    check(
        |volume| volume.sharing = Sharing::Migratable,
        &csi,
        &running,
        "",
    );
    check(shared, &csi, &Subject::SharePod(pod(true, "")), "");
    check(shared, &csi, &Subject::SharePod(pod(false, "n2")), "");
    check(
        shared,
        &csi,
        &Subject::SharePod(SharePod {
            owner_schedulable: false,
            ..pod(true, "n2")
        }),
        "",
    );
    let but = |change: fn(&mut VolumeFacts)| {
        move |volume: &mut VolumeFacts| {
            volume.sharing = Sharing::Shared;
            change(volume);
        }
    };
    check(
        but(|volume| volume.robustness = Robustness::Faulted),
        &csi,
        &running,
        "",
    );
    check(
        but(|volume| volume.restore_required = true),
        &csi,
        &running,
        "",
    );
    check(
        but(|volume| volume.frontend_disabled = true),
        &csi,
        &running,
        "",
    );
    check(but(|volume| volume.standby = true), &csi, &running, "");
    // It follows its pod, unlike tickets of background work.
    let before = Ticket::new(
        AttacherKind::ShareManager,
        "share-manager-controller-vol",
        "n1",
    );
    check(
        shared,
        &[csi[0].clone(), before],
        &running,
        "share-manager-controller-vol@n2 false",
    );
}

#[test]
fn snapshot() {
    let idle = Snapshot {
        name: "s".into(),
        create: false,
        refused: false,
        requested: false,
        created: false,
        deleting: false,
        purged: false,
        is_head_parent: false,
        has_branches: false,
        purge_disabled: false,
    };
    let check = |change: fn(&mut Snapshot), expected: &str| {
        let mut snapshot = idle.clone();
        change(&mut snapshot);
        check(|_| {}, &[], &Subject::Snapshot(snapshot), expected);
    };
    check(|_| {}, "");
    check(
        |snapshot| snapshot.create = true,
        "snapshot-controller-s@n1 any",
    );
    check(
        |snapshot| (snapshot.create, snapshot.refused) = (true, true),
        "",
    );
    check(
        |snapshot| (snapshot.create, snapshot.created) = (true, true),
        "",
    );
    let removed = |change: fn(&mut Snapshot), expected: &str| {
        let mut snapshot = idle.clone();
        (snapshot.created, snapshot.deleting) = (true, true);
        change(&mut snapshot);
        self::check(|_| {}, &[], &Subject::Snapshot(snapshot), expected);
    };
    removed(|_| {}, "snapshot-controller-s@n1 any");
    // Taken or not, what was refused may be removed; what never was there need not be.
    removed(
        |snapshot| snapshot.refused = true,
        "snapshot-controller-s@n1 any",
    );
    removed(|snapshot| snapshot.created = false, "");
    // Nobody knows yet whether it was taken.
    removed(
        |snapshot| (snapshot.created, snapshot.requested) = (false, true),
        "snapshot-controller-s@n1 any",
    );
    removed(|snapshot| snapshot.has_branches = true, "");
    removed(|snapshot| snapshot.purged = true, "");
    removed(|snapshot| snapshot.is_head_parent = true, "");
    removed(|snapshot| snapshot.purge_disabled = true, "");
}

#[test]
fn backup() {
    let pending = Backup {
        name: "b".into(),
        is_final: false,
        synced: false,
        deleting: false,
        snapshot_exists: true,
    };
    let check = |change: fn(&mut Backup), expected: &str| {
        let mut backup = pending.clone();
        change(&mut backup);
        check(|_| {}, &[], &Subject::Backup(backup), expected);
    };
    check(|_| {}, "backup-controller-b@n1 any");
    check(|backup| backup.is_final = true, "");
    check(|backup| backup.synced = true, "");
    check(|backup| backup.deleting = true, "");
    check(|backup| backup.snapshot_exists = false, "");
}

#[test]
fn restore_expansion_and_eviction_follow_the_volume() {
    let volume = &Subject::Volume;
    check(
        |volume| volume.restore_required = true,
        &[],
        volume,
        "volume-restore-controller-vol@n1 true",
    );
    check(
        |volume| volume.expansion_required = true,
        &[],
        volume,
        "volume-expansion-controller-vol@n1 false",
    );
    check(
        |volume| volume.eviction_possible = true,
        &[],
        volume,
        "volume-eviction-controller-vol@n1 any",
    );
    let deleting = |volume: &mut VolumeFacts| {
        (
            volume.restore_required,
            volume.expansion_required,
            volume.eviction_possible,
        ) = (true, true, true);
        volume.deleting = true;
    };
    check(deleting, &[], volume, "");
}

#[test]
fn background_work_goes_where_the_volume_is_and_stays_there() {
    let evicting = |volume: &mut VolumeFacts| {
        volume.eviction_possible = true;
        volume.current_node = Some("n2".into());
    };
    check(
        evicting,
        &[],
        &Subject::Volume,
        "volume-eviction-controller-vol@n2 any",
    );
    let filed = Ticket::new(
        AttacherKind::Eviction,
        "volume-eviction-controller-vol",
        "n3",
    );
    check(
        evicting,
        &[filed],
        &Subject::Volume,
        "volume-eviction-controller-vol@n3 any",
    );
    // A ticket that stays on its node must not keep the volume from a pod elsewhere: the node may be dead.
    let waiting_pod = Ticket::new(AttacherKind::Csi, "csi-1", "n4");
    let filed = Ticket::new(
        AttacherKind::Eviction,
        "volume-eviction-controller-vol",
        "n3",
    );
    check(
        evicting,
        &[filed.clone(), waiting_pod.clone()],
        &Subject::Volume,
        "",
    );
    // One that can never be served keeps nobody waiting.
    let defective = with_unknown_frontend(waiting_pod);
    check(
        evicting,
        &[filed, defective],
        &Subject::Volume,
        "volume-eviction-controller-vol@n3 any",
    );
    let ownerless = |volume: &mut VolumeFacts| {
        volume.eviction_possible = true;
        volume.owner = None;
    };
    check(ownerless, &[], &Subject::Volume, "");
    let with_any_node = |volume: &mut VolumeFacts| {
        ownerless(volume);
        volume.first_ready_node = Some("n3".into());
    };
    check(
        with_any_node,
        &[],
        &Subject::Volume,
        "volume-eviction-controller-vol@n3 any",
    );
}

#[test]
fn an_eviction_from_a_dead_disk_lasts_until_another_replica_is_there() {
    // The dead one has left, and nothing else should.
    let replacing = |volume: &mut VolumeFacts| {
        volume.replacement_possible = true;
        volume.state = VolumeState::Attached;
        volume.current_node = Some("n1".into());
    };
    let ours = "volume-eviction-controller-vol";
    let filed = || Ticket::new(AttacherKind::Eviction, ours, "n1");
    let expected = "volume-eviction-controller-vol@n1 any";
    check(replacing, &[filed()], &Subject::Volume, expected);
    check(replacing, &[], &Subject::Volume, "");
    check(|_| {}, &[filed()], &Subject::Volume, "");
    let pod = ticket(AttacherKind::Csi, "n2");
    check(replacing, &[filed(), pod], &Subject::Volume, "");
    let faulted = |volume: &mut VolumeFacts| {
        replacing(volume);
        volume.robustness = Robustness::Faulted;
    };
    check(faulted, &[filed()], &Subject::Volume, "");
}

#[test]
fn rebuilding() {
    let lacking = |volume: &mut VolumeFacts| {
        (volume.offline_rebuilding, volume.lacks_replicas) = (true, true);
    };
    let ours = Ticket::new(
        AttacherKind::Rebuilding,
        "volume-rebuilding-controller-vol",
        "n1",
    );
    let expected = "volume-rebuilding-controller-vol@n1 any";
    check(lacking, &[], &Subject::Volume, expected);
    check(
        lacking,
        &[ticket(AttacherKind::Backup, "n2")],
        &Subject::Volume,
        expected,
    );
    check(
        lacking,
        &[ticket(AttacherKind::Csi, "n2")],
        &Subject::Volume,
        "",
    );
    check(
        lacking,
        &[with_unknown_frontend(ticket(AttacherKind::Csi, "n2"))],
        &Subject::Volume,
        expected,
    );
    check(
        |volume| volume.lacks_replicas = true,
        &[],
        &Subject::Volume,
        "",
    );
    check(
        |volume| volume.offline_rebuilding = true,
        &[],
        &Subject::Volume,
        "",
    );
    let but = |change: fn(&mut VolumeFacts)| {
        move |volume: &mut VolumeFacts| {
            (volume.offline_rebuilding, volume.lacks_replicas) = (true, true);
            change(volume);
        }
    };
    check(
        but(|volume| volume.robustness = Robustness::Faulted),
        &[],
        &Subject::Volume,
        "",
    );
    check(
        but(|volume| volume.state = VolumeState::Attached),
        &[],
        &Subject::Volume,
        "",
    );
    check(
        but(|volume| volume.state = VolumeState::Attached),
        &[ours],
        &Subject::Volume,
        expected,
    );
}

#[test]
fn clone() {
    let copying = |volume: &mut VolumeFacts| volume.clone_copying = true;
    check(
        copying,
        &[],
        &Subject::Volume,
        "volume-clone-controller-vol@n1 true",
    );
    let source = Subject::Clone(CloneRole::Source {
        target: "copy".into(),
    });
    check(|_| {}, &[], &source, "volume-clone-controller-copy@n1 any");
    let linked = Subject::Clone(CloneRole::LinkedRebuild {
        source: "base".into(),
    });
    check(|_| {}, &[], &linked, "volume-clone-controller-base@n1 any");
    let wanted = [
        ticket(AttacherKind::Csi, "n3"),
        ticket(AttacherKind::Backup, "n3"),
        ticket(AttacherKind::Snapshot, "n2"),
    ];
    check(
        |_| {},
        &wanted,
        &source,
        "volume-clone-controller-copy@n3 any",
    );
    check(
        |_| {},
        &wanted[1..],
        &source,
        "volume-clone-controller-copy@n2 any",
    );
    let attached = |volume: &mut VolumeFacts| volume.current_node = Some("n2".into());
    check(
        attached,
        &wanted,
        &source,
        "volume-clone-controller-copy@n2 any",
    );
}

#[test]
fn backing_image() {
    let export = BackingImageExport {
        name: "image".into(),
        transferred: false,
        failed: false,
        deleting: false,
    };
    let subject = |change: fn(&mut BackingImageExport)| {
        let mut export = export.clone();
        change(&mut export);
        Subject::BackingImageExport(export)
    };
    check(
        |_| {},
        &[],
        &subject(|_| {}),
        "bim-ds-controller-image@n1 any",
    );
    check(
        |_| {},
        &[],
        &subject(|export| export.transferred = true),
        "",
    );
    check(|_| {}, &[], &subject(|export| export.failed = true), "");
    check(|_| {}, &[], &subject(|export| export.deleting = true), "");
}

#[test]
fn the_plan_files_what_is_missing_and_removes_what_nobody_desires() {
    let volume = volume(|volume| volume.expansion_required = true);
    let backup = Backup {
        name: "b".into(),
        is_final: false,
        synced: false,
        deleting: false,
        snapshot_exists: true,
    };
    let mut filed: BTreeMap<TicketId, Ticket> = [
        ticket(AttacherKind::Csi, "n1"),
        ticket(AttacherKind::Manual, "n1"),
        Ticket::new(AttacherKind::Snapshot, "snapshot-controller-gone", "n1"),
        Ticket::new(crate::Attacher::from_wire("teleport"), "t", "n1"),
    ]
    .map(|ticket| (ticket.id.clone(), ticket))
    .into();
    let subjects = [Subject::Volume, Subject::Backup(backup)];
    let changes = plan(&volume, &filed, &BTreeMap::new(), &subjects);
    let names: Vec<_> = changes
        .file
        .iter()
        .map(|ticket| ticket.id.as_str())
        .collect();
    assert_eq!(
        names,
        ["backup-controller-b", "volume-expansion-controller-vol"]
    );
    // What people, pods and strangers filed is theirs to take back.
    assert_eq!(changes.remove, [TicketId::from("snapshot-controller-gone")]);

    for id in changes.remove {
        filed.remove(&id);
    }
    filed.extend(
        changes
            .file
            .into_iter()
            .map(|ticket| (ticket.id.clone(), ticket)),
    );
    assert_eq!(
        plan(&volume, &filed, &BTreeMap::new(), &subjects),
        TicketChanges::default()
    );
}
