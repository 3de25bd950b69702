//! The dump by name, with the decisions of the cores on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api_types::names::DRIVER;
use api_types::{
    Engine, Node as LonghornNode, Replica, Volume, VolumeAttachment as LonghornAttachment,
};
use attach_core::reaper::{Policy, Removal, Suspicions, World, reap};
use attach_core::view::{Engines, Nodes, Settings, View};
use attach_core::{NodeName, Plan, VolumeName};
use cluster_core::{ClusterPlan, ClusterView, Memory, UniqueVolumeName};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use volume_core::{VolumePlan, VolumeView};

use crate::dump::ClusterDump;
use crate::objects::Objects;

/// The dump by name. Cluster-wide decisions are made once, here; those about one volume when it is asked for.
pub struct Index<'a> {
    pub dump: &'a ClusterDump,
    pub now: Timestamp,
    pub cluster: ClusterView,
    pub cluster_plan: ClusterPlan,
    settings: api_types::settings::Settings,
    surroundings: volume_core::wire::Cluster,
    attach_nodes: Nodes,
    volumes: BTreeMap<&'a str, &'a Volume>,
    longhorn_attachments: BTreeMap<&'a str, &'a LonghornAttachment>,
    engines: BTreeMap<&'a str, Vec<&'a Engine>>,
    replicas: BTreeMap<&'a str, Vec<&'a Replica>>,
    persistent_volumes: BTreeMap<&'a str, &'a PersistentVolume>,
    /// By the handle, which is the volume's name.
    of_handle: BTreeMap<&'a str, &'a PersistentVolume>,
    claims: BTreeMap<(&'a str, &'a str), &'a PersistentVolumeClaim>,
    pods_of_claim: BTreeMap<(&'a str, String), Vec<&'a Pod>>,
    attachments: BTreeMap<&'a str, &'a VolumeAttachment>,
    attachments_of: BTreeMap<&'a str, Vec<&'a VolumeAttachment>>,
    nodes: BTreeMap<&'a str, &'a Node>,
    longhorn_nodes: BTreeMap<&'a str, &'a LonghornNode>,
    leases: BTreeMap<&'a str, &'a Lease>,
    /// Tickets that look abandoned, by volume.
    suspects: BTreeMap<VolumeName, Vec<Removal>>,
    reasons_of: BTreeMap<String, Vec<cluster_core::Reason>>,
}

/// One volume with everything that belongs to it, and what the cores decide about it.
pub struct Case<'a> {
    pub name: &'a str,
    pub volume: &'a Volume,
    pub attachment: Option<&'a LonghornAttachment>,
    pub engines: Vec<&'a Engine>,
    pub replicas: Vec<&'a Replica>,
    pub persistent: Option<&'a PersistentVolume>,
    pub claim: Option<&'a PersistentVolumeClaim>,
    pub pods: Vec<&'a Pod>,
    /// Kubernetes' own, of this volume.
    pub kubernetes: Vec<&'a VolumeAttachment>,
    pub suspects: &'a [Removal],
    /// What the attach-detach decision says of the PersistentVolume.
    pub cluster_reasons: &'a [cluster_core::Reason],
    /// The tickets' decision; else why none can be made.
    pub tickets: Result<(View, Plan), String>,
    /// The volume's own; else why none can be made.
    pub life: Result<(VolumeView, VolumePlan), String>,
}

#[must_use]
pub(crate) fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

#[must_use]
pub(crate) fn namespace(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or_default()
}

