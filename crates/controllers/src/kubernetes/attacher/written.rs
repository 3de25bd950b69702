//! What the driver has answered is written on the attachment, whatever happens to that meanwhile.

use std::sync::Arc;
use std::time::Duration;

use cluster_core::attacher::AttachmentPatch;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, ResourceExt as _};

use super::handler::{Handler, Subject, WriteError, failed_to_reach};
use crate::kubernetes::csi::CsiController;
use crate::kubernetes::queue::Outcome;

/// Between two attempts to write the result of a call.
const PATCH_RETRY_FIRST: Duration = Duration::from_millis(50);
const PATCH_RETRY_LONGEST: Duration = Duration::from_secs(2);

impl<C: CsiController> Handler<C> {
    /// Writes the result of a call. It has its own time: a call that used up its own must not be made again
    /// just because nobody wrote down that it had succeeded.
    pub(super) async fn write_down(
        &self,
        subject: &Subject,
        patches: &[AttachmentPatch],
        outcome: Outcome,
    ) -> Outcome {
        let writing = async {
            for patch in patches {
                match self.write_until_done(subject, patch).await {
                    Ok(true) => {}
                    Ok(false) => return outcome,
                    Err(error) => return failed_to_reach(&error),
                }
            }
            outcome
        };
        match tokio::time::timeout(self.options.patch_timeout, writing).await {
            Ok(outcome) => outcome,
            Err(_) => {
                tracing::warn!(
                    "the API did not take the result of a call in time; the call will be made again, which is harmless"
                );
                Outcome::Failed
            }
        }
    }

    /// False when the object is gone.
    async fn write_until_done(
        &self,
        subject: &Subject,
        patch: &AttachmentPatch,
    ) -> Result<bool, kube::Error> {
        let mut delay = PATCH_RETRY_FIRST;
        let mut live = Arc::clone(&subject.attachment);
        let mut patch = patch.clone();
        // The caller's deadline ends this.
        loop {
            match self.write(&live, &patch).await {
                Ok(patched) => return Ok(!is_let_go(&patched)),
                Err(WriteError::Gone) => return Ok(false),
                Err(WriteError::Conflict) => {
                    let api: Api<VolumeAttachment> = Api::all(self.client.clone());
                    let Some(fresh) = api.get_opt(subject.name.as_str()).await? else {
                        return Ok(false);
                    };
                    if fresh.metadata.uid != subject.attachment.metadata.uid {
                        return Ok(false);
                    }
                    if let AttachmentPatch::Finalizers { finalizers } = &mut patch {
                        let own = cluster_core::names::finalizer_name(&self.driver);
                        *finalizers = fresh.finalizers().to_vec();
                        finalizers.retain(|other| *other != own);
                    }
                    live = Arc::new(fresh);
                    tokio::time::sleep(PATCH_RETRY_FIRST).await;
                }
                Err(WriteError::Failed(error)) if is_refusal(&error) => return Err(error),
                Err(WriteError::Failed(error)) => {
                    tracing::debug!(error = %error, "the result could not be written; trying again");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(PATCH_RETRY_LONGEST);
                }
            }
        }
    }
}

/// Whether an object went with what was just written: nobody holds it any more.
fn is_let_go(attachment: &VolumeAttachment) -> bool {
    attachment.metadata.deletion_timestamp.is_some() && attachment.finalizers().is_empty()
}

/// Did the API understand and refuse, so that the same again would be refused again?
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}
