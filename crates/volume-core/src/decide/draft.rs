//! The plan while it is being made.

use std::collections::BTreeMap;
use std::time::Duration;

use super::is_wanted;
use crate::identity::{EngineName, Epoch, NodeName, ReplicaName, Timestamp};
use crate::plan::{EngineRole, EngineSpec, ReplicaSpec, VolumePlan, VolumeStatus};
use crate::reason::Reason;
use crate::view::{EngineObserved, EngineRunning, ReplicaObserved, VolumeView};

pub(super) struct Draft<'a> {
    pub view: &'a VolumeView,
    pub now: Timestamp,
    pub status: VolumeStatus,
    pub engines: BTreeMap<EngineName, EngineSpec>,
    pub replicas: BTreeMap<ReplicaName, ReplicaSpec>,
    reasons: Vec<Reason>,
    recheck_after: Option<Duration>,
}

/// What we may believe about an engine's process.
pub(super) enum Fate<'a> {
    /// Created, not reported yet.
    Starting,
    Alive(&'a EngineRunning),
    Failed(&'a str),
    /// Its node says that it has stopped.
    Stopped,
    /// Its node does not answer: it may be running, and may be writing.
    Unreachable,
}

impl<'a> Draft<'a> {
    pub fn new(view: &'a VolumeView, now: Timestamp) -> Self {
        Self {
            view,
            now,
            status: view.status.clone(),
            engines: view
                .engines
                .iter()
                .map(|(name, engine)| (name.clone(), engine.spec.clone()))
                .collect(),
            replicas: view
                .replicas
                .iter()
                .map(|(name, replica)| (name.clone(), replica.spec.clone()))
                .collect(),
            reasons: Vec::new(),
            recheck_after: None,
        }
    }

    pub fn finish(self) -> VolumePlan {
        VolumePlan {
            status: self.status,
            engines: self.engines,
            replicas: self.replicas,
            reasons: self.reasons,
            recheck_after: self.recheck_after,
        }
    }

    pub fn say(&mut self, reason: Reason) {
        if !self.reasons.contains(&reason) {
            self.reasons.push(reason);
        }
    }

    /// Look again after `wait`, or sooner if someone else asks for that.
    pub fn recheck(&mut self, wait: Duration) {
        self.recheck_after = Some(self.recheck_after.map_or(wait, |other| other.min(wait)));
    }

    pub fn fate(&self, name: &EngineName) -> Fate<'a> {
        let Some(engine) = self.view.engines.get(name) else {
            return Fate::Starting;
        };
        // A stop that was asked for and reported is final; nothing restarts it but its node, on our word.
        if engine.observed == EngineObserved::Stopped && !is_wanted(engine.spec.desired) {
            return Fate::Stopped;
        }
        if !self.view.is_ready(&engine.spec.node) {
            return Fate::Unreachable;
        }
        match &engine.observed {
            EngineObserved::Pending | EngineObserved::Starting => Fate::Starting,
            EngineObserved::Running(running) => Fate::Alive(running),
            EngineObserved::Stopped => Fate::Stopped,
            EngineObserved::Failed { message } => Fate::Failed(message),
        }
    }

    /// Is it certain that this engine acknowledges nothing more?
    pub fn is_released(&self, name: &EngineName) -> bool {
        let Some(spec) = self.engines.get(name) else {
            return true;
        };
        let is_elsewhere = self.view.volume.node.as_ref() != Some(&spec.node);
        match self.fate(name) {
            Fate::Stopped | Fate::Failed(_) => true,
            // A standby has never written.
            Fate::Unreachable => spec.role == EngineRole::Standby || self.is_fenced(spec.epoch),
            // One that can be heard holds a device: on the node we want, it must go first.
            Fate::Starting | Fate::Alive(_) => {
                is_elsewhere && (spec.role == EngineRole::Standby || self.is_fenced(spec.epoch))
            }
        }
    }

    pub fn is_fenced(&self, epoch: Epoch) -> bool {
        self.status
            .fence_proof
            .as_ref()
            .is_some_and(|proof| epoch < proof.epoch)
    }

    /// The engine that holds the record's epoch and is meant to run.
    pub fn writer(&self) -> Option<(&EngineName, &EngineSpec)> {
        let epoch = self.status.record.epoch;
        self.engines.iter().find(|(_, spec)| {
            spec.epoch == epoch && spec.role == EngineRole::Writer && is_wanted(spec.desired)
        })
    }

    /// May this engine go on? The writer where it is wanted; a standby on the migration's target; and
    /// the migration's source after the target has taken over, until the migration is confirmed.
    pub fn is_entitled(&self, spec: &EngineSpec) -> bool {
        let (epoch, volume) = (self.status.record.epoch, &self.view.volume);
        let (Some(node), target) = (volume.node.as_ref(), volume.migration_node.as_ref()) else {
            return false;
        };
        let is_here = spec.node == *node;
        let is_target = Some(&spec.node) == target && !is_here;
        match spec.role {
            EngineRole::Writer => spec.epoch == epoch && (is_here || is_target),
            EngineRole::Standby => spec.epoch > epoch && is_target,
            EngineRole::Former => {
                is_here
                    && self
                        .writer()
                        .is_some_and(|(_, writer)| Some(&writer.node) == target)
            }
        }
    }

    /// The writer's report, if it is alive.
    pub fn running_writer(&self) -> Option<&'a EngineRunning> {
        let (name, _) = self.writer()?;
        match self.fate(name) {
            Fate::Alive(running) => Some(running),
            Fate::Starting | Fate::Failed(_) | Fate::Stopped | Fate::Unreachable => None,
        }
    }

    /// A node on which something may still be writing.
    pub fn unreleased_node(&self) -> Option<NodeName> {
        let unreleased = self
            .engines
            .iter()
            .filter(|(name, spec)| spec.role != EngineRole::Standby && !self.is_released(name));
        unreleased
            .max_by_key(|(_, spec)| spec.epoch)
            .map(|(_, spec)| spec.node.clone())
    }

    /// Can an engine be started with this replica now?
    pub fn is_available(&self, name: &ReplicaName) -> bool {
        self.replicas
            .get(name)
            .is_some_and(|spec| spec.failed_at.is_none() && self.view.is_place_ready(spec))
    }

    pub fn observed(&self, name: &ReplicaName) -> &'a ReplicaObserved {
        self.view
            .replicas
            .get(name)
            .map_or(&ReplicaObserved::Pending, |replica| &replica.observed)
    }

    /// Every engine and replica is told the record: engines what is committed, replicas which epoch to
    /// insist on.
    pub fn publish_record(&mut self) {
        let record = &self.status.record;
        for spec in self
            .engines
            .values_mut()
            .filter(|spec| is_wanted(spec.desired))
        {
            spec.record = record.clone();
        }
        for spec in self.replicas.values_mut() {
            spec.epoch = spec.epoch.max(record.epoch);
        }
    }
}
