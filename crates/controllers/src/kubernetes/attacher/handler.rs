//! One look at one VolumeAttachment: decide, do, write down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster_core::attacher::{
    AttacherView, AttachmentPatch, Capabilities, PublishRequest, RpcError, SecretState, Step,
    UnpublishRequest, VolumePatch, after_publish, after_unpublish, next_step,
    volume_finalizer_to_remove,
};
use cluster_core::{AttachmentName, DriverName, ErrorReport, PvName, truncate_message, wire};
use events::sentence;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use tracing::Instrument as _;

use super::patches::{self, Target};
use super::refused::Refused;
use super::secrets::SecretsFound;
use super::{AttacherOptions, CallMetrics, DETACH};
use crate::kubernetes::cache::Cache;
use crate::kubernetes::csi::{CsiController, Secrets, within};
use crate::kubernetes::now;
use crate::kubernetes::queue::Outcome;

/// Finalizer of the volume, finalizer of the attachment, the call; and room for lost races.
const STEPS_MAX: usize = 12;
/// What the driver refuses as wrong in itself is asked again only when something changes, or after this long.
const HOPELESS_RETRY: Duration = Duration::from_secs(300);
/// What the driver refuses until something else has happened first, such as a detach elsewhere. No object here shows when
/// it has, and a pod waits for it: a delay that doubles up to minutes would be most of that wait.
const PRECONDITION_RETRY: Duration = Duration::from_secs(5);

pub(super) struct Handler<C> {
    pub client: Client,
    pub csi: Arc<C>,
    pub driver: DriverName,
    pub capabilities: Capabilities,
    pub options: AttacherOptions,
    pub attachments: Cache<VolumeAttachment>,
    pub volumes: Cache<PersistentVolume>,
    pub csi_nodes: Cache<CSINode>,
    /// Attachments that the driver's list contradicts, to be handled once whatever their status says.
    pub force: Mutex<BTreeSet<String>>,
    pub refused: Refused,
    pub metrics: CallMetrics,
}

/// What one look works on: the newest state that it knows.
pub(super) struct Subject {
    pub name: AttachmentName,
    pub attachment: Arc<VolumeAttachment>,
    pub volume: Option<Arc<PersistentVolume>>,
    pub csi_node: Option<Arc<CSINode>>,
    pub force_sync: bool,
    pub known: Known,
}

/// How new that is what a look works on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    /// As the watches show it.
    Watched,
    /// The attachment was read from the API just now.
    AttachmentRead,
    /// The volume and the node too.
    AllRead,
}

impl Known {
    /// What a step has to rest on.
    fn needed_by(step: &Step, subject: &Subject) -> Self {
        let names_volume = subject
            .attachment
            .spec
            .source
            .persistent_volume_name
            .is_some();
        match step {
            // Watches do not keep step with each other: what seems to be missing may be on its way.
            Step::Fail(_) => Self::AllRead,
            Step::Publish(_) | Step::Unpublish(_) if names_volume && subject.volume.is_none() => {
                Self::AllRead
            }
            // What is asked of the driver is decided by what the API says now. The watch may not show yet that it was done, or
            // that another attachment has the same name by now. As long as it is the same one, so are its volume and its node.
            Step::Publish(_) | Step::Unpublish(_) => Self::AttachmentRead,
            // The API compares what it is asked to write over.
            Step::Nothing(_)
            | Step::MarkAttached
            | Step::AddVolumeFinalizer(_)
            | Step::AddAttachmentFinalizer { .. } => Self::Watched,
        }
    }
}

/// Why a write did not happen.
pub(super) enum WriteError {
    Gone,
    /// Somebody else has written meanwhile.
    Conflict,
    Failed(kube::Error),
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.is_not_found() => WriteError::Gone,
            kube::Error::Api(status) if status.is_conflict() || is_of_another(status) => {
                WriteError::Conflict
            }
            _ => WriteError::Failed(error),
        }
    }
}

