//! One look at a volume: its phase, its protection, and its end.

use std::sync::Arc;

use cluster_core::VolumeHandle;
use events::{EventKind, sentence};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource, ResourceExt as _};
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::decide::{VOLUME_PROTECTION, VolumeStep, decide_volume};
use super::handler::{Handler, LookError, STEPS_MAX};
use super::provision;
use crate::kubernetes::cache::Key;
use crate::kubernetes::csi::{CsiController, within};
use crate::kubernetes::queue::Outcome;

impl<C: CsiController> Handler<C> {
    pub(super) async fn look_at_volume(self: Arc<Self>, name: String) -> Outcome {
        let span = tracing::info_span!("binder", volume.name = %name);
        async move {
            let Some(volume) = self.volumes.named(&name) else {
                return Outcome::Done;
            };
            match self.work_on_volume((*volume).clone()).await {
                Ok(()) => Outcome::Done,
                Err(LookError::Api(kube::Error::Api(status)))
                    if status.is_not_found() || status.is_conflict() =>
                {
                    Outcome::Failed
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the volume cannot be settled yet; trying again later"
                    );
                    let about = volume.object_ref(&());
                    let message = sentence(&error);
                    self.recorder
                        .record(&about, EventKind::Warning, "VolumeFailedDelete", &message)
                        .await;
                    Outcome::Failed
                }
            }
        }
        .instrument(span)
        .await
    }

    async fn work_on_volume(&self, mut volume: PersistentVolume) -> Result<(), LookError> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let (name, parameters) = (volume.name_any(), PatchParams::default());
        let mut is_live = false;
        for _ in 0..STEPS_MAX {
            let claim = self.claim_of(&volume).await?;
            let is_attached = self.attachments.all().iter().any(|attachment| {
                attachment.spec.source.persistent_volume_name.as_deref() == Some(&name)
            });
            let driver = &self.options.driver;
            let step = decide_volume(&volume, claim.as_ref(), is_attached, driver);
            tracing::debug!(?step, "decided");
            match step {
                VolumeStep::Nothing | VolumeStep::WaitForDetach => return Ok(()),
                VolumeStep::AddProtection => {
                    let mut finalizers = volume.finalizers().to_vec();
                    finalizers.push(VOLUME_PROTECTION.to_owned());
                    let patch = finalizers_patch(&volume, &finalizers);
                    volume = api.patch(&name, &parameters, &patch).await?;
                }
                VolumeStep::RemoveProtection => {
                    return Ok(self.unprotect(&api, &volume).await?);
                }
                VolumeStep::SetPhase(phase) => {
                    let patch = Patch::Merge(json!({"status": {"phase": phase}}));
                    volume = api.patch_status(&name, &parameters, &patch).await?;
                }
                VolumeStep::Destroy if is_live => return self.destroy(&api, volume).await,
                // Data is deleted only by what the API says now: the watch may show a volume that is
                // as good as gone, or not show who has it.
                VolumeStep::Destroy => match api.get_opt(&name).await? {
                    Some(live) if live.uid() == volume.uid() => {
                        volume = live;
                        is_live = true;
                    }
                    Some(_) | None => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// The claim that the volume's reference means, if it is still the same one. That it is gone is believed
    /// only when the API says so: data depends on it.
    async fn claim_of(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<PersistentVolumeClaim>, kube::Error> {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
        let Some(ObjectReference {
            namespace: Some(namespace),
            name: Some(name),
            uid: Some(uid),
            ..
        }) = reference
        else {
            return Ok(None);
        };
        let is_same = |claim: &PersistentVolumeClaim| claim.uid().as_deref() == Some(&uid);
        if let Some(claim) = self.claims.get(&Key::new(&namespace, &name))
            && is_same(&claim)
        {
            return Ok(Some((*claim).clone()));
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        Ok(api.get_opt(&name).await?.filter(is_same))
    }

    async fn destroy(
        &self,
        api: &Api<PersistentVolume>,
        volume: PersistentVolume,
    ) -> Result<(), LookError> {
        let secrets = self.secrets(provision::deletion_secret(&volume)).await?;
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let handle = csi.map(|csi| csi.volume_handle.clone()).unwrap_or_default();
        let call = self.csi.delete(VolumeHandle::new(handle), secrets);
        within(self.options.rpc_timeout, "DeleteVolume", call).await?;
        tracing::info!("the volume's data is deleted");
        let name = volume.name_any();
        if volume.metadata.deletion_timestamp.is_none() {
            let parameters = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: volume.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match api.delete(&name, &parameters).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.unprotect(api, &volume).await?)
    }

    /// Takes our finalizer off. Others take theirs off at the same time, so losing a race is ordinary; giving up
    /// would delete the data once more.
    async fn unprotect(
        &self,
        api: &Api<PersistentVolume>,
        volume: &PersistentVolume,
    ) -> Result<(), kube::Error> {
        let name = volume.name_any();
        let mut lost = None;
        for _ in 0..STEPS_MAX {
            let live = match api.get_opt(&name).await? {
                Some(live) if live.uid() == volume.uid() => live,
                Some(_) | None => return Ok(()),
            };
            let mut finalizers = live.finalizers().to_vec();
            finalizers.retain(|finalizer| finalizer != VOLUME_PROTECTION);
            let patch = finalizers_patch(&live, &finalizers);
            match api.patch(&name, &PatchParams::default(), &patch).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    lost = Some(kube::Error::Api(status));
                }
                Err(error) => return Err(error),
            }
        }
        lost.map_or(Ok(()), Err)
    }
}

fn finalizers_patch(volume: &PersistentVolume, finalizers: &[String]) -> Patch<Value> {
    let version = volume.resource_version();
    Patch::Merge(json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}}))
}
