//! Writing an object: what the server answers goes into the cache; what it refuses is read again.

use std::fmt::Debug;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cache::Cache;
use super::queue::Next;

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// What was decided on has changed meanwhile. It has been read again: decide again.
    #[error("{0} changed while it was decided on")]
    Outdated(String),
    #[error("cannot {verb} {object}")]
    Refused {
        verb: &'static str,
        object: String,
        #[source]
        source: kube::Error,
    },
    /// Nothing can be decided about this object until it changes.
    #[error("{object} cannot be read: {message}")]
    Unreadable { object: String, message: String },
}

/// Writes objects of one kind.
pub struct Writer<K> {
    api: Api<K>,
    cache: Cache<K>,
}

impl<K> Writer<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Serialize
        + Debug
        + Send
        + Sync
        + 'static,
{
    pub fn new(api: Api<K>, cache: Cache<K>) -> Self {
        Self { api, cache }
    }

    /// Reads the object from the server.
    pub async fn read(&self, name: &str) -> Result<Option<K>, Stop> {
        let found = self.api.get_opt(name).await;
        let found = found.map_err(|source| Stop::refused::<K>("read", name, source))?;
        match &found {
            Some(object) => self.cache.store(object.clone()),
            None => self.forget(name),
        }
        Ok(found)
    }

    pub async fn create(&self, object: &K) -> Result<K, Stop> {
        let result = self.api.create(&PostParams::default(), object).await;
        self.settle("create", &object.name_any(), result).await
    }

    /// Replaces everything but the status, if the object has not changed since it was read.
    pub async fn replace(&self, object: &K) -> Result<K, Stop> {
        let name = object.name_any();
        let result = self
            .api
            .replace(&name, &PostParams::default(), object)
            .await;
        self.settle("update", &name, result).await
    }

    /// Replaces the status, if the object has not changed since it was read.
    pub async fn replace_status(&self, object: &K) -> Result<K, Stop> {
        let name = object.name_any();
        let result = self
            .api
            .replace_status(&name, &PostParams::default(), object)
            .await;
        self.settle("update the status of", &name, result).await
    }

    /// A JSON merge patch.
    pub async fn merge(&self, name: &str, patch: &serde_json::Value) -> Result<K, Stop> {
        let params = PatchParams::default();
        let result = self.api.patch(name, &params, &Patch::Merge(patch)).await;
        self.settle("update", name, result).await
    }

    /// A JSON merge patch of the status.
    pub async fn merge_status(&self, name: &str, patch: &serde_json::Value) -> Result<K, Stop> {
        let params = PatchParams::default();
        let result = self
            .api
            .patch_status(name, &params, &Patch::Merge(patch))
            .await;
        self.settle("update the status of", name, result).await
    }

    /// Deletes exactly this object in exactly this version.
    pub async fn delete(&self, object: &K) -> Result<(), Stop> {
        let name = object.name_any();
        let params = DeleteParams::default().preconditions(Preconditions {
            resource_version: object.resource_version(),
            uid: object.uid(),
        });
        match self.api.delete(&name, &params).await {
            Ok(answer) => {
                // With finalizers it stays for a while; without, it is gone.
                match answer.left().filter(|left| !left.finalizers().is_empty()) {
                    Some(left) => self.cache.store(left),
                    None => self.cache.remove(object),
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => {
                self.cache.remove(object);
                Ok(())
            }
            Err(source) => {
                if is_outdated(&source) {
                    self.read(&name).await?;
                    return Err(Stop::Outdated(describe::<K>(&name)));
                }
                Err(Stop::refused::<K>("delete", &name, source))
            }
        }
    }

    /// Takes a finalizer off, after which the object may be gone.
    pub async fn remove_finalizer(&self, object: &K, finalizer: &str) -> Result<(), Stop> {
        let mut object = object.clone();
        object.finalizers_mut().retain(|known| known != finalizer);
        match self.replace(&object).await {
            // The last finalizer of an object that is being deleted: this was its last answer.
            Ok(left) if left.finalizers().is_empty() => {
                self.cache.remove(&left);
                Ok(())
            }
            Ok(_) => Ok(()),
            // Gone in the meantime, which is what was wanted.
            Err(Stop::Outdated(_)) if self.is_gone(&object.name_any()) => Ok(()),
            Err(stop) => Err(stop),
        }
    }

    fn is_gone(&self, name: &str) -> bool {
        self.cache
            .select(|object| object.name_any() == name)
            .is_empty()
    }

    fn forget(&self, name: &str) {
        for object in self.cache.select(|object| object.name_any() == name) {
            self.cache.remove(&object);
        }
    }

    async fn settle(
        &self,
        verb: &'static str,
        name: &str,
        result: kube::Result<K>,
    ) -> Result<K, Stop> {
        match result {
            Ok(object) => {
                self.cache.store(object.clone());
                Ok(object)
            }
            Err(source) if is_outdated(&source) => {
                self.read(name).await?;
                Err(Stop::Outdated(describe::<K>(name)))
            }
            Err(source) => Err(Stop::refused::<K>(verb, name, source)),
        }
    }
}

fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.is_conflict() || status.is_not_found() || status.is_already_exists())
}

fn describe<K: Resource<DynamicType = ()>>(name: &str) -> String {
    format!("{} {name}", K::kind(&()))
}

impl Stop {
    fn refused<K: Resource<DynamicType = ()>>(
        verb: &'static str,
        name: &str,
        source: kube::Error,
    ) -> Self {
        Self::Refused {
            verb,
            object: describe::<K>(name),
            source,
        }
    }

    /// Logs what happened and says when to try again.
    pub fn next(&self) -> Next {
        match self {
            Self::Outdated(_) => {
                tracing::debug!(error = self as &dyn std::error::Error, "deciding again");
                Next::Retry
            }
            Self::Refused { .. } => {
                tracing::warn!(error = self as &dyn std::error::Error, "trying again");
                Next::Retry
            }
            Self::Unreadable { .. } => {
                tracing::warn!(
                    error = self as &dyn std::error::Error,
                    "waiting for a change"
                );
                Next::Wait
            }
        }
    }
}
