//! Local copies of objects, kept up to date by one watch of each kind.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockWriteGuard, Weak};

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::runtime::cache::{Cache as SharedCache, Subscription};
use crate::runtime::{Objects as SharedObjects, Settled, in_large_pages, settled};

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

/// One watch of each kind for everybody in a process who follows it: what changes is sent once, read once and kept once. All
/// who follow a kind follow the same objects of it. Cheap to clone.
#[derive(Clone)]
pub struct Feeds {
    client: Client,
    /// What the process watches anyway: a kind that is there is not watched again.
    shared: Option<SharedObjects>,
    open: Arc<Mutex<HashMap<TypeId, OpenFeed>>>,
}

/// A `Weak<Feed<K>>` of the kind that it is listed under. A feed ends with the last of its followers.
type OpenFeed = Box<dyn Any + Send>;

impl Feeds {
    /// For a process that watches nothing else.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            shared: None,
            open: Arc::default(),
        }
    }

    /// Beside others who watch already, and as far as they do, out of their copies.
    pub fn beside(objects: SharedObjects, client: Client) -> Self {
        Self {
            shared: Some(objects),
            ..Self::new(client)
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Follows all objects of `api`. `on_change` is told what an object was and what it is now, after the copy was changed; it
    /// must not take long. The future ends when it is dropped, or with the watch, which is a defect; a server that is
    /// away is waited for. Must be called inside a runtime.
    pub fn follow<K, F>(
        &self,
        api: Api<K>,
        on_change: F,
    ) -> (
        Cache<K>,
        impl Future<Output = ()> + Send + 'static + use<K, F>,
    )
    where
        K: Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
        F: FnMut(Option<&Arc<K>>, Option<&Arc<K>>) + Send + 'static,
    {
        let feed = self.feed(api);
        let number = feed.state.add(Box::new(on_change));
        let cache = Cache {
            objects: Arc::clone(&feed.state.objects),
            synced: feed.state.synced.subscribe(),
        };
        let ended = feed.state.ended.clone();
        let following = Following { feed, number };
        let task = async move {
            ended.cancelled().await;
            drop(following);
        };
        (cache, task)
    }

    fn feed<K>(&self, api: Api<K>) -> Arc<Feed<K>>
    where
        K: Resource<DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let mut open = self.open.lock().expect("no holder panics");
        let known = open
            .get(&TypeId::of::<K>())
            .and_then(|feed| feed.downcast_ref::<Weak<Feed<K>>>())
            .and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let shared = self.shared.as_ref().and_then(SharedObjects::of_kind);
            let feed = Arc::new(match shared {
                Some(cache) => Feed::beside(cache),
                None => Feed::start(api),
            });
            open.insert(TypeId::of::<K>(), Box::new(Arc::downgrade(&feed)));
            feed
        })
    }
}

/// The watch of one kind, for as long as somebody follows it.
struct Feed<K> {
    state: Arc<FeedState<K>>,
    /// What brings the objects, or the first of them if a subscription brings the others.
    bringing: AbortHandle,
    _subscription: Option<Subscription<K>>,
}

struct FeedState<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Sender<bool>,
    /// Held while a change is taken in and told, so that nobody who begins to follow misses it or hears of it twice.
    followers: Mutex<Followers<K>>,
    ended: CancellationToken,
}

type OnChange<K> = Box<dyn FnMut(Option<&Arc<K>>, Option<&Arc<K>>) + Send>;

struct Followers<K> {
    ever: u64,
    all: BTreeMap<u64, OnChange<K>>,
}

/// Ends a follower's part in a feed when it is dropped.
struct Following<K> {
    feed: Arc<Feed<K>>,
    number: u64,
}

impl<K> Drop for Following<K> {
    fn drop(&mut self) {
        let mut followers = self.feed.state.followers();
        followers.all.remove(&self.number);
    }
}

impl<K> Drop for Feed<K> {
    fn drop(&mut self) {
        self.bringing.abort();
    }
}

impl<K> Feed<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    fn start(api: Api<K>) -> Self {
        let state: Arc<FeedState<K>> = Arc::default();
        let (watched, ended) = (Arc::clone(&state), state.ended.clone().drop_guard());
        let watching = tokio::spawn(async move {
            let _ended = ended;
            watched.watch(api).await;
        });
        Self {
            state,
            bringing: watching.abort_handle(),
            _subscription: None,
        }
    }

    /// Out of a copy that others keep as well.
    fn beside(cache: SharedCache<K>) -> Self {
        let state: Arc<FeedState<K>> = Arc::default();
        let (told, source) = (Arc::clone(&state), cache.clone());
        let subscription = cache.subscribe(move |object| told.look_again(&source, object));
        let filled = Arc::clone(&state);
        let filling = tokio::spawn(async move {
            cache.wait_until_ready().await;
            filled.fill(&cache);
        });
        Self {
            state,
            bringing: filling.abort_handle(),
            _subscription: Some(subscription),
        }
    }
}

impl<K> Default for FeedState<K> {
    fn default() -> Self {
        Self {
            objects: Arc::default(),
            synced: watch::Sender::new(false),
            followers: Mutex::new(Followers {
                ever: 0,
                all: BTreeMap::new(),
            }),
            ended: CancellationToken::new(),
        }
    }
}

impl<K> FeedState<K> {
    fn followers(&self) -> MutexGuard<'_, Followers<K>> {
        self.followers.lock().expect("no holder panics")
    }

    /// Somebody who comes late is told what is there.
    fn add(&self, mut on_change: OnChange<K>) -> u64 {
        let mut followers = self.followers();
        if *self.synced.borrow() {
            let objects = self.objects.read().expect("no holder panics").clone();
            for object in objects.values() {
                on_change(None, Some(object));
            }
        }
        followers.ever += 1;
        let number = followers.ever;
        followers.all.insert(number, on_change);
        number
    }
}

