//! A small world for scenarios: nodes whose agents do what the plan says, and commands that break it.

mod agents;
mod commands;

use std::collections::BTreeMap;
use std::time::Duration;

use volume_core::{
    Change, Disk, DiskName, Engine, EngineDesired, EngineObserved, EngineRole, EngineRunning,
    Epoch, Node, NodeHealth, NodeName, Replica, ReplicaName, ReplicaObserved, ReplicaSpec,
    Settings, Timestamp, Volume, VolumePlan, VolumeStatus, VolumeView, decide,
};

/// Rounds of deciding and acting after which a world that still moves is called restless.
const ROUNDS_MAX: usize = 60;

pub struct World {
    pub view: VolumeView,
    pub now: Timestamp,
    /// The reasons of the last decision.
    pub reasons: Vec<String>,
    /// Agents stop acting while this is set.
    pub frozen: bool,
    /// Deleted replicas whose files their agents have yet to remove.
    leaving: Vec<ReplicaSpec>,
}

impl World {
    pub fn new() -> Self {
        let nodes = ["n1", "n2", "n3"].map(|name| (NodeName::from(name), node(None)));
        let view = VolumeView {
            volume: Volume::new("v", 100, 3),
            status: VolumeStatus::default(),
            engines: BTreeMap::new(),
            replicas: BTreeMap::new(),
            nodes: nodes.into(),
            settings: Settings {
                minimal_available_percent: 0,
                ..Settings::default()
            },
        };
        Self {
            view,
            now: Timestamp(1_000_000),
            reasons: Vec::new(),
            frozen: false,
            leaving: Vec::new(),
        }
    }

    /// Runs a script: commands separated by `;`.
    pub fn run(&mut self, script: &str) {
        for command in script
            .split(';')
            .map(str::trim)
            .filter(|command| !command.is_empty())
        {
            self.command(command);
        }
    }

    /// One decision, checked, and written.
    pub fn step(&mut self) -> Vec<Change> {
        let plan = decide(&self.view, self.now);
        self.check_plan(&plan);
        self.reasons = plan.reasons.iter().map(ToString::to_string).collect();
        let changes = plan.changes(&self.view);
        let gone = self
            .view
            .replicas
            .iter()
            .filter(|(name, _)| !plan.replicas.contains_key(*name));
        self.leaving
            .extend(gone.map(|(_, replica)| replica.spec.clone()));
        apply(&mut self.view, plan);
        changes
    }

    /// Whether an engine waits for this replica to be recorded as a member that it was not before.
    fn is_proposed(&self, name: &ReplicaName) -> bool {
        self.view
            .engines
            .values()
            .any(|engine| match &engine.observed {
                EngineObserved::Running(EngineRunning {
                    proposal: Some(proposal),
                    ..
                }) => {
                    proposal.members.contains(name)
                        && !self.view.status.record.members.contains(name)
                }
                _ => false,
            })
    }

    /// Whether an engine has a proposal that no version of the record answers.
    fn is_waiting_for_an_answer(&self) -> bool {
        let version = self.view.status.record.version;
        self.view
            .engines
            .values()
            .any(|engine| match &engine.observed {
                EngineObserved::Running(running) => {
                    let based_on = running.proposal.as_ref().map(|proposal| proposal.based_on);
                    based_on.is_some_and(|based_on| {
                        based_on >= version || engine.spec.record.version <= based_on
                    })
                }
                _ => false,
            })
    }

