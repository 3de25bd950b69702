//! Writing a plan down. Each write is a task of its own: one node or one object that does not answer holds
//! nobody else up.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster_core::{
    AttachmentName, ClusterPlan, EventKind as Told, EventTarget, NewAttachment, NodeName,
    PersistentVolume, PvName, Reason, UniqueVolumeName, wire,
};
use events::{EventKind, Recorder};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::storage::v1::{
    VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::model::{Model, SharedModel};
use super::people;

/// Kubernetes' own delays for attaches that fail.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(122);

/// What is written by one task at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// Its status, and the deletion of its attachments, which comes after.
    Node(NodeName),
    Create(AttachmentName),
}

/// An attachment to be given up.
struct Deletion {
    name: AttachmentName,
    uid: String,
    /// Given up because the node says that it is not mounted: asked once more just before, because the
    /// watches of pods and nodes do not keep step.
    unless_in_use: Option<UniqueVolumeName>,
}

impl Deletion {
    fn is_overtaken(&self, live: Option<&Node>) -> bool {
        let Some(volume) = &self.unless_in_use else {
            return false;
        };
        live.is_none_or(|node| wire::node(node).volumes_in_use.contains(volume))
    }
}

pub(super) struct Executor {
    client: Client,
    recorder: Recorder,
    model: SharedModel,
    busy: BTreeSet<Work>,
    failures: BTreeMap<Work, (u32, Instant)>,
    tasks: JoinSet<(Option<Work>, bool)>,
}

impl Executor {
    pub fn new(client: Client, recorder: Recorder, model: SharedModel) -> Self {
        Self {
            client,
            recorder,
            model,
            busy: BTreeSet::new(),
            failures: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Starts what the plan asks for and is not under way already.
    pub fn start(&mut self, plan: &ClusterPlan) {
        let shared = self.model.clone();
        let mut model = shared.lock();
        let mut released = BTreeSet::new();
        self.start_nodes(plan, &mut model, &mut released);
        for (name, new) in &plan.create {
            self.start_create(name, new, &mut model);
        }
        for event in &plan.events {
            // The decision is repeated until the deletion shows; the force is told when it is used.
            if event.kind == Told::ForceDetachVolume
                && !matches!(&event.target, EventTarget::Volume(volume) if released.contains(volume))
            {
                continue;
            }
            self.tell(event, &model);
        }
    }

    fn start_nodes(
        &mut self,
        plan: &ClusterPlan,
        model: &mut Model,
        released: &mut BTreeSet<PvName>,
    ) {
        let forced: BTreeSet<&AttachmentName> = plan
            .reasons
            .iter()
            .filter_map(|reason| match reason {
                Reason::Detaching {
                    attachment,
                    release,
                    ..
                } if release.is_forced() => Some(attachment),
                _ => None,
            })
            .collect();
        let mut nodes: BTreeMap<NodeName, Vec<Deletion>> = plan
            .node_status
            .keys()
            .map(|node| (node.clone(), Vec::new()))
            .collect();
        for name in &plan.delete {
            if model.is_expected(name) {
                continue;
            }
            if let Some(attachment) = model.view.attachments.get(name) {
                let uid = model.attachment_uids.get(name).cloned().unwrap_or_default();
                let volume = attachment
                    .source
                    .volume()
                    .and_then(|volume| model.view.volumes.get(volume));
                let deletes = nodes.entry(attachment.node.clone()).or_default();
                deletes.push(Deletion {
                    name: name.clone(),
                    uid,
                    unless_in_use: (!forced.contains(name))
                        .then(|| volume.map(PersistentVolume::unique_name))
                        .flatten(),
                });
            }
        }
        for (node, deletes) in nodes {
            let key = Work::Node(node.clone());
            if !self.may_start(&key) {
                continue;
            }
            for Deletion { name, .. } in &deletes {
                let attachment = model.view.attachments.get(name);
                released.extend(
                    attachment
                        .and_then(|attachment| attachment.source.volume())
                        .cloned(),
                );
                model.expect_gone(name);
            }
            self.spawn_node(key, plan.node_status.get(&node).cloned(), deletes);
        }
    }

    fn spawn_node(
        &mut self,
        key: Work,
        attached: Option<BTreeSet<UniqueVolumeName>>,
        deletes: Vec<Deletion>,
    ) {
        let Work::Node(node) = key.clone() else {
            return;
        };
        let (client, model) = (self.client.clone(), self.model.clone());
        let span = tracing::info_span!("attach_detach", node.name = %node);
        self.spawn(
            key,
            async move {
                let live = match tell_node(&client, &node, attached.as_ref()).await {
                    Ok(live) => live,
                    Err(error) => {
                        // A node must stop relying on a volume before it is taken away.
                        tracing::warn!(error = %error, "the node could not be told what is attached; nothing is detached from it until it is");
                        for Deletion { name, .. } in &deletes {
                            model.lock().expect_no_more(name);
                        }
                        return false;
                    }
                };
                let (kept, deletes): (Vec<_>, Vec<_>) = deletes
                    .into_iter()
                    .partition(|deletion| deletion.is_overtaken(live.as_ref()));
                // Mounted after all, or the node is gone: the watch will show it, and it is decided anew, after a
                // moment so that a watch that hangs does not make this spin.
                for Deletion { name, .. } in &kept {
                    tracing::debug!(attachment.name = %name, "kept: the node has changed meanwhile");
                    model.lock().expect_no_more(name);
                }
                let deleting = deletes
                    .iter()
                    .map(|deletion| delete_attachment(&client, &model, &deletion.name, &deletion.uid));
                let results = futures::future::join_all(deleting).await;
                kept.is_empty() && results.into_iter().all(|deleted| deleted)
            }
            .instrument(span),
        );
    }

    fn start_create(&mut self, name: &AttachmentName, new: &NewAttachment, model: &mut Model) {
        let key = Work::Create(name.clone());
        if model.is_expected(name) || !self.may_start(&key) {
            return;
        }
        model.expect_new(name, new);
        let (client, model) = (self.client.clone(), self.model.clone());
        let (name, new) = (name.clone(), new.clone());
        let span =
            tracing::info_span!("attach_detach", volume.name = %new.volume, node.name = %new.node);
        self.spawn(
            key,
            async move {
                let created = create_attachment(&client, &name, &new).await;
                match created {
                    Created::Yes | Created::Unknown => model.lock().await_echo(&name),
                    Created::No => model.lock().expect_no_more(&name),
                }
                created == Created::Yes
            }
            .instrument(span),
        );
    }

    fn tell(&mut self, event: &cluster_core::Event, model: &Model) {
        let kind = if event.kind.is_warning() {
            EventKind::Warning
        } else {
            EventKind::Normal
        };
        let reason = format!("{:?}", event.kind);
        for about in people::references(event, model) {
            self.record(about, kind, reason.clone(), event.message.clone());
        }
    }

    fn record(&mut self, about: ObjectReference, kind: EventKind, reason: String, message: String) {
        let recorder = self.recorder.clone();
        self.tasks.spawn(async move {
            recorder.record(&about, kind, &reason, &message).await;
            (None, true)
        });
    }

    fn may_start(&self, key: &Work) -> bool {
        let waits = self
            .failures
            .get(key)
            .is_some_and(|(_, until)| *until > Instant::now());
        !waits && !self.busy.contains(key)
    }

    fn spawn(&mut self, key: Work, task: impl Future<Output = bool> + Send + 'static) {
        self.busy.insert(key.clone());
        self.tasks.spawn(async move { (Some(key), task.await) });
    }

    /// Returns when some write has ended; never, while there is none.
    pub async fn finished(&mut self) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((Some(key), succeeded))) => {
                    self.busy.remove(&key);
                    if succeeded {
                        self.failures.remove(&key);
                    } else {
                        let failures = self.failures.get(&key).map_or(0, |(count, _)| *count);
                        let factor = 1_u32 << failures.min(16);
                        let delay = RETRY_FIRST.saturating_mul(factor).min(RETRY_LONGEST);
                        self.failures
                            .insert(key, (failures + 1, Instant::now() + delay));
                    }
                    return;
                }
                // An event was written; there is nothing to decide.
                Some(Ok((None, _))) => {}
                Some(Err(error)) => {
                    tracing::error!(error = %error, "a write of the attach-detach controller panicked");
                    // Which one is not known: all may start again.
                    self.busy.clear();
                    return;
                }
                None => std::future::pending().await,
            }
        }
    }

    pub fn next_retry(&self) -> Option<Instant> {
        let now = Instant::now();
        self.failures
            .values()
            .map(|(_, until)| *until)
            .filter(|until| *until > now)
            .min()
    }
}

