//! A local copy of one kind of object, kept up to date by a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Where an object is. The namespace is empty for cluster-wide kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn cluster(name: &str) -> Self {
        Self::new("", name)
    }

    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub fn of<K: Resource>(object: &K) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

type Objects<K> = BTreeMap<Key, Arc<K>>;

/// The readers' side. Cheap to clone.
pub struct Cache<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            synced: self.synced.clone(),
        }
    }
}

impl<K> Cache<K> {
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.objects
            .read()
            .expect("no holder panics")
            .get(key)
            .cloned()
    }

    pub fn named(&self, name: &str) -> Option<Arc<K>> {
        self.get(&Key::cluster(name))
    }

    /// All objects, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<K>> {
        let objects = self.objects.read().expect("no holder panics");
        objects.values().cloned().collect()
    }

    /// The objects of one namespace.
    pub fn of_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let objects = self.objects.read().expect("no holder panics");
        objects
            .range(Key::new(namespace, "")..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// Returns when everything that existed at the start has been seen.
    pub async fn synced(&self) {
        let mut synced = self.synced.clone();
        // An error is the watch having ended, which is the end of the controller too.
        let _ = synced.wait_for(|synced| *synced).await;
    }
}

/// Follows all objects of `api`. `on_change` is told what an object was and what it is now, after the
/// copy was changed. The future ends only when it is dropped; a server that is away is waited for.
pub fn follow<K, F>(
    api: Api<K>,
    mut on_change: F,
) -> (
    Cache<K>,
    impl Future<Output = ()> + Send + 'static + use<K, F>,
)
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    F: FnMut(Option<&Arc<K>>, Option<&Arc<K>>) + Send + 'static,
{
    let (synced_sender, synced) = watch::channel(false);
    let cache = Cache {
        objects: Arc::default(),
        synced,
    };
    let objects = Arc::clone(&cache.objects);
    let task = async move {
        // Who wrote which field is often the larger part of an object, and nobody here asks.
        let events = watcher::watcher(api, watcher::Config::default())
            .default_backoff()
            .modify(|object| object.meta_mut().managed_fields = None);
        let mut events = std::pin::pin!(events);
        let mut listed: Objects<K> = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object)) => {
                    let (key, object) = (Key::of(&object), Arc::new(object));
                    let old = objects
                        .write()
                        .expect("no holder panics")
                        .insert(key, Arc::clone(&object));
                    on_change(old.as_ref(), Some(&object));
                }
                Ok(Event::Delete(object)) => {
                    let key = Key::of(&object);
                    let old = objects.write().expect("no holder panics").remove(&key);
                    on_change(Some(&old.unwrap_or_else(|| Arc::new(object))), None);
                }
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(Key::of(&object), Arc::new(object));
                }
                Ok(Event::InitDone) => {
                    let new = std::mem::take(&mut listed);
                    let old = {
                        let mut objects = objects.write().expect("no holder panics");
                        std::mem::replace(&mut *objects, new.clone())
                    };
                    tell_difference(&old, &new, &mut on_change);
                    synced_sender.send_replace(true);
                }
                Err(error) => {
                    tracing::warn!(kind = std::any::type_name::<K>(), error = %error, "the watch broke off and is resumed");
                }
            }
        }
    };
    (cache, task)
}

fn tell_difference<K, F>(old: &Objects<K>, new: &Objects<K>, on_change: &mut F)
where
    K: Resource,
    F: FnMut(Option<&Arc<K>>, Option<&Arc<K>>),
{
    for (key, object) in new {
        let before = old.get(key);
        let is_same = before.is_some_and(|before| {
            before.meta().uid == object.meta().uid
                && before.meta().resource_version == object.meta().resource_version
        });
        if !is_same {
            on_change(before, Some(object));
        }
    }
    for (key, object) in old {
        if !new.contains_key(key) {
            on_change(Some(object), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn objects(text: &str) -> Objects<ConfigMap> {
        text.split_whitespace()
            .map(|word| {
                let (name, version) = word.split_once('@').expect("name@version");
                let mut object = ConfigMap::default();
                object.metadata.name = Some(name.to_owned());
                object.metadata.resource_version = Some(version.to_owned());
                (Key::cluster(name), Arc::new(object))
            })
            .collect()
    }

    #[test]
    fn a_new_list_is_told_as_its_difference() {
        let check = |old: &str, new: &str, expected: &str| {
            let mut told = Vec::new();
            let name = |object: Option<&Arc<ConfigMap>>| object.map(|object| object.name_any());
            tell_difference(&objects(old), &objects(new), &mut |old: Option<
                &Arc<ConfigMap>,
            >,
                                                                new: Option<
                &Arc<ConfigMap>,
            >| match (
                name(old),
                name(new),
            ) {
                (None, Some(name)) => told.push(format!("+{name}")),
                (Some(_), Some(name)) => told.push(format!("~{name}")),
                (Some(name), None) => told.push(format!("-{name}")),
                (None, None) => told.push("nothing".to_owned()),
            });
            assert_eq!(told.join(" "), expected);
        };
        check("", "a@1 b@2", "+a +b");
        check("a@1 b@2 c@3", "a@1 b@4", "~b -c");
        check("a@1", "", "-a");
    }
}
