//! The two things one does to a pod that are not writes of the pod: bind it and evict it.

use serde_json::{Value, json};

use super::{Call, DeleteOptions, Outcome};
use crate::core::{CONFLICT_RETRIES_MAX, read_stored};
use crate::field_error::FieldError;
use crate::object;
use crate::status::ApiError;

impl Call {
    /// POST `pods/NAME/binding`: a scheduler's decision, final.
    pub(super) async fn bind_pod(&self, binding: &Value) -> Result<Outcome, ApiError> {
        let subject = self.resource.subject(self.name());
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        if node.is_empty() {
            return Err(ApiError::invalid(
                &subject,
                &[FieldError::required("target.name", "")],
            ));
        }
        let call = Call {
            subresource: None,
            ..self.clone()
        };
        for _ in 0..CONFLICT_RETRIES_MAX {
            let stored = self
                .core
                .get(&self.resource, self.namespace.as_deref(), self.name())
                .ok_or_else(|| ApiError::not_found(&subject))?;
            let live = read_stored(&self.resource, &stored);
            if let Some(bound) = live["spec"]["nodeName"]
                .as_str()
                .filter(|bound| !bound.is_empty())
            {
                return Err(ApiError::conflict(
                    &subject,
                    format!("pod {} is already assigned to node {bound:?}", self.name()),
                ));
            }
            if object::is_deleting(&live) {
                return Err(ApiError::conflict(
                    &subject,
                    format!(
                        "pod {} is being deleted, cannot be assigned to a host",
                        self.name()
                    ),
                ));
            }
            let mut new = live.clone();
            new["spec"]["nodeName"] = node.into();
            mark_scheduled(&mut new, &self.core.now());
            if call.commit(&stored, &live, new).await?.is_some() {
                return Ok(Outcome {
                    code: 201,
                    own_kind: false,
                    ..Outcome::ok(success(), vec![])
                });
            }
        }
        Err(ApiError::modified(&subject))
    }

    /// POST `pods/NAME/eviction`: a delete that a disruption budget could refuse; there are none here.
    pub(super) async fn evict_pod(&self, eviction: &Value) -> Result<Outcome, ApiError> {
        let options = DeleteOptions::parse(&eviction["deleteOptions"])?;
        let call = Call {
            subresource: None,
            ..self.clone()
        };
        call.delete(&options).await?;
        Ok(Outcome {
            code: 201,
            own_kind: false,
            ..Outcome::ok(success(), vec![])
        })
    }
}

fn mark_scheduled(pod: &mut Value, now: &str) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
    });
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
}

fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}
