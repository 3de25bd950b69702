//! What this node counts, and what it can tell of itself when it is asked.
//!
//! Volumes are labels here, and only here: there are as many as this node has engines.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use api_types::names::DRIVER;
use csi_driver::CallTimes;
use engine::control::{EngineState, EngineStatus, StatisticsReport};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use telemetry::Rows;
use tokio::sync::watch;

use super::disks::{Disks, Slot};
use super::layout::Layout;
use super::node_object::Scheduled;
use super::replicas::Listed;
use crate::mount_table::{self, Mount};

/// A node whose lease was not renewed for this long is lost to the manager.
const LEASE_PATIENCE: Duration = Duration::from_secs(4);

/// Clones count into the same place.
#[derive(Clone, Default)]
pub struct NodeMetrics {
    /// Of the CSI node service.
    pub calls: CallTimes,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Set when the agent begins.
    place: OnceLock<Place>,
    /// Set when it serves.
    stores: OnceLock<Stores>,
    lease_renewed: Mutex<Option<Instant>>,
    lease_failures: Counter,
    engines: Mutex<BTreeMap<String, Engine>>,
    leftovers: Mutex<usize>,
}

/// Where things are.
struct Place {
    began: Instant,
    layout: Layout,
    /// The kubelet's folder is ours: others on this machine are of other nodes.
    embedded: bool,
}

/// Where data is.
struct Stores {
    disks: Arc<Disks>,
    replicas: watch::Receiver<Listed>,
}

/// An engine as it was last seen.
#[derive(Clone)]
struct Engine {
    state: &'static str,
    stalled: bool,
    statistics: StatisticsReport,
}

const ENGINE_STATES: [&str; 5] = ["opening", "serving", "standby", "closing", "fenced"];

impl NodeMetrics {
    pub fn register(&self, registry: &mut Registry) {
        self.calls.register(registry);
        registry.register(
            "lariat_node_lease_failures",
            "Renewals of the node's lease that the API refused or did not answer",
            self.shared.lease_failures.clone(),
        );
        registry.register_collector(Box::new(self.clone()));
    }

    pub(super) fn begin(&self, layout: &Layout, embedded: bool) {
        let place = Place {
            began: Instant::now(),
            layout: layout.clone(),
            embedded,
        };
        // An agent runs once in a process.
        let _ = self.shared.place.set(place);
    }

    pub(super) fn serves(&self, disks: Arc<Disks>, replicas: watch::Receiver<Listed>) {
        let _ = self.shared.stores.set(Stores { disks, replicas });
    }

    pub(super) fn lease_renewed(&self) {
        *lock(&self.shared.lease_renewed) = Some(Instant::now());
    }

    pub(super) fn lease_failed(&self) {
        self.shared.lease_failures.inc();
    }

    pub(super) fn leftovers(&self, count: usize) {
        *lock(&self.shared.leftovers) = count;
    }

    /// The engine of a volume as it is now; none runs if there is no status.
    pub(super) fn engine(&self, volume: &str, status: Option<&EngineStatus>) {
        let mut engines = lock(&self.shared.engines);
        match status {
            Some(status) => engines.insert(volume.to_owned(), Engine::read(status)),
            None => engines.remove(volume),
        };
    }

    /// Whether this node serves; else why not.
    pub fn ready(&self) -> Result<(), String> {
        let age = self
            .lease_age()
            .ok_or("the agent has not begun".to_owned())?;
        if age > LEASE_PATIENCE {
            let seconds = age.as_secs();
            return Err(format!(
                "the node's lease was last renewed {seconds} s ago: see whether the API answers"
            ));
        }
        Ok(())
    }

    /// Since the last renewal; before the first one, since the agent began.
    fn lease_age(&self) -> Option<Duration> {
        let began = self.shared.place.get()?.began;
        let renewed = lock(&self.shared.lease_renewed).unwrap_or(began);
        Some(renewed.elapsed())
    }

    fn engines(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let engines = lock(&self.shared.engines).clone();
        let count = |state: &str| engines.values().filter(|one| one.state == state).count();
        rows.gauges(
            "lariat_node_engines",
            "Engines that run on this node, by state",
            ENGINE_STATES.map(|state| ([("state", state.to_owned())], count(state) as f64)),
        )?;
        let stalled = engines.values().filter(|engine| engine.stalled).count();
        rows.gauge(
            "lariat_node_engines_stalled",
            "Engines whose requests wait, because replicas do not answer",
            stalled as f64,
        )?;
        volumes(rows, &engines)
    }

