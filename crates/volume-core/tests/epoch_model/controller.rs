//! The controller of the model is the real one: its view is built from the modelled API, the real
//! `decide` is asked, and its plan is written object by object, each write with its precondition.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use volume_core::{
    Disk, DiskName, Engine as EngineView, EngineDesired, EngineName, EngineObserved, EngineRole,
    EngineRunning, EngineSpec, Epoch, FenceProof, InSyncRecord, Node, NodeHealth, NodeName,
    Proposal, Replica as ReplicaView, ReplicaDesired, ReplicaMode, ReplicaName, ReplicaObserved,
    ReplicaRole, ReplicaSpec, Settings, Timestamp, Version, Volume, VolumeName, VolumeState,
    VolumeStatus, VolumeView, decide,
};

use super::world::{
    Api, Engine, EngineObject, Mask, Pending, Phase, REPLICAS, Record, Role, State, bits,
};

/// Long after everything that the view dates, so that no waiting time is left.
const NOW: Timestamp = Timestamp(1_000_000_000);

/// What a decision depends on: few values, decided millions of times.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Observation {
    api: Api,
    reports: Vec<(u8, Report)>,
    accepted: [u8; REPLICAS as usize],
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Report {
    Starting,
    Standby {
        written: bool,
    },
    Running {
        in_use: Mask,
        proposal: Option<(u8, Mask)>,
        rebuild: Option<u8>,
    },
    Ended,
}

/// Remembers decisions: `decide` is pure, so this changes nothing but the time it takes.
#[derive(Default)]
pub struct Controller {
    decisions: Mutex<HashMap<Observation, Api>>,
}

impl Controller {
    /// Looks at everything and makes a plan. None if nothing is to be written.
    pub fn plan(&self, state: &State) -> Option<Pending> {
        let observation = observe(state);
        let known = self
            .decisions
            .lock()
            .expect("no panic while held")
            .get(&observation)
            .cloned();
        let planned = known.unwrap_or_else(|| {
            let planned = decide_for(&observation);
            self.decisions
                .lock()
                .expect("no panic while held")
                .insert(observation, planned.clone());
            planned
        });
        (planned != state.api).then(|| Pending {
            observed: state.api.clone(),
            planned,
        })
    }
}

fn observe(state: &State) -> Observation {
    let report = |engine: &Engine| match engine.phase {
        Phase::Dead => Report::Ended,
        Phase::Standby { written } => Report::Standby { written },
        Phase::Starting { .. } if engine.proposals.is_empty() => Report::Starting,
        Phase::Starting { .. } | Phase::Serving => Report::Running {
            in_use: engine.known.members,
            proposal: engine
                .proposals
                .last()
                .map(|members| (engine.known.version, *members)),
            rebuild: engine.rebuild,
        },
    };
    let reports = state
        .engines
        .iter()
        .map(|engine| (engine.epoch, report(engine)))
        .collect();
    Observation {
        api: state.api.clone(),
        reports,
        accepted: state.replicas.map(|replica| replica.accepted),
    }
}

/// Writes a plan. Each object is replaced only if it is still what the planner saw; the first conflict
/// ends the writing, as does a crash, after the record and before the engines.
pub fn write(state: &mut State, pending: &Pending, crash: bool, compare: bool) {
    let Pending { observed, planned } = pending;
    if planned.failed != observed.failed || planned.healthy != observed.healthy {
        if (state.api.failed, state.api.healthy) != (observed.failed, observed.healthy) {
            return;
        }
        (state.api.failed, state.api.healthy) = (planned.failed, planned.healthy);
    }
    if (planned.record, planned.proof) != (observed.record, observed.proof) {
        if compare && (state.api.record, state.api.proof) != (observed.record, observed.proof) {
            return;
        }
        (state.api.record, state.api.proof) = (planned.record, planned.proof);
    }
    if crash {
        return;
    }
    for object in &planned.engines {
        let seen = observed
            .engines
            .iter()
            .find(|other| other.epoch == object.epoch);
        let current = state
            .api
            .engines
            .iter_mut()
            .find(|other| other.epoch == object.epoch);
        match (seen, current) {
            (Some(seen), Some(current)) if current == seen => *current = object.clone(),
            (Some(_), _) | (None, Some(_)) => {}
            (None, None) => create(state, object),
        }
    }
    let is_gone = |object: &EngineObject| {
        observed.engines.contains(object)
            && planned
                .engines
                .iter()
                .all(|other| other.epoch != object.epoch)
    };
    state.api.engines.retain(|object| !is_gone(object));
}

