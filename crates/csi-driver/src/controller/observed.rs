//! What the API holds of volumes, attachments and engines, kept current by three watches that all calls share:
//! a thousand calls that wait cost a thousand small futures, and no request, connection or thread.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api_types::{Engine, Volume, VolumeAttachment, names};
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Everything that concerns one volume, at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub volume: Option<Arc<Volume>>,
    pub attachment: Option<Arc<VolumeAttachment>>,
    pub engines: Vec<Arc<Engine>>,
}

#[derive(Debug, Default)]
struct State {
    volumes: Shelf<Volume>,
    attachments: Shelf<VolumeAttachment>,
    engines: Shelf<Engine>,
    wakers_by_volume: HashMap<String, watch::Sender<()>>,
}

/// The objects of one kind: by volume, then by name.
#[derive(Debug)]
struct Shelf<K> {
    objects: BTreeMap<String, BTreeMap<String, Arc<K>>>,
    /// Fills up while the watch lists; a half-read list would show objects as gone.
    next: Option<BTreeMap<String, BTreeMap<String, Arc<K>>>>,
    is_filled: bool,
}

impl<K> Default for Shelf<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            next: None,
            is_filled: false,
        }
    }
}

/// A kind that is watched: which volume an object belongs to, and where it is kept.
trait Watched:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
    fn volume_name(&self) -> String;
    fn shelf(state: &mut State) -> &mut Shelf<Self>
    where
        Self: Sized;
}

impl Watched for Volume {
    fn volume_name(&self) -> String {
        self.name_any()
    }
    fn shelf(state: &mut State) -> &mut Shelf<Self> {
        &mut state.volumes
    }
}

impl Watched for VolumeAttachment {
    fn volume_name(&self) -> String {
        self.spec.volume.clone()
    }
    fn shelf(state: &mut State) -> &mut Shelf<Self> {
        &mut state.attachments
    }
}

impl Watched for Engine {
    fn volume_name(&self) -> String {
        self.spec.volume_name.clone()
    }
    fn shelf(state: &mut State) -> &mut Shelf<Self> {
        &mut state.engines
    }
}

/// The shared cache. Its watches end when the last clone is dropped.
#[derive(Clone)]
pub struct Observed {
    state: Arc<Mutex<State>>,
    tasks: Arc<tokio::sync::Mutex<JoinSet<()>>>,
    filled: watch::Receiver<()>,
}

