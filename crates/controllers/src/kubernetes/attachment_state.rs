//! Who has what, kept for people: an index of attachments that is rebuilt at the start and kept by watch, shown in
//! annotations of PersistentVolumes.
//!
//! Nothing is decided by what is written here, and nothing reads it back. An annotation that contradicts is reported once:
//! those that are found at the start are corrected as well, for what is left of an earlier life misleads; one that a person
//! writes later stays until the volume moves or `lariat doctor --fix` is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cluster_core::attachment_index::{AttachmentIndex, Finding};
use cluster_core::names::{attached_at_annotation, attached_node_annotation};
use cluster_core::{DriverName, NodeName, PvName, Timestamp, wire};
use events::{EventKind, Recorder};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Feeds};
use crate::metrics::Metrics;

/// What events say they come from.
const COMPONENT: &str = "lariat-attachment-state";
/// Annotations are nobody's hurry: a cluster that gets its first manager must not be flooded with them.
const WRITES_AT_ONCE: usize = 16;
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Works until it is told to stop.
pub async fn run(feeds: &Feeds, driver: DriverName, metrics: &Metrics, stop: CancellationToken) {
    let client = feeds.client().clone();
    let state = Shared::new(driver.clone());
    let told = state.clone();
    let api = Api::<PersistentVolume>::all(client.clone());
    let (volumes, following_volumes) = feeds.follow(api, move |old, new| {
        if let Some(any) = new.or(old) {
            let name = PvName::new(any.name_any());
            let now = new.and_then(|volume| wire::persistent_volume(volume));
            told.update(|state| state.volume(name, now.as_ref()));
        }
    });
    let told = state.clone();
    let api = Api::<VolumeAttachment>::all(client.clone());
    let (attachments, following_attachments) = feeds.follow(api, move |old, new| {
        if let Some(any) = new.or(old) {
            let now = new.map(|attachment| wire::attachment(attachment));
            told.update(|state| {
                let moved = state
                    .index
                    .attachment(&wire::attachment_key(any), now.as_ref());
                state.moved.extend(moved);
            });
        }
    });
    let listed = async {
        volumes.synced().await;
        attachments.synced().await;
    };
    tokio::select! {
        () = stop.cancelled() => return,
        () = listed => {}
    }
    let mut keeper = Keeper {
        recorder: Recorder::new(client.clone(), COMPONENT),
        client,
        driver,
        volumes,
        wanted: BTreeSet::new(),
        later: BTreeMap::new(),
        busy: BTreeSet::new(),
        written: BTreeMap::new(),
        uncertain: BTreeSet::new(),
        tasks: JoinSet::new(),
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keeper.keep(&state, metrics) => {}
        // A watch ends only by a defect of ours: the process must not go on without it.
        () = following_volumes => tracing::error!("the watch of PersistentVolumes has ended"),
        () = following_attachments => tracing::error!("the watch of VolumeAttachments has ended"),
    }
    // Another manager counts from now on.
    metrics.set_attached(0, 0, None);
}

struct State {
    index: AttachmentIndex,
    /// Volumes that others have now.
    moved: BTreeSet<PvName>,
    /// Volumes whose annotation is another one now.
    annotated: BTreeSet<PvName>,
}

impl State {
    fn volume(&mut self, name: PvName, now: Option<&cluster_core::PersistentVolume>) {
        let (before, was_ours) = (
            self.index.annotated(&name).cloned(),
            self.index.is_ours(&name),
        );
        self.index.volume(&name, now);
        if self.index.annotated(&name) != before.as_ref() {
            self.annotated.insert(name.clone());
        }
        // The watches do not keep step: it may be attached before it is seen.
        if !was_ours && self.index.is_ours(&name) && self.index.node_for_people(&name).is_some() {
            self.moved.insert(name);
        }
    }
}

/// Shared between the watches, which write, and the loop that tells people.
#[derive(Clone)]
struct Shared {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl Shared {
    fn new(driver: DriverName) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                index: AttachmentIndex::new(driver),
                moved: BTreeSet::new(),
                annotated: BTreeSet::new(),
            })),
            changed: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if !state.moved.is_empty() || !state.annotated.is_empty() {
            self.changed.notify_one();
        }
    }
}

/// The last two annotations that we wrote on a volume: the watch may show the older one after the newer was sent.
#[derive(Default)]
struct Written {
    last: Option<NodeName>,
    before: Option<NodeName>,
}

struct Keeper {
    client: Client,
    recorder: Recorder,
    driver: DriverName,
    volumes: Cache<PersistentVolume>,
    /// Volumes whose annotations are to be looked at.
    wanted: BTreeSet<PvName>,
    /// Volumes whose annotations could not be written, and since when that is to be tried again.
    later: BTreeMap<PvName, Instant>,
    busy: BTreeSet<PvName>,
    written: BTreeMap<PvName, Written>,
    /// Volumes whose last write had no answer: it is done again, whatever they show.
    uncertain: BTreeSet<PvName>,
    tasks: JoinSet<Ended>,
}

/// What a task did.
enum Ended {
    Written(PvName),
    Failed(PvName),
    /// Somebody was told something.
    Told,
}

impl Keeper {
    async fn keep(&mut self, shared: &Shared, metrics: &Metrics) {
        self.begin(&mut shared.lock());
        loop {
            {
                let _span = tracing::info_span!("attachment_state").entered();
                let mut state = shared.lock();
                self.take_changes(&mut state);
                self.start_writes(&state.index);
                count(&state.index, metrics);
            }
            let again = self.later.values().min().copied();
            let again = async {
                match again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shared.changed.notified() => {}
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                () = again => self.try_again(),
            }
        }
    }

