//! Watches what hops are made of, and keeps finished passages on their Volume.

use std::collections::{BTreeMap, HashMap};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use api_types::names::{NAMESPACE, annotation};
use api_types::{Engine, Volume};
use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::observe::{self, Claims, Seen};
use super::{Moment, Passage, Timelines, append};
use crate::metrics::Metrics;

/// One object, as a watch told of it.
enum News {
    Claim(Told<PersistentVolumeClaim>),
    Pod(Told<Pod>),
    Attachment(Told<VolumeAttachment>),
    Tickets(Told<api_types::VolumeAttachment>),
    Volume(Told<Volume>),
    Engine(Told<Engine>),
}

/// Boxed: objects differ in size by kilobytes.
enum Told<K> {
    /// It was there when the watch began, or began again: nobody knows since when it is so.
    Listed(Box<K>),
    Changed(Box<K>),
    Deleted(Box<K>),
}

/// Runs until it is dropped. A timeline is for people: what it misses while it is down is not made up.
pub async fn run(client: Client, metrics: Metrics) {
    let mut news = stream::select_all([
        told(
            Api::<PersistentVolumeClaim>::all(client.clone()),
            News::Claim,
        ),
        told(Api::<Pod>::all(client.clone()), News::Pod),
        told(
            Api::<VolumeAttachment>::all(client.clone()),
            News::Attachment,
        ),
        told(Api::namespaced(client.clone(), NAMESPACE), News::Tickets),
        told(Api::namespaced(client.clone(), NAMESPACE), News::Volume),
        told(Api::namespaced(client.clone(), NAMESPACE), News::Engine),
    ]);
    let volumes: Api<Volume> = Api::namespaced(client, NAMESPACE);
    let mut recorder = Recorder::new();
    while let Some(news) = news.next().await {
        for (volume, passage) in recorder.take(&news) {
            metrics.passed(&passage);
            let volumes = volumes.clone();
            // Its own task: the next stamp must not wait for this write.
            tokio::spawn(async move { keep(&volumes, &volume, passage).await });
        }
    }
}

fn told<K>(api: Api<K>, wrap: fn(Told<K>) -> News) -> stream::BoxStream<'static, News>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let events = watcher(api, watcher::Config::default()).default_backoff();
    changes(events).map(wrap).boxed()
}

fn changes<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
) -> impl Stream<Item = Told<K>> {
    events.filter_map(async |event| match event {
        Ok(Event::InitApply(object)) => Some(Told::Listed(Box::new(object))),
        Ok(Event::Apply(object)) => Some(Told::Changed(Box::new(object))),
        Ok(Event::Delete(object)) => Some(Told::Deleted(Box::new(object))),
        Ok(Event::Init | Event::InitDone) => None,
        Err(error) => {
            tracing::debug!(%error, "a watch of the timeline broke and is started again");
            None
        }
    })
}

struct Recorder {
    began: Instant,
    timelines: Timelines,
    claims: Claims,
    /// The nodes that each volume had tickets for, by the ticket's id.
    tickets: HashMap<String, BTreeMap<String, String>>,
}

impl Recorder {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            timelines: Timelines::default(),
            claims: Claims::default(),
            tickets: HashMap::new(),
        }
    }

    fn take(&mut self, news: &News) -> Vec<(String, Passage)> {
        match news {
            News::Claim(Told::Deleted(claim)) => self.claims.forget(claim),
            News::Claim(Told::Listed(claim) | Told::Changed(claim)) => self.claims.note(claim),
            News::Pod(told) => {
                let (pod, listed, deleted) = told.parts();
                let seen = observe::pod(pod, &self.claims, deleted);
                return seen
                    .into_iter()
                    .flat_map(|(volume, seen)| self.see(&volume, &[seen], listed))
                    .collect();
            }
            News::Attachment(told) => {
                let (attachment, listed, deleted) = told.parts();
                if let Some((volume, seen)) = observe::attachment(attachment, deleted) {
                    return self.see(&volume, &seen, listed);
                }
            }
            News::Tickets(told) => {
                let (attachment, listed, deleted) = told.parts();
                let volume = attachment.name_any();
                let before = self.tickets.remove(&volume).unwrap_or_default();
                let (seen, now) = observe::tickets(attachment, &before);
                if !deleted && !now.is_empty() {
                    self.tickets.insert(volume.clone(), now);
                }
                return self.see(&volume, &seen, listed);
            }
            News::Volume(Told::Deleted(volume)) => self.timelines.forget(&volume.name_any()),
            News::Volume(told) => {
                let (volume, listed, _) = told.parts();
                return self.see(&volume.name_any(), &observe::volume(volume), listed);
            }
            News::Engine(told) => {
                let (engine, listed, deleted) = told.parts();
                let (volume, seen) = observe::engine(engine, deleted);
                return self.see(&volume, &seen, listed);
            }
        }
        Vec::new()
    }

    fn see(&mut self, volume: &str, seen: &[Seen], listed: bool) -> Vec<(String, Passage)> {
        let mut finished = Vec::new();
        for seen in seen {
            if listed && !self.timelines.is_moving(volume) {
                if let Some(node) = &seen.node {
                    self.timelines.was_there(volume, node);
                }
                continue;
            }
            finished.extend(self.timelines.observe(volume, seen, self.now()));
        }
        finished
            .into_iter()
            .map(|passage| (volume.to_owned(), passage))
            .collect()
    }

    fn now(&self) -> Moment {
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Moment {
            unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            monotonic_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
        }
    }
}

impl<K> Told<K> {
    fn parts(&self) -> (&K, bool, bool) {
        match self {
            Self::Listed(object) => (object, true, false),
            Self::Changed(object) => (object, false, false),
            Self::Deleted(object) => (object, false, true),
        }
    }
}

/// A failure costs one line of a timeline, so it is logged and no more.
async fn keep(volumes: &Api<Volume>, name: &str, passage: Passage) {
    let written = async {
        let Some(volume) = volumes.get_opt(name).await? else {
            return Ok(());
        };
        let text = append(
            volume
                .annotations()
                .get(annotation::TIMELINE)
                .map(String::as_str),
            passage,
        );
        let patch = json!({"metadata": {"annotations": {annotation::TIMELINE: text}}});
        volumes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok::<(), kube::Error>(())
    };
    if let Err(error) = written.await {
        tracing::warn!(volume = name, %error, "the timeline of an attachment could not be kept");
    }
}
