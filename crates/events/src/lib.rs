//! Events for people, as `kubectl describe` shows them.
//!
//! The same event again raises a count instead of filling the store, also when only its figures differ: it then says
//! the newest ones. An event's name follows from what makes it the same, so that another process counts on. Telling
//! somebody is never a reason for the work itself to fail: an event that cannot be written is logged and forgotten.

mod sentence;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cluster_core::{event_name, truncate_message, without_figures};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

pub use sentence::sentence;

/// Events that are remembered in order to be counted. A forgotten one starts again at one.
const REMEMBERED_MAX: usize = 2048;
/// Events live in a namespace also when what they are about does not.
const DEFAULT_NAMESPACE: &str = "default";
/// A server that does not answer must not hold up the work that the event is about.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    Normal,
    Warning,
}

impl EventKind {
    fn as_str(self) -> &'static str {
        match self {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        }
    }
}

/// Writes events in the name of one component. Clones share what was told before.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    component: Arc<str>,
    host: Option<Arc<str>>,
    told: Arc<Mutex<Told>>,
}

/// What makes two events the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    namespace: String,
    object_kind: String,
    object_name: String,
    object_uid: String,
    kind: EventKind,
    reason: String,
    /// The message without its figures.
    pattern: String,
}

impl Key {
    fn event_name(&self, component: &str, host: &str) -> String {
        let identity = [
            component,
            host,
            &self.object_kind,
            &self.object_uid,
            self.kind.as_str(),
            &self.reason,
            &self.pattern,
        ];
        event_name(&self.object_name, &identity)
    }
}

/// How often an event was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    count: i32,
    first: Timestamp,
}

#[derive(Default)]
struct Told {
    entries: BTreeMap<Key, Entry>,
    oldest_first: VecDeque<Key>,
}

impl Told {
    /// Counts the event, and forgets the oldest if there are too many.
    fn count(&mut self, key: &Key, now: Timestamp) -> Entry {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.count = entry.count.saturating_add(1);
            return *entry;
        }
        if self.entries.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.entries.remove(&oldest);
        }
        let entry = Entry {
            count: 1,
            first: now,
        };
        self.entries.insert(key.clone(), entry);
        self.oldest_first.push_back(key.clone());
        entry
    }

    /// Somebody before us has told this so often.
    fn correct(&mut self, key: &Key, count: i32) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.count = entry.count.max(count);
        }
    }
}

impl Recorder {
    /// `component` is what the event says it comes from, such as `attachdetach-controller`.
    pub fn new(client: Client, component: &str) -> Self {
        Self {
            client,
            component: component.into(),
            host: None,
            told: Arc::default(),
        }
    }

    /// For a component that runs on every node: where this one does.
    #[must_use]
    pub fn on_host(self, host: &str) -> Self {
        Self {
            host: Some(host.into()),
            ..self
        }
    }

    /// Tells people about an object. Never fails.
    pub async fn record(
        &self,
        about: &ObjectReference,
        kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let namespace = match about.namespace.as_deref() {
            None | Some("") => DEFAULT_NAMESPACE.to_owned(),
            Some(namespace) => namespace.to_owned(),
        };
        let key = Key {
            namespace,
            object_kind: text(&about.kind),
            object_name: text(&about.name),
            object_uid: text(&about.uid),
            kind,
            reason: reason.to_owned(),
            pattern: without_figures(message),
        };
        let message = truncate_message(message);
        let now = Timestamp::now();
        let entry = self.told().count(&key, now);
        let write = self.write(about, &key, message, entry, now);
        match tokio::time::timeout(WRITE_TIMEOUT, write).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    event.reason = reason,
                    object.kind = key.object_kind,
                    object.name = key.object_name,
                    error = &error as &dyn std::error::Error,
                    "an event could not be recorded"
                );
            }
            Err(_) => {
                tracing::warn!(
                    event.reason = reason,
                    object.kind = key.object_kind,
                    object.name = key.object_name,
                    "an event could not be recorded: the API did not answer in time"
                );
            }
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no holder panics")
    }

    async fn write(
        &self,
        about: &ObjectReference,
        key: &Key,
        message: &str,
        entry: Entry,
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &key.namespace);
        let name = key.event_name(&self.component, self.host.as_deref().unwrap_or_default());
        if entry.count > 1 {
            match raise(&api, &name, entry.count, message, now).await {
                // Events expire; this one starts a new life with its count.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                raised => return raised,
            }
        }
        let event = self.event(about, key, &name, message, entry, now);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => Ok(()),
            // A predecessor of this process has told it, or another call at the same time.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let before = api
                    .get_opt(&name)
                    .await?
                    .and_then(|event| event.count)
                    .unwrap_or(1);
                let count = before.saturating_add(1);
                self.told().correct(key, count);
                raise(&api, &name, count, message, now).await
            }
            Err(error) => Err(error),
        }
    }

    fn event(
        &self,
        about: &ObjectReference,
        key: &Key,
        name: &str,
        message: &str,
        entry: Entry,
        now: Timestamp,
    ) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(key.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            reason: Some(key.reason.clone()),
            message: Some(message.to_owned()),
            type_: Some(key.kind.as_str().to_owned()),
            count: Some(entry.count),
            first_timestamp: Some(Time(entry.first)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some(self.component.to_string()),
                host: self.host.as_deref().map(str::to_owned),
            }),
            reporting_component: Some(self.component.to_string()),
            reporting_instance: Some(self.host.as_deref().unwrap_or_default().to_owned()),
            ..Event::default()
        }
    }
}

/// The same event once more.
async fn raise(
    api: &Api<Event>,
    name: &str,
    count: i32,
    message: &str,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let patch = json!({"count": count, "lastTimestamp": Time(now), "message": message});
    let parameters = PatchParams::default();
    api.patch(name, &parameters, &Patch::Merge(patch))
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key {
            namespace: "default".to_owned(),
            object_kind: "Pod".to_owned(),
            object_name: "p".to_owned(),
            object_uid: String::new(),
            kind: EventKind::Normal,
            reason: "Reason".to_owned(),
            pattern: number.to_string(),
        }
    }

    #[test]
    fn the_same_is_counted_and_memory_is_bounded() {
        let mut told = Told::default();
        let now = Timestamp::UNIX_EPOCH;
        let first = told.count(&key(0), now);
        let again = told.count(&key(0), now);
        assert_eq!((first.count, again.count), (1, 2));
        told.correct(&key(0), 7);
        assert_eq!(
            told.count(&key(0), now).count,
            8,
            "a predecessor's count goes on"
        );
        for number in 0..REMEMBERED_MAX + 10 {
            told.count(&key(number), now);
        }
        assert_eq!(told.entries.len(), REMEMBERED_MAX);
        assert_eq!(told.oldest_first.len(), REMEMBERED_MAX);
        assert_eq!(
            told.count(&key(0), now).count,
            1,
            "the oldest was forgotten"
        );
    }
}
