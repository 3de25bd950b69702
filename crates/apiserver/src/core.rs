//! The server without its socket: a store, the catalog of what is served, and the clock.

use std::sync::{Arc, RwLock};

use jiff::Timestamp;
use revision_store::{Object as Stored, Precondition, Range, ReadError, Store, WriteError};
use serde_json::Value;

use crate::catalog::{Catalog, Resource};
use crate::events;
use crate::metrics::Metrics;
use crate::object::{self, TypeMeta};
use crate::status::ApiError;

/// How often a write that lost a race is tried again before the client is told: as often as the real
/// server does.
pub const CONFLICT_RETRIES_MAX: usize = 5;

pub struct Core {
    pub(crate) store: Store,
    catalog: RwLock<Arc<Catalog>>,
    /// Serialises reading all CRDs and swapping the catalog, so that the last swap is the newest.
    catalog_refresh: tokio::sync::Mutex<()>,
    pub(crate) metrics: Metrics,
    clock: fn() -> Timestamp,
}

impl Core {
    pub fn new(store: Store) -> Arc<Self> {
        let core = Self {
            store,
            catalog: RwLock::new(Arc::new(Catalog::new([]))),
            catalog_refresh: tokio::sync::Mutex::new(()),
            metrics: Metrics::new(),
            clock: Timestamp::now,
        };
        core.swap_catalog();
        Arc::new(core)
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().expect("no holder panics"))
    }

    /// Reads the CRDs again. Called after every write to one, before it is answered: a client that
    /// creates a CRD may use it in its next request.
    pub async fn refresh_catalog(&self) {
        let _turn = self.catalog_refresh.lock().await;
        self.swap_catalog();
    }

    fn swap_catalog(&self) {
        let definitions =
            self.catalog()
                .find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let definitions = definitions.expect("built in");
        let objects = self.stored_objects(&definitions);
        let served = objects
            .iter()
            .filter(|definition| crate::crd::is_established(definition));
        let catalog = Arc::new(Catalog::new(served));
        *self.catalog.write().expect("no holder panics") = catalog;
    }

    /// Every object of a resource, now. For the server's own small kinds (CRDs, namespaces).
    pub(crate) fn stored_objects(&self, resource: &Resource) -> Vec<Value> {
        let page = self.store.range(&Range::prefix(&resource.key_prefix()));
        let objects = page.map_or_else(|_| Vec::new(), |page| page.objects);
        objects
            .iter()
            .map(|stored| read(resource, stored))
            .collect()
    }

    pub(crate) fn now(&self) -> String {
        object::timestamp((self.clock)())
    }

    pub(crate) fn clock(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) fn get(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Arc<Stored>> {
        self.store.get(&resource.key(namespace, name))
    }

    /// Writes the new state of an object over the state it was made from. `Ok(None)`: lost the race.
    pub(crate) async fn replace(
        &self,
        resource: &Resource,
        live: &Stored,
        object: &Value,
    ) -> Result<Option<u64>, ApiError> {
        let value = object::encode(object);
        let written = self
            .store
            .put(
                live.key.to_string(),
                value,
                Precondition::ModRevision(live.mod_revision),
            )
            .await;
        match written {
            Ok(stored) => {
                self.after_write(resource).await;
                Ok(Some(stored.mod_revision.0))
            }
            Err(WriteError::Conflict { .. }) => Ok(None),
            Err(error) => Err(write_error(&error)),
        }
    }

    /// Removes an object in the state that was seen. `Ok(None)`: lost the race.
    pub(crate) async fn remove(
        &self,
        resource: &Resource,
        live: &Stored,
    ) -> Result<Option<u64>, ApiError> {
        let removed = self
            .store
            .delete(
                live.key.to_string(),
                Precondition::ModRevision(live.mod_revision),
            )
            .await;
        match removed {
            Ok(deleted) => {
                self.after_write(resource).await;
                Ok(Some(deleted.revision.0))
            }
            Err(WriteError::Conflict { .. }) => Ok(None),
            Err(error) => Err(write_error(&error)),
        }
    }

    /// Stores a new object. `Ok(None)`: there is one of that name.
    pub(crate) async fn insert(
        &self,
        resource: &Resource,
        object: &Value,
    ) -> Result<Option<u64>, ApiError> {
        let key = resource.key(object::namespace(object), object::name(object));
        match self
            .store
            .put(key, object::encode(object), Precondition::Absent)
            .await
        {
            Ok(stored) => {
                self.after_write(resource).await;
                Ok(Some(stored.mod_revision.0))
            }
            Err(WriteError::Conflict { .. }) => Ok(None),
            Err(error) => Err(write_error(&error)),
        }
    }

    async fn after_write(&self, resource: &Resource) {
        if resource.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            self.refresh_catalog().await;
        }
    }
}

/// A stored object in the form that this resource shows.
pub fn read(resource: &Resource, stored: &Stored) -> Value {
    show(resource, read_stored(resource, stored))
}

/// A stored object in the form in which it is stored, which is the one that is validated and merged.
pub fn read_stored(resource: &Resource, stored: &Stored) -> Value {
    let api_version = resource.storage_api_version();
    object::decode(
        &stored.value,
        stored.mod_revision.0,
        type_meta(&api_version, resource),
    )
}

/// From the stored form to the form this resource shows.
pub fn show(resource: &Resource, mut object: Value) -> Value {
    if is_converted(resource) {
        events::from_core(&mut object);
    }
    object["apiVersion"] = resource.api_version().into();
    object
}

/// Whether objects of this resource look different from how they are stored.
pub fn is_converted(resource: &Resource) -> bool {
    resource.group != resource.storage_group
}

pub(crate) fn type_meta<'a>(api_version: &'a str, resource: &'a Resource) -> TypeMeta<'a> {
    TypeMeta {
        api_version,
        kind: &resource.kind,
    }
}

/// The store refused or failed. What may have happened is not reported as not having happened.
pub(crate) fn write_error(error: &WriteError) -> ApiError {
    match error {
        WriteError::ValueTooLarge { bytes_max, .. } => ApiError::too_large(*bytes_max),
        WriteError::Uncertain { .. } => ApiError::timeout(with_sources(error)),
        _ => ApiError::internal(with_sources(error)),
    }
}

/// History that is gone, or a version that does not exist yet.
pub(crate) fn read_error(error: ReadError) -> ApiError {
    match error {
        ReadError::Compacted { requested, oldest } => {
            ApiError::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        ReadError::Future { requested, current } => {
            let mut error = ApiError::timeout(format!(
                "Too large resource version: {requested}, current: {current}"
            ));
            error.details = Some(serde_json::json!({
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            }));
            error
        }
    }
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