/// The node as it is now, after it was told what it has; None if it is gone.
async fn tell_node(
    client: &Client,
    node: &NodeName,
    attached: Option<&BTreeSet<UniqueVolumeName>>,
) -> Result<Option<Node>, kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let Some(attached) = attached else {
        return api.get_opt(node.as_str()).await;
    };
    let patch = json!({"status": {"volumesAttached": wire::volumes_attached(attached)}});
    let parameters = PatchParams::default();
    match api
        .patch_status(node.as_str(), &parameters, &Patch::Merge(patch))
        .await
    {
        Ok(live) => Ok(Some(live)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn delete_attachment(
    client: &Client,
    model: &SharedModel,
    name: &AttachmentName,
    uid: &str,
) -> bool {
    let api: Api<VolumeAttachment> = Api::all(client.clone());
    let parameters = DeleteParams {
        preconditions: (!uid.is_empty()).then(|| Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(name.as_str(), &parameters).await {
        Ok(_) => {
            tracing::info!(attachment.name = %name, "the volume is asked to be detached");
            true
        }
        // Gone, or another one by now: the watch will tell.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => true,
        Err(error) => {
            tracing::warn!(attachment.name = %name, error = %error, "the attachment could not be deleted; trying again later");
            model.lock().expect_no_more(name);
            false
        }
    }
}

/// Does the attachment exist by now?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Created {
    Yes,
    No,
    /// There was no answer, or one that says nothing: it counts as existing until that is known.
    Unknown,
}

async fn create_attachment(client: &Client, name: &AttachmentName, new: &NewAttachment) -> Created {
    let api: Api<VolumeAttachment> = Api::all(client.clone());
    let attachment = VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(name.to_string()),
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: new.driver.to_string(),
            node_name: new.node.to_string(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(new.volume.to_string()),
                inline_volume_spec: None,
            },
        },
        status: None,
    };
    match api.create(&PostParams::default(), &attachment).await {
        Ok(_) => {
            tracing::info!(attachment.name = %name, "the volume is asked to be attached");
            Created::Yes
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => Created::Yes,
        Err(error) => {
            tracing::warn!(attachment.name = %name, error = %error, "the attachment could not be created; trying again later");
            match error {
                kube::Error::Api(status) if status.code < 500 => Created::No,
                _ => Created::Unknown,
            }
        }
    }
}
