//! What a node writes down with a volume: that it makes a file system on it, and why it does not mount it.
//!
//! A node may die while it makes one. What it leaves looks like somebody's data, which is never formatted, and the next node would
//! refuse the volume for ever. So it is written down before it is begun, where the next node looks; and the mark is taken away
//! before anything is mounted or published, because one that stayed would let a later call format what is in use.
//!
//! It stays when mkfs fails, and then the volume may go to somebody who attaches it by hand and asks no CSI driver. The attachment
//! controller takes the mark away before he gets it.
//!
//! Why a volume is not mounted becomes an event on it: a kubelet tells the pod alone, and pods come and go.

use std::time::Duration;

use api_types::Volume;
use api_types::names::{self, annotation::MAKING_FILE_SYSTEM, event_reason};
use events::{EventKind, Recorder};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tonic::{Status, async_trait};

/// How long the API may take to answer. Nothing has been done to the volume by then, so that giving up costs nothing.
const API_PATIENCE: Duration = Duration::from_secs(5);
/// Others write to a volume at the same time; this many lost races in a row mean something else.
const ATTEMPTS_MAX: usize = 16;

/// What is written down with a volume. A mark is durable when its call returns.
#[async_trait]
pub trait VolumeNotes: Send + Sync + 'static {
    /// Whether one was begun, on whichever node, and nobody has used the volume since.
    async fn is_begun(&self, volume: &str) -> Result<bool, Status>;

    /// Says that this node begins to make one.
    async fn begin(&self, volume: &str) -> Result<(), Status>;

    /// Says that the volume may be used from now on. There may have been no mark.
    async fn end(&self, volume: &str) -> Result<(), Status>;

    /// Tells whoever looks at the volume why this node does not mount it. Nobody waits for it.
    fn refused(&self, volume: &str, why: &str);
}

/// Marks as annotations of Volumes, which go where the volume goes, and refusals as events.
#[derive(Clone)]
pub struct NotesOnVolumes {
    volumes: Api<Volume>,
    recorder: Recorder,
    node: String,
}

impl NotesOnVolumes {
    /// Notes of this node.
    pub fn new(client: Client, node: impl Into<String>) -> Self {
        let node = node.into();
        Self {
            recorder: Recorder::new(client.clone(), names::DRIVER).on_host(&node),
            volumes: Api::namespaced(client, names::NAMESPACE),
            node,
        }
    }

    /// Writes only while the volume is attached to this node, and only over what was just read: a request that was under way
    /// when the node was fenced, or when its call was given up, changes nothing any more.
    async fn change(&self, volume: &str, mark: Option<&str>) -> Result<(), Status> {
        for _ in 0..ATTEMPTS_MAX {
            let found = answer(volume, self.volumes.get_opt(volume)).await?;
            let Some(object) = found.flatten() else {
                return match mark {
                    Some(_) => Err(Status::not_found(format!("volume {volume} does not exist"))),
                    None => Ok(()),
                };
            };
            let present = object.annotations().get(MAKING_FILE_SYSTEM);
            if present.map(String::as_str) == mark {
                return Ok(());
            }
            if object.spec.node_id != self.node {
                return Err(Status::failed_precondition(format!(
                    "volume {volume} is attached to node {:?}, not to node {}; only the node that has it may format it",
                    object.spec.node_id, self.node
                )));
            }
            let patch = json!({"metadata": {
                "annotations": {MAKING_FILE_SYSTEM: mark},
                "resourceVersion": object.resource_version(),
                "uid": object.uid(),
            }});
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let patched = self.volumes.patch(volume, &parameters, &patch);
            if answer(volume, patched).await?.is_some() {
                return Ok(());
            }
        }
        Err(unavailable(volume, "others change it all the time"))
    }
}

#[async_trait]
impl VolumeNotes for NotesOnVolumes {
    async fn is_begun(&self, volume: &str) -> Result<bool, Status> {
        let found = answer(volume, self.volumes.get_opt(volume)).await?;
        let object = found.flatten();
        Ok(object.is_some_and(|object| object.annotations().contains_key(MAKING_FILE_SYSTEM)))
    }

    async fn begin(&self, volume: &str) -> Result<(), Status> {
        self.change(volume, Some(&self.node)).await
    }

    async fn end(&self, volume: &str) -> Result<(), Status> {
        self.change(volume, None).await
    }

    fn refused(&self, volume: &str, why: &str) {
        let (notes, volume, why) = (self.clone(), volume.to_owned(), why.to_owned());
        tokio::spawn(async move {
            // An event without the volume's identity would not be shown with it.
            let read = notes.volumes.get_opt(&volume);
            let untold = match tokio::time::timeout(API_PATIENCE, read).await {
                Ok(Ok(Some(object))) => {
                    let about = object.object_ref(&());
                    let (kind, reason) = (EventKind::Warning, event_reason::FAILED_MOUNT);
                    return notes.recorder.record(&about, kind, reason, &why).await;
                }
                Ok(Ok(None)) => "it does not exist".to_owned(),
                Ok(Err(error)) => events::sentence(&error),
                Err(_) => "the API has not answered in time".to_owned(),
            };
            tracing::warn!(
                volume.name = volume,
                why,
                error = untold,
                "a refused mount could not be told on its volume"
            );
        });
    }
}

/// What the API says in time; None if somebody else has changed the object meanwhile.
async fn answer<T>(
    volume: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<Option<T>, Status> {
    match tokio::time::timeout(API_PATIENCE, request).await {
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(kube::Error::Api(status))) if status.is_conflict() => Ok(None),
        Ok(Err(error)) => Err(unavailable(volume, &events::sentence(&error))),
        Err(_) => Err(unavailable(volume, "it has not answered in time")),
    }
}

fn unavailable(volume: &str, why: &str) -> Status {
    Status::unavailable(format!(
        "volume {volume}: the API, which knows whether a file system is being made on it, cannot be asked: {why}; nothing is formatted or mounted before it answers"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_is_answered_in_the_apis_own_words() {
        let refused = || {
            let status = kube::core::Status::failure("not by this account", "Forbidden");
            kube::Error::Api(Box::new(status.with_code(403)))
        };
        let answered = answer::<()>("v", async { Err(refused()) }).await;
        let status = answered.expect_err("it is refused");
        let expected = "cannot be asked: not by this account; nothing is formatted";
        assert!(status.message().contains(expected), "{status}");
    }
}