fn create(state: &mut State, object: &EngineObject) {
    state.api.engines.push(object.clone());
    state.api.engines.sort();
    state.engines.push(Engine {
        epoch: object.epoch,
        node: object.node,
        phase: match object.role {
            Role::Standby => Phase::Standby { written: false },
            Role::Writer | Role::Former => Phase::Starting { accepted: 0 },
        },
        known: state.api.record,
        proposals: Vec::new(),
        rebuild: None,
        requests: Vec::new(),
    });
    state.engines.sort_by_key(|engine| engine.epoch);
}

fn decide_for(observation: &Observation) -> Api {
    let view = view(observation);
    let plan = decide(&view, NOW);
    let api = &observation.api;
    let record = &plan.status.record;
    let mask = |test: &dyn Fn(&ReplicaSpec) -> bool| {
        (0..REPLICAS)
            .filter(|index| plan.replicas.get(&name(*index)).is_some_and(test))
            .fold(0, |mask, bit| mask | 1 << bit)
    };
    let engines = plan.engines.values().map(|spec| EngineObject {
        epoch: small(spec.epoch.0),
        node: node_index(&spec.node),
        role: match spec.role {
            EngineRole::Writer => Role::Writer,
            EngineRole::Standby => Role::Standby,
            EngineRole::Former => Role::Former,
        },
        running: spec.desired != EngineDesired::Stopped,
        rebuild: to_mask(
            spec.replicas
                .iter()
                .filter(|(_, role)| **role == ReplicaRole::Rebuild)
                .map(|(name, _)| name),
        ),
    });
    let mut engines: Vec<EngineObject> = engines.collect();
    engines.sort();
    assert_eq!(
        plan.replicas.len(),
        usize::from(REPLICAS),
        "three nodes have room for exactly three replicas"
    );
    Api {
        record: Record {
            epoch: small(record.epoch.0),
            issued: small(record.issued.0),
            version: small(record.version.0),
            members: to_mask(record.members.iter()),
        },
        proof: plan
            .status
            .fence_proof
            .as_ref()
            .map_or(0, |proof| small(proof.epoch.0)),
        engines,
        failed: mask(&|spec| spec.failed_at.is_some()),
        healthy: mask(&|spec| spec.healthy_at.is_some()),
        lost: api.lost,
        wanted: api.wanted,
        migration: api.migration,
    }
}

fn view(observation: &Observation) -> VolumeView {
    let api = &observation.api;
    let mut volume = Volume::new("v", 1, usize::from(REPLICAS));
    volume.node = Some(node_name(api.wanted));
    volume.migration_node = api.migration.map(node_name);
    volume.disable_frontend = true;
    let record = to_record(api.record);
    let proof = (api.proof > 0).then(|| FenceProof {
        epoch: Epoch(u64::from(api.proof)),
        replicas: BTreeSet::new(),
        node: node_name(0),
        at: Timestamp(0),
    });
    let status = VolumeStatus {
        state: VolumeState::Attached,
        record: record.clone(),
        fence_proof: proof,
        size_bytes: 1,
        replicas_created: u64::from(REPLICAS),
        ..VolumeStatus::default()
    };
    let engines = api
        .engines
        .iter()
        .map(|object| engine_view(object, &record, observation))
        .collect();
    let replicas = (0..REPLICAS)
        .map(|index| (name(index), replica_view(index, observation)))
        .collect();
    let nodes = (0..REPLICAS)
        .map(|index| (node_name(index), node(api.lost & (1 << index) != 0)))
        .collect();
    let settings = Settings {
        minimal_available_percent: 0,
        stable_after: Duration::ZERO,
        ..Settings::default()
    };
    VolumeView {
        volume,
        status,
        engines,
        replicas,
        nodes,
        settings,
    }
}

