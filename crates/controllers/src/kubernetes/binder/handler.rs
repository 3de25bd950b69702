//! One look at a claim or a volume: decide, do, write down.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_types::{VolumeSnapshot, VolumeSnapshotContent};
use cluster_core::attacher::RpcError;
use events::{EventKind, Recorder, sentence};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use thiserror::Error;
use tracing::Instrument as _;

use super::BinderOptions;
use super::decide::{
    BIND_COMPLETED, CLAIM_PROTECTION, ClaimStep, ClaimView, Owner, PROVISIONED_BY, SELECTED_NODE,
    decide_claim, named_volume, owner,
};
use super::provision::{self, ProvisionError};
use crate::kubernetes::attacher::read_secret;
use crate::kubernetes::cache::{Cache, Key};
use crate::kubernetes::csi::{ContentSource, CsiController, Secrets, within};
use crate::kubernetes::queue::Outcome;

/// From nothing to bound takes six; the rest is for lost races.
pub(super) const STEPS_MAX: usize = 16;
const CONFLICTS_MAX: usize = 5;
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

pub(super) struct Handler<C> {
    pub client: Client,
    pub csi: Arc<C>,
    pub options: BinderOptions,
    pub claims: Cache<PersistentVolumeClaim>,
    pub volumes: Cache<PersistentVolume>,
    pub classes: Cache<StorageClass>,
    pub pods: Cache<Pod>,
    pub attachments: Cache<VolumeAttachment>,
    pub recorder: Recorder,
}

