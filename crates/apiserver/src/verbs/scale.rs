//! `/scale`: the replica count of a workload or a custom resource, as an `autoscaling/v1` Scale.

use serde_json::{Value, json};

use super::{Call, Outcome};
use crate::catalog::ScalePaths;
use crate::core::{CONFLICT_RETRIES_MAX, read_stored};
use crate::field_error::FieldError;
use crate::negotiate::PatchType;
use crate::object;
use crate::status::ApiError;

impl Call {
    pub(super) fn get_scale(&self) -> Result<Outcome, ApiError> {
        let (_, live, paths) = self.scaled()?;
        Ok(Outcome {
            own_kind: false,
            ..Outcome::ok(scale_of(&live, &paths), vec![])
        })
    }

    pub(super) async fn update_scale(&self, scale: &Value) -> Result<Outcome, ApiError> {
        self.write_scale(|_| Ok(scale.clone())).await
    }

    pub(super) async fn patch_scale(
        &self,
        patch_type: PatchType,
        patch: &[u8],
    ) -> Result<Outcome, ApiError> {
        self.write_scale(|current| self.patched(patch_type, current, patch))
            .await
    }

    async fn write_scale(
        &self,
        wanted: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Outcome, ApiError> {
        // The object itself is written, and its status belongs to somebody else.
        let call = Call {
            subresource: None,
            ..self.clone()
        };
        for _ in 0..CONFLICT_RETRIES_MAX {
            let (stored, live, paths) = self.scaled()?;
            let scale = wanted(&scale_of(&live, &paths))?;
            let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if !(0..=i64::from(i32::MAX)).contains(&replicas) {
                let error = FieldError::invalid(
                    "spec.replicas",
                    replicas.into(),
                    "should be a non-negative integer",
                );
                return Err(ApiError::invalid(
                    &self.resource.subject(self.name()),
                    &[error],
                ));
            }
            if let Some(version) = object::resource_version(&scale)
                && version != stored.mod_revision.to_string()
            {
                return Err(ApiError::modified(&self.resource.subject(self.name())));
            }
            let mut new = live.clone();
            set(&mut new, &paths.spec_replicas, replicas.into());
            if let Some(shown) = call.write_over(&stored, &live, new).await? {
                let scale = scale_of(&shown, &paths);
                return Ok(Outcome {
                    own_kind: false,
                    ..Outcome::ok(scale, vec![])
                });
            }
        }
        Err(ApiError::modified(&self.resource.subject(self.name())))
    }

    fn scaled(
        &self,
    ) -> Result<(std::sync::Arc<revision_store::Object>, Value, ScalePaths), ApiError> {
        let paths = self
            .resource
            .subresources
            .scale
            .clone()
            .ok_or_else(ApiError::no_such_path)?;
        let stored = self
            .core
            .get(&self.resource, self.namespace.as_deref(), self.name())
            .ok_or_else(|| ApiError::not_found(&self.resource.subject(self.name())))?;
        let live = read_stored(&self.resource, &stored);
        Ok((stored, live, paths))
    }
}

fn scale_of(live: &Value, paths: &ScalePaths) -> Value {
    let metadata = &live["metadata"];
    let mut status = json!({"replicas": at(live, &paths.status_replicas).as_i64().unwrap_or(0)});
    if let Some(selector) = paths
        .label_selector
        .as_ref()
        .and_then(|path| at(live, path).as_str())
    {
        status["selector"] = selector.into();
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": at(live, &paths.spec_replicas).as_i64().unwrap_or(0)},
        "status": status,
    })
}

fn at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    path.iter()
        .fold(object, |value, field| &value[field.as_str()])
}

/// Sets a field, making the objects on the way to it; a scalar in the way is left alone.
fn set(object: &mut Value, path: &[String], value: Value) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut place = object;
    for field in parents {
        if !place.is_object() && !place.is_null() {
            return;
        }
        place = &mut place[field.as_str()];
    }
    if place.is_object() || place.is_null() {
        place[last.as_str()] = value;
    }
}
