//! Garbage collection: an object goes when none of its owners is left.
//!
//! Only objects with owners are remembered. Whether an owner exists is asked of the store, by the
//! key that the reference spells out, and compared by uid: a namesake is not the owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use revision_store::{Change, Event, Object as Stored};
use serde_json::Value;

use super::{delete, read_key};
use crate::catalog::Catalog;
use crate::core::{Core, read_stored};
use crate::object::{self, FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use crate::status::ApiError;
use crate::verbs::{DeleteOptions, Propagation};

/// Without this in its bytes an object has no owner: most need not be parsed.
const OWNER_MARK: &[u8] = b"\"ownerReferences\"";
/// Without one of these it does not wait for dependents either.
const WAITING_MARKS: [&[u8]; 2] = [b"\"foregroundDeletion\"", b"\"orphan\""];

#[derive(Debug, Default)]
pub(super) struct Garbage {
    /// Keys of the objects that name an owner, by the owner's uid.
    dependents: BTreeMap<String, BTreeSet<Arc<str>>>,
    /// Keys of the objects that wait for their dependents, by their own uid.
    waiting: BTreeMap<String, Arc<str>>,
    /// Objects to be looked at: they have owners, or lost one, or wait for dependents.
    suspects: BTreeSet<Arc<str>>,
    failed: bool,
}

impl Garbage {
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) fn note(&mut self, stored: &Stored) {
        if contains(&stored.value, OWNER_MARK) {
            for uid in owner_uids(&parse(stored)) {
                self.dependents
                    .entry(uid)
                    .or_default()
                    .insert(stored.key.clone());
            }
            self.suspects.insert(stored.key.clone());
        }
        if WAITING_MARKS
            .iter()
            .any(|mark| contains(&stored.value, mark))
        {
            self.waiting
                .insert(object::uid(&parse(stored)).to_owned(), stored.key.clone());
            self.suspects.insert(stored.key.clone());
        }
    }

    pub(super) fn observe(&mut self, event: &Event) {
        match &event.change {
            Change::Put { object, previous } => {
                if let Some(previous) = previous {
                    self.forget_owners(previous);
                }
                self.note(object);
            }
            Change::Delete { previous } => {
                self.forget_owners(previous);
                let gone = parse(previous);
                // Its dependents may have lost their last owner; an owner that waited for it may go.
                if let Some(dependents) = self.dependents.get(object::uid(&gone)) {
                    self.suspects.extend(dependents.iter().cloned());
                }
                let owners = owner_uids(&gone);
                self.suspects.extend(
                    owners
                        .iter()
                        .filter_map(|uid| self.waiting.get(uid))
                        .cloned(),
                );
                self.waiting.remove(object::uid(&gone));
            }
        }
    }

    fn forget_owners(&mut self, stored: &Stored) {
        if !contains(&stored.value, OWNER_MARK) {
            return;
        }
        for uid in owner_uids(&parse(stored)) {
            if let Some(keys) = self.dependents.get_mut(&uid) {
                keys.remove(&stored.key);
                if keys.is_empty() {
                    self.dependents.remove(&uid);
                }
            }
        }
    }

    /// Looks at every suspect. What fails stays one.
    pub(super) async fn collect(&mut self, core: &Arc<Core>) {
        self.failed = false;
        if self.suspects.is_empty() {
            return;
        }
        let suspects = std::mem::take(&mut self.suspects);
        let catalog = core.catalog();
        for key in suspects {
            let Some(stored) = core.store.get(&key) else {
                continue;
            };
            if let Err(error) = self.settle(core, &catalog, &stored).await {
                tracing::warn!(object.key = %key, %error, "garbage collection will try again");
                self.suspects.insert(key);
                self.failed = true;
            }
        }
    }

    async fn settle(
        &self,
        core: &Arc<Core>,
        catalog: &Catalog,
        stored: &Stored,
    ) -> Result<(), ApiError> {
        let Some((resource, live)) = read_key(catalog, stored) else {
            return Ok(());
        };
        let call = super::call(
            core,
            &resource,
            object::namespace(&live),
            object::name(&live),
        );
        if object::is_deleting(&live) && object::finalizers(&live).contains(&ORPHAN_FINALIZER) {
            self.orphan_dependents(core, catalog, object::uid(&live))
                .await?;
            let mut freed = live.clone();
            object::remove_finalizer(&mut freed, ORPHAN_FINALIZER);
            call.commit(stored, &live, freed).await?;
            return Ok(());
        }
        if object::is_deleting(&live) && object::finalizers(&live).contains(&FOREGROUND_FINALIZER) {
            if self
                .delete_dependents(core, catalog, object::uid(&live))
                .await?
                == 0
            {
                let mut freed = live.clone();
                object::remove_finalizer(&mut freed, FOREGROUND_FINALIZER);
                call.commit(stored, &live, freed).await?;
            }
            return Ok(());
        }
        if is_abandoned(core, catalog, &live) && !object::is_deleting(&live) {
            // Its own dependents go the way that it was itself to go.
            let options = DeleteOptions {
                uid: Some(object::uid(&live).to_owned()),
                propagation: Some(Propagation::Background),
                ..DeleteOptions::default()
            };
            let (namespace, name) = (object::namespace(&live), object::name(&live));
            delete(core, &resource, namespace, name, &options).await?;
        }
        Ok(())
    }

    /// Deletes in the foreground what names this owner. Tells how many still block it.
    async fn delete_dependents(
        &self,
        core: &Arc<Core>,
        catalog: &Catalog,
        owner: &str,
    ) -> Result<usize, ApiError> {
        let mut blocking = 0;
        for key in self.dependents.get(owner).into_iter().flatten() {
            let Some(stored) = core.store.get(key) else {
                continue;
            };
            let Some((resource, live)) = read_key(catalog, &stored) else {
                continue;
            };
            let (namespace, name) = (object::namespace(&live), object::name(&live));
            if has_other_living_owner(core, catalog, &live, owner) {
                continue;
            }
            if !object::is_deleting(&live) {
                let options = DeleteOptions {
                    uid: Some(object::uid(&live).to_owned()),
                    propagation: Some(Propagation::Foreground),
                    ..DeleteOptions::default()
                };
                delete(core, &resource, namespace, name, &options).await?;
            }
            if core.store.get(key).is_some() && blocks(&live, owner) {
                blocking += 1;
            }
        }
        Ok(blocking)
    }

    /// Removes the reference to this owner from everything that has it.
    async fn orphan_dependents(
        &self,
        core: &Arc<Core>,
        catalog: &Catalog,
        owner: &str,
    ) -> Result<(), ApiError> {
        for key in self.dependents.get(owner).into_iter().flatten() {
            let Some(stored) = core.store.get(key) else {
                continue;
            };
            let Some((resource, live)) = read_key(catalog, &stored) else {
                continue;
            };
            let mut freed = live.clone();
            let metadata = object::metadata_mut(&mut freed);
            if let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") {
                owners.retain(|reference| reference["uid"] != owner);
                if owners.is_empty() {
                    metadata.remove("ownerReferences");
                }
            }
            let call = super::call(
                core,
                &resource,
                object::namespace(&live),
                object::name(&live),
            );
            if call.commit(&stored, &live, freed).await?.is_none() {
                return Err(ApiError::modified(&resource.subject(object::name(&live))));
            }
        }
        Ok(())
    }
}