#[derive(Debug, Error)]
pub(super) enum LookError {
    #[error("the API did not take a write or a read")]
    Api(#[from] kube::Error),
    #[error("{0}")]
    Driver(#[from] RpcError),
    #[error("{0}")]
    Provision(#[from] ProvisionError),
    #[error("storage class {0} does not exist")]
    ClassGone(String),
    #[error("secret {namespace}/{name} does not exist")]
    SecretMissing { namespace: String, name: String },
    #[error("the claim's data source {0} is not ready or does not exist")]
    SourceMissing(String),
}

/// What one look works on: the newest state that it knows.
struct Subject {
    claim: PersistentVolumeClaim,
    volume: Option<PersistentVolume>,
}

impl<C: CsiController> Handler<C> {
    pub(super) async fn look_at_claim(self: Arc<Self>, key: Key) -> Outcome {
        let span = tracing::info_span!("binder", claim = %key);
        async move {
            let Some(claim) = self.claims.get(&key) else {
                return Outcome::Done;
            };
            let claim = PersistentVolumeClaim::clone(&claim);
            let mut subject = Subject {
                volume: self.volume_for(&claim),
                claim,
            };
            match self.work_through_conflicts(&mut subject).await {
                Ok(()) => Outcome::Done,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the claim cannot be served yet; trying again later"
                    );
                    let about = subject.claim.object_ref(&());
                    let message = format!("failed to provision volume: {}", sentence(&error));
                    self.recorder
                        .record(&about, EventKind::Warning, "ProvisioningFailed", &message)
                        .await;
                    Outcome::Failed
                }
            }
        }
        .instrument(span)
        .await
    }

    /// Somebody else may be faster; then it is decided anew from what they wrote.
    async fn work_through_conflicts(&self, subject: &mut Subject) -> Result<(), LookError> {
        for _ in 0..CONFLICTS_MAX {
            match self.work(subject).await {
                Err(LookError::Api(kube::Error::Api(status)))
                    if status.is_conflict() || status.is_not_found() => {}
                outcome => return outcome,
            }
            let api = self.claim_api(&subject.claim);
            let Some(claim) = api.get_opt(&subject.claim.name_any()).await? else {
                return Ok(());
            };
            subject.volume = match named_volume(&claim) {
                Some(name) => {
                    let api: Api<PersistentVolume> = Api::all(self.client.clone());
                    api.get_opt(name).await?
                }
                None => self.volume_for(&claim),
            };
            subject.claim = claim;
        }
        self.work(subject).await
    }

    async fn work(&self, subject: &mut Subject) -> Result<(), LookError> {
        for _ in 0..STEPS_MAX {
            let step = self.decide(subject);
            tracing::debug!(?step, "decided");
            match step {
                ClaimStep::Nothing => return Ok(()),
                ClaimStep::Wait(wait) => {
                    let (reason, is_warning, message) = wait.event();
                    let kind = if is_warning {
                        EventKind::Warning
                    } else {
                        EventKind::Normal
                    };
                    let about = subject.claim.object_ref(&());
                    self.recorder.record(&about, kind, reason, &message).await;
                    return Ok(());
                }
                ClaimStep::AddProtection => {
                    let mut finalizers = subject.claim.finalizers().to_vec();
                    finalizers.push(CLAIM_PROTECTION.to_owned());
                    self.patch_claim(subject, json!({"metadata": {"finalizers": finalizers}}))
                        .await?;
                }
                ClaimStep::RemoveProtection => {
                    let mut finalizers = subject.claim.finalizers().to_vec();
                    finalizers.retain(|finalizer| finalizer != CLAIM_PROTECTION);
                    self.patch_claim(subject, json!({"metadata": {"finalizers": finalizers}}))
                        .await?;
                    return Ok(());
                }
                ClaimStep::SetClass(class) => {
                    self.patch_claim(subject, json!({"spec": {"storageClassName": class}}))
                        .await?;
                }
                ClaimStep::Provision { class } => {
                    subject.volume = Some(self.provision(&subject.claim, &class).await?);
                }
                ClaimStep::TakeVolume(name) => self.take_volume(subject, &name).await?,
                ClaimStep::NameVolume(name) => {
                    let maker = subject
                        .volume
                        .as_ref()
                        .and_then(|volume| volume.annotations().get(PROVISIONED_BY));
                    let patch = json!({
                        "metadata": {"annotations": {
                            BIND_COMPLETED: "yes",
                            "pv.kubernetes.io/bound-by-controller": "yes",
                            PROVISIONER: maker,
                        }},
                        "spec": {"volumeName": name},
                    });
                    self.patch_claim(subject, patch).await?;
                }
                ClaimStep::MarkBound(name) => {
                    self.mark_bound(subject).await?;
                    tracing::info!(volume.name = name, "the claim is bound");
                }
                ClaimStep::MarkLost => {
                    self.patch_claim_status(subject, json!({"phase": "Lost"}))
                        .await?;
                    let message =
                        "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
                    let about = subject.claim.object_ref(&());
                    self.recorder
                        .record(&about, EventKind::Warning, "ClaimLost", message)
                        .await;
                }
            }
        }
        Ok(())
    }

    fn decide(&self, subject: &Subject) -> ClaimStep {
        let classes = self.classes.all();
        let classes: Vec<&StorageClass> = classes.iter().map(AsRef::as_ref).collect();
        let wants_any = named_volume(&subject.claim).is_none() && subject.volume.is_none();
        let volumes = if wants_any {
            self.volumes.all()
        } else {
            Vec::new()
        };
        let is_free = |volume: &&PersistentVolume| {
            let reference = volume
                .spec
                .as_ref()
                .and_then(|spec| spec.claim_ref.as_ref());
            reference.is_none()
        };
        let free: Vec<&PersistentVolume> =
            volumes.iter().map(AsRef::as_ref).filter(is_free).collect();
        let key = Key::of(&subject.claim);
        // A pod without a node has nothing mounted, and gets nothing mounted of a claim that is going.
        let is_used = self.pods.of_namespace(&key.namespace).iter().any(|pod| {
            let claims = cluster_core::wire::claims_of(pod);
            claims.iter().any(|claim| claim.name == key.name)
                && cluster_core::wire::pod(pod).node.is_some()
        });
        decide_claim(&ClaimView {
            claim: &subject.claim,
            volume: subject.volume.as_ref(),
            classes: &classes,
            free: &free,
            is_used,
            driver: &self.options.driver,
        })
    }

    /// The volume that the claim names, or that was made or reserved for it.
    fn volume_for(&self, claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
        if let Some(name) = named_volume(claim) {
            return self.volumes.named(name).map(|volume| (*volume).clone());
        }
        let made = provision::volume_name(claim).and_then(|name| self.volumes.named(&name));
        let reserved = || {
            self.volumes
                .all()
                .into_iter()
                .find(|volume| matches!(owner(volume, claim), Owner::This | Owner::ThisName))
        };
        made.or_else(reserved).map(|volume| (*volume).clone())
    }

    async fn patch_claim(
        &self,
        subject: &mut Subject,
        mut patch: Value,
    ) -> Result<(), kube::Error> {
        // Finalizers are a list, and a claim of the same name may be another: the version makes both safe.
        patch["metadata"]["resourceVersion"] = json!(subject.claim.resource_version());
        let patched = self
            .claim_api(&subject.claim)
            .patch(
                &subject.claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await?;
        subject.claim = patched;
        Ok(())
    }

    async fn patch_claim_status(
        &self,
        subject: &mut Subject,
        status: Value,
    ) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"status": status}));
        let (name, parameters) = (subject.claim.name_any(), PatchParams::default());
        let api = self.claim_api(&subject.claim);
        subject.claim = api.patch_status(&name, &parameters, &patch).await?;
        Ok(())
    }

    fn claim_api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        let namespace = claim.namespace().unwrap_or_default();
        Api::namespaced(self.client.clone(), &namespace)
    }

    async fn take_volume(&self, subject: &mut Subject, name: &str) -> Result<(), kube::Error> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        // As it is now: of two claims that want it, one loses by the version.
        let live = api.get(name).await?;
        if !matches!(
            owner(&live, &subject.claim),
            Owner::Nobody | Owner::ThisName | Owner::This
        ) {
            subject.volume = named_volume(&subject.claim).map(|_| live);
            return Ok(());
        }
        let claim = &subject.claim;
        let patch = json!({
            "metadata": {"resourceVersion": live.resource_version()},
            "spec": {"claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(), "name": claim.name_any(), "uid": claim.uid(),
            }},
        });
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        subject.volume = Some(patched);
        Ok(())
    }

    async fn mark_bound(&self, subject: &mut Subject) -> Result<(), kube::Error> {
        let spec = subject
            .volume
            .as_ref()
            .and_then(|volume| volume.spec.as_ref());
        let status = json!({
            "phase": "Bound",
            "accessModes": spec.and_then(|spec| spec.access_modes.clone()),
            "capacity": spec.and_then(|spec| spec.capacity.clone()),
        });
        self.patch_claim_status(subject, status).await
    }

    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class_name: &str,
    ) -> Result<PersistentVolume, LookError> {
        let class = self
            .classes
            .named(class_name)
            .ok_or_else(|| LookError::ClassGone(class_name.to_owned()))?;
        let secrets = self
            .secrets(provision::secret(&class, claim, "provisioner"))
            .await?;
        let source = self.source(claim).await?;
        let topology = self.topology(claim).await?;
        // Not once at the start, when the driver may not be up yet: beside making a volume the call costs nothing.
        let call = self.csi.capabilities();
        let limit = self.options.rpc_timeout;
        let capabilities = within(limit, "ControllerGetCapabilities", call).await?;
        let request = provision::request(claim, &class, capabilities, source, topology, secrets)?;
        tracing::info!(
            volume.name = request.name,
            bytes = request.bytes_required,
            "a volume is made for the claim"
        );
        let call = self.csi.create(request);
        let created = within(self.options.rpc_timeout, "CreateVolume", call).await?;
        let driver = &self.options.driver;
        let object = provision::persistent_volume(claim, &class, driver, &created)?;
        let object: PersistentVolume =
            serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = match api.create(&PostParams::default(), &object).await {
            Ok(volume) => volume,
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                api.get(&object.name_any()).await?
            }
            Err(error) => return Err(error.into()),
        };
        let message = format!("Successfully provisioned volume {}", volume.name_any());
        let about = claim.object_ref(&());
        self.recorder
            .record(&about, EventKind::Normal, "ProvisioningSucceeded", &message)
            .await;
        Ok(volume)
    }

    pub(super) async fn secrets(
        &self,
        secret: Option<(String, String)>,
    ) -> Result<Secrets, LookError> {
        let Some((namespace, name)) = secret else {
            return Ok(Secrets::default());
        };
        let found = read_secret(&self.client, &namespace, &name).await?;
        found.ok_or(LookError::SecretMissing { namespace, name })
    }

    /// What the new volume is filled from.
    async fn source(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<ContentSource>, LookError> {
        let source = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.data_source.as_ref());
        let Some(source) = source else {
            return Ok(None);
        };
        let missing = || LookError::SourceMissing(format!("{} {}", source.kind, source.name));
        let namespace = claim.namespace().unwrap_or_default();
        match source.kind.as_str() {
            "PersistentVolumeClaim" => {
                let source = self.claims.get(&Key::new(&namespace, &source.name));
                let volume = source
                    .as_deref()
                    .and_then(named_volume)
                    .and_then(|name| self.volumes.named(name));
                let handle = volume
                    .and_then(|volume| volume.spec.clone()?.csi)
                    .map(|csi| csi.volume_handle);
                Ok(Some(ContentSource::Volume(handle.ok_or_else(missing)?)))
            }
            "VolumeSnapshot" => {
                let api: Api<VolumeSnapshot> = Api::namespaced(self.client.clone(), &namespace);
                let snapshot = api.get_opt(&source.name).await?.ok_or_else(missing)?;
                let content = snapshot
                    .status
                    .map(|status| status.bound_volume_snapshot_content_name)
                    .filter(|name| !name.is_empty())
                    .ok_or_else(missing)?;
                let api: Api<VolumeSnapshotContent> = Api::all(self.client.clone());
                let content = api.get_opt(&content).await?.ok_or_else(missing)?;
                let handle = content
                    .status
                    .and_then(|status| status.snapshot_handle)
                    .filter(|handle| !handle.is_empty())
                    .ok_or_else(missing)?;
                Ok(Some(ContentSource::Snapshot(handle)))
            }
            _ => Err(missing()),
        }
    }

    /// Where the first user is, in the words of the driver's topology.
    async fn topology(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<BTreeMap<String, String>, kube::Error> {
        let Some(node) = claim.annotations().get(SELECTED_NODE) else {
            return Ok(BTreeMap::new());
        };
        let csi_node = Api::<CSINode>::all(self.client.clone())
            .get_opt(node)
            .await?;
        let keys = csi_node.and_then(|csi_node| {
            let mut drivers = csi_node.spec.drivers.into_iter();
            let driver = drivers.find(|driver| driver.name == self.options.driver)?;
            driver.topology_keys
        });
        let Some(keys) = keys.filter(|keys| !keys.is_empty()) else {
            return Ok(BTreeMap::new());
        };
        let node = Api::<Node>::all(self.client.clone()).get_opt(node).await?;
        let labels = node.map(|node| node.labels().clone()).unwrap_or_default();
        Ok(keys
            .into_iter()
            .filter_map(|key| labels.get(&key).map(|value| (key.clone(), value.clone())))
            .collect())
    }
}
