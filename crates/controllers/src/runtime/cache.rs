//! A copy of all objects of one kind, kept by a watch and by our own writes.
//!
//! A plain reflector shows a write only when the watch brings it back; a controller that decides in between decides
//! from the past. Here the answer to each write goes into the copy at once, and the watch never replaces an object by an
//! older one. So nobody acts on a copy that is older than his own last write.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::settled::{Settled, forget_field_owners, settled};

/// Objects are known by `namespace/name`, or by their name if they have no namespace.
type Key = String;
type Listener<K> = Arc<dyn Fn(&K) + Send + Sync>;

/// How long a watch that fails waits before it tries again: at first and at most.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Objects that are remembered to be gone. An answer is late by milliseconds, in which far fewer go.
const GONE_MAX: usize = 4096;

/// Objects that are asked for at once: a few megabytes. Every page costs a round trip, and the server a walk to its place.
const LIST_PAGE: u32 = 5_000;

/// How long a watch may be silent before it is begun anew. One whose server died without a word shows the past until
/// then; the reaper's grace, which nothing that it sees may lag behind, is twice as long.
const WATCH_SECONDS_MAX: u32 = 60;

pub(crate) fn in_large_pages() -> watcher::Config {
    watcher::Config::default()
        .page_size(LIST_PAGE)
        .timeout(WATCH_SECONDS_MAX)
}

/// Shared by all controllers of a process; cheap to clone.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    ready: watch::Sender<bool>,
}

struct State<K> {
    objects: HashMap<Key, Entry<K>>,
    listeners: Vec<(u64, Listener<K>)>,
    listeners_ever: u64,
    /// Counts lists; what we wrote during a list is not removed because the list does not have it.
    lists: u64,
    /// While a list comes in: what it has had so far.
    listed: HashSet<Key>,
    /// The uids of objects that are gone, the oldest first: an answer that was on its way when its object went must
    /// not bring it back, for nothing would take it away again.
    gone: VecDeque<String>,
}

struct Entry<K> {
    object: Arc<K>,
    /// The number of lists that had begun when it was stored.
    stored_in_list: u64,
}