    fn disks(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let Some(stores) = self.shared.stores.get() else {
            return Ok(());
        };
        let slots = stores.disks.slots();
        let label = |name: &String| [("disk", name.clone())];
        rows.gauges(
            "lariat_node_disk_ready",
            "Whether a disk of this node is served",
            slots.iter().map(|(name, slot)| {
                let ready = matches!(slot, Slot::Open { trouble: None, .. });
                (label(name), f64::from(u8::from(ready)))
            }),
        )?;
        let open: Vec<_> = slots
            .iter()
            .filter_map(|(name, slot)| match slot {
                Slot::Open { disk, .. } => Some((name, disk)),
                Slot::Refused { .. } => None,
            })
            .collect();
        let bytes = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
            open.iter().filter_map(move |(name, disk)| {
                let stat = rustix::fs::statvfs(&disk.path).ok()?;
                Some((label(name), blocks(&stat) as f64 * stat.f_frsize as f64))
            })
        };
        rows.gauges(
            "lariat_node_disk_capacity_bytes",
            "Size of the file system under a disk",
            bytes(|stat| stat.f_blocks),
        )?;
        rows.gauges(
            "lariat_node_disk_available_bytes",
            "What is free on the file system under a disk",
            bytes(|stat| stat.f_bavail),
        )?;
        let replicas = stores
            .replicas
            .borrow()
            .as_ref()
            .map(kube::runtime::reflector::Store::state);
        let scheduled = replicas
            .as_ref()
            .map(|replicas| Scheduled::read(replicas, &stores.disks));
        let scheduled = scheduled.iter().flat_map(|scheduled| {
            open.iter().map(|(name, disk)| {
                let replicas = scheduled.by_disk.get(&disk.uuid);
                let bytes: i64 = replicas.into_iter().flat_map(BTreeMap::values).sum();
                (label(name), bytes as f64)
            })
        });
        rows.gauges(
            "lariat_node_disk_scheduled_bytes",
            "What the replicas on a disk may grow to",
            scheduled,
        )?;
        let mut states: BTreeMap<String, u64> = BTreeMap::new();
        for replica in replicas.iter().flatten() {
            let state = replica.status.as_ref().map(|status| &status.current_state);
            let state = state.cloned().unwrap_or_default().to_string();
            *states.entry(state).or_default() += 1;
        }
        rows.gauges(
            "lariat_node_replicas",
            "Replicas on this node, by state; running ones are served",
            states
                .into_iter()
                .map(|(state, count)| ([("state", state)], count as f64)),
        )
    }
}

/// What each engine says of its requests, since it was started.
fn volumes(rows: &mut Rows<'_>, engines: &BTreeMap<String, Engine>) -> fmt::Result {
    let operations = |engine: &Engine| {
        let statistics = engine.statistics.clone();
        [
            ("read", statistics.read),
            ("write", statistics.write),
            ("unmap", statistics.unmap),
            ("flush", statistics.flush),
        ]
    };
    let all: Vec<_> = engines
        .iter()
        .flat_map(|(volume, engine)| operations(engine).map(|one| (volume.clone(), one)))
        .map(|(volume, (operation, report))| {
            let labels = [("volume", volume), ("operation", operation.to_owned())];
            (labels, report)
        })
        .collect();
    rows.counters(
        "lariat_volume_requests",
        "Requests that a volume's engine has answered since it was started",
        all.iter()
            .map(|(labels, report)| (labels.clone(), report.count)),
    )?;
    rows.counters(
        "lariat_volume_bytes",
        "Bytes of these requests",
        all.iter()
            .map(|(labels, report)| (labels.clone(), report.bytes)),
    )?;
    rows.counters(
        "lariat_volume_request_errors",
        "Those of these requests that failed",
        all.iter()
            .map(|(labels, report)| (labels.clone(), report.failed)),
    )?;
    let quantiles = all.iter().flat_map(|([volume, operation], report)| {
        let values = [("0.5", report.p50_us), ("0.99", report.p99_us)];
        values.map(|(quantile, microseconds)| {
            let quantile = ("quantile", quantile.to_owned());
            let labels = [volume.clone(), operation.clone(), quantile];
            (labels, microseconds as f64 / 1e6)
        })
    });
    rows.gauges(
        "lariat_volume_latency_seconds",
        "How long these requests took: half of them at most, and 99 of 100 at most, since the engine was started",
        quantiles,
    )?;
    rows.gauges(
        "lariat_volume_open_requests",
        "Requests that wait for their answer now",
        engines.iter().map(|(volume, engine)| {
            let open = engine.statistics.open_requests as f64;
            ([("volume", volume.clone())], open)
        }),
    )
}