impl<K> FeedState<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    async fn watch(&self, api: Api<K>) {
        let events = watcher::watcher(settled(api), in_large_pages()).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut listed: Objects<K> = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(Settled(object))) => self.apply(&object),
                Ok(Event::Delete(Settled(object))) => self.delete(object),
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(Settled(object))) => {
                    listed.insert(Key::of(&*object), object);
                }
                Ok(Event::InitDone) => self.replace(&std::mem::take(&mut listed)),
                Err(error) => {
                    tracing::warn!(kind = std::any::type_name::<K>(), error = %error, "the watch broke off and is resumed");
                }
            }
        }
    }

    fn apply(&self, object: &Arc<K>) {
        let key = Key::of(object.as_ref());
        let mut followers = self.followers();
        let old = self.write().insert(key, Arc::clone(object));
        followers.tell(old.as_ref(), Some(object));
    }

    fn delete(&self, object: Arc<K>) {
        let key = Key::of(&*object);
        let mut followers = self.followers();
        let old = self.write().remove(&key);
        followers.tell(Some(&old.unwrap_or(object)), None);
    }

    /// Takes over all that the others have. Nobody is told anything before; what changes meanwhile waits for the lock.
    fn fill(&self, cache: &SharedCache<K>) {
        let mut followers = self.followers();
        let all = cache.all();
        let objects: Objects<K> = all.into_iter().map(|it| (Key::of(&*it), it)).collect();
        self.replace_for(&mut followers, &objects);
    }

    /// The copy of the others has changed. Two changes may be told in either order, so what counts is what is there now.
    fn look_again(&self, cache: &SharedCache<K>, changed: &K) {
        let mut followers = self.followers();
        if !*self.synced.borrow() {
            return;
        }
        let key = Key::of(changed);
        let new = match key.namespace.as_str() {
            "" => cache.get_cluster_wide(&key.name),
            namespace => cache.get(namespace, &key.name),
        };
        let old = match &new {
            Some(object) => self.write().insert(key, Arc::clone(object)),
            None => self.write().remove(&key),
        };
        let is_same = match (&old, &new) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            followers.tell(old.as_ref(), new.as_ref());
        }
    }

    fn replace(&self, new: &Objects<K>) {
        self.replace_for(&mut self.followers(), new);
    }

    fn replace_for(&self, followers: &mut Followers<K>, new: &Objects<K>) {
        let old = std::mem::replace(&mut *self.write(), new.clone());
        tell_difference(&old, new, &mut |old, new| followers.tell(old, new));
        self.synced.send_replace(true);
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects<K>> {
        self.objects.write().expect("no holder panics")
    }
}

impl<K> Followers<K> {
    fn tell(&mut self, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        for on_change in self.all.values_mut() {
            on_change(old, new);
        }
    }
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

    /// Who follows a feed, and what they heard.
    fn follower(feed: &FeedState<ConfigMap>) -> (u64, Arc<Mutex<Vec<String>>>) {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let telling = Arc::clone(&heard);
        let number = feed.add(Box::new(move |old, new| {
            let version = |object: Option<&Arc<ConfigMap>>| {
                object.map_or_else(String::new, |it| it.resource_version().unwrap_or_default())
            };
            let word = format!("{}>{}", version(old), version(new));
            telling.lock().expect("no holder panics").push(word);
        }));
        (number, heard)
    }

    #[test]
    fn every_follower_hears_everything_once_also_one_who_comes_late() {
        let feed = FeedState::default();
        let one = |text: &str| objects(text).into_values().next().expect("one");
        let (early, heard_early) = follower(&feed);
        assert!(!*feed.synced.borrow());
        feed.replace(&objects("a@1"));
        let (_, heard_late) = follower(&feed);
        feed.apply(&one("a@2"));
        feed.followers().all.remove(&early);
        feed.delete(one("a@3"));
        let words = |heard: &Mutex<Vec<String>>| heard.lock().expect("no holder panics").join(" ");
        assert_eq!(words(&heard_early), ">1 1>2");
        assert_eq!(words(&heard_late), ">1 1>2 2>");
        assert!(feed.objects.read().expect("no holder panics").is_empty());
    }

    /// The others' copy changes before, while and after it is taken over.
    #[tokio::test]
    async fn who_follows_a_copy_of_others_hears_the_same() {
        let cache = SharedCache::default();
        let store = |text: &str| {
            let object = objects(text).into_values().next().expect("one");
            let mut object = Arc::unwrap_or_clone(object);
            object.metadata.uid = Some("uid".to_owned());
            cache.store(object.clone());
            object
        };
        store("a@1");
        let feed = Feed::beside(cache.clone());
        let (_, heard_early) = follower(&feed.state);
        let words = |heard: &Mutex<Vec<String>>| heard.lock().expect("no holder panics").join(" ");
        store("a@2");
        assert_eq!(words(&heard_early), "", "not all is known yet");
        cache.apply(Event::InitDone);
        let mut synced = feed.state.synced.subscribe();
        synced.wait_for(|synced| *synced).await.expect("a feed");
        let (_, heard_late) = follower(&feed.state);
        let last = store("a@3");
        feed.state.look_again(&cache, &last);
        cache.remove(&last);
        assert_eq!(
            words(&heard_early),
            ">2 2>3 3>",
            "a second look tells nothing"
        );
        assert_eq!(words(&heard_late), ">2 2>3 3>");
        drop(feed);
        assert_eq!(Arc::strong_count(&heard_late), 1, "nobody listens any more");
    }
}