impl<'a> Index<'a> {
    #[must_use]
    pub fn new(dump: &'a ClusterDump, now: Timestamp) -> Self {
        let (settings, _) = api_types::settings::Settings::read(&dump.settings);
        let cluster = cluster_view(dump);
        let cluster_plan = cluster_core::decide(&cluster, &Memory::default(), cluster_time(now));
        let mut index = Self {
            dump,
            now,
            surroundings: surroundings(dump, &cluster, &settings, now),
            attach_nodes: attach_nodes(dump),
            settings,
            volumes: by_name(&dump.volumes, |object| &object.metadata),
            longhorn_attachments: by_name(&dump.longhorn_attachments, |object| &object.metadata),
            engines: grouped(&dump.engines, |engine| {
                Some(engine.spec.volume_name.as_str())
            }),
            replicas: grouped(&dump.replicas, |replica| {
                Some(replica.spec.volume_name.as_str())
            }),
            persistent_volumes: by_name(&dump.persistent_volumes, |object| &object.metadata),
            of_handle: handles(dump),
            claims: dump
                .claims
                .iter()
                .map(|claim| ((namespace(&claim.metadata), name(&claim.metadata)), claim))
                .collect(),
            pods_of_claim: pods_of_claim(dump),
            attachments: by_name(&dump.attachments, |object| &object.metadata),
            attachments_of: grouped(&dump.attachments, |object| {
                object.spec.source.persistent_volume_name.as_deref()
            }),
            nodes: by_name(&dump.nodes, |object| &object.metadata),
            longhorn_nodes: by_name(&dump.longhorn_nodes, |object| &object.metadata),
            leases: by_name(&dump.leases, |object| &object.metadata),
            suspects: BTreeMap::new(),
            reasons_of: reasons_by_volume(&cluster_plan),
            cluster,
            cluster_plan,
        };
        index.suspects = index.reap();
        index
    }