impl Observed {
    /// Starts the watches. They go on through every failure of the API, with growing pauses.
    pub fn start(client: &Client) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (announce, filled) = watch::channel(());
        let announce = Arc::new(announce);
        let mut tasks = JoinSet::new();
        tasks.spawn(follow::<Volume>(
            client.clone(),
            Arc::clone(&state),
            Arc::clone(&announce),
        ));
        tasks.spawn(follow::<VolumeAttachment>(
            client.clone(),
            Arc::clone(&state),
            Arc::clone(&announce),
        ));
        tasks.spawn(follow::<Engine>(
            client.clone(),
            Arc::clone(&state),
            announce,
        ));
        Self {
            state,
            tasks: Arc::new(tokio::sync::Mutex::new(tasks)),
            filled,
        }
    }

    /// Returns only if a watch ended, which is a defect: calls would wait for news that never comes.
    pub async fn ended(&self) {
        self.tasks.lock().await.join_next().await;
    }

    /// Whether every kind was listed at least once.
    pub fn is_filled(&self) -> bool {
        let state = lock(&self.state);
        state.volumes.is_filled && state.attachments.is_filled && state.engines.is_filled
    }

    /// Waits for that; false if it has not come by the deadline.
    pub async fn filled(&self, deadline: Instant) -> bool {
        let mut news = self.filled.clone();
        loop {
            // Seen before looked at, so that nothing between the two is missed.
            news.borrow_and_update();
            if self.is_filled() {
                return true;
            }
            if !matches!(timeout_at(deadline, news.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }

    /// One volume, now.
    pub fn view(&self, volume: &str) -> View {
        view(&lock(&self.state), volume)
    }

    /// Every volume whose name is behind `after`, in the order of names, at most `count`.
    pub fn views(&self, after: &str, count: usize) -> Vec<View> {
        use std::ops::Bound::{Excluded, Unbounded};
        let state = lock(&self.state);
        let names = state
            .volumes
            .objects
            .range::<str, _>((Excluded(after), Unbounded));
        names
            .take(count)
            .map(|(name, _)| view(&state, name))
            .collect()
    }

    /// How many attachments answer a question about their volume.
    pub fn count(&self, wanted: impl Fn(&str, &VolumeAttachment) -> bool) -> usize {
        let state = lock(&self.state);
        let all = state.attachments.objects.iter();
        all.flat_map(|(volume, named)| named.values().map(move |object| (volume, object)))
            .filter(|(volume, object)| wanted(volume, object))
            .count()
    }

    /// Looks at a volume again and again, at once and after each change, until `look` has an answer; None at the
    /// deadline.
    pub async fn until<T>(
        &self,
        volume: &str,
        deadline: Instant,
        mut look: impl FnMut(&View) -> Option<T>,
    ) -> Option<T> {
        let mut subscription = Subscription::new(self, volume);
        loop {
            subscription.news.borrow_and_update();
            if let Some(answer) = look(&self.view(volume)) {
                return Some(answer);
            }
            timeout_at(deadline, subscription.news.changed())
                .await
                .ok()?
                .ok()?;
        }
    }

    /// Waits for any change of a volume after `seen` was looked at; false at the deadline.
    pub fn subscribe(&self, volume: &str) -> Subscription {
        Subscription::new(self, volume)
    }
}

/// Tells of changes of one volume, none missed since it was made.
pub struct Subscription {
    news: watch::Receiver<()>,
    state: Arc<Mutex<State>>,
    volume: String,
}

impl Subscription {
    fn new(observed: &Observed, volume: &str) -> Self {
        let mut state = lock(&observed.state);
        let waker = state.wakers_by_volume.entry(volume.to_owned());
        let news = waker.or_insert_with(|| watch::channel(()).0).subscribe();
        Self {
            news,
            state: Arc::clone(&observed.state),
            volume: volume.to_owned(),
        }
    }

    /// Marks everything up to now as seen. Look afterwards, not before.
    pub fn mark_seen(&mut self) {
        self.news.borrow_and_update();
    }

    /// Waits for what has changed since; false at the deadline.
    pub async fn changed(&mut self, deadline: Instant) -> bool {
        matches!(timeout_at(deadline, self.news.changed()).await, Ok(Ok(())))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let is_last = state
            .wakers_by_volume
            .get(&self.volume)
            .is_some_and(|waker| waker.receiver_count() <= 1);
        if is_last {
            state.wakers_by_volume.remove(&self.volume);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn view(state: &State, volume: &str) -> View {
    fn all<'a, K>(shelf: &'a Shelf<K>, volume: &str) -> impl Iterator<Item = Arc<K>> + use<'a, K> {
        shelf
            .objects
            .get(volume)
            .into_iter()
            .flat_map(|objects| objects.values().cloned())
    }
    View {
        volume: all(&state.volumes, volume).next(),
        attachment: all(&state.attachments, volume).next(),
        engines: all(&state.engines, volume).collect(),
    }
}

async fn follow<K: Watched + Resource<Scope = k8s_openapi::NamespaceResourceScope>>(
    client: Client,
    state: Arc<Mutex<State>>,
    announce: Arc<watch::Sender<()>>,
) {
    let api: Api<K> = Api::namespaced(client, names::NAMESPACE);
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|object| object.meta_mut().managed_fields = None);
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if apply(&mut lock(&state), event) {
                    announce.send_replace(());
                }
            }
            Err(error) => {
                tracing::debug!(kind = %K::kind(&()), error = &error as &dyn std::error::Error, "a watch is interrupted and starts again");
            }
        }
    }
}

/// Takes one event in and wakes who waits for its volume. True when a list is complete.
fn apply<K: Watched>(state: &mut State, event: watcher::Event<K>) -> bool {
    let volume = match event {
        watcher::Event::Init => {
            K::shelf(state).next = Some(BTreeMap::new());
            return false;
        }
        watcher::Event::InitApply(object) => {
            let next = K::shelf(state).next.get_or_insert_default();
            put(next, object);
            return false;
        }
        watcher::Event::InitDone => {
            let shelf = K::shelf(state);
            shelf.objects = shelf.next.take().unwrap_or_default();
            shelf.is_filled = true;
            for waker in state.wakers_by_volume.values() {
                waker.send_replace(());
            }
            return true;
        }
        watcher::Event::Apply(object) => put(&mut K::shelf(state).objects, object),
        watcher::Event::Delete(object) => {
            let volume = object.volume_name();
            let objects = &mut K::shelf(state).objects;
            if let Some(named) = objects.get_mut(&volume) {
                named.remove(&object.name_any());
                if named.is_empty() {
                    objects.remove(&volume);
                }
            }
            volume
        }
    };
    if let Some(waker) = state.wakers_by_volume.get(&volume) {
        waker.send_replace(());
    }
    false
}

fn put<K: Watched>(objects: &mut BTreeMap<String, BTreeMap<String, Arc<K>>>, object: K) -> String {
    let volume = object.volume_name();
    let named = objects.entry(volume.clone()).or_default();
    named.insert(object.name_any(), Arc::new(object));
    volume
}

/// The revision of an object. Since Kubernetes 1.35 revisions may be compared as numbers (KEP 5504), and the embedded
/// API's always could be.
pub fn revision(object: &impl Resource) -> u64 {
    let text = object.meta().resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
