//! How long one decision takes, and one pass of the reaper over a large cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;

use attach_core::reaper::{self, Fate, Suspicions};
use attach_core::view::{Engine, Engines, Node, Nodes, Settings, View, Volume, VolumeState};
use attach_core::{AttacherKind, NodeName, Ticket, TicketId, VolumeName, decide};
use criterion::{Criterion, criterion_group, criterion_main};
use jiff::Timestamp;

/// A volume attached for a pod, and background work that partly runs beside it and partly waits for another node.
fn busy_view(tickets: usize) -> View {
    let mut volume = Volume::detached("pvc-0b9c8d59-0ae8-413c-8bc5-af32b932b8ab");
    volume.spec.node = Some("worker-1".into());
    volume.status.state = VolumeState::Attached;
    volume.status.current_node = Some("worker-1".into());
    let kinds = [
        AttacherKind::Csi,
        AttacherKind::Backup,
        AttacherKind::Snapshot,
        AttacherKind::Eviction,
    ];
    let tickets: BTreeMap<TicketId, Ticket> = (0..tickets)
        .map(|at| {
            let kind = kinds[at % kinds.len()];
            let id = Ticket::id_for(kind, &format!("object-{at:04}"));
            let node = if at % 2 == 0 { "worker-1" } else { "worker-2" };
            (id.clone(), Ticket::new(kind, id, node))
        })
        .collect();
    let mut view = View {
        now: Timestamp::UNIX_EPOCH,
        volume,
        tickets,
        statuses: BTreeMap::new(),
        nodes: Nodes {
            complete: true,
            listed: ["worker-1", "worker-2", "worker-3"]
                .map(|name| {
                    (
                        NodeName::from(name),
                        Node {
                            ready: true,
                            cordoned: false,
                        },
                    )
                })
                .into(),
        },
        engines: Engines {
            complete: true,
            listed: vec![Engine {
                node: "worker-1".into(),
                active: true,
                running: true,
                has_rw_replica: true,
                is_sole_writer: false,
                snapshots: Some(BTreeSet::new()),
                error: None,
            }],
        },
        settings: Settings::default(),
    };
    // The usual case: everything has been decided before.
    view = decide(&view).applied_to(&view);
    view
}

fn decisions(criterion: &mut Criterion) {
    for tickets in [1, 4, 100] {
        let view = busy_view(tickets);
        criterion.bench_function(&format!("decide/{tickets} tickets"), |bench| {
            bench.iter(|| decide(black_box(&view)));
        });
    }
    let mut detached = busy_view(4);
    detached.volume = Volume::detached("vol");
    criterion.bench_function("decide/4 tickets, attach", |bench| {
        bench.iter(|| decide(black_box(&detached)));
    });
}

/// As Kubernetes names them: a hash, so that names differ from their first letter on.
fn attachment_name(at: u64) -> String {
    let digits = |seed: u64| (at + 1).wrapping_mul(seed | 1);
    format!(
        "csi-{:016x}{:016x}{:016x}{:016x}",
        digits(0x9e37_79b9_7f4a_7c15),
        digits(0xc2b2_ae3d_27d4_eb4f),
        digits(0x1656_67b1_9e37_79f9),
        digits(0x27d4_eb2f_1656_67c5)
    )
}

fn reaper_pass(criterion: &mut Criterion) {
    let volumes: BTreeMap<VolumeName, BTreeMap<TicketId, Ticket>> = (0..100_000_u64)
        .map(|at| {
            let csi = Ticket::new(AttacherKind::Csi, attachment_name(at), "worker-1");
            let id = Ticket::id_for(AttacherKind::Backup, &format!("backup-{at}"));
            let backup = Ticket::new(AttacherKind::Backup, id, "worker-1");
            let tickets = [csi, backup]
                .map(|ticket| (ticket.id.clone(), ticket))
                .into();
            (VolumeName::from(format!("pvc-{at:08}")), tickets)
        })
        .collect();
    let world = reaper::World {
        // One pod in ten is gone, one backup in ten is done.
        kubernetes_attachments: Some(
            (0..100_000)
                .filter(|at| at % 10 != 0)
                .map(|at| Arc::from(attachment_name(at)))
                .collect(),
        ),
        backups: Some(
            (0..100_000)
                .map(|at| {
                    let fate = if at % 10 == 0 {
                        Fate::Final {
                            result: "Completed".into(),
                        }
                    } else {
                        Fate::Active
                    };
                    (Arc::from(format!("backup-{at}")), fate)
                })
                .collect(),
        ),
        nodes: Some([NodeName::from("worker-1")].into()),
        ..reaper::World::default()
    };
    let policy = reaper::Policy::default();
    let before = reaper::reap(
        &volumes,
        &world,
        &Suspicions::default(),
        &policy,
        Timestamp::UNIX_EPOCH,
    )
    .suspicions;
    let mut group = criterion.benchmark_group("reap");
    group.sample_size(10);
    group.bench_function("100,000 volumes", |bench| {
        bench.iter(|| {
            reaper::reap(
                black_box(&volumes),
                &world,
                &before,
                &policy,
                Timestamp::UNIX_EPOCH,
            )
        });
    });
}

criterion_group!(benches, decisions, reaper_pass);
criterion_main!(benches);