    pub fn volume_names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.volumes.keys().copied()
    }

    /// One volume, decided about.
    #[must_use]
    pub fn case(&self, volume: &str) -> Option<Case<'_>> {
        let (&name, &object) = self.volumes.get_key_value(volume)?;
        let persistent = self.of_handle.get(name).copied();
        let pv_name = persistent.map_or(name, |pv| self::name(&pv.metadata));
        let claim = persistent.and_then(|pv| self.claim_of(pv));
        let attachment = self.longhorn_attachments.get(name).copied();
        let engines = self.engines.get(name).cloned().unwrap_or_default();
        let replicas = self.replicas.get(name).cloned().unwrap_or_default();
        Some(Case {
            name,
            volume: object,
            attachment,
            persistent,
            claim,
            pods: claim.map(|claim| self.pods_of(claim)).unwrap_or_default(),
            kubernetes: self
                .attachments_of
                .get(pv_name)
                .into_iter()
                .flatten()
                .copied()
                .filter(|object| object.spec.attacher == DRIVER)
                .collect(),
            suspects: self
                .suspects
                .get(name)
                .map(Vec::as_slice)
                .unwrap_or_default(),
            cluster_reasons: self
                .reasons_of
                .get(pv_name)
                .map(Vec::as_slice)
                .unwrap_or_default(),
            tickets: self.decide_tickets(object, attachment, &engines),
            life: self.decide_life(object, &engines, &replicas),
            engines,
            replicas,
        })
    }

    fn decide_tickets(
        &self,
        volume: &Volume,
        attachment: Option<&LonghornAttachment>,
        engines: &[&Engine],
    ) -> Result<(View, Plan), String> {
        use attach_core::wire;
        let (volume, _) = wire::volume(volume).map_err(|error| error.to_string())?;
        let view = View {
            now: self.now,
            volume,
            tickets: attachment.map(wire::tickets).unwrap_or_default(),
            statuses: attachment.map(wire::statuses).unwrap_or_default(),
            nodes: self.attach_nodes.clone(),
            engines: Engines {
                complete: self.dump.is_complete("engines.longhorn.io"),
                listed: engines
                    .iter()
                    .filter_map(|engine| wire::engine(engine))
                    .collect(),
            },
            settings: Settings {
                detach_manual_when_cordoned: self
                    .settings
                    .is_on(&api_types::settings::DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED),
                ..Settings::default()
            },
        };
        let plan = attach_core::decide(&view);
        Ok((view, plan))
    }

    fn decide_life(
        &self,
        volume: &Volume,
        engines: &[&Engine],
        replicas: &[&Replica],
    ) -> Result<(VolumeView, VolumePlan), String> {
        let view = volume_core::wire::view(
            volume,
            engines.iter().copied(),
            replicas.iter().copied(),
            &self.surroundings,
        );
        let view = view.map_err(|error| error.to_string())?;
        let plan = volume_core::decide(&view, self.surroundings.now);
        Ok((view, plan))
    }

    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&'a Volume> {
        self.volumes.get(name).copied()
    }

    #[must_use]
    pub fn persistent_volume(&self, name: &str) -> Option<&'a PersistentVolume> {
        self.persistent_volumes.get(name).copied()
    }

    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> Option<&'a PersistentVolumeClaim> {
        self.claims.get(&(namespace, name)).copied()
    }

    fn claim_of(&self, volume: &PersistentVolume) -> Option<&'a PersistentVolumeClaim> {
        let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
        self.claim(claim.namespace.as_deref()?, claim.name.as_deref()?)
    }

    #[must_use]
    pub fn pods_of(&self, claim: &PersistentVolumeClaim) -> Vec<&'a Pod> {
        let key = (namespace(&claim.metadata), name(&claim.metadata).to_owned());
        self.pods_of_claim.get(&key).cloned().unwrap_or_default()
    }

    #[must_use]
    pub fn attachment(&self, name: &str) -> Option<&'a VolumeAttachment> {
        self.attachments.get(name).copied()
    }

    #[must_use]
    pub fn longhorn_attachment(&self, name: &str) -> Option<&'a LonghornAttachment> {
        self.longhorn_attachments.get(name).copied()
    }

    #[must_use]
    pub fn node(&self, name: &str) -> Option<&'a Node> {
        self.nodes.get(name).copied()
    }

    #[must_use]
    pub fn longhorn_node(&self, name: &str) -> Option<&'a LonghornNode> {
        self.longhorn_nodes.get(name).copied()
    }

    #[must_use]
    pub fn lease(&self, name: &str) -> Option<&'a Lease> {
        self.leases.get(name).copied()
    }

    /// The node answers, by the judgement of whoever watches its lease.
    #[must_use]
    pub fn is_node_ready(&self, name: &str) -> bool {
        self.longhorn_node(name)
            .is_some_and(|node| attach_core::wire::node(node).ready)
    }

    /// The node says that it has the volume mounted.
    #[must_use]
    pub fn is_in_use(&self, volume: &str, node: &str) -> bool {
        let unique = UniqueVolumeName {
            driver: DRIVER.into(),
            handle: volume.into(),
        };
        self.cluster
            .nodes
            .get(&node.into())
            .is_some_and(|node| node.volumes_in_use.contains(&unique))
    }

    /// What exists, for the reaper. Of a kind that could not be read nothing is known.
    fn world(&self) -> World {
        use attach_core::wire;
        let dump = self.dump;
        let snapshots: BTreeMap<Arc<str>, _> = dump
            .snapshots
            .iter()
            .map(|object| (name(&object.metadata).into(), wire::snapshot_fate(object)))
            .collect();
        let backups = dump.backups.iter().map(|object| {
            let exists = snapshots.contains_key(object.spec.snapshot_name.as_str());
            (
                Arc::<str>::from(name(&object.metadata)),
                wire::backup_fate(object, exists),
            )
        });
        let knows = |resource: &str| dump.is_complete(resource);
        let (knows_snapshots, knows_backups) =
            (knows("snapshots.longhorn.io"), knows("backups.longhorn.io"));
        let backups: BTreeMap<_, _> = backups.collect();
        let mut owners = BTreeMap::new();
        if knows_snapshots {
            let all = dump.snapshots.iter().map(|object| &object.metadata);
            owners.insert(Arc::from("Snapshot.longhorn.io"), uids(all));
        }
        if knows_backups {
            let all = dump.backups.iter().map(|object| &object.metadata);
            owners.insert(Arc::from("Backup.longhorn.io"), uids(all));
        }
        World {
            kubernetes_attachments: knows("volumeattachments.storage.k8s.io").then(|| {
                dump.attachments
                    .iter()
                    .map(|object| name(&object.metadata).into())
                    .collect()
            }),
            snapshots: knows_snapshots.then_some(snapshots),
            // A backup's fate depends on its snapshot's.
            backups: (knows_backups && knows_snapshots).then_some(backups),
            nodes: knows("nodes.longhorn.io").then(|| {
                dump.longhorn_nodes
                    .iter()
                    .map(|object| name(&object.metadata).into())
                    .collect()
            }),
            owners,
            in_use: self.in_use(),
        }
    }

    /// What nodes that answer say they use.
    fn in_use(&self) -> BTreeSet<(NodeName, VolumeName)> {
        let mut used = BTreeSet::new();
        for (name, node) in &self.nodes {
            if self.is_node_ready(name) {
                let handles = cluster_core::wire::handles_in_use(node, DRIVER);
                let place = |handle: String| ((*name).into(), handle.as_str().into());
                used.extend(handles.into_iter().map(place));
            }
        }
        used
    }

    /// One pass of the reaper, without memory: every ticket that looks abandoned is a suspect.
    fn reap(&self) -> BTreeMap<VolumeName, Vec<Removal>> {
        let tickets: BTreeMap<VolumeName, _> = self
            .longhorn_attachments
            .iter()
            .map(|(name, object)| ((*name).into(), attach_core::wire::tickets(object)))
            .collect();
        let reaping = reap(
            &tickets,
            &self.world(),
            &Suspicions::default(),
            &Policy::default(),
            self.now,
        );
        let mut suspects: BTreeMap<VolumeName, Vec<Removal>> = BTreeMap::new();
        for removal in reaping.suspects.into_iter().chain(reaping.removals) {
            suspects
                .entry(removal.volume.clone())
                .or_default()
                .push(removal);
        }
        suspects
    }
}

