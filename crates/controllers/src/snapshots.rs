//! Snapshots through the API: `volume_core::snapshots` over Snapshot objects and what the engine lists.
//!
//! ```text
//! Snapshot ──(holders: a ticket, if the volume is detached)──▶ an engine runs
//!          ──(volume controller)──▶ Engine.spec.snapshotRequests ──(node agent)──▶ Engine.status.snapshots
//!          ◀──────────────────────────(this controller)──────────────────────────┘
//! ```
//!
//! This controller is the author of `Snapshot.status` and of our finalizer there; it makes the objects of snapshots that
//! were taken in another way. What an engine is asked for is written by the author of the rest of `Engine.spec`.

use std::sync::Arc;

use api_types::names::{FINALIZER, NAMESPACE};
use api_types::{Engine, Snapshot, Volume};
use events::EventKind;
use jiff::Timestamp;
use kube::ResourceExt as _;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use volume_core::snapshots::{Outcome, Presence, SnapshotsView};
use volume_core::wire;

use crate::history;
use crate::runtime::{Context, Next, Objects, Queue, Stop, reference};

/// Volumes whose snapshots are worked on at once.
const WORKERS: usize = 8;

/// Runs until cancelled.
pub async fn run(context: Context, stop: CancellationToken) {
    let queue = Queue::named("snapshots", &context.metrics);
    let objects = &context.objects;
    let add = queue.clone();
    let _snapshots = objects
        .snapshots
        .subscribe(move |object| add.add(object.spec.volume.clone()));
    let add = queue.clone();
    let _volumes = objects
        .volumes
        .subscribe(move |object| add.add(object.name_any()));
    let add = queue.clone();
    let _engines = objects
        .engines
        .subscribe(move |object| add.add(object.spec.volume_name.clone()));
    let (add, snapshots) = (queue.clone(), objects.snapshots.clone());
    let add_all = move || {
        for object in snapshots.all() {
            add.add(object.spec.volume.clone());
        }
    };
    add_all();
    let _settings = objects.settings.subscribe(move |_| add_all());
    // An engine may have snapshots that no object shows.
    for engine in objects.engines.all() {
        queue.add(engine.spec.volume_name.clone());
    }
    queue
        .run(WORKERS, stop, |name| {
            let context = context.clone();
            let span = tracing::info_span!("snapshots", volume.name = %name);
            async move {
                reconcile(&context, &name)
                    .await
                    .unwrap_or_else(|stop| stop.next())
            }
            .instrument(span)
        })
        .await;
}

/// What is known of a volume's snapshots.
pub(crate) fn view(objects: &Objects, volume: &str) -> SnapshotsView {
    let found = objects.volume(volume);
    let (snapshots, engines) = (objects.snapshots_of(volume), objects.engines_of(volume));
    wire::snapshots(
        found.as_deref(),
        snapshots.iter().map(AsRef::as_ref),
        engines.iter().map(AsRef::as_ref),
        &objects.settings(),
    )
}

async fn reconcile(context: &Context, name: &str) -> Result<Next, Stop> {
    let objects = &context.objects;
    let (volume, engines) = (objects.volume(name), objects.engines_of(name));
    let view = view(objects, name);
    let mut result = Ok(Next::Wait);
    for object in objects.snapshots_of(name) {
        // One that cannot be written holds up no other.
        let round = Round {
            context,
            volume: volume.as_deref(),
            engines: &engines,
            view: &view,
        };
        if let Err(stop) = round.settle(&object).await {
            result = Err(stop);
        }
    }
    if let Some(volume) = &volume
        && let Err(stop) = show_others(context, volume, &view).await
    {
        result = Err(stop);
    }
    result
}

/// Makes objects for snapshots that somebody took in another way.
async fn show_others(context: &Context, volume: &Volume, view: &SnapshotsView) -> Result<(), Stop> {
    let snapshots = &context.objects.snapshots;
    let mut result = Ok(());
    for name in view.without_object() {
        if let Some(other) = snapshots.get(NAMESPACE, name) {
            tracing::debug!(
                snapshot.name = name,
                other.volume = other.spec.volume,
                "not shown: the name is taken"
            );
            continue;
        }
        tracing::info!(snapshot.name = name, "found");
        let object = wire::new_snapshot(name, volume);
        if let Err(stop) = context.writer(snapshots).create(&object).await {
            result = Err(stop);
        }
    }
    result
}