    fn try_again(&mut self) {
        let now = Instant::now();
        let due = self.later.extract_if(.., |_, at| *at <= now);
        self.wanted.extend(due.map(|(volume, _)| volume));
    }

    /// Tells what does not fit, and corrects what an earlier life has left.
    fn begin(&mut self, state: &mut State) {
        let (index, findings) = (&state.index, state.index.findings());
        tracing::info!(
            volumes = index.held_count(),
            findings = findings.len(),
            "who has what has been rebuilt from VolumeAttachments"
        );
        for finding in &findings {
            tracing::warn!(%finding, "found while rebuilding who has what");
            self.report(finding);
            if let Finding::AnnotationMismatch { volume, .. } = finding {
                self.wanted.insert(volume.clone());
            }
        }
        self.wanted
            .extend(index.held().map(|(name, _)| name.clone()));
        state.moved.clear();
        state.annotated.clear();
    }

    fn take_changes(&mut self, state: &mut State) {
        self.wanted.append(&mut state.moved);
        for volume in std::mem::take(&mut state.annotated) {
            let Some(annotated) = state.index.annotated(&volume) else {
                if !state.index.is_ours(&volume) {
                    self.written.remove(&volume);
                }
                continue;
            };
            let by_us = self.written.get(&volume).is_some_and(|written| {
                [&written.last, &written.before].contains(&&Some(annotated.clone()))
            });
            for finding in state.index.findings_of(&volume) {
                if matches!(finding, Finding::AnnotationMismatch { .. }) && !by_us {
                    tracing::warn!(%finding, "somebody wrote an annotation that is not true");
                    self.report(&finding);
                }
            }
        }
    }

    fn start_writes(&mut self, index: &AttachmentIndex) {
        while self.busy.len() < WRITES_AT_ONCE
            && let Some(volume) = self.wanted.iter().find(|name| !self.busy.contains(*name))
        {
            let volume = volume.clone();
            self.wanted.remove(&volume);
            let holder = index.node_for_people(&volume);
            let node = holder.map(|(node, _)| node.clone());
            // What the watch shows may be older than what we sent.
            let shown = match self.written.get(&volume) {
                Some(written) => written.last.as_ref(),
                None => index.annotated(&volume),
            };
            let is_shown = !self.uncertain.remove(&volume) && shown == node.as_ref();
            if !index.is_ours(&volume) || is_shown {
                continue;
            }
            let patch = annotations(&self.driver, holder);
            let written = self.written.entry(volume.clone()).or_default();
            written.before = std::mem::replace(&mut written.last, node);
            self.busy.insert(volume.clone());
            let client = self.client.clone();
            self.tasks.spawn(annotate(client, volume, patch));
        }
    }

    fn ended(&mut self, ended: Result<Ended, tokio::task::JoinError>) {
        match ended {
            Ok(Ended::Written(volume)) => {
                self.busy.remove(&volume);
            }
            Ok(Ended::Failed(volume)) => {
                self.busy.remove(&volume);
                self.uncertain.insert(volume.clone());
                // Not among those that wait for their turn: what is refused for good must not keep others from theirs.
                self.later.insert(volume, Instant::now() + RETRY_AFTER);
            }
            Ok(Ended::Told) => {}
            Err(error) => {
                tracing::error!(error = %error, "a write of the attachments' state panicked");
                // Which one is not known: all may start again.
                self.busy.clear();
            }
        }
    }

    fn report(&mut self, finding: &Finding) {
        let volume = match finding {
            Finding::AnnotationMismatch { volume, .. }
            | Finding::Shared { volume, .. }
            | Finding::TooMany { volume, .. } => volume,
            Finding::NoVolumeName { .. } | Finding::VolumeMissing { .. } => return,
        };
        let live = self.volumes.named(volume.as_str());
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolume".to_owned()),
            name: Some(volume.to_string()),
            uid: live.and_then(|live| live.uid()),
            ..ObjectReference::default()
        };
        let (recorder, message) = (self.recorder.clone(), finding.to_string());
        self.tasks.spawn(async move {
            let (kind, reason) = (EventKind::Warning, "AttachmentContradiction");
            recorder.record(&about, kind, reason, &message).await;
            Ended::Told
        });
    }
}

fn count(index: &AttachmentIndex, metrics: &Metrics) {
    let migrations: Vec<Timestamp> = index.migrations().map(|(_, since)| since).collect();
    let oldest = migrations.iter().min().copied();
    metrics.set_attached(index.held_count(), migrations.len(), oldest);
}

/// The merge patch that says who has the volume, or that nobody has.
fn annotations(driver: &DriverName, holder: Option<(&NodeName, Timestamp)>) -> Value {
    let since = holder.map(|(_, Timestamp(milliseconds))| {
        let since = i64::try_from(milliseconds).unwrap_or(i64::MAX);
        let since = jiff::Timestamp::from_millisecond(since).unwrap_or(jiff::Timestamp::MAX);
        since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    });
    json!({"metadata": {"annotations": {
        attached_node_annotation(driver): holder.map(|(node, _)| node.as_str()),
        attached_at_annotation(driver): since,
    }}})
}

async fn annotate(client: Client, volume: PvName, patch: Value) -> Ended {
    let api: Api<PersistentVolume> = Api::all(client);
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let patched = api.patch(volume.as_str(), &parameters, &patch);
    match patched.await {
        Ok(_) => Ended::Written(volume),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ended::Written(volume),
        Err(error) => {
            tracing::warn!(volume.name = %volume, error = %error, "the annotations for people could not be written; trying again in a while");
            Ended::Failed(volume)
        }
    }
}