fn by_name<K>(objects: &Objects<K>, metadata: fn(&K) -> &ObjectMeta) -> BTreeMap<&str, &K> {
    objects
        .iter()
        .map(|object| (name(metadata(object)), object))
        .collect()
}

fn grouped<'a, K>(
    objects: &'a Objects<K>,
    key: fn(&'a K) -> Option<&'a str>,
) -> BTreeMap<&'a str, Vec<&'a K>> {
    let mut groups: BTreeMap<&str, Vec<&K>> = BTreeMap::new();
    for object in objects {
        if let Some(key) = key(object) {
            groups.entry(key).or_default().push(object);
        }
    }
    groups
}

fn handles(dump: &ClusterDump) -> BTreeMap<&str, &PersistentVolume> {
    let entry = |object| Some((handle(object)?, object));
    dump.persistent_volumes.iter().filter_map(entry).collect()
}

/// The handle of one of our volumes.
#[must_use]
pub(crate) fn handle(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == DRIVER).then_some(csi.volume_handle.as_str())
}

fn pods_of_claim(dump: &ClusterDump) -> BTreeMap<(&str, String), Vec<&Pod>> {
    let mut pods: BTreeMap<(&str, String), Vec<&Pod>> = BTreeMap::new();
    for pod in &dump.pods {
        for claim in cluster_core::wire::claims_of(pod) {
            let key = (namespace(&pod.metadata), claim.name);
            pods.entry(key).or_default().push(pod);
        }
    }
    pods
}

fn cluster_time(now: Timestamp) -> cluster_core::Timestamp {
    cluster_core::Timestamp(u64::try_from(now.as_millisecond()).unwrap_or(0))
}