    /// Decides and acts until nothing moves.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let changed = !self.step().is_empty();
            let acted = !self.frozen && self.act();
            if !changed && !acted {
                return;
            }
        }
        panic!(
            "restless after {ROUNDS_MAX} rounds: {}\n{:#?}",
            self.show(),
            self.reasons
        );
    }

    /// What must hold for every plan, whatever was observed.
    pub fn check_plan(&self, plan: &VolumePlan) {
        assert_eq!(*plan, decide(&self.view, self.now), "deterministic");
        let mut after = self.view.clone();
        apply(&mut after, plan.clone());
        let again = decide(&after, self.now);
        assert_eq!(
            again.changes(&after),
            [],
            "idempotent: {:?}\nthen {:?}",
            plan.reasons,
            again.reasons
        );

        let (old, new) = (&self.view.status.record, &plan.status.record);
        assert!(
            new.epoch >= old.epoch && new.issued >= old.issued && new.version >= old.version,
            "only grows"
        );
        assert!(
            (new.epoch, &new.members) == (old.epoch, &old.members) || new.version > old.version,
            "every change of the writer or its set has its version"
        );
        assert!(new.epoch <= new.issued);
        assert!(
            old.epoch == Epoch::NONE || !new.members.is_empty(),
            "somebody has the data"
        );
        let writers = plan.engines.values().filter(|spec| {
            spec.role == EngineRole::Writer
                && spec.desired != EngineDesired::Stopped
                && spec.epoch == new.epoch
        });
        assert!(writers.count() <= 1, "one writer");
        for (name, spec) in &plan.engines {
            assert!(
                spec.epoch <= new.issued,
                "{name} has an epoch that was never issued"
            );
            if !self.view.engines.contains_key(name) {
                assert!(
                    spec.epoch > old.issued,
                    "{name}: a new engine has a new epoch"
                );
            }
        }
        for member in &new.members {
            assert!(
                self.view.volume.deleting
                    || plan.replicas.contains_key(member)
                    || !self.view.replicas.contains_key(member),
                "member {member} deleted"
            );
        }
        for (name, spec) in &plan.replicas {
            assert!(
                spec.epoch >= new.epoch,
                "{name} must insist on the record's epoch"
            );
        }
    }

    /// `attached healthy @n1 e1 [0@n1 1@n2 2@n3]`, with non-members after `|` and `!` for failed ones.
    pub fn show(&self) -> String {
        let status = &self.view.status;
        let mut text = format!("{} {}", status.state, status.robustness);
        if let Some(node) = &status.current_node {
            text += &format!(" @{node}");
        }
        if let Some(node) = &status.current_migration_node {
            text += &format!("→{node}");
        }
        let show = |name: &ReplicaName| {
            let place = self
                .view
                .replicas
                .get(name)
                .map_or("?".to_owned(), |replica| {
                    let failed = if replica.spec.failed_at.is_some() {
                        "!"
                    } else {
                        ""
                    };
                    format!("{}{failed}", replica.spec.node)
                });
            format!(
                "{}@{place}",
                name.ordinal()
                    .map_or(name.to_string(), |ordinal| ordinal.to_string())
            )
        };
        let members: Vec<String> = status.record.members.iter().map(show).collect();
        let others: Vec<String> = self
            .view
            .replicas
            .keys()
            .filter(|name| !status.record.members.contains(*name))
            .map(show)
            .collect();
        text += &format!(" e{} [{}", status.record.epoch, members.join(" "));
        if !others.is_empty() {
            text += &format!(" | {}", others.join(" "));
        }
        text += "]";
        if let Some(proof) = &status.fence_proof {
            text += &format!(" fenced {} by e{}", proof.node, proof.epoch);
        }
        text
    }

    pub fn replica(&self, ordinal: u64) -> ReplicaName {
        ReplicaName::of(&self.view.volume.name, ordinal)
    }

    pub fn advance(&mut self, time: Duration) {
        self.now = Timestamp(self.now.0 + u64::try_from(time.as_millis()).expect("a short time"));
    }
}

/// Writes a plan as the shell would.
pub fn apply(view: &mut VolumeView, plan: VolumePlan) {
    view.status = plan.status;
    view.engines
        .retain(|name, _| plan.engines.contains_key(name));
    for (name, spec) in plan.engines {
        match view.engines.get_mut(&name) {
            Some(engine) => engine.spec = spec,
            None => drop(view.engines.insert(
                name,
                Engine {
                    spec,
                    observed: EngineObserved::Pending,
                },
            )),
        }
    }
    for (name, spec) in &plan.replicas {
        let before = view
            .replicas
            .get(name)
            .map_or(0, |replica| replica.spec.size_bytes);
        if let Some(disk) = view
            .nodes
            .get_mut(&spec.node)
            .and_then(|node| node.disks.get_mut(&spec.disk))
        {
            disk.scheduled_bytes += spec.size_bytes - before;
        }
    }
    view.replicas
        .retain(|name, _| plan.replicas.contains_key(name));
    for (name, spec) in plan.replicas {
        match view.replicas.get_mut(&name) {
            Some(replica) => replica.spec = spec,
            None => {
                let replica = Replica {
                    spec,
                    observed: ReplicaObserved::Pending,
                    accepted: Default::default(),
                    content: None,
                };
                view.replicas.insert(name, replica);
            }
        }
    }
}

pub fn node(zone: Option<&str>) -> Node {
    let disk = Disk {
        name: "d".to_owned(),
        listed: true,
        ready: true,
        allow_scheduling: true,
        eviction_requested: false,
        reserved_bytes: 0,
        maximum_bytes: 1_000,
        available_bytes: 1_000,
        scheduled_bytes: 0,
        tags: Default::default(),
    };
    Node {
        health: NodeHealth::Ready,
        allow_scheduling: true,
        eviction_requested: false,
        zone: zone.map(str::to_owned),
        tags: Default::default(),
        disks: [(DiskName::from("d"), disk)].into(),
        rebuilds: 0,
    }
}
