//! Reading and writing objects of the API.

use std::collections::HashMap;
use std::fmt::Debug;

use api_types::names::FINALIZER;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::merge::difference;

/// The watch's copy of an object, unless our own last write answered with a newer one.
pub fn newest<K>(cached: &K, written: &HashMap<String, K>) -> K
where
    K: Resource<DynamicType = ()> + Clone,
{
    let version = |object: &K| {
        object
            .resource_version()
            .and_then(|version| version.parse::<u64>().ok())
    };
    match written.get(&cached.name_any()) {
        Some(own) if own.uid() == cached.uid() && version(own) > version(cached) => own.clone(),
        _ => cached.clone(),
    }
}

/// Makes `wanted`'s keys of the status what they should be; writes nothing if they are. Gives the object as it is then.
pub async fn patch_status<K>(
    api: &Api<K>,
    object: &K,
    wanted: &Value,
) -> Result<Option<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let current = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    let Some(patch) = difference(&current["status"], wanted) else {
        return Ok(None);
    };
    // The uid makes sure that a namesake is not written to.
    let patch = json!({"metadata": {"uid": object.uid()}, "status": patch});
    let name = object.name_any();
    let patched = api
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match patched {
        Ok(patched) => Ok(Some(patched)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes our finalizer off an object that is being deleted.
pub async fn release<K>(api: &Api<K>, object: &K) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let mut finalizers = object.finalizers().to_vec();
    if !finalizers.iter().any(|name| name == FINALIZER) {
        return Ok(());
    }
    finalizers.retain(|name| name != FINALIZER);
    // The version makes sure that nobody else's finalizer is lost.
    let patch = json!({"metadata": {
        "finalizers": finalizers,
        "resourceVersion": object.resource_version(),
        "uid": object.uid(),
    }});
    let name = object.name_any();
    match api
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