fn cluster_view(dump: &ClusterDump) -> ClusterView {
    use cluster_core::wire;
    let unique = |volume: &Volume| UniqueVolumeName {
        driver: DRIVER.into(),
        handle: name(&volume.metadata).into(),
    };
    ClusterView {
        pods: dump
            .pods
            .iter()
            .map(|pod| (wire::pod_key(pod), wire::pod(pod)))
            .filter(|(_, pod)| !pod.claims.is_empty())
            .collect(),
        claims: dump
            .claims
            .iter()
            .map(|claim| (wire::claim_key(claim), wire::claim(claim)))
            .collect(),
        volumes: dump
            .persistent_volumes
            .iter()
            .filter_map(|volume| {
                Some((
                    name(&volume.metadata).into(),
                    wire::persistent_volume(volume)?,
                ))
            })
            .collect(),
        nodes: dump
            .nodes
            .iter()
            .map(|node| (name(&node.metadata).into(), wire::node(node)))
            .collect(),
        csi_nodes: dump
            .csi_nodes
            .iter()
            .map(|node| (name(&node.metadata).into(), wire::csi_node(node)))
            .collect(),
        attachless_drivers: dump
            .csi_drivers
            .iter()
            .filter_map(wire::attachless_driver)
            .collect(),
        attachments: dump
            .attachments
            .iter()
            .map(|object| (wire::attachment_key(object), wire::attachment(object)))
            .collect(),
        fences: dump
            .volumes
            .iter()
            .filter_map(|volume| Some((unique(volume), volume.fenced_node()?.into())))
            .collect(),
        writers: dump
            .volumes
            .iter()
            .filter_map(|volume| Some((unique(volume), volume.writer_node()?.into())))
            .collect(),
        settings: cluster_core::Settings::default(),
    }
}

fn surroundings(
    dump: &ClusterDump,
    cluster: &ClusterView,
    settings: &api_types::settings::Settings,
    now: Timestamp,
) -> volume_core::wire::Cluster {
    let out_of_service: BTreeSet<String> = cluster
        .nodes
        .iter()
        .filter(|(_, node)| node.out_of_service)
        .map(|(name, _)| name.as_str().to_owned())
        .collect();
    volume_core::wire::cluster(
        &dump.longhorn_nodes,
        &dump.replicas,
        &dump.engines,
        &out_of_service,
        settings,
        volume_core::Timestamp(u64::try_from(now.as_millisecond()).unwrap_or(0)),
    )
}

fn attach_nodes(dump: &ClusterDump) -> Nodes {
    let node = |object: &LonghornNode| {
        (
            name(&object.metadata).into(),
            attach_core::wire::node(object),
        )
    };
    Nodes {
        complete: dump.is_complete("nodes.longhorn.io"),
        listed: dump.longhorn_nodes.iter().map(node).collect(),
    }
}

fn uids<'a>(all: impl Iterator<Item = &'a ObjectMeta>) -> BTreeMap<Arc<str>, Arc<str>> {
    let uid = |metadata: &ObjectMeta| metadata.uid.as_deref().unwrap_or_default().into();
    all.map(|metadata| (name(metadata).into(), uid(metadata)))
        .collect()
}

fn reasons_by_volume(plan: &ClusterPlan) -> BTreeMap<String, Vec<cluster_core::Reason>> {
    use cluster_core::Reason;
    let mut reasons: BTreeMap<String, Vec<Reason>> = BTreeMap::new();
    for reason in &plan.reasons {
        let volume = match reason {
            Reason::Attaching { volume, .. }
            | Reason::AttachPending { volume, .. }
            | Reason::AttachFailing { volume, .. }
            | Reason::WaitingForDetach { volume, .. }
            | Reason::WaitingForTurn { volume, .. }
            | Reason::NodeFull { volume, .. } => Some(volume),
            Reason::Detaching { volume, .. } | Reason::DetachHeld { volume, .. } => volume.as_ref(),
            // These name an attachment or a pod; whoever looks at those asks the plan itself.
            Reason::WaitingForDeletion { .. }
            | Reason::DetachPending { .. }
            | Reason::PodLeftOut { .. } => None,
        };
        if let Some(volume) = volume {
            reasons
                .entry(volume.as_str().to_owned())
                .or_default()
                .push(reason.clone());
        }
    }
    reasons
}
