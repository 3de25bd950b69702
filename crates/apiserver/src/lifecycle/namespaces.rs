//! Namespaces and CRDs go in two steps: first what is in them, then they themselves.

use std::collections::BTreeSet;
use std::sync::Arc;

use revision_store::{Event, Object as Stored, Range};
use serde_json::Value;

use super::delete;
use crate::catalog::{Resource, custom};
use crate::core::{Core, read_error, read_stored};
use crate::crd;
use crate::object::{self, CRD_CLEANUP_FINALIZER, NAMESPACE_FINALIZER};
use crate::status::ApiError;
use crate::verbs::DeleteOptions;

/// Namespaces and CRDs that are being deleted: usually none, and then nothing here costs anything.
#[derive(Debug, Default)]
pub(super) struct Parents {
    deleting: BTreeSet<Arc<str>>,
    failed: bool,
}

impl Parents {
    pub(super) fn note(&mut self, stored: &Stored) {
        let parent = stored.key.starts_with("/registry/core/namespaces/")
            || stored
                .key
                .starts_with("/registry/apiextensions.k8s.io/customresourcedefinitions/");
        if parent && memchr::memmem::find(&stored.value, b"\"deletionTimestamp\"").is_some() {
            self.deleting.insert(stored.key.clone());
        }
    }

    pub(super) fn observe(&mut self, event: &Event) {
        match event.object() {
            Some(stored) => self.note(stored),
            None => {
                self.deleting.remove(event.key());
            }
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Takes every parent as far as it will go now.
    pub(super) async fn settle(&mut self, core: &Arc<Core>) {
        self.failed = false;
        for key in &self.deleting {
            let Some(stored) = core.store.get(key) else {
                continue;
            };
            let Some((resource, object)) = super::read_key(&core.catalog(), &stored) else {
                continue;
            };
            let settled = if resource.kind == "Namespace" {
                settle_namespace(core, &resource, &stored, &object).await
            } else {
                settle_definition(core, &resource, &stored, &object).await
            };
            if let Err(error) = settled {
                tracing::warn!(object.key = %key, %error, "a deletion is not finished; it will be tried again");
                self.failed = true;
            }
        }
    }
}

fn has_server_finalizer(namespace: &Value) -> bool {
    let finalizers = namespace["spec"]["finalizers"].as_array();
    finalizers
        .into_iter()
        .flatten()
        .any(|finalizer| finalizer == NAMESPACE_FINALIZER)
}

async fn settle_namespace(
    core: &Arc<Core>,
    namespaces: &Arc<Resource>,
    stored: &Stored,
    live: &Value,
) -> Result<(), ApiError> {
    if !has_server_finalizer(live) {
        return Ok(());
    }
    let name = object::name(live);
    let catalog = core.catalog();
    let mut left = 0;
    for resource in catalog.stored().filter(|resource| resource.namespaced) {
        left += empty(core, resource, &resource.key_prefix_in(Some(name))).await?;
    }
    if left > 0 {
        return Ok(());
    }
    // Nothing new can come: creates are refused since the namespace was marked.
    let mut emptied = live.clone();
    if let Some(finalizers) = emptied["spec"]["finalizers"].as_array_mut() {
        finalizers.retain(|finalizer| finalizer != NAMESPACE_FINALIZER);
    }
    let call = super::call(core, namespaces, None, name);
    call.commit(stored, live, emptied).await.map(|_| ())
}

async fn settle_definition(
    core: &Arc<Core>,
    definitions: &Arc<Resource>,
    stored: &Stored,
    live: &Value,
) -> Result<(), ApiError> {
    if !crd::awaits_cleanup(live) {
        return Ok(());
    }
    let resources = custom::resources(live);
    if let Some(resource) = resources
        .into_iter()
        .find(|resource| resource.version == resource.storage_version)
    {
        let prefix = resource.key_prefix();
        if empty(core, &Arc::new(resource), &prefix).await? > 0 {
            return Ok(());
        }
    }
    let mut cleaned = live.clone();
    object::remove_finalizer(&mut cleaned, CRD_CLEANUP_FINALIZER);
    cleaned["status"]["conditions"] = terminated(&cleaned["status"]["conditions"]);
    let call = super::call(core, definitions, None, object::name(live));
    call.commit(stored, live, cleaned).await.map(|_| ())
}

/// The conditions without a claim to be served.
fn terminated(conditions: &Value) -> Value {
    let kept = conditions.as_array().into_iter().flatten();
    kept.filter(|condition| condition["type"] != "Established")
        .cloned()
        .collect::<Vec<_>>()
        .into()
}

/// Deletes everything under a prefix that is not being deleted yet; tells how much is still there.
async fn empty(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    prefix: &str,
) -> Result<usize, ApiError> {
    let page = core
        .store
        .range(&Range::prefix(prefix))
        .map_err(read_error)?;
    for stored in &page.objects {
        let object = read_stored(resource, stored);
        if object::is_deleting(&object) {
            continue;
        }
        let (namespace, name) = (object::namespace(&object), object::name(&object));
        // Whoever empties a house does not wait for graceful exits that may never come.
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            ..DeleteOptions::default()
        };
        delete(core, resource, namespace, name, &options).await?;
    }
    Ok(core.store.count(prefix))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cleaned_definition_is_no_longer_established() {
        let conditions = json!([{"type": "Established"}, {"type": "NamesAccepted"}]);
        assert_eq!(terminated(&conditions), json!([{"type": "NamesAccepted"}]));
    }
}
