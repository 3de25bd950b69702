//! Writes entries into the volumes' ConfigMaps, many at once and off everybody's way.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api_types::Volume;
use api_types::names::{NAMESPACE, label};
use events::sentence;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Decision, ENTRIES_MAX, Entry, Facts, KEY, append, object_name};

/// Entries come in bursts, several a volume within an attach; one write takes them all.
const GATHER: Duration = Duration::from_secs(1);
/// How long to leave an API alone that refused a write.
const RETRY: Duration = Duration::from_secs(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Histories that are written at once.
const WRITES_MAX: usize = 8;
/// Entries between the controllers and the writer; a storm of 500 attachments makes some 5,000.
const WAITING_MAX: usize = 16 * 1024;
/// Volumes whose entries wait for an API that does not answer. Beyond, they are dropped: memory is for the work.
const VOLUMES_MAX: usize = 4096;
/// Notes that are remembered as taken. A forgotten one costs a read.
const NOTES_REMEMBERED: usize = 1024;

/// Takes entries from controllers, and never makes them wait.
#[derive(Clone)]
pub struct Recorder {
    entries: mpsc::Sender<Record>,
    /// What was recorded last of volumes that are changing, by volume and author.
    recorded: Arc<Mutex<HashMap<(String, &'static str), Facts>>>,
}

pub struct Record {
    volume: String,
    meta: ObjectMeta,
    entry: Entry,
}

impl Recorder {
    /// The receiver is for [`run`].
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Record>) {
        let (entries, waiting) = mpsc::channel(WAITING_MAX);
        let recorded = Arc::default();
        (Self { entries, recorded }, waiting)
    }

    /// A decision that was carried out. Nothing is recorded if it changed nothing.
    pub fn decided(&self, volume: &Volume, decision: Decision, at: Timestamp) {
        let key = (volume.name_any(), decision.who);
        let entry = {
            let mut all = self.recorded();
            let entry = decision.entry(all.get(&key), at);
            // A volume at rest says by itself what was recorded of it.
            if decision.before == decision.after {
                all.remove(&key);
            } else {
                all.insert(key, decision.after);
            }
            entry
        };
        if let Some(entry) = entry {
            self.record(volume, entry);
        }
    }

    /// A decision of which some write was refused: the next one finds part of it done.
    pub fn attempted(&self, volume: &Volume, decision: Decision) {
        let key = (volume.name_any(), decision.who);
        self.recorded().entry(key).or_insert(decision.before);
    }

    /// The volume is gone.
    pub fn forget(&self, volume: &str) {
        self.recorded().retain(|(name, _), _| name != volume);
    }

    /// Another manager may have led since.
    pub fn forget_all(&self) {
        self.recorded().clear();
    }

    fn recorded(&self) -> MutexGuard<'_, HashMap<(String, &'static str), Facts>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(&self, volume: &Volume, entry: Entry) {
        let record = Record {
            volume: volume.name_any(),
            meta: owned_by(volume),
            entry,
        };
        if self.entries.try_send(record).is_err() {
            tracing::warn!(
                volume.name = volume.name_any(),
                "an entry of the volume's history was dropped: too many wait to be written"
            );
        }
    }
}