impl<C: CsiController> Handler<C> {
    pub(super) async fn look(self: Arc<Self>, name: String, lane: usize) -> Outcome {
        let direction = if lane == DETACH { "detach" } else { "attach" };
        let span = tracing::info_span!("attacher", attachment.name = %name, direction);
        async move {
            let Some(attachment) = self.attachments.named(&name) else {
                return Outcome::Done;
            };
            if attachment.metadata.deletion_timestamp.is_some() {
                self.refused.forget(&name);
            }
            let force_sync = self.force.lock().expect("no holder panics").remove(&name);
            let subject = Subject {
                name: AttachmentName::new(name),
                volume: self.volume_of(&attachment),
                csi_node: self.csi_nodes.named(&attachment.spec.node_name),
                attachment,
                force_sync,
                known: Known::Watched,
            };
            self.work(subject).await
        }
        .instrument(span)
        .await
    }

    async fn work(&self, mut subject: Subject) -> Outcome {
        for _ in 0..STEPS_MAX {
            let secrets = match self.secrets(&subject).await {
                Ok(secrets) => secrets,
                Err(error) => return failed_to_reach(&error),
            };
            let step = self.next(&subject, &secrets);
            tracing::debug!(?step, "decided");
            let needed = Known::needed_by(&step, &subject);
            if subject.known < needed {
                match self.read_again(&mut subject, needed).await {
                    Ok(true) => continue,
                    Ok(false) => return Outcome::Done,
                    Err(error) => return failed_to_reach(&error),
                }
            }
            let written = what_is_written(&step);
            let done = match step {
                Step::Nothing(_) => return Outcome::Done,
                Step::MarkAttached => {
                    let metadata = BTreeMap::new();
                    self.write(&subject.attachment, &AttachmentPatch::Attached { metadata })
                        .await
                        .map(|_| Some(Outcome::Done))
                }
                Step::AddVolumeFinalizer(patch) => self.patch_volume(&mut subject, &patch).await,
                Step::AddAttachmentFinalizer {
                    finalizers,
                    annotations,
                } => self.hold(&mut subject, &finalizers, &annotations).await,
                Step::Publish(request) => {
                    let volume = subject.volume.as_ref();
                    let left = self.refused.left(&subject.attachment, volume, &request);
                    if let Some(left) = left.filter(|_| !subject.force_sync) {
                        return Outcome::Again(left);
                    }
                    let secrets = secrets.for_call(request.secret.as_ref());
                    return self.publish(&subject, request, secrets).await;
                }
                Step::Unpublish(request) => {
                    let secrets = secrets.for_call(request.secret.as_ref());
                    return self.unpublish(subject, request, secrets).await;
                }
                Step::Fail(error) => return self.fail(&subject, &sentence(&error)).await,
            };
            match done {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(WriteError::Gone) => return Outcome::Done,
                Err(WriteError::Conflict) => {
                    match self.read_again(&mut subject, Known::AllRead).await {
                        Ok(true) => {}
                        Ok(false) => return Outcome::Done,
                        Err(error) => return failed_to_reach(&error),
                    }
                }
                Err(WriteError::Failed(kube::Error::Api(status))) => {
                    let message = format!("{written} could not be written: {}", status.message);
                    return self.fail(&subject, &message).await;
                }
                Err(WriteError::Failed(error)) => return failed_to_reach(&error),
            }
        }
        tracing::warn!("the objects changed faster than they could be prepared; trying again");
        Outcome::Failed
    }

    fn next(&self, subject: &Subject, secrets: &SecretsFound) -> Step {
        let attachment = wire::attachment(&subject.attachment);
        let volume = subject.volume.as_deref().and_then(wire::persistent_volume);
        let csi_node = subject
            .csi_node
            .as_deref()
            .and_then(|node| wire::csi_node(node).remove(&self.driver));
        next_step(&AttacherView {
            driver: &self.driver,
            name: &subject.name,
            attachment: &attachment,
            volume: volume.as_ref(),
            csi_node: csi_node.as_ref(),
            secret: match secrets {
                SecretsFound::Present(_) => SecretState::Present,
                SecretsFound::Missing => SecretState::Missing,
                SecretsFound::Refused(why) => SecretState::Unreadable(why),
            },
            capabilities: self.capabilities,
            force_sync: subject.force_sync,
            default_fs_type: &self.options.default_fs_type,
        })
    }

