//! What the server does by itself: objects whose owner is gone, namespaces and CRDs that are being
//! deleted, events that nobody will read any more.
//!
//! One task follows the whole store, so that each rule sees every change once and in order. Work is
//! decided from the state of the store, never from the event that woke the rule up.

mod events;
mod garbage;
mod namespaces;

use std::sync::Arc;
use std::time::Duration;

use revision_store::{Event, Object as Stored, Range, WatchError};
use serde_json::Value;

use crate::catalog::{Catalog, Resource};
use crate::core::{Core, read_stored};
use crate::status::ApiError;
use crate::verbs::{Call, DeleteOptions, FieldValidation};

/// Old events are looked for this often.
const EVENT_SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// After a failure (a full disk, a lost race) the state is looked at again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs until the store is closed. Failures are logged and tried again: one object that cannot be
/// deleted must not keep others alive.
pub async fn run(core: Arc<Core>) {
    let mut sweep = tokio::time::interval(EVENT_SWEEP_INTERVAL);
    loop {
        // The whole state once, then every change of it.
        let mut garbage = garbage::Garbage::default();
        let mut parents = namespaces::Parents::default();
        let Ok(page) = core.store.range(&Range::prefix(ROOT)) else {
            return;
        };
        for stored in &page.objects {
            garbage.note(stored);
            parents.note(stored);
        }
        garbage.collect(&core).await;
        parents.settle(&core).await;
        let Ok(mut watcher) = core.store.watch(ROOT, page.revision) else {
            continue;
        };
        loop {
            let woken = tokio::select! {
                biased;
                event = watcher.next() => Woken::Event(event),
                () = tokio::time::sleep(RETRY_AFTER), if garbage.has_failed() || parents.has_failed() => Woken::Retry,
                _ = sweep.tick() => Woken::Sweep,
            };
            match woken {
                Woken::Event(Ok(event)) => {
                    garbage.observe(&event);
                    garbage.collect(&core).await;
                    parents.observe(&event);
                    parents.settle(&core).await;
                }
                Woken::Event(Err(WatchError::Closed)) => return,
                // Too slow for the log: start over from the state.
                Woken::Event(Err(WatchError::Lagged { .. })) => break,
                Woken::Retry => {
                    garbage.collect(&core).await;
                    parents.settle(&core).await;
                }
                Woken::Sweep => events::sweep(&core).await,
            }
        }
    }
}

/// Every object lies under this key.
const ROOT: &str = "/registry/";

enum Woken {
    Event(Result<Arc<Event>, WatchError>),
    Retry,
    Sweep,
}

/// A call of the server to itself.
fn call(core: &Arc<Core>, resource: &Arc<Resource>, namespace: Option<&str>, name: &str) -> Call {
    Call {
        core: Arc::clone(core),
        resource: Arc::clone(resource),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        subresource: None,
        manager: "lariat".to_owned(),
        dry_run: false,
        field_validation: FieldValidation::Ignore,
        force: false,
    }
}

/// Deletes an object; one that is gone already is as good as deleted.
async fn delete(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
    name: &str,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    match call(core, resource, namespace, name).delete(options).await {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}

/// The resource that a store key belongs to.
fn resource_of_key(catalog: &Catalog, key: &str) -> Option<Arc<Resource>> {
    catalog
        .stored()
        .find(|resource| key.starts_with(&resource.key_prefix()))
        .cloned()
}

/// An object by its key, with its resource.
fn read_key(catalog: &Catalog, stored: &Stored) -> Option<(Arc<Resource>, Value)> {
    let resource = resource_of_key(catalog, &stored.key)?;
    let object = read_stored(&resource, stored);
    Some((resource, object))
}