/// What a new history is called and whom it belongs to.
fn owned_by(volume: &Volume) -> ObjectMeta {
    let name = volume.name_any();
    ObjectMeta {
        name: Some(object_name(&name)),
        namespace: Some(NAMESPACE.to_owned()),
        labels: Some([label::volume(&name)].into()),
        owner_references: volume.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Entries that are not written yet, by volume.
type Pending = BTreeMap<String, (ObjectMeta, Vec<Entry>)>;

/// Runs until every [`Recorder`] is gone and what they gave is written, or was tried.
pub async fn run(client: Client, mut waiting: mpsc::Receiver<Record>) {
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    let mut pending = Pending::new();
    let mut taken = Taken::default();
    loop {
        let first = if pending.is_empty() {
            waiting.recv().await
        } else {
            // Something could not be written: try again even if nothing new comes.
            match timeout(RETRY, waiting.recv()).await {
                Ok(received) => received,
                Err(_) => {
                    pending = write_all(&api, pending).await;
                    continue;
                }
            }
        };
        let is_last = first.is_none();
        let until = Instant::now() + GATHER;
        let mut next = first;
        while let Some(record) = next {
            keep(&mut pending, &mut taken, record);
            next = timeout_at(until, waiting.recv()).await.ok().flatten();
        }
        pending = write_all(&api, pending).await;
        if is_last {
            return;
        }
    }
}

fn keep(pending: &mut Pending, taken: &mut Taken, record: Record) {
    let Record {
        volume,
        meta,
        entry,
    } = record;
    if entry.note.as_ref().is_some_and(|id| !taken.take(id)) {
        return;
    }
    if pending.len() >= VOLUMES_MAX && !pending.contains_key(&volume) {
        tracing::warn!(
            volume.name = volume,
            "an entry of the volume's history was dropped: the API takes none"
        );
        return;
    }
    let (known, entries) = pending
        .entry(volume)
        .or_insert_with(|| (meta.clone(), Vec::new()));
    // A namesake made later is another volume.
    *known = meta;
    entries.push(entry);
    let surplus = entries.len().saturating_sub(ENTRIES_MAX);
    entries.drain(..surplus);
}

/// Writes what is pending; yields what could not be written.
async fn write_all(api: &Api<ConfigMap>, pending: Pending) -> Pending {
    let writes = pending
        .into_iter()
        .map(|(volume, (meta, entries))| async move {
            let written = timeout(WRITE_TIMEOUT, write(api, &meta, &entries)).await;
            let error = match written {
                Ok(Ok(())) => return None,
                Ok(Err(error)) => sentence(&error),
                Err(_) => "the API did not answer in time".to_owned(),
            };
            tracing::warn!(
                volume.name = volume,
                error,
                "the volume's history could not be written; trying again"
            );
            Some((volume, (meta, entries)))
        });
    let left = stream::iter(writes).buffer_unordered(WRITES_MAX);
    left.filter_map(async |left| left).collect().await
}

/// Appends to what is there. A write that somebody overtook is left for the next round, with what they wrote.
async fn write(api: &Api<ConfigMap>, meta: &ObjectMeta, entries: &[Entry]) -> kube::Result<()> {
    let name = meta.name.as_deref().unwrap_or_default();
    let found = api.get_opt(name).await?;
    let owner = |meta: &ObjectMeta| {
        let owners = meta.owner_references.iter().flatten();
        owners.map(|owner| owner.uid.clone()).next()
    };
    match found {
        None => {
            let object = ConfigMap {
                metadata: meta.clone(),
                data: Some([(KEY.to_owned(), append("", entries))].into()),
                ..ConfigMap::default()
            };
            api.create(&PostParams::default(), &object).await?;
        }
        // The history of an earlier volume of this name is about to be collected; this one's begins after that.
        Some(found) if owner(&found.metadata) != owner(meta) => {
            api.delete(name, &kube::api::DeleteParams::default())
                .await?;
            let object = ConfigMap {
                metadata: meta.clone(),
                data: Some([(KEY.to_owned(), append("", entries))].into()),
                ..ConfigMap::default()
            };
            api.create(&PostParams::default(), &object).await?;
        }
        Some(mut found) => {
            let data = found.data.get_or_insert_default();
            let kept = data.get(KEY).map(String::as_str).unwrap_or_default();
            let text = append(kept, entries);
            if text == kept {
                return Ok(());
            }
            data.insert(KEY.to_owned(), text);
            match api.replace(name, &PostParams::default(), &found).await {
                Ok(_) => {}
                // It was just collected, with its volume.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Notes that were taken already: they stay on their object, and would be read at every look.
#[derive(Default)]
struct Taken {
    known: BTreeSet<String>,
    oldest_first: VecDeque<String>,
}

impl Taken {
    /// Was it not taken before?
    fn take(&mut self, id: &str) -> bool {
        if !self.known.insert(id.to_owned()) {
            return false;
        }
        self.oldest_first.push_back(id.to_owned());
        if self.oldest_first.len() > NOTES_REMEMBERED
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}
