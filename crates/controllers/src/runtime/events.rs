//! Events for people, as `kubectl describe` shows them.
//!
//! The same event again raises a count instead of filling the store. Telling somebody is never a reason
//! for the work itself to fail: an event that cannot be written is logged and forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster_core::truncate_message;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// Events that are remembered in order to be counted. A forgotten one starts again at one.
const REMEMBERED_MAX: usize = 2048;
/// Events live in a namespace also when what they are about does not.
const DEFAULT_NAMESPACE: &str = "default";
/// Longer names leave no room for the suffix that makes an event's name unique.
const NAME_BYTES_MAX: usize = 230;
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
    message: String,
}

/// The event object that stands for a key.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    count: i32,
    first: Timestamp,
}

#[derive(Default)]
struct Told {
    entries: BTreeMap<Key, Entry>,
    oldest_first: VecDeque<Key>,
    /// Makes names unique within one instant.
    serial: u64,
}

impl Told {
    /// Counts the event, and forgets the oldest if there are too many.
    fn count(&mut self, key: &Key, now: Timestamp) -> Entry {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.count = entry.count.saturating_add(1);
            return entry.clone();
        }
        if self.entries.len() >= REMEMBERED_MAX
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.entries.remove(&oldest);
        }
        self.serial += 1;
        let nanoseconds = now.as_nanosecond();
        let base = cut(&key.object_name, NAME_BYTES_MAX);
        let entry = Entry {
            name: format!("{base}.{:x}{:03x}", nanoseconds, self.serial & 0xfff),
            count: 1,
            first: now,
        };
        self.entries.insert(key.clone(), entry.clone());
        self.oldest_first.push_back(key.clone());
        entry
    }
}

impl Recorder {
    /// `component` is what the event says it comes from, such as `attachdetach-controller`.
    pub fn new(client: Client, component: &str) -> Self {
        Self {
            client,
            component: component.into(),
            told: Arc::default(),
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
            message: truncate_message(message).to_owned(),
        };
        let now = Timestamp::now();
        let entry = self.told.lock().expect("no holder panics").count(&key, now);
        match tokio::time::timeout(WRITE_TIMEOUT, self.write(about, &key, &entry, now)).await {
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

    async fn write(
        &self,
        about: &ObjectReference,
        key: &Key,
        entry: &Entry,
        now: Timestamp,
    ) -> Result<(), kube::Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &key.namespace);
        if entry.count > 1 {
            let patch = json!({"count": entry.count, "lastTimestamp": Time(now)});
            let parameters = PatchParams::default();
            match api
                .patch(&entry.name, &parameters, &Patch::Merge(patch))
                .await
            {
                Ok(_) => return Ok(()),
                // Events expire; this one starts a new life with its count.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(about, key, entry, now);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => Ok(()),
            // Told twice at once: the other call has written it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn event(&self, about: &ObjectReference, key: &Key, entry: &Entry, now: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(entry.name.clone()),
                namespace: Some(key.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            reason: Some(key.reason.clone()),
            message: Some(key.message.clone()),
            type_: Some(key.kind.as_str().to_owned()),
            count: Some(entry.count),
            first_timestamp: Some(Time(entry.first)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource {
                component: Some(self.component.to_string()),
                host: None,
            }),
            reporting_component: Some(self.component.to_string()),
            reporting_instance: Some(String::new()),
            ..Event::default()
        }
    }
}

/// The longest beginning of at most `bytes_max` bytes, ending between characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
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
            message: number.to_string(),
        }
    }

    #[test]
    fn the_same_is_counted_and_memory_is_bounded() {
        let mut told = Told::default();
        let now = Timestamp::UNIX_EPOCH;
        let first = told.count(&key(0), now);
        let again = told.count(&key(0), now);
        assert_eq!((first.count, again.count), (1, 2));
        assert_eq!(first.name, again.name);
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

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(cut("short", 230), "short");
        assert_eq!(cut(&"€".repeat(100), 230).len(), 228);
    }
}