impl Engine {
    fn read(status: &EngineStatus) -> Self {
        let [opening, serving, standby, closing, fenced] = ENGINE_STATES;
        Self {
            state: match status.state {
                EngineState::Opening { .. } => opening,
                EngineState::Serving => serving,
                EngineState::Standby { .. } => standby,
                EngineState::Closing => closing,
                EngineState::Fenced { .. } => fenced,
            },
            stalled: status.stalled.is_some(),
            statistics: status.statistics.clone(),
        }
    }
}

/// File systems of our driver that are staged, for pods of this node.
fn staged(mounts: &[Mount], place: &Place) -> usize {
    let is_ours = |mount: &&Mount| {
        let target = &mount.target;
        target.ends_with("globalmount")
            && target.components().any(|part| part.as_os_str() == DRIVER)
            && (!place.embedded || target.starts_with(place.layout.kubelet()))
    };
    mounts.iter().filter(is_ours).count()
}

impl fmt::Debug for NodeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeMetrics")
    }
}

impl Collector for NodeMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(place) = self.shared.place.get() else {
            return Ok(());
        };
        let mut rows = Rows::new(encoder);
        if let Some(age) = self.lease_age() {
            rows.gauge(
                "lariat_node_lease_age_seconds",
                "Since the node's lease was last renewed; at four seconds the node counts as lost",
                age.as_secs_f64(),
            )?;
        }
        self.engines(&mut rows)?;
        self.disks(&mut rows)?;
        let mounts = mount_table::read().unwrap_or_default();
        rows.gauge(
            "lariat_node_staged_volumes",
            "File systems of volumes that are mounted for pods of this node",
            staged(&mounts, place) as f64,
        )?;
        let leftovers = *lock(&self.shared.leftovers);
        rows.gauge(
            "lariat_node_leftovers",
            "Devices and mounts that nobody answers for",
            leftovers as f64,
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use prometheus_client::encoding::text::encode;
    use serde_json::json;

    use super::*;

    fn text(metrics: &NodeMetrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).expect("written");
        text
    }

    #[test]
    fn only_staged_file_systems_of_this_node_count() {
        let place = |embedded| Place {
            began: Instant::now(),
            layout: Layout::new(Path::new("/data/nodes/n1")),
            embedded,
        };
        let mount = |target: &str| Mount {
            device: String::new(),
            root: "/".into(),
            target: target.into(),
            kind: "ext4".to_owned(),
            source: String::new(),
        };
        let mounts = [
            mount(
                "/data/nodes/n1/kubelet/plugins/kubernetes.io/csi/driver.longhorn.io/ab/globalmount",
            ),
            mount(
                "/data/nodes/n2/kubelet/plugins/kubernetes.io/csi/driver.longhorn.io/ab/globalmount",
            ),
            mount("/data/nodes/n1/kubelet/plugins/kubernetes.io/csi/other/ab/globalmount"),
            mount(
                "/data/nodes/n1/kubelet/pods/p/volumes/kubernetes.io~csi/driver.longhorn.io/mount",
            ),
        ];
        assert_eq!(staged(&mounts, &place(true)), 1);
        assert_eq!(staged(&mounts, &place(false)), 2);
    }

    #[test]
    fn a_node_is_ready_once_its_agent_runs_and_tells_how_old_its_lease_is() {
        let metrics = NodeMetrics::default();
        assert!(metrics.ready().is_err(), "nothing has begun");
        assert!(!text(&metrics).contains("lariat_node_lease_age_seconds"));
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(folder.path());
        layout.create().expect("folders");
        metrics.begin(&layout, true);
        let disks = Disks::new(layout.clone(), [127, 0, 0, 1].into(), vec![0; 32], false);
        let path = layout.disk().display().to_string();
        let spec = json!({"disks": {"default": {"path": path}}});
        let node = json!({"metadata": {"name": "n1"}, "spec": spec});
        disks.settle(&serde_json::from_value(node).expect("a node"), |_| true);
        metrics.serves(Arc::new(disks), watch::channel(None).1);
        metrics.lease_failed();
        metrics.lease_renewed();
        assert_eq!(metrics.ready(), Ok(()));
        let text = text(&metrics);
        for part in [
            "lariat_node_lease_failures_total 1\n",
            "lariat_node_engines{state=\"serving\"} 0.0\n",
            "lariat_node_disk_capacity_bytes{disk=\"default\"} ",
            "lariat_node_staged_volumes 0.0\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}