/// Ends a subscription when dropped.
pub struct Subscription<K> {
    shared: Arc<Shared<K>>,
    id: u64,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    objects: HashMap::new(),
                    listeners: Vec::new(),
                    listeners_ever: 0,
                    lists: 0,
                    listed: HashSet::new(),
                    gone: VecDeque::new(),
                }),
                ready: watch::Sender::new(false),
            }),
        }
    }
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Watches for ever.
    pub async fn run(self, api: Api<K>) {
        let kind = K::kind(&());
        let mut events = pin!(watcher(settled(api), in_large_pages()));
        let mut retry = RETRY_MIN;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    retry = RETRY_MIN;
                    self.apply(event);
                }
                Err(error) => {
                    tracing::warn!(object.kind = %kind, error = &error as &dyn std::error::Error, "cannot watch; trying again");
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
        }
    }

    pub(crate) fn apply(&self, event: Event<Settled<K>>) {
        match event {
            Event::Apply(Settled(object)) => self.keep(&object),
            Event::InitApply(Settled(object)) => {
                let key = key_of(&*object);
                // What the server lists is there, whatever we thought.
                if let Some(uid) = object.uid() {
                    self.state().gone.retain(|gone| *gone != uid);
                }
                self.keep(&object);
                self.state().listed.insert(key);
            }
            Event::Delete(Settled(object)) => self.remove(&object),
            Event::Init => {
                let mut state = self.state();
                state.lists += 1;
                state.listed.clear();
            }
            Event::InitDone => {
                self.forget_unlisted();
                self.shared.ready.send_replace(true);
            }
        }
    }

    fn forget_unlisted(&self) {
        let (gone, listeners) = {
            let mut state = self.state();
            let listed = std::mem::take(&mut state.listed);
            let list = state.lists;
            let is_gone =
                |key: &Key, entry: &Entry<K>| !listed.contains(key) && entry.stored_in_list < list;
            let keys: Vec<Key> = state
                .objects
                .iter()
                .filter(|(key, entry)| is_gone(key, entry))
                .map(|(key, _)| key.clone())
                .collect();
            let gone: Vec<_> = keys
                .iter()
                .filter_map(|key| state.objects.remove(key))
                .collect();
            for entry in &gone {
                state.bury(entry.object.uid());
            }
            (gone, state.listening())
        };
        for entry in gone {
            tell(&listeners, &entry.object);
        }
    }

    /// Takes an object that the server answered with, unless a newer one is known.
    pub fn store(&self, mut object: K) {
        forget_field_owners(&mut object);
        self.keep(&Arc::new(object));
    }

    fn keep(&self, object: &Arc<K>) {
        let key = key_of(object.as_ref());
        let listeners = {
            let mut state = self.state();
            let list = state.lists;
            let uid = object.uid();
            if uid.is_some_and(|uid| state.gone.contains(&uid)) {
                return;
            }
            if let Some(known) = state.objects.get_mut(&key)
                && !is_newer(object.as_ref(), known.object.as_ref())
            {
                known.stored_in_list = list;
                return;
            }
            let entry = Entry {
                object: Arc::clone(object),
                stored_in_list: list,
            };
            state.objects.insert(key, entry);
            state.listening()
        };
        tell(&listeners, object);
    }

    /// Forgets an object of which the server says that it is gone.
    pub fn remove(&self, object: &K) {
        let key = key_of(object);
        let listeners = {
            let mut state = self.state();
            state.bury(object.uid());
            // One of the same name that was made since is another object.
            let is_other = state
                .objects
                .get(&key)
                .is_none_or(|known| known.object.uid() != object.uid());
            if is_other {
                return;
            }
            state.objects.remove(&key);
            state.listening()
        };
        tell(&listeners, object);
    }

    /// Waits until all objects are known.
    pub async fn wait_until_ready(&self) {
        let mut ready = self.shared.ready.subscribe();
        // The sender lives as long as `self`.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// Whether all objects are known.
    pub fn is_ready(&self) -> bool {
        *self.shared.ready.borrow()
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.state()
            .objects
            .get(&key(Some(namespace), name))
            .map(|entry| Arc::clone(&entry.object))
    }

    /// An object of a kind without namespaces.
    pub fn get_cluster_wide(&self, name: &str) -> Option<Arc<K>> {
        self.state()
            .objects
            .get(name)
            .map(|entry| Arc::clone(&entry.object))
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.select(|_| true)
    }

    pub fn select(&self, wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.state()
            .objects
            .values()
            .filter(|entry| wanted(&entry.object))
            .map(|entry| Arc::clone(&entry.object))
            .collect()
    }

    /// Calls `listener` with every object that appears, changes or goes away. It must not block.
    #[must_use = "the subscription ends when it is dropped"]
    pub fn subscribe(&self, listener: impl Fn(&K) + Send + Sync + 'static) -> Subscription<K> {
        let mut state = self.state();
        state.listeners_ever += 1;
        let id = state.listeners_ever;
        state.listeners.push((id, Arc::new(listener)));
        Subscription {
            shared: Arc::clone(&self.shared),
            id,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        lock(&self.shared)
    }
}

impl<K> State<K> {
    fn bury(&mut self, uid: Option<String>) {
        self.gone.extend(uid);
        if self.gone.len() > GONE_MAX {
            self.gone.pop_front();
        }
    }

    fn listening(&self) -> Vec<Listener<K>> {
        self.listeners
            .iter()
            .map(|(_, listener)| Arc::clone(listener))
            .collect()
    }
}

impl<K> Drop for Subscription<K> {
    fn drop(&mut self) {
        let id = self.id;
        lock(&self.shared)
            .listeners
            .retain(|(known, _)| *known != id);
    }
}

fn lock<K>(shared: &Shared<K>) -> MutexGuard<'_, State<K>> {
    // No code that can panic runs while the state is half changed.
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Told outside of the lock: a listener may look into the cache.
fn tell<K>(listeners: &[Listener<K>], object: &K) {
    for listener in listeners {
        listener(object);
    }
}

fn key_of<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    key(object.meta().namespace.as_deref(), &object.name_any())
}

