//! What node agents do with specs, and report.

use std::collections::{BTreeMap, BTreeSet};

use volume_core::{
    EngineDesired, EngineObserved, EngineRunning, Epoch, JobProgress, NodeHealth, Proposal,
    ReplicaDesired, ReplicaMode, ReplicaName, ReplicaObserved, ReplicaRole, ReplicaVersion,
};

use super::World;

impl World {
    /// One round of every reachable agent; true if anything was reported anew.
    pub(super) fn act(&mut self) -> bool {
        let before = (self.view.engines.clone(), self.view.replicas.clone());
        let freed = self.free_space();
        self.act_replicas();
        self.act_engines();
        freed || before != (self.view.engines.clone(), self.view.replicas.clone())
    }

    /// Agents that are back remove the files of deleted replicas.
    fn free_space(&mut self) -> bool {
        let (gone, waiting) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|spec: &volume_core::ReplicaSpec| self.is_up(&spec.node));
        self.leaving = waiting;
        for spec in &gone {
            let node = self.view.nodes.get_mut(&spec.node);
            if let Some(disk) = node.and_then(|node| node.disks.get_mut(&spec.disk)) {
                disk.scheduled_bytes = disk.scheduled_bytes.saturating_sub(spec.size_bytes);
            }
        }
        !gone.is_empty()
    }

    fn is_up(&self, node: &volume_core::NodeName) -> bool {
        self.view
            .nodes
            .get(node)
            .is_some_and(|node| node.health == NodeHealth::Ready)
    }

    fn act_replicas(&mut self) {
        let up: BTreeSet<ReplicaName> = self
            .view
            .replicas
            .iter()
            .filter(|(_, replica)| self.is_up(&replica.spec.node))
            .map(|(name, _)| name.clone())
            .collect();
        let nodes = &self.view.nodes;
        for (name, replica) in &mut self.view.replicas {
            if !up.contains(name) {
                continue;
            }
            let disks = nodes.get(&replica.spec.node).map(|node| &node.disks);
            let is_missed = disks
                .and_then(|disks| disks.get(&replica.spec.disk))
                .is_some_and(|disk| !disk.ready);
            if is_missed {
                if replica.observed == ReplicaObserved::Running {
                    replica.observed = ReplicaObserved::Pending;
                }
                continue;
            }
            replica.accepted = replica.accepted.max(replica.spec.epoch);
            if !matches!(replica.observed, ReplicaObserved::Failed { .. }) {
                replica.observed = match replica.spec.desired {
                    ReplicaDesired::Running => ReplicaObserved::Running,
                    ReplicaDesired::Stopped => ReplicaObserved::Stopped,
                };
            }
            replica.content.get_or_insert(ReplicaVersion {
                epoch: Epoch(1),
                revision: 1,
                size_bytes: replica.spec.size_bytes,
                snapshots: Vec::new(),
                digest: 1,
            });
        }
    }

    fn act_engines(&mut self) {
        let reachable: BTreeMap<ReplicaName, bool> = self
            .view
            .replicas
            .iter()
            .map(|(name, replica)| {
                (
                    name.clone(),
                    self.is_up(&replica.spec.node) && replica.observed == ReplicaObserved::Running,
                )
            })
            .collect();
        let up: BTreeSet<_> = self
            .view
            .nodes
            .iter()
            .filter(|(_, node)| node.health == NodeHealth::Ready)
            .map(|(name, _)| name.clone())
            .collect();
        for engine in self
            .view
            .engines
            .values_mut()
            .filter(|engine| up.contains(&engine.spec.node))
        {
            let EngineDesired::Running { frontend } = engine.spec.desired else {
                engine.observed = EngineObserved::Stopped;
                continue;
            };
            if matches!(
                engine.observed,
                EngineObserved::Failed { .. } | EngineObserved::Stopped
            ) {
                continue;
            }
            let old = match &engine.observed {
                EngineObserved::Running(running) => running.clone(),
                _ => EngineRunning::default(),
            };
            engine.observed =
                EngineObserved::Running(run(&engine.spec, &old, &reachable, frontend));
        }
    }
}

/// One round of an engine process.
fn run(
    spec: &volume_core::EngineSpec,
    old: &EngineRunning,
    reachable: &BTreeMap<ReplicaName, bool>,
    frontend: bool,
) -> EngineRunning {
    let is_reachable = |name: &ReplicaName| reachable.get(name) == Some(&true);
    let mut modes = BTreeMap::new();
    for (name, role) in &spec.replicas {
        let mode = match (role, is_reachable(name)) {
            (_, false) => ReplicaMode::Error,
            (ReplicaRole::InSync, true) => ReplicaMode::ReadWrite,
            (ReplicaRole::Rebuild, true) => ReplicaMode::WriteOnly,
        };
        modes.insert(name.clone(), mode);
    }
    // Members that are not listed any more are left behind in order: used until the record is without them.
    let (usable, leaving): (BTreeSet<ReplicaName>, BTreeSet<ReplicaName>) = spec
        .record
        .members
        .iter()
        .filter(|name| is_reachable(name))
        .cloned()
        .partition(|name| spec.replicas.contains_key(name));
    modes.extend(
        leaving
            .into_iter()
            .map(|name| (name, ReplicaMode::ReadWrite)),
    );
    // A replica seen write-only in the last round has been copied since.
    let rebuilt = modes
        .iter()
        .filter(|(name, mode)| {
            **mode == ReplicaMode::WriteOnly && old.modes.get(*name) == Some(*mode)
        })
        .map(|(name, _)| name.clone());
    let wanted: BTreeSet<ReplicaName> = usable.into_iter().chain(rebuilt).collect();
    let is_writer = spec.record.epoch == spec.epoch;
    let proposal =
        (is_writer && !wanted.is_empty() && wanted != spec.record.members).then_some(Proposal {
            epoch: spec.epoch,
            based_on: spec.record.version,
            members: wanted,
        });
    EngineRunning {
        // The device opens when the committed set is the one in use.
        endpoint: (frontend && (proposal.is_none() || old.endpoint.is_some()))
            .then(|| "/dev/longhorn/v".to_owned()),
        modes,
        size_bytes: spec.size_bytes,
        snapshots: BTreeSet::new(),
        proposal,
        wants_take_over: old.wants_take_over,
        job: match (&spec.job, &old.job) {
            (None, _) => None,
            (Some(_), None) => Some(JobProgress::Running { percent: 50 }),
            (Some(_), Some(JobProgress::Running { .. })) => Some(JobProgress::Completed),
            (Some(_), Some(done)) => Some(done.clone()),
        },
    }
}
