//! `cargo bench -p cluster-core`: a whole cluster at once.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::Instant;

use cluster_core::attachment_index::rebuild;
use cluster_core::{
    AccessMode, AttachmentSource, Claim, ClaimKey, ClusterView, DriverName, Memory, Node, NodeName,
    PersistentVolume, Pod, PodKey, PodPhase, PvName, Timestamp, VolumeAttachment, decide,
};

const DRIVER: &str = "driver.longhorn.io";
const NODES: usize = 1_000;

fn main() {
    let view = cluster(100_000);
    let driver = DriverName::from(DRIVER);
    measure("rebuild 100,000 attachments", || {
        rebuild(&driver, &view.attachments, &view.volumes)
    });
    let view = cluster(10_000);
    measure("decide for 10,000 attached volumes", || {
        decide(&view, &Memory::default(), Timestamp(0))
    });
    let storm = ClusterView {
        attachments: BTreeMap::new(),
        ..view
    };
    measure("decide for 10,000 volumes to attach", || {
        decide(&storm, &Memory::default(), Timestamp(0))
    });
}

fn measure<T>(name: &str, action: impl Fn() -> T) {
    let (before, started) = (resident_mib(), Instant::now());
    let result = black_box(action());
    let elapsed = started.elapsed();
    let grown = resident_mib().saturating_sub(before);
    drop(result);
    println!("{name}: {:.1} ms, {grown} MiB", elapsed.as_secs_f64() * 1e3);
}

/// What the process takes; zero where the kernel does not say.
fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|text| text.parse().ok());
    (pages.unwrap_or(0_u64) * 4096) >> 20
}

fn cluster(volumes: usize) -> ClusterView {
    let mut view = ClusterView::default();
    for index in 0..NODES {
        let node = Node {
            ready: true,
            out_of_service: false,
            managed: true,
            volumes_in_use: BTreeSet::new(),
            volumes_attached: BTreeSet::new(),
        };
        view.nodes.insert(node_name(index), node);
    }
    for index in 0..volumes {
        let name = PvName::new(format!("pvc-{index:08}"));
        let volume = PersistentVolume {
            driver: DRIVER.into(),
            handle: name.as_str().into(),
            access_modes: [AccessMode::ReadWriteOnce].into(),
            claim_uid: Some(name.to_string()),
            deleting: false,
            finalizers: Vec::new(),
            annotations: BTreeMap::new(),
            read_only: false,
            fs_type: None,
            is_block: false,
            publish_secret: None,
            attributes: BTreeMap::new(),
        };
        let node = node_name(index % NODES);
        let attachment = VolumeAttachment {
            driver: DRIVER.into(),
            source: AttachmentSource::Volume(name.clone()),
            node: node.clone(),
            created_at: Timestamp(0),
            deleting: false,
            finalizers: Vec::new(),
            annotations: BTreeMap::new(),
            attached: true,
            attach_error: None,
            detach_error: None,
        };
        let claim = ClaimKey {
            namespace: "default".to_owned(),
            name: name.to_string(),
        };
        let pod = Pod {
            node: Some(node.clone()),
            phase: PodPhase::Running,
            created_at: Timestamp(0),
            deleting: false,
            has_running_container: true,
            claims: vec![claim.clone()],
        };
        let key = PodKey {
            namespace: "default".to_owned(),
            name: name.to_string(),
            uid: name.to_string(),
        };
        view.pods.insert(key, pod);
        view.claims.insert(
            claim,
            Claim {
                uid: name.to_string(),
                volume: Some(name.clone()),
            },
        );
        view.attachments
            .insert(volume.unique_name().attachment_on(&node), attachment);
        view.volumes.insert(name, volume);
    }
    view
}

fn node_name(index: usize) -> NodeName {
    NodeName::new(format!("node-{index}"))
}
