//! `cargo bench -p volume-core`: what one decision costs.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use volume_core::{
    Disk, DiskName, Engine, EngineObserved, Node, NodeHealth, NodeName, Replica, ReplicaObserved,
    Settings, Timestamp, Volume, VolumePlan, VolumeStatus, VolumeView, decide,
};

fn main() {
    for nodes in [3, 100, 1000] {
        let view = new_volume(nodes);
        measure(
            &format!("create and place 3 replicas, {nodes} nodes"),
            || decide(&view, Timestamp(0)),
        );
        let attached = attached(nodes);
        measure(&format!("attached and at rest, {nodes} nodes"), || {
            decide(&attached, Timestamp(0))
        });
    }
}

/// Repeats for a second, and prints the mean.
fn measure(name: &str, action: impl Fn() -> VolumePlan) {
    let (started, mut count) = (Instant::now(), 0u32);
    while started.elapsed() < Duration::from_secs(1) {
        black_box(action());
        count += 1;
    }
    println!(
        "{name}: {:.2} µs",
        started.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    );
}

fn new_volume(nodes: usize) -> VolumeView {
    VolumeView {
        volume: Volume::new("pvc-0b9c8d59-0ae8-413c-8bc5-af32b932b8ab", 1 << 30, 3),
        status: VolumeStatus::default(),
        engines: BTreeMap::new(),
        replicas: BTreeMap::new(),
        nodes: (0..nodes)
            .map(|index| (NodeName::new(format!("node-{index}")), node(index)))
            .collect(),
        settings: Settings::default(),
    }
}

/// Driven to rest by the decisions themselves, with agents that do at once what they are told.
fn attached(nodes: usize) -> VolumeView {
    let mut view = new_volume(nodes);
    view.volume.node = Some(NodeName::from("node-0"));
    view.volume.disable_frontend = true;
    for _ in 0..10 {
        let plan = decide(&view, Timestamp(0));
        view.status = plan.status;
        view.engines = plan
            .engines
            .into_iter()
            .map(|(name, spec)| {
                let modes = spec
                    .replicas
                    .keys()
                    .map(|name| (name.clone(), volume_core::ReplicaMode::ReadWrite));
                let running = volume_core::EngineRunning {
                    modes: modes.collect(),
                    size_bytes: spec.size_bytes,
                    ..volume_core::EngineRunning::default()
                };
                (
                    name,
                    Engine {
                        spec,
                        observed: EngineObserved::Running(running),
                    },
                )
            })
            .collect();
        view.replicas = plan
            .replicas
            .into_iter()
            .map(|(name, spec)| {
                let accepted = spec.epoch;
                (
                    name,
                    Replica {
                        spec,
                        observed: ReplicaObserved::Running,
                        accepted,
                        content: None,
                    },
                )
            })
            .collect();
    }
    assert_eq!(view.status.robustness, volume_core::Robustness::Healthy);
    view
}

fn node(index: usize) -> Node {
    let disk = Disk {
        name: "d".to_owned(),
        listed: true,
        ready: true,
        allow_scheduling: true,
        eviction_requested: false,
        reserved_bytes: 0,
        maximum_bytes: 1 << 40,
        available_bytes: 1 << 40,
        scheduled_bytes: (index as u64 % 7) << 30,
        tags: std::collections::BTreeSet::new(),
    };
    Node {
        health: NodeHealth::Ready,
        allow_scheduling: true,
        eviction_requested: false,
        zone: Some(format!("zone-{}", index % 3)),
        tags: std::collections::BTreeSet::new(),
        disks: [(DiskName::from("default-disk"), disk)].into(),
        rebuilds: 0,
    }
}
