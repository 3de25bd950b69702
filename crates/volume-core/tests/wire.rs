//! What is written can be read again: nothing that a decision looks at is lost on the way through the API.

mod support;

use std::collections::BTreeMap;

use api_types::names::annotation::SALVAGE_FROM;
use api_types::{
    ByteSize, InstanceState, RestoreStatus, SnapshotCloneStatus, SnapshotInfo, Toggle,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use support::World;
use volume_core::wire::{self, Cluster};
use volume_core::{
    AntiAffinity, DataLocality, DataSource, Engine, EngineObserved, EngineRunning, JobProgress,
    Replica, ReplicaMode, ReplicaObserved, Timestamp, Volume, VolumeView, decide,
};

/// The histories of `properties.rs` that leave something to write.
const COMMANDS: &[&str] = &[
    "attach n1",
    "attach n2",
    "detach",
    "migrate n2",
    "migrate n3",
    "roll-back",
    "write-at n2",
    "lose n1",
    "lose n2",
    "back n1",
    "back n2",
    "off n1",
    "crash-engine",
    "fail 0",
    "fail 1",
    "fail 2",
    "mend 0",
    "mend 1",
    "evict n1",
    "break-disk n3",
    "replicas 2",
    "replicas 3",
    "size 150",
    "no-frontend",
    "frontend",
    "tick 6",
    "tick 700",
    "best-effort",
    "step",
    "act",
    "step; act",
    "settle",
    "salvage-from 1",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_history_goes_through_the_api(
        commands in prop::collection::vec(prop::sample::select(COMMANDS), 0..20),
        source in prop::sample::select(vec!["", "clone-of u;", "restore-of b;"]),
        delete in prop::bool::weighted(0.1),
    ) {
        let mut world = World::new();
        world.run(&format!("nodes n1:a n2:a n3:b n4; {source} settle"));
        for command in &commands {
            world.run(command);
            check(&world);
        }
        if delete {
            world.run("delete; step");
            check(&world);
        }
    }
}

/// Writes what is decided now, reads it, and decides again from what was read.
fn check(world: &World) {
    let mut expected = world.view.clone();
    let plan = decide(&expected, world.now);
    let volume = volume(&expected.volume, &plan, world.now);
    support::apply(&mut expected, plan);
    let replicas: Vec<api_types::Replica> = expected
        .replicas
        .iter()
        .map(|(name, replica)| {
            let mut object = wire::new_replica(name, &volume);
            wire::write_replica(&replica.spec, &volume, Some("/disk"), &mut object);
            object.status = Some(replica_status(replica));
            object
        })
        .collect();
    let engines: Vec<api_types::Engine> = expected
        .engines
        .iter()
        .map(|(name, engine)| {
            let mut object = wire::new_engine(name, &volume);
            wire::write_engine(&engine.spec, &volume, &replicas, &mut object);
            object.status = Some(engine_status(engine));
            object
        })
        .collect();
    let cluster = Cluster {
        nodes: expected.nodes.clone(),
        settings: expected.settings.clone(),
        replicas_default: 3,
        now: world.now,
    };
    let volume = through_json(&volume);
    let engines: Vec<_> = engines.iter().map(through_json).collect();
    let replicas: Vec<_> = replicas.iter().map(through_json).collect();
    let read = wire::view(&volume, &engines, &replicas, &cluster).expect("readable");
    forget_what_is_not_written(&mut expected);
    assert_eq!(read, expected);
    assert_eq!(decide(&read, world.now), decide(&expected, world.now));
    // Writing the same again leaves alone what others have written.
    let again = decide(&read, world.now);
    let mut same = volume.clone();
    same.status.as_mut().expect("a status").share_endpoint = "nfs://others".to_owned();
    let before = same.clone();
    if again.status == read.status {
        wire::write_status(&again, &read.volume, &mut same, world.now);
        let share =
            |volume: &api_types::Volume| volume.status.clone().map(|status| status.share_endpoint);
        assert_eq!(share(&same), share(&before));
        assert_eq!(same.spec, before.spec);
    }
}

fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(object: &T) -> T {
    let text = serde_json::to_string(object).expect("JSON");
    serde_json::from_str(&text).expect("the same object")
}

/// An engine is told members and version; why nothing could be placed is found anew by each decision.
fn forget_what_is_not_written(view: &mut VolumeView) {
    view.status.unschedulable = None;
    for engine in view.engines.values_mut() {
        engine.spec.record.epoch = engine.spec.epoch;
        engine.spec.record.issued = engine.spec.epoch;
        if let EngineObserved::Running(running) = &mut engine.observed
            && engine.spec.job.is_none()
        {
            running.job = None;
        }
    }
}

/// The object of a volume with this spec, as people and CSI write it, and the plan's status.
fn volume(spec: &Volume, plan: &volume_core::VolumePlan, now: Timestamp) -> api_types::Volume {
    let toggle = |affinity| match affinity {
        AntiAffinity::AsSettings => Toggle::Ignored,
        AntiAffinity::Soft => Toggle::Enabled,
        AntiAffinity::Hard => Toggle::Disabled,
    };
    let text = |name: Option<&volume_core::NodeName>| name.map(ToString::to_string);
    let (data_source, from_backup) = match &spec.source {
        DataSource::Empty => (String::new(), String::new()),
        DataSource::Clone { volume, snapshot } => {
            (format!("snap://{volume}/{snapshot}"), String::new())
        }
        DataSource::Restore { backup } => (String::new(), backup.clone()),
    };
    let wire_spec = api_types::VolumeSpec {
        size: bytes(spec.size_bytes),
        number_of_replicas: i64::try_from(spec.replicas_wanted).expect("few"),
        node_id: text(spec.node.as_ref()).unwrap_or_default(),
        migration_node_id: text(spec.migration_node.as_ref()).unwrap_or_default(),
        disable_frontend: spec.disable_frontend,
        data_locality: match spec.data_locality {
            DataLocality::Disabled => api_types::DataLocality::Disabled,
            DataLocality::BestEffort => api_types::DataLocality::BestEffort,
            DataLocality::StrictLocal => api_types::DataLocality::StrictLocal,
        },
        node_selector: spec.node_selector.iter().cloned().collect(),
        disk_selector: spec.disk_selector.iter().cloned().collect(),
        replica_soft_anti_affinity: toggle(spec.node_anti_affinity),
        replica_zone_soft_anti_affinity: toggle(spec.zone_anti_affinity),
        replica_disk_soft_anti_affinity: toggle(spec.disk_anti_affinity),
        data_source,
        from_backup,
        ..api_types::VolumeSpec::default()
    };
    let mut object = api_types::Volume::new(spec.name.as_str(), wire_spec);
    if !spec.salvage_from.is_empty() {
        let names: Vec<&str> = spec
            .salvage_from
            .iter()
            .map(volume_core::ReplicaName::as_str)
            .collect();
        object.metadata.annotations = Some(BTreeMap::from([(
            SALVAGE_FROM.to_owned(),
            names.join(", "),
        )]));
    }
    if spec.deleting {
        object.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    }
    wire::write_status(plan, spec, &mut object, now);
    object
}

fn bytes(count: u64) -> ByteSize {
    ByteSize(i64::try_from(count).expect("a size"))
}

fn number(count: u64) -> i64 {
    i64::try_from(count).expect("a small number")
}

/// What an agent reports, as the contract between it and the controllers has it.
fn engine_status(engine: &Engine) -> api_types::EngineStatus {
    let mut status = api_types::EngineStatus {
        epoch: number(engine.spec.epoch.0),
        ..api_types::EngineStatus::default()
    };
    let state = match &engine.observed {
        EngineObserved::Pending => return api_types::EngineStatus::default(),
        EngineObserved::Starting => {
            status.uuid = "process".to_owned();
            InstanceState::Starting
        }
        EngineObserved::Stopped => InstanceState::Stopped,
        EngineObserved::Failed { message } => {
            status.message.clone_from(message);
            InstanceState::Error
        }
        EngineObserved::Running(running) => {
            report_running(running, &mut status);
            InstanceState::Running
        }
    };
    status.owner_id = engine.spec.node.to_string();
    status.current_state = state;
    status
}

fn report_running(running: &EngineRunning, status: &mut api_types::EngineStatus) {
    status.endpoint = running.endpoint.clone().unwrap_or_default();
    status.replica_mode_map = running
        .modes
        .iter()
        .map(|(name, mode)| {
            let mode = match mode {
                ReplicaMode::ReadWrite => api_types::ReplicaMode::ReadWrite,
                ReplicaMode::WriteOnly => api_types::ReplicaMode::WriteOnly,
                ReplicaMode::Error => api_types::ReplicaMode::Error,
            };
            (name.to_string(), mode)
        })
        .collect();
    status.current_size = bytes(running.size_bytes);
    let names = running.snapshots.iter().map(ToString::to_string);
    status.snapshots = names
        .chain(["volume-head".to_owned()])
        .map(|name| (name, SnapshotInfo::default()))
        .collect();
    if let Some(proposal) = &running.proposal {
        status.epoch = number(proposal.epoch.0);
        status.proposal_based_on = number(proposal.based_on.0);
        status.proposed_in_sync_replicas =
            proposal.members.iter().map(ToString::to_string).collect();
    }
    status.wants_take_over = running.wants_take_over;
    let (state, progress, error) = match &running.job {
        None => return,
        Some(JobProgress::Running { percent }) => ("in_progress", i64::from(*percent), ""),
        Some(JobProgress::Completed) => ("complete", 100, ""),
        Some(JobProgress::Failed { message }) => ("error", 0, message.as_str()),
    };
    let restore = RestoreStatus {
        state: state.to_owned(),
        progress,
        error: error.to_owned(),
        ..RestoreStatus::default()
    };
    let clone = SnapshotCloneStatus {
        state: state.to_owned(),
        progress,
        error: error.to_owned(),
        ..SnapshotCloneStatus::default()
    };
    status.restore_status.insert("replica".to_owned(), restore);
    status.clone_status.insert("replica".to_owned(), clone);
}

fn replica_status(replica: &Replica) -> api_types::ReplicaStatus {
    let mut status = api_types::ReplicaStatus {
        accepted_epoch: number(replica.accepted.0),
        ..api_types::ReplicaStatus::default()
    };
    if let Some(content) = &replica.content {
        status.verified = Some(true);
        status.last_write_epoch = number(content.epoch.0);
        status.revision = number(content.revision);
        status.current_size = bytes(content.size_bytes);
        status.layers = content.snapshots.iter().map(ToString::to_string).collect();
        status.digest = format!("{:x}", content.digest);
    }
    status.current_state = match &replica.observed {
        ReplicaObserved::Pending => return status,
        ReplicaObserved::Stopped => InstanceState::Stopped,
        ReplicaObserved::Running => InstanceState::Running,
        ReplicaObserved::Failed { message } => {
            status.message.clone_from(message);
            InstanceState::Error
        }
    };
    status.owner_id = replica.spec.node.to_string();
    status
}

/// What the world of the histories does not have: states on the way, and things that cannot be read.
#[test]
fn states_on_the_way_are_read_as_the_contract_says() {
    let check = |status: &str, expected: &str| {
        let volume: api_types::Volume =
            serde_json::from_str(r#"{"metadata":{"name":"v"},"spec":{"size":"4096"}}"#)
                .expect("a volume");
        let mut engine = wire::new_engine(&"v-e-1".into(), &volume);
        engine.status = Some(serde_json::from_str(status).expect("a status"));
        let cluster = wire::cluster(
            [],
            [],
            [],
            &Default::default(),
            &api_types::settings::Settings::default(),
            Timestamp(0),
        );
        let view = wire::view(&volume, [&engine], [], &cluster).expect("readable");
        let read = match &view.engines[&"v-e-1".into()].observed {
            EngineObserved::Pending => "pending".to_owned(),
            EngineObserved::Starting => "starting".to_owned(),
            EngineObserved::Running(running) => format!("running {:?}", running.endpoint),
            EngineObserved::Stopped => "stopped".to_owned(),
            EngineObserved::Failed { message } => format!("failed: {message}"),
        };
        assert_eq!(read, expected, "{status}");
        assert_eq!(view.volume.replicas_wanted, 3, "the setting's default");
    };
    check("{}", "pending");
    check(r#"{"currentState":"running"}"#, "pending");
    check(r#"{"ownerID":"n","currentState":"starting"}"#, "pending");
    check(
        r#"{"ownerID":"n","currentState":"starting","started":true,"uuid":""}"#,
        "pending",
    );
    check(
        r#"{"ownerID":"n","currentState":"starting","started":true,"uuid":"u"}"#,
        "starting",
    );
    check(
        r#"{"ownerID":"n","currentState":"starting","proposedInSyncReplicas":["a"]}"#,
        "running None",
    );
    check(
        r#"{"ownerID":"n","currentState":"stopping","endpoint":"/dev/x"}"#,
        r#"running Some("/dev/x")"#,
    );
    check(
        r#"{"ownerID":"n","currentState":"unknown"}"#,
        "running None",
    );
    check(r#"{"ownerID":"n"}"#, "stopped");
    check(
        r#"{"ownerID":"n","currentState":"error","message":"no replica"}"#,
        "failed: no replica",
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let check = |object: &str, expected: &str| {
        let volume: api_types::Volume = serde_json::from_str(object).expect("a volume");
        let cluster = wire::cluster(
            [],
            [],
            [],
            &Default::default(),
            &api_types::settings::Settings::default(),
            Timestamp(0),
        );
        let error = wire::view(&volume, [], [], &cluster).expect_err("unreadable");
        assert_eq!(error.to_string(), expected);
    };
    check(
        r#"{"metadata":{},"spec":{"size":"4096"}}"#,
        "metadata.name: the volume has no name",
    );
    check(
        r#"{"metadata":{"name":"v"},"spec":{}}"#,
        "spec.size: 0 is not a size; give the volume's size in bytes",
    );
    check(
        r#"{"metadata":{"name":"v"},"spec":{"size":"1","dataSource":"snap://v"}}"#,
        r#"spec.dataSource: "snap://v" is neither vol://VOLUME nor snap://VOLUME/SNAPSHOT"#,
    );
    check(
        r#"{"metadata":{"name":"v"},"spec":{"size":"1"},"status":{"state":"asleep"}}"#,
        r#"status.state: "asleep" is not one of creating, attached, detached, attaching, detaching, deleting"#,
    );
}

/// A disk that comes back under another name is reported under both for a while.
#[test]
fn a_disk_with_two_names_has_the_one_that_the_spec_lists() {
    // Each disk as `name:path`, with `+` if it is ready; those before the semicolon are in the spec.
    let check = |disks: &str, expected: &str| {
        let (listed, unlisted) = disks.split_once(';').expect("listed;unlisted");
        let mut node = api_types::Node::new("n1", api_types::NodeSpec::default());
        let mut status = api_types::NodeStatus::default();
        for (is_listed, disk) in (listed.split_whitespace().map(|disk| (true, disk)))
            .chain(unlisted.split_whitespace().map(|disk| (false, disk)))
        {
            let name = disk.trim_end_matches('+').to_owned();
            let ready = if disk.ends_with('+') { "True" } else { "False" };
            let reported = serde_json::json!({
                "diskUUID": "u", "diskPath": format!("/{name}"), "conditions": [{"type": "Ready", "status": ready}],
            });
            let reported = serde_json::from_value(reported).expect("a disk");
            status.disk_status.insert(name.clone(), reported);
            if is_listed {
                node.spec.disks.insert(name, api_types::DiskSpec::default());
            }
        }
        node.status = Some(status);
        let (none, settings) = (Default::default(), Default::default());
        let cluster = wire::cluster([&node], [], [], &none, &settings, Timestamp(0));
        let disk = &cluster.nodes[&"n1".into()].disks[&"u".into()];
        let said = format!(
            "{}{}{}{}",
            disk.name,
            if disk.ready { " ready" } else { "" },
            if disk.listed { " listed" } else { "" },
            if disk.eviction_requested {
                " leaving"
            } else {
                ""
            },
        );
        assert_eq!(said, expected, "{disks}");
        let path = wire::disk_path(&node, &"u".into());
        assert_eq!(path, Some(format!("/{}", disk.name)));
    };
    check("fast+;", "fast ready listed");
    check(";fast+", "fast ready leaving");
    // Whichever comes last by name.
    check("a+; b", "a ready listed");
    check("b+; a", "b ready listed");
    check("a; b+", "a listed");
    check("b; a+", "b listed");
    check("a+ b;", "a ready listed");
    check("a b+;", "b ready listed");
    check("; a+ b", "a ready leaving");
}

/// Nodes: who is ready, and how full disks are by the objects that exist.
#[test]
fn nodes_are_read_from_conditions_and_objects() {
    let node: api_types::Node = serde_json::from_str(
        r#"{"metadata":{"name":"n1"},
            "spec":{"allowScheduling":true,"tags":["fast"],"disks":{"d":{"allowScheduling":true,"storageReserved":5,"path":"/d"}}},
            "status":{"zone":"z","conditions":[{"type":"Ready","status":"False","lastTransitionTime":"1970-01-01T00:00:07Z"}],
              "diskStatus":{"d":{"diskUUID":"u","storageMaximum":100,"storageAvailable":90,"conditions":[{"type":"Ready","status":"True"}]},
                "taken-out":{"diskUUID":"w","conditions":[{"type":"Ready","status":"True"}]},
                "not-yet":{"diskUUID":""}}}}"#,
    )
    .expect("a node");
    let replica = |name: &str, size: i64| {
        let mut replica = api_types::Replica::new(name, api_types::ReplicaSpec::default());
        replica.spec.volume_size = ByteSize(size);
        replica.spec.disk_id = "u".to_owned();
        replica.spec.node_id = "n1".to_owned();
        replica
    };
    let replicas = [replica("a", 10), replica("b", 20)];
    let mut engine = api_types::Engine::new("e", api_types::EngineSpec::default());
    engine.spec.desire_state = InstanceState::Running;
    engine.spec.replica_roles = BTreeMap::from([
        ("a".to_owned(), api_types::ReplicaRole::Rebuild),
        ("b".to_owned(), api_types::ReplicaRole::InSync),
    ]);
    let settings = api_types::settings::Settings::default();
    let read = |off: &[&str]| {
        let off = off.iter().map(|name| (*name).to_owned()).collect();
        let now = Timestamp(9_000);
        wire::cluster([&node], &replicas, [&engine], &off, &settings, now)
    };
    let cluster = read(&[]);
    let view = &cluster.nodes[&"n1".into()];
    let since = Timestamp(7_000);
    assert_eq!(view.health, volume_core::NodeHealth::Lost { since });
    assert_eq!((view.rebuilds, view.zone.as_deref()), (1, Some("z")));
    assert_eq!(view.disks.len(), 2);
    let disk = &view.disks[&"u".into()];
    assert_eq!((disk.scheduled_bytes, disk.reserved_bytes), (30, 5));
    assert!(disk.ready && disk.allow_scheduling);
    assert!(!view.disks[&"w".into()].allow_scheduling);
    assert_eq!(wire::disk_path(&node, &"u".into()).as_deref(), Some("/d"));
    let off = read(&["n1"]);
    let health = off.nodes[&"n1".into()].health;
    assert_eq!(health, volume_core::NodeHealth::OutOfService);
}