    fn volume_of(&self, attachment: &VolumeAttachment) -> Option<Arc<PersistentVolume>> {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        self.volumes.named(name)
    }

    async fn secrets(&self, subject: &Subject) -> Result<SecretsFound, kube::Error> {
        let volume = subject.volume.as_deref().and_then(wire::persistent_volume);
        match volume.and_then(|volume| volume.publish_secret) {
            None => Ok(SecretsFound::Present(Secrets::default())),
            Some((namespace, name)) => SecretsFound::read(&self.client, &namespace, &name).await,
        }
    }

    /// False when the attachment is gone.
    async fn read_again(&self, subject: &mut Subject, known: Known) -> Result<bool, kube::Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let Some(attachment) = api.get_opt(subject.name.as_str()).await? else {
            return Ok(false);
        };
        let is_other = attachment.metadata.uid != subject.attachment.metadata.uid;
        subject.attachment = Arc::new(attachment);
        subject.known = if is_other { Known::AllRead } else { known };
        if subject.known == Known::AllRead {
            if let Some(name) = &subject.attachment.spec.source.persistent_volume_name {
                let api: Api<PersistentVolume> = Api::all(self.client.clone());
                subject.volume = api.get_opt(name).await?.map(Arc::new);
            }
            let api: Api<CSINode> = Api::all(self.client.clone());
            let node = &subject.attachment.spec.node_name;
            subject.csi_node = api.get_opt(node).await?.map(Arc::new);
        }
        Ok(true)
    }

    async fn patch_volume(
        &self,
        subject: &mut Subject,
        patch: &VolumePatch,
    ) -> Result<Option<Outcome>, WriteError> {
        let Some(volume) = &subject.volume else {
            return Ok(None);
        };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let patch: Patch<()> = Patch::Json(patches::of_volume(patch));
        let patched = api
            .patch(&volume.name_any(), &PatchParams::default(), &patch)
            .await;
        match patched.map_err(WriteError::from) {
            Ok(patched) => subject.volume = Some(Arc::new(patched)),
            // The decision's sentence about a missing volume is better than ours.
            Err(WriteError::Gone) => subject.volume = None,
            // A JSON patch whose test fails is called invalid: the list was not what we thought.
            Err(WriteError::Failed(kube::Error::Api(status))) if status.code == 422 => {
                return Err(WriteError::Conflict);
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    async fn hold(
        &self,
        subject: &mut Subject,
        finalizers: &[String],
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<Outcome>, WriteError> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let patch = patches::of_metadata(&subject.attachment, finalizers, annotations);
        let patched = api
            .patch(
                subject.name.as_str(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await?;
        subject.attachment = Arc::new(patched);
        subject.known = subject.known.max(Known::AttachmentRead);
        Ok(None)
    }

    async fn publish(
        &self,
        subject: &Subject,
        request: PublishRequest,
        secrets: Secrets,
    ) -> Outcome {
        let (method, started) = ("ControllerPublishVolume", Instant::now());
        let (volume, node) = (request.handle.clone(), request.node_id.clone());
        let call = self.csi.publish(request.clone(), secrets);
        let answer = within(self.options.rpc_timeout, method, call).await;
        let took = started.elapsed();
        self.metrics.observe(&self.driver, method, took, &answer);
        let outcome = match &answer {
            Ok(_) => {
                tracing::info!(volume.name = %volume, node.name = %node, ?took, "attached");
                self.refused.forget(subject.name.as_str());
                Outcome::Done
            }
            Err(error) => {
                tracing::warn!(volume.name = %volume, node.name = %node, error = %error, final_error = error.is_final(), "the driver did not attach");
                let retry = retry_of(error);
                if retry == Outcome::Again(HOPELESS_RETRY) {
                    let volume = subject.volume.as_ref();
                    let attachment = &subject.attachment;
                    self.refused
                        .note(attachment, volume, request, HOPELESS_RETRY);
                }
                retry
            }
        };
        let metadata = match &answer {
            Ok(metadata) => Ok(metadata.clone()),
            Err(error) => Err(error),
        };
        let patch = after_publish(metadata, now());
        self.write_down(subject, &[patch], outcome).await
    }

    async fn unpublish(
        &self,
        subject: Subject,
        request: UnpublishRequest,
        secrets: Secrets,
    ) -> Outcome {
        let (method, started) = ("ControllerUnpublishVolume", Instant::now());
        let (volume, node) = (request.handle.clone(), request.node_id.clone());
        let call = self.csi.unpublish(request, secrets);
        let answer = within(self.options.rpc_timeout, method, call).await;
        let took = started.elapsed();
        self.metrics.observe(&self.driver, method, took, &answer);
        let outcome = match &answer {
            Ok(()) => {
                tracing::info!(volume.name = %volume, node.name = %node, ?took, "detached");
                Outcome::Done
            }
            Err(error) => {
                tracing::warn!(volume.name = %volume, node.name = %node, error = %error, "the driver did not detach");
                retry_of(error)
            }
        };
        let attachment = wire::attachment(&subject.attachment);
        let error = answer.as_ref().err().map_or(Ok(()), Err);
        let patches = after_unpublish(&self.driver, &attachment, error, now());
        self.write_down(&subject, &patches, outcome).await
    }

    async fn fail(&self, subject: &Subject, message: &str) -> Outcome {
        let error = ErrorReport {
            message: truncate_message(message).to_owned(),
            at: now(),
            code: None,
        };
        let live = wire::attachment(&subject.attachment);
        let (told, patch) = if live.deleting {
            (
                live.detach_error,
                AttachmentPatch::DetachFailed {
                    error: error.clone(),
                },
            )
        } else {
            (
                live.attach_error,
                AttachmentPatch::AttachFailed {
                    error: error.clone(),
                },
            )
        };
        tracing::warn!(
            error = message,
            "cannot be handled yet; trying again when something changes, or later"
        );
        if told.is_some_and(|told| told.message == error.message) {
            return Outcome::Failed;
        }
        self.write_down(subject, &[patch], Outcome::Failed).await
    }

    /// Lays a patch over an attachment, as it was when it was last read.
    pub(super) async fn write(
        &self,
        live: &VolumeAttachment,
        patch: &AttachmentPatch,
    ) -> Result<VolumeAttachment, WriteError> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let (target, body) = patches::of_attachment(patch, live);
        let (name, parameters) = (live.name_any(), PatchParams::default());
        let body = Patch::Merge(body);
        let patched = match target {
            Target::Object => api.patch(&name, &parameters, &body).await,
            Target::Status => api.patch_status(&name, &parameters, &body).await,
        };
        Ok(patched?)
    }

    /// Lets a PersistentVolume go that is being deleted and that no attachment names.
    pub(super) async fn release_volume(self: Arc<Self>, name: String) -> Outcome {
        let span = tracing::info_span!("attacher", volume.name = %name);
        async move {
            let Some(object) = self.volumes.named(&name) else {
                return Outcome::Done;
            };
            let Some(volume) = wire::persistent_volume(&object) else {
                return Outcome::Done;
            };
            let naming = self.attachments.all().into_iter().filter(|attachment| {
                attachment.spec.source.persistent_volume_name.as_deref() == Some(&name)
            });
            let attachments = naming
                .map(|attachment| {
                    (
                        wire::attachment_key(&attachment),
                        wire::attachment(&attachment),
                    )
                })
                .collect();
            let pv = PvName::from(name.as_str());
            let Some(patch) = volume_finalizer_to_remove(&self.driver, &pv, &volume, &attachments)
            else {
                return Outcome::Done;
            };
            let mut subject = Subject {
                name: AttachmentName::from(""),
                attachment: Arc::default(),
                volume: Some(object),
                csi_node: None,
                force_sync: false,
                known: Known::Watched,
            };
            match self.patch_volume(&mut subject, &patch).await {
                Ok(_) | Err(WriteError::Gone) => Outcome::Done,
                // The list has moved; the watch will show it, and if it is lost the delay will.
                Err(WriteError::Conflict) => Outcome::Failed,
                Err(WriteError::Failed(error)) => failed_to_reach(&error),
            }
        }
        .instrument(span)
        .await
    }
}

/// When to ask again. Requests that are wrong in themselves do not become right by being repeated.
fn retry_of(error: &RpcError) -> Outcome {
    match error.code {
        // Invalid argument, permission denied, out of range, unimplemented, unauthenticated.
        3 | 7 | 11 | 12 | 16 => Outcome::Again(HOPELESS_RETRY),
        9 => Outcome::Again(PRECONDITION_RETRY),
        _ => Outcome::Failed,
    }
}

/// Was the patch made for an object whose name has another by now? Its uid is then called a change of the uid, which is
/// invalid.
fn is_of_another(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422
        && causes
            .into_iter()
            .any(|cause| cause.field == "metadata.uid")
}

/// What a step writes before the driver is asked, as the beginning of a sentence.
fn what_is_written(step: &Step) -> &'static str {
    match step {
        Step::AddVolumeFinalizer(_) => "the finalizer of the PersistentVolume",
        Step::AddAttachmentFinalizer { .. } => "the finalizer of the attachment",
        Step::MarkAttached
        | Step::Nothing(_)
        | Step::Publish(_)
        | Step::Unpublish(_)
        | Step::Fail(_) => "the status",
    }
}

/// Neither done nor said: an API that takes no request takes no error report either.
pub(super) fn failed_to_reach(error: &kube::Error) -> Outcome {
    tracing::warn!(error = %error, "the API did not take a request; trying again later");
    Outcome::Failed
}

#[cfg(test)]
mod tests {
    use cluster_core::attacher::StepError;

    use super::*;

    #[test]
    fn a_call_rests_on_a_fresh_attachment_and_on_all_where_something_is_missing() {
        let unpublish = || {
            Step::Unpublish(UnpublishRequest {
                handle: "v".into(),
                node_id: "n".to_owned(),
                secret: None,
            })
        };
        let check = |named: bool, present: bool, step: Step, expected: Known| {
            let mut attachment = VolumeAttachment::default();
            let name = named.then(|| "pv".to_owned());
            attachment.spec.source.persistent_volume_name = name;
            let subject = Subject {
                name: AttachmentName::from("va"),
                attachment: Arc::new(attachment),
                volume: present.then(Arc::default),
                csi_node: None,
                force_sync: false,
                known: Known::Watched,
            };
            assert!(Known::needed_by(&step, &subject) == expected, "{step:?}");
        };
        check(true, true, unpublish(), Known::AttachmentRead);
        check(true, false, unpublish(), Known::AllRead);
        check(false, false, unpublish(), Known::AttachmentRead);
        check(true, true, Step::MarkAttached, Known::Watched);
        let missing = StepError::VolumeMissing(PvName::from("pv"));
        check(true, false, Step::Fail(missing), Known::AllRead);
    }

    #[test]
    fn a_call_is_repeated_as_soon_as_that_may_help() {
        let check = |code: i32, expected: Outcome| {
            let message = String::new();
            assert_eq!(retry_of(&RpcError { code, message }), expected, "{code}");
        };
        for open in [4, 8, 10, 13, 14] {
            check(open, Outcome::Failed);
        }
        check(9, Outcome::Again(PRECONDITION_RETRY));
        check(3, Outcome::Again(HOPELESS_RETRY));
    }
}