fn engine_view(
    object: &EngineObject,
    record: &InSyncRecord,
    observation: &Observation,
) -> (EngineName, EngineView) {
    let epoch = Epoch(u64::from(object.epoch));
    let report = observation
        .reports
        .iter()
        .find(|(other, _)| *other == object.epoch)
        .map(|(_, report)| report);
    let observed = match report {
        Some(Report::Starting) => EngineObserved::Pending,
        Some(Report::Standby { written }) => EngineObserved::Running(EngineRunning {
            wants_take_over: *written,
            size_bytes: 1,
            ..EngineRunning::default()
        }),
        Some(Report::Running {
            in_use,
            proposal,
            rebuild,
        }) => {
            let mut modes: BTreeMap<ReplicaName, ReplicaMode> = bits(*in_use)
                .map(|index| (name(index), ReplicaMode::ReadWrite))
                .collect();
            if let Some(index) = rebuild {
                modes.entry(name(*index)).or_insert(ReplicaMode::WriteOnly);
            }
            let proposal = proposal.map(|(version, members)| Proposal {
                epoch,
                based_on: Version(u64::from(version)),
                members: bits(members).map(name).collect(),
            });
            EngineObserved::Running(EngineRunning {
                modes,
                proposal,
                size_bytes: 1,
                ..EngineRunning::default()
            })
        }
        Some(Report::Ended) | None if object.running => EngineObserved::Failed {
            message: "it died".to_owned(),
        },
        Some(Report::Ended) | None => EngineObserved::Stopped,
    };
    let desired = if object.running {
        EngineDesired::Running { frontend: false }
    } else {
        EngineDesired::Stopped
    };
    let in_sync = record
        .members
        .iter()
        .map(|name| (name.clone(), ReplicaRole::InSync));
    let spec = EngineSpec {
        node: node_name(object.node),
        epoch,
        role: match object.role {
            Role::Writer => EngineRole::Writer,
            Role::Standby => EngineRole::Standby,
            Role::Former => EngineRole::Former,
        },
        desired,
        record: record.clone(),
        replicas: in_sync
            .chain(bits(object.rebuild).map(|index| (name(index), ReplicaRole::Rebuild)))
            .collect(),
        size_bytes: 1,
        job: None,
    };
    (
        EngineName::of(&VolumeName::from("v"), epoch),
        EngineView { spec, observed },
    )
}

fn replica_view(index: u8, observation: &Observation) -> ReplicaView {
    let has = |mask: Mask| (mask & (1 << index) != 0).then_some(Timestamp(0));
    let spec = ReplicaSpec {
        node: node_name(index),
        disk: DiskName::from("d"),
        size_bytes: 1,
        epoch: Epoch(u64::from(observation.api.record.epoch)),
        desired: ReplicaDesired::Running,
        failed_at: has(observation.api.failed),
        healthy_at: has(observation.api.healthy),
    };
    let accepted = Epoch(u64::from(observation.accepted[usize::from(index)]));
    ReplicaView {
        spec,
        observed: ReplicaObserved::Running,
        accepted,
        content: None,
    }
}

fn node(lost: bool) -> Node {
    let disk = Disk {
        name: "d".to_owned(),
        listed: true,
        ready: true,
        allow_scheduling: true,
        eviction_requested: false,
        reserved_bytes: 0,
        maximum_bytes: 10,
        available_bytes: 10,
        scheduled_bytes: 1,
        tags: BTreeSet::new(),
    };
    Node {
        health: if lost {
            NodeHealth::Lost {
                since: Timestamp(0),
            }
        } else {
            NodeHealth::Ready
        },
        allow_scheduling: true,
        eviction_requested: false,
        zone: None,
        tags: BTreeSet::new(),
        disks: [(DiskName::from("d"), disk)].into(),
        rebuilds: 0,
    }
}

pub fn to_record(record: Record) -> InSyncRecord {
    let epoch = Epoch(u64::from(record.epoch));
    InSyncRecord {
        epoch,
        issued: Epoch(u64::from(record.issued)),
        version: Version(u64::from(record.version)),
        members: bits(record.members).map(name).collect(),
    }
}

pub fn to_mask<'a>(names: impl Iterator<Item = &'a ReplicaName>) -> Mask {
    names.fold(0, |mask, name| {
        mask | 1 << small(name.ordinal().expect("our own name"))
    })
}

fn name(index: u8) -> ReplicaName {
    ReplicaName::of(&VolumeName::from("v"), u64::from(index))
}

fn node_name(index: u8) -> NodeName {
    NodeName::new(format!("n{index}"))
}

fn node_index(name: &NodeName) -> u8 {
    name.as_str()
        .trim_start_matches('n')
        .parse()
        .expect("our own name")
}

fn small(number: u64) -> u8 {
    u8::try_from(number).expect("the model is small")
}