/// It had owners, and none of them exists.
fn is_abandoned(core: &Core, catalog: &Catalog, object: &Value) -> bool {
    let mut owners = owners(object).peekable();
    owners.peek().is_some() && !owners.any(|reference| lives(core, catalog, object, reference))
}

fn has_other_living_owner(core: &Core, catalog: &Catalog, object: &Value, owner: &str) -> bool {
    owners(object)
        .filter(|reference| reference["uid"] != owner)
        .any(|reference| lives(core, catalog, object, reference))
}

/// Whether the object that a reference names exists. A kind that is not served keeps its dependents:
/// nobody can tell.
fn lives(core: &Core, catalog: &Catalog, dependent: &Value, reference: &Value) -> bool {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let Some(resource) = catalog.of_kind(text("apiVersion"), text("kind")) else {
        return true;
    };
    let stored = core.get(&resource, object::namespace(dependent), text("name"));
    stored.is_some_and(|stored| object::uid(&read_stored(&resource, &stored)) == text("uid"))
}

fn blocks(dependent: &Value, owner: &str) -> bool {
    owners(dependent)
        .any(|reference| reference["uid"] == owner && reference["blockOwnerDeletion"] == true)
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
}

fn owner_uids(object: &Value) -> Vec<String> {
    owners(object)
        .filter_map(|reference| reference["uid"].as_str())
        .map(str::to_owned)
        .collect()
}

fn parse(stored: &Stored) -> Value {
    serde_json::from_slice(&stored.value).unwrap_or_default()
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(bytes, needle).is_some()
}