fn key(namespace: Option<&str>, name: &str) -> Key {
    namespace.map_or_else(
        || name.to_owned(),
        |namespace| format!("{namespace}/{name}"),
    )
}

/// Versions grow on one server, as Kubernetes promises since 1.35. One that is not a number is taken as it comes.
fn is_newer<K: Resource<DynamicType = ()>>(object: &K, known: &K) -> bool {
    let version = |object: &K| object.resource_version()?.parse::<u64>().ok();
    match (version(object), version(known)) {
        (Some(new), Some(known)) => new > known,
        (None, _) | (_, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str, version: u64) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some("ns".to_owned());
        object.metadata.uid = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_string());
        object
    }

    fn seen(name: &str, version: u64) -> Settled<ConfigMap> {
        Settled(Arc::new(object(name, version)))
    }

    /// `put NAME VERSION` by ourselves, `see NAME VERSION` and `gone NAME` by the watch, `init`, `listed NAME
    /// VERSION`, `done`. Expected is what is known afterwards, and how often listeners were told.
    fn check(steps: &str, known: &str, told: usize) {
        let cache = Cache::<ConfigMap>::default();
        let count = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&count);
        let _subscription = cache.subscribe(move |_| *counter.lock().unwrap() += 1);
        for step in steps.split(';') {
            let words: Vec<&str> = step.split_whitespace().collect();
            let version = || words[2].parse().expect("a version");
            match words[0] {
                "put" => cache.store(object(words[1], version())),
                "see" => cache.apply(Event::Apply(seen(words[1], version()))),
                "gone" => cache.apply(Event::Delete(seen(words[1], 0))),
                "init" => cache.apply(Event::Init),
                "listed" => cache.apply(Event::InitApply(seen(words[1], version()))),
                "done" => cache.apply(Event::InitDone),
                other => panic!("unknown step {other}"),
            }
        }
        let mut found: Vec<String> = cache
            .all()
            .iter()
            .map(|object| {
                format!(
                    "{}@{}",
                    object.name_any(),
                    object.resource_version().unwrap()
                )
            })
            .collect();
        found.sort();
        assert_eq!(found.join(" "), known, "{steps}");
        assert_eq!(*count.lock().unwrap(), told, "{steps}");
    }

    #[test]
    fn the_watch_never_takes_an_object_back_in_time() {
        check("see a 1; see a 2", "a@2", 2);
        check("see a 1; put a 5; see a 3", "a@5", 2);
        check("put a 5; see a 5", "a@5", 1);
        check("put a 5; gone a", "", 2);
        check("gone a", "", 0);
    }

    #[test]
    fn an_answer_that_comes_late_does_not_bring_an_object_back() {
        check("put a 5; gone a; put a 6", "", 2);
        check("gone a; put a 6", "", 0);
        check("init; listed a 1; done; init; done; put a 2", "", 2);
        check("gone a; init; listed a 7; done", "a@7", 1);
    }

    #[test]
    fn a_new_list_forgets_what_it_does_not_have_but_not_what_we_wrote_meanwhile() {
        check("init; listed a 1; listed b 2; done", "a@1 b@2", 2);
        check("init; listed a 1; done; init; listed b 2; done", "b@2", 3);
        check("init; done; init; put a 5; listed b 2; done", "a@5 b@2", 2);
        check("init; listed a 1; done; init; listed a 1; done", "a@1", 1);
    }

    #[test]
    fn a_subscription_ends_when_it_is_dropped() {
        let cache = Cache::<ConfigMap>::default();
        drop(cache.subscribe(|_| panic!("nobody listens any more")));
        cache.store(object("a", 1));
    }
}
