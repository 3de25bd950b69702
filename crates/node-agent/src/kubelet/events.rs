//! Events on pods, for those who ask why one waits.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::agent::engine_report::cut;

/// Writes events of this node's volume manager.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    node: String,
}

impl Recorder {
    #[must_use]
    pub fn new(client: Client, node: String) -> Self {
        Self { client, node }
    }

    /// Records an event; the same one again raises its count. An event that cannot be written is only logged: nothing
    /// depends on it.
    pub async fn record(&self, pod: &Pod, warning: bool, reason: &str, message: &str) {
        let written = self.write(pod, warning, reason, cut(message)).await;
        if let Err(error) = written {
            tracing::debug!(pod.name = %pod.name_any(), reason, error = &error as &dyn std::error::Error, "cannot record an event");
        }
    }

    async fn write(
        &self,
        pod: &Pod,
        warning: bool,
        reason: &str,
        message: &str,
    ) -> Result<(), kube::Error> {
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let name = event_name(pod, &self.node, reason, message);
        let now = Time(Timestamp::now());
        if let Some(event) = api.get_opt(&name).await? {
            let count = event.count.unwrap_or(1).saturating_add(1);
            let patch = json!({"count": count, "lastTimestamp": now});
            let patched = api
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            return patched.map(drop);
        }
        let mut event = Event {
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                namespace: Some(namespace),
                uid: pod.metadata.uid.clone(),
                ..ObjectReference::default()
            },
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            source: Some(EventSource {
                component: Some("lariat-node".to_owned()),
                host: Some(self.node.clone()),
            }),
            ..Event::default()
        };
        event.metadata.name = Some(name);
        api.create(&PostParams::default(), &event).await.map(drop)
    }
}

/// The same event has the same name, so that it is found again.
fn event_name(pod: &Pod, node: &str, reason: &str, message: &str) -> String {
    let mut hasher = Sha256::new();
    for part in [
        pod.metadata.uid.as_deref().unwrap_or_default(),
        node,
        reason,
        message,
    ] {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let digest = hasher.finalize();
    let hex: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut name = pod.name_any();
    name.truncate(200);
    format!("{name}.{hex}")
}
