//! Snapshot objects, and what an Engine says of its snapshots.

use std::collections::BTreeMap;

use api_types::names::{API_VERSION, FINALIZER, VOLUME_HEAD, label};
use api_types::settings::{DISABLE_SNAPSHOT_PURGE, SNAPSHOT_MAX_COUNT, Settings};
use api_types::{EngineRole, InstanceState, SNAPSHOTS_MAX, SnapshotInfo, SnapshotRequest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::snapshots::{Asked, EngineView, Listed, Outcome, Presence, Request, SnapshotsView};

/// A volume's snapshots. `objects` and `engines` are those of this volume.
pub fn snapshots<'a>(
    volume: Option<&api_types::Volume>,
    objects: impl IntoIterator<Item = &'a api_types::Snapshot>,
    engines: impl IntoIterator<Item = &'a api_types::Engine>,
    settings: &Settings,
) -> SnapshotsView {
    let presence = match volume {
        None => Presence::Gone,
        Some(volume) if volume.metadata.deletion_timestamp.is_some() => Presence::Leaving,
        Some(_) => Presence::There,
    };
    let own_limit = volume.map_or(0, |volume| volume.spec.snapshot_max_count);
    let limit = if own_limit > 0 {
        own_limit
    } else {
        settings.whole_number(&SNAPSHOT_MAX_COUNT)
    };
    let asked = objects.into_iter().filter_map(|object| {
        let name = object.metadata.name.clone()?;
        Some((name, asked(object, volume)))
    });
    let writer = engines.into_iter().find(|engine| is_writer(engine));
    SnapshotsView {
        volume: presence,
        limit: usize::try_from(limit).unwrap_or(0).min(SNAPSHOTS_MAX),
        merging_disabled: settings.is_on(&DISABLE_SNAPSHOT_PURGE),
        objects: asked.collect(),
        engine: writer.map(engine).unwrap_or_default(),
    }
}

fn asked(object: &api_types::Snapshot, volume: Option<&api_types::Volume>) -> Asked {
    let status = object.status.as_ref();
    Asked {
        create: object.spec.create_snapshot,
        handed_over: status.is_some_and(|status| !status.requested_time.is_empty()),
        taken: status.is_some_and(|status| !status.creation_time.is_empty()),
        deleting: object.metadata.deletion_timestamp.is_some(),
        below_live: status.is_some_and(|status| status.children.contains_key(VOLUME_HEAD)),
        has_branches: status.is_some_and(|status| status.children.len() > 1),
        of_former_volume: volume.is_some_and(|volume| is_of_former(&object.metadata, volume)),
    }
}

/// Owned by a volume of the same name that is gone.
fn is_of_former(metadata: &ObjectMeta, volume: &api_types::Volume) -> bool {
    let owners = metadata.owner_references.iter().flatten();
    let mut volumes = owners.filter(|owner| owner.kind == "Volume").peekable();
    let present = volume.metadata.uid.as_deref().unwrap_or_default();
    volumes.peek().is_some() && volumes.all(|owner| owner.uid != present)
}

fn is_writer(engine: &api_types::Engine) -> bool {
    engine.spec.role == EngineRole::Writer
        && engine.spec.desire_state == InstanceState::Running
        && engine.metadata.deletion_timestamp.is_none()
}

fn engine(object: &api_types::Engine) -> EngineView {
    let listed = listed(object).map(|infos| {
        let snapshots = infos.iter().filter(|(name, _)| *name != VOLUME_HEAD);
        snapshots
            .map(|(name, info)| {
                let found = Listed {
                    user_created: info.user_created,
                    marked: info.removed,
                };
                (name.clone(), found)
            })
            .collect()
    });
    let status = object.status.as_ref();
    let requests = object.spec.snapshot_requests.iter();
    let taking = requests.filter(|(_, request)| **request == SnapshotRequest::Take);
    EngineView {
        exists: true,
        listed,
        taking: taking.map(|(name, _)| name.clone()).collect(),
        errors: status
            .map(|status| status.snapshot_errors.clone())
            .unwrap_or_default(),
    }
}

