//! Carrying out a plan: only what differs is written, in the order in which it must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_types::names::FINALIZER;
use api_types::{Engine, Replica, Volume};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use volume_core::{EngineName, ReplicaName, Timestamp, VolumePlan, VolumeView, wire};

use super::finalizers;
use super::users::users;
use crate::runtime::{Context, Stop};
use crate::snapshots;

/// One decision and what it was made from.
pub(super) struct Round<'a> {
    pub context: &'a Context,
    pub volume: &'a Volume,
    pub engines: &'a [Arc<Engine>],
    pub replicas: &'a [Arc<Replica>],
    pub view: &'a VolumeView,
    pub plan: &'a VolumePlan,
    pub now: Timestamp,
}

impl Round<'_> {
    pub async fn execute(&self) -> Result<(), Stop> {
        let volume = self.guard().await?;
        let replicas = self.write_replicas(&volume).await?;
        let volume = self.write_status(volume).await?;
        self.write_engines(&volume, &replicas).await?;
        self.delete_unplanned().await?;
        finalizers::release(self).await
    }

    /// The volume must not vanish while something of it is left.
    async fn guard(&self) -> Result<Volume, Stop> {
        let has_guard = self
            .volume
            .finalizers()
            .iter()
            .any(|name| name == FINALIZER);
        if has_guard || self.view.volume.deleting {
            return Ok(self.volume.clone());
        }
        let mut volume = self.volume.clone();
        volume.finalizers_mut().push(FINALIZER.to_owned());
        self.volumes().replace(&volume).await
    }

    /// All replicas as they are after the writes.
    async fn write_replicas(&self, volume: &Volume) -> Result<Vec<Arc<Replica>>, Stop> {
        let existing: BTreeMap<ReplicaName, &Arc<Replica>> = self
            .replicas
            .iter()
            .map(|object| (ReplicaName::new(object.name_any()), object))
            .collect();
        let writes = self.plan.replicas.iter().map(|(name, spec)| {
            let known = existing.get(name).copied();
            let node = self
                .context
                .objects
                .nodes
                .get(api_types::names::NAMESPACE, spec.node.as_str());
            let path = node.and_then(|node| wire::disk_path(&node, &spec.disk));
            let mut object = known.map_or_else(
                || wire::new_replica(name, volume),
                |known| known.as_ref().clone(),
            );
            wire::write_replica(spec, volume, path.as_deref(), &mut object);
            async move {
                let writer = self.context.writer(&self.context.objects.replicas);
                match known {
                    None => writer.create(&object).await.map(Arc::new),
                    Some(known) if **known == object => Ok(Arc::clone(known)),
                    Some(_) => writer.replace(&object).await.map(Arc::new),
                }
            }
        });
        // They share one commit of the store.
        try_join_all(writes).await
    }

    async fn write_status(&self, volume: Volume) -> Result<Volume, Stop> {
        let mut after = volume.clone();
        wire::write_status(self.plan, &self.view.volume, &mut after, self.now);
        let status = after.status.get_or_insert_default();
        status.actual_size = self.actual_size();
        let (objects, now) = (&self.context.objects, jiff::Timestamp::now().to_string());
        status.kubernetes_status =
            users(objects, &volume.name_any(), &status.kubernetes_status, &now);
        if after.status == volume.status {
            return Ok(volume);
        }
        self.volumes().replace_status(&after).await
    }

    /// What the data takes on the fullest member: the same data may take a little more on one disk than on another.
    fn actual_size(&self) -> i64 {
        let members = &self.plan.status.record.members;
        self.replicas
            .iter()
            .filter(|object| members.contains(&ReplicaName::new(object.name_any())))
            .filter_map(|object| Some(object.status.as_ref()?.allocated_bytes))
            .max()
            .unwrap_or_default()
    }

    async fn write_engines(&self, volume: &Volume, replicas: &[Arc<Replica>]) -> Result<(), Stop> {
        let existing: BTreeMap<EngineName, &Arc<Engine>> = self
            .engines
            .iter()
            .map(|object| (EngineName::new(object.name_any()), object))
            .collect();
        let snapshots = snapshots::view(&self.context.objects, &volume.name_any());
        let writes = self.plan.engines.iter().map(|(name, spec)| {
            let known = existing.get(name).copied();
            let mut object = known.map_or_else(
                || wire::new_engine(name, volume),
                |known| known.as_ref().clone(),
            );
            wire::write_engine(
                spec,
                volume,
                replicas.iter().map(AsRef::as_ref),
                &mut object,
            );
            wire::write_snapshot_requests(&snapshots, &mut object);
            async move {
                let writer = self.context.writer(&self.context.objects.engines);
                match known {
                    None => writer.create(&object).await.map(drop),
                    Some(known) if **known == object => Ok(()),
                    Some(_) => writer.replace(&object).await.map(drop),
                }
            }
        });
        try_join_all(writes).await.map(drop)
    }

    /// Deletes what is not in the plan: engines first, then replicas.
    async fn delete_unplanned(&self) -> Result<(), Stop> {
        let engines: Vec<_> = self
            .engines
            .iter()
            .filter(|object| object.metadata.deletion_timestamp.is_none())
            .filter(|object| {
                !self
                    .plan
                    .engines
                    .contains_key(&EngineName::new(object.name_any()))
            })
            .collect();
        let replicas: Vec<_> = self
            .replicas
            .iter()
            .filter(|object| object.metadata.deletion_timestamp.is_none())
            .filter(|object| {
                !self
                    .plan
                    .replicas
                    .contains_key(&ReplicaName::new(object.name_any()))
            })
            .collect();
        if engines.is_empty() && replicas.is_empty() {
            return Ok(());
        }
        self.confirm().await?;
        for engine in engines {
            self.context
                .writer(&self.context.objects.engines)
                .delete(engine)
                .await?;
        }
        for replica in replicas {
            self.context
                .writer(&self.context.objects.replicas)
                .delete(replica)
                .await?;
        }
        Ok(())
    }

    /// Data is destroyed only on what the server says now: a manager that has just taken over may know less than the one
    /// before it, and a status that did not have to be written was not compared with anything.
    async fn confirm(&self) -> Result<(), Stop> {
        let name = self.volume.name_any();
        let live = self.volumes().read(&name).await?;
        let known = self.context.objects.volume(&name);
        let is_same = match (&live, &known) {
            (Some(live), Some(known)) => {
                live.metadata.resource_version == known.metadata.resource_version
                    && live.status.as_ref().map(|status| status.in_sync_version)
                        == Some(
                            i64::try_from(self.plan.status.record.version.0).unwrap_or(i64::MAX),
                        )
            }
            _ => false,
        };
        if is_same {
            Ok(())
        } else {
            Err(Stop::Outdated(format!("Volume {name}")))
        }
    }

    pub fn volumes(&self) -> crate::runtime::Writer<Volume> {
        self.context.writer(&self.context.objects.volumes)
    }
}