/// One volume's objects and what is known of them.
struct Round<'a> {
    context: &'a Context,
    volume: Option<&'a Volume>,
    engines: &'a [Arc<Engine>],
    view: &'a SnapshotsView,
}

impl Round<'_> {
    async fn settle(&self, object: &Snapshot) -> Result<(), Stop> {
        let name = object.name_any();
        let outcome = self.view.outcome(&name);
        if outcome == Outcome::Release {
            return self.release(object).await;
        }
        let object = self.adopt(object).await?;
        let info = wire::snapshot_info(self.engines.iter().map(AsRef::as_ref), &name);
        let mut after = object.clone();
        let hands_over = self.view.hands_over(&name);
        wire::write_snapshot_status(&outcome, hands_over, info, &mut after);
        if after.status == object.status {
            return Ok(());
        }
        let writer = self.context.writer(&self.context.objects.snapshots);
        let written = writer.replace_status(&after).await?;
        self.tell(&object, &written);
        Ok(())
    }

    /// Before anything is taken for it, so that it cannot go without its data.
    async fn adopt(&self, object: &Snapshot) -> Result<Snapshot, Stop> {
        let mut adopted = object.clone();
        let asked = self.view.objects.get(&object.name_any());
        if let Some(volume) = self.volume
            && self.view.volume == Presence::There
            && asked.is_some_and(|asked| !asked.of_former_volume)
            && object.metadata.deletion_timestamp.is_none()
        {
            wire::adopt_snapshot(&mut adopted.metadata, volume);
        }
        if adopted.metadata == object.metadata {
            return Ok(adopted);
        }
        let writer = self.context.writer(&self.context.objects.snapshots);
        writer.replace(&adopted).await
    }

    async fn release(&self, object: &Snapshot) -> Result<(), Stop> {
        if !object.finalizers().iter().any(|name| name == FINALIZER) {
            return Ok(());
        }
        let writer = self.context.writer(&self.context.objects.snapshots);
        writer.remove_finalizer(object, FINALIZER).await?;
        let was_taken = is_taken(object);
        tracing::info!(snapshot.name = object.name_any(), was_taken, "removed");
        if was_taken {
            self.record(object, "taken", "removed", None);
        }
        Ok(())
    }

    /// Tells what a write of the status has made true.
    fn tell(&self, before: &Snapshot, after: &Snapshot) {
        let name = after.name_any();
        if is_taken(after) && !is_taken(before) {
            tracing::info!(snapshot.name = name, "taken");
            let message = format!("snapshot {name} of volume {} is taken", after.spec.volume);
            self.event(after, EventKind::Normal, "SnapshotTaken", &message);
            self.record(after, "", "taken", None);
        }
        let error = error(after);
        if !error.is_empty() && error != self::error(before) {
            tracing::warn!(
                snapshot.name = name,
                error,
                "a snapshot is not as it should be"
            );
            self.event(after, EventKind::Warning, "SnapshotTrouble", error);
            self.record(after, "asked for", "not done", Some(error));
        }
    }

    fn event(&self, object: &Snapshot, kind: EventKind, reason: &str, message: &str) {
        self.context.tell(reference(object), kind, reason, message);
    }

    fn record(&self, object: &Snapshot, from: &str, to: &str, why: Option<&str>) {
        let Some(volume) = self.volume else { return };
        let entry = history::of_snapshot(&object.name_any(), from, to, why, Timestamp::now());
        if let Some(entry) = entry {
            self.context.history().record(volume, entry);
        }
    }
}

fn is_taken(object: &Snapshot) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|status| !status.creation_time.is_empty())
}

fn error(object: &Snapshot) -> &str {
    object.status.as_ref().map_or("", |status| &status.error)
}