/// What an engine that runs has listed, with the live data, after it had been told all that its object asks for now.
fn listed(object: &api_types::Engine) -> Option<&BTreeMap<String, SnapshotInfo>> {
    let status = object.status.as_ref()?;
    let is_answer = status.current_state == InstanceState::Running
        && status.epoch == object.spec.epoch
        && Some(status.snapshots_generation) == object.metadata.generation
        && status.snapshots.contains_key(VOLUME_HEAD);
    is_answer.then_some(&status.snapshots)
}

/// What the writer among these engines says of a snapshot now.
pub fn snapshot_info<'a>(
    engines: impl IntoIterator<Item = &'a api_types::Engine>,
    name: &str,
) -> Option<&'a SnapshotInfo> {
    let writer = engines.into_iter().find(|engine| is_writer(engine))?;
    listed(writer)?.get(name)
}

/// Writes into an Engine what it is to do about snapshots. Only the writer may change them.
pub fn write_snapshot_requests(view: &SnapshotsView, object: &mut api_types::Engine) {
    let requests = if is_writer(object) {
        view.requests()
    } else {
        BTreeMap::new()
    };
    let requests = requests.into_iter().map(|(name, request)| {
        let request = match request {
            Request::Take => SnapshotRequest::Take,
            Request::Remove => SnapshotRequest::Remove,
        };
        (name, request)
    });
    object.spec.snapshot_requests = requests.collect();
}

/// A Snapshot object that shows a snapshot which was taken in another way.
#[must_use]
pub fn new_snapshot(name: &str, volume: &api_types::Volume) -> api_types::Snapshot {
    let spec = api_types::SnapshotSpec {
        volume: volume.metadata.name.clone().unwrap_or_default(),
        ..api_types::SnapshotSpec::default()
    };
    let mut object = api_types::Snapshot::new(name, spec);
    object
        .metadata
        .namespace
        .clone_from(&volume.metadata.namespace);
    adopt_snapshot(&mut object.metadata, volume);
    object
}

/// Makes a Snapshot go with its volume, and stay until its data is gone.
pub fn adopt_snapshot(metadata: &mut ObjectMeta, volume: &api_types::Volume) {
    let finalizers = metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|name| name == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let owner = volume.metadata.name.clone().unwrap_or_default();
    let labels = metadata.labels.get_or_insert_default();
    labels.extend([label::volume(&owner)]);
    let owners = metadata.owner_references.get_or_insert_default();
    let uid = volume.metadata.uid.clone().unwrap_or_default();
    if !owners.iter().any(|known| known.uid == uid) {
        owners.push(OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: "Volume".to_owned(),
            name: owner,
            uid,
            // Deleting the volume in the foreground must not wait for us.
            block_owner_deletion: Some(false),
            controller: None,
        });
    }
}

/// Writes what has become of a snapshot into its object. `info` is what the engine says of it now, if it says something.
pub fn write_snapshot_status(
    outcome: &Outcome,
    hands_over: bool,
    info: Option<&SnapshotInfo>,
    object: &mut api_types::Snapshot,
) {
    let deleting = object.metadata.deletion_timestamp.is_some();
    let spec = &object.spec;
    let status = object.status.get_or_insert_default();
    if hands_over && let Some(asked_at) = &object.metadata.creation_timestamp {
        status.requested_time = asked_at.0.to_string();
    }
    let trouble = match outcome {
        Outcome::Release => return,
        Outcome::Show { trouble } => {
            if let Some(info) = info {
                status.parent.clone_from(&info.parent);
                status.children.clone_from(&info.children);
                status.mark_removed = info.removed;
                status.user_created = info.user_created;
                status.creation_time.clone_from(&info.created);
                status.size = info.size.parse().unwrap_or(0);
                status.restore_size = info.restore_size.parse().unwrap_or(0);
                status.labels.clone_from(&spec.labels);
                status.ready_to_use = !info.removed && !deleting;
            }
            trouble.as_ref()
        }
        Outcome::Absent { trouble } => {
            status.ready_to_use = false;
            Some(trouble)
        }
        Outcome::Wait { trouble } => {
            status.ready_to_use &= !deleting;
            trouble.as_ref()
        }
    };
    status.error = trouble.map(ToString::to_string).unwrap_or_default();
}

#[cfg(test)]
mod tests;
