//! One replica: its folder, opened.
//!
//! Locks, always taken in this order: `long` (one purge, revert or rebuild at a time), `structure` (one change of the
//! metadata at a time), `flushing`, then `state`, then `staged`. Who has `structure` does not wait for `flushing`, which
//! may be held for minutes; `views` comes before `structure` in a merge and before `state` in a look.
//!
//! Ordinary I/O holds `state` shared for as long as it touches files, so whoever holds it alone knows that nothing is under
//! way; that is what makes accepting an epoch a fence.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard,
    RwLockWriteGuard,
};
use std::time::{Duration, Instant};

use block_core::epoch::{EpochDecision, Tenure, accept_tenure, check_tenure};
use block_core::geometry::BlockRange;
use block_core::layers::{BlockMap, LayerId, LayerSlot};
use block_core::wire::{ExtentKind, HostBoot, ReplicaMode, SyncMeta, VolumeKey};
use block_core::{BLOCK_BYTES, Epoch, VolumeName};

use crate::disk::{Disk, DiskFile};
use crate::layer_files::LayerFiles;
use crate::metadata::{self, Metadata};

mod error;
mod heard;
mod io_path;
mod kept_views;
mod opening;
mod pending_punches;
mod purge;
mod rebuild;
mod snapshots;
mod staging;
mod status;
mod view;

#[cfg(test)]
mod tests;

pub use error::{CreateReplicaError, OpenReplicaError, StoreError};
pub use io_path::WriteOptions;
pub use view::View;

use heard::Heard;
use io_path::Syncs;
use kept_views::KeptViews;
use pending_punches::PendingPunches;
use rebuild::RebuildSession;
use staging::Staged;

/// What a new replica is of.
#[derive(Clone, Debug)]
pub struct ReplicaSpec {
    pub volume: VolumeName,
    pub key: VolumeKey,
    pub size_bytes: u64,
}

/// An open replica.
pub struct Replica<D: Disk> {
    disk: D,
    host_boot: HostBoot,
    volume: VolumeName,
    key: VolumeKey,
    state: RwLock<State<D::File>>,
    long: Mutex<()>,
    structure: Mutex<()>,
    flushing: Mutex<()>,
    /// Held for a moment only, also by those who do not flush yet.
    syncs: Mutex<Syncs>,
    /// Former heads, and layers found at opening, whose last writes may not have been synced yet.
    unsynced: Mutex<Vec<Arc<LayerFiles<D::File>>>>,
    /// Held while metadata is written.
    staged: Mutex<Staged>,
    /// An empty layer that the next snapshot takes for its head.
    spare: Mutex<Option<Spare<D::File>>>,
    /// Until when work in the background rests, because a snapshot was prepared.
    quiet_until: Mutex<Option<Instant>>,
    quiet_ended: Condvar,
    quiet_max: Duration,
    /// Blocks of a head that hold zeroes and may be freed once their marks are durable.
    pending_punches: Mutex<PendingPunches>,
    /// Layers whose files nobody needs any more, and nobody has had the time to remove.
    leftovers: Mutex<Vec<LayerId>>,
    /// Writes of parts of one block happen one after the other.
    partial_writes: [Mutex<()>; 16],
    views: Mutex<KeptViews<D::File>>,
    purge_done_bytes: AtomicU64,
    purge_total_bytes: AtomicU64,
    /// Which of the accepted engine's connections is obeyed. It changes while `state` is held alone. No file has it: no
    /// connection outlives the process.
    session: AtomicU64,
    heard: Heard,
    /// Why nothing is accepted any more, once that is so.
    fault: OnceLock<String>,
}

/// A layer that is nobody's yet.
struct Spare<F> {
    files: Arc<LayerFiles<F>>,
    size_bytes: u64,
}

pub(crate) struct State<F> {
    metadata: Metadata,
    /// All layers, also those of other branches.
    files: HashMap<LayerId, Arc<LayerFiles<F>>>,
    /// The layers of the live volume, by their number in the map.
    by_slot: Vec<Option<Arc<LayerFiles<F>>>>,
    slots: HashMap<LayerId, LayerSlot>,
    head: Arc<LayerFiles<F>>,
    head_slot: LayerSlot,
    map: BlockMap,
    rebuild: Option<RebuildSession>,
}

impl<D: Disk> Replica<D> {
    #[must_use]
    pub fn volume(&self) -> &VolumeName {
        &self.volume
    }

    #[must_use]
    pub fn key(&self) -> &VolumeKey {
        &self.key
    }

    #[must_use]
    pub fn accepted_epoch(&self) -> Epoch {
        self.shared().metadata.accepted_epoch
    }

    #[must_use]
    pub fn mode(&self) -> ReplicaMode {
        self.shared().metadata.mode
    }

    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.shared().metadata.tree.size_bytes()
    }

    /// Takes the replica for an engine incarnation, or for a newer connection of the same. When this returns, the epoch
    /// is durable, everything that older engines and connections had under way is over, and nothing of theirs will run
    /// again.
    pub fn open_epoch(&self, offered: impl Into<Tenure>) -> Result<(), StoreError> {
        let _alone = self.accept(offered.into())?;
        self.heard.note();
        Ok(())
    }

    /// The same for an epoch of which no engine speaks yet: it ends those before it.
    pub fn fence(&self, epoch: Epoch) -> Result<(), StoreError> {
        self.accept(epoch.into()).map(drop)
    }

    fn accept(&self, offered: Tenure) -> Result<RwLockWriteGuard<'_, State<D::File>>, StoreError> {
        let _structure = lock(&self.structure);
        let mut state = self.alone();
        self.check_fault()?;
        let decision = accept_tenure(self.tenure(&state), offered)?;
        let mut next = state.metadata.clone();
        next.note_opening(offered.epoch, self.host_boot);
        if decision != EpochDecision::Rejoin || next != state.metadata {
            self.store_beside_layers(&next, |_| {})?;
            state.metadata = next;
        } else {
            self.keep_found(&next)?;
        }
        if decision != EpochDecision::Rejoin {
            self.heard.supersede();
        }
        self.session.store(offered.session, Ordering::Relaxed);
        // What an older connection prepared will not be used, and its purge is to notice that it is over.
        self.end_quiet();
        Ok(state)
    }

    /// Notes that an engine speaks. Whoever takes its requests says so before they are looked at.
    pub fn hear(&self) {
        self.heard.note();
    }

    /// Refuses what is not of the newest connection of the newest engine.
    pub fn check_tenure(&self, carried: Tenure) -> Result<(), StoreError> {
        Ok(check_tenure(self.tenure(&self.shared()), carried)?)
    }

    /// Whom this replica obeys. The state's lock orders the session.
    fn tenure(&self, state: &State<D::File>) -> Tenure {
        Tenure {
            epoch: state.metadata.accepted_epoch,
            session: self.session.load(Ordering::Relaxed),
        }
    }

    /// Keeps an engine's record of the in-sync set.
    pub fn set_sync_meta(
        &self,
        tenure: impl Into<Tenure>,
        sync: &SyncMeta,
    ) -> Result<(), StoreError> {
        let tenure = tenure.into();
        self.change_metadata(tenure, |next| {
            next.sync = Some((tenure.epoch, sync.clone()));
            // Who writes it has seen all members, and chosen.
            next.restarted = false;
            Ok(())
        })
    }

    /// Refuses everything from now on. When this returns, no ordinary I/O is under way any more.
    pub fn retire(&self, reason: &str) {
        let _ = self.fault.set(reason.to_owned());
        self.end_quiet();
        drop(self.alone());
    }

    /// The memory that the index of the live volume takes.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.shared().map.resident_bytes()
    }

    fn check(&self, state: &State<D::File>, tenure: Tenure) -> Result<(), StoreError> {
        self.check_fault()?;
        Ok(check_tenure(self.tenure(state), tenure)?)
    }

    fn check_ready(&self, state: &State<D::File>, tenure: Tenure) -> Result<(), StoreError> {
        self.check(state, tenure)?;
        check_mode(state.metadata.mode)
    }

    /// Who only looks carries no epoch and is not fenced: it has to know by itself whether what it sees is the newest.
    fn check_readable(&self, state: &State<D::File>, tenure: Tenure) -> Result<(), StoreError> {
        if tenure.epoch != Epoch::NONE {
            return self.check_ready(state, tenure);
        }
        self.check_fault()?;
        check_mode(state.metadata.mode)
    }

    fn check_fault(&self) -> Result<(), StoreError> {
        self.fault.get().map_or(Ok(()), |reason| {
            Err(StoreError::Faulted {
                reason: reason.clone(),
            })
        })
    }

    /// What the files hold is not known any more: everything is refused, and the next process is told. It would find the
    /// files in order, and the kernel does not repeat what it said of pages that it has dropped.
    fn distrust(&self, reason: String) {
        // Nothing is stored behind the mark: who stores looks for a fault while it holds this.
        let _staged = lock(&self.staged);
        self.set_fault(reason);
        if let Err(error) = Metadata::mark_suspect(&self.disk) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(volume.name = %self.volume, error, "what failed cannot be noted, and its next process would trust its files: delete this replica before this one ends");
        }
    }

    /// From now on everything is refused.
    fn set_fault(&self, reason: String) {
        tracing::error!(volume.name = %self.volume, reason, "replica stops by itself");
        let _ = self.fault.set(reason);
    }

    /// Makes flushes wait for a test, as a slow disk does.
    #[cfg(test)]
    pub(crate) fn hold_flushes(&self) -> MutexGuard<'_, ()> {
        lock(&self.flushing)
    }

    fn shared(&self) -> RwLockReadGuard<'_, State<D::File>> {
        // Nobody leaves the state half changed: a panic while holding it comes before or after the assignments.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, State<D::File>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: DiskFile> State<F> {
    /// Numbers the live layers and reads from their files which has what.
    fn build(metadata: Metadata, files: HashMap<LayerId, Arc<LayerFiles<F>>>) -> io::Result<Self> {
        // While rebuilding, the layers below are incomplete and only the head counts.
        let path = match metadata.mode {
            ReplicaMode::Rebuilding => vec![metadata.tree.head()],
            ReplicaMode::Ready | ReplicaMode::Absent => metadata.tree.live_path(),
        };
        let index = LiveIndex::build(&files, &path, metadata.tree.size_bytes())?;
        Ok(Self::with_index(metadata, files, index))
    }

    fn with_index(
        metadata: Metadata,
        files: HashMap<LayerId, Arc<LayerFiles<F>>>,
        index: LiveIndex<F>,
    ) -> Self {
        let head = files[&metadata.tree.head()].clone();
        let LiveIndex {
            by_slot,
            slots,
            map,
        } = index;
        let head_slot = slots[&head.id];
        Self {
            metadata,
            files,
            by_slot,
            slots,
            head,
            head_slot,
            map,
            rebuild: None,
        }
    }

    fn layer(&self, slot: LayerSlot) -> &LayerFiles<F> {
        self.by_slot[usize::from(slot.number())]
            .as_ref()
            .expect("mapped slots have a layer")
    }

    fn free_slot(&self) -> Option<LayerSlot> {
        let free = |number: &u8| self.by_slot[usize::from(*number)].is_none();
        (1..=u8::MAX).find(free).and_then(LayerSlot::new)
    }
}

/// Which of some layers has which block.
struct LiveIndex<F> {
    by_slot: Vec<Option<Arc<LayerFiles<F>>>>,
    slots: HashMap<LayerId, LayerSlot>,
    map: BlockMap,
}

impl<F: DiskFile> LiveIndex<F> {
    /// From the layers' files, oldest first.
    fn build(
        files: &HashMap<LayerId, Arc<LayerFiles<F>>>,
        path: &[LayerId],
        size_bytes: u64,
    ) -> io::Result<Self> {
        let map = BlockMap::new(size_bytes / BLOCK_BYTES);
        let mut index = Self {
            by_slot: vec![None; 256],
            slots: HashMap::new(),
            map,
        };
        for id in path {
            index.add(files[id].clone())?;
        }
        Ok(index)
    }

    /// Puts one more layer on top.
    fn add(&mut self, layer: Arc<LayerFiles<F>>) -> io::Result<()> {
        let number = u8::try_from(self.slots.len() + 1).expect("there are fewer layers than slots");
        let slot = LayerSlot::new(number).expect("numbers start at 1");
        show_layer(
            &self.map,
            &layer,
            slot,
            BlockRange {
                first: 0,
                end: self.map.blocks(),
            },
        )?;
        self.slots.insert(layer.id, slot);
        self.by_slot[usize::from(number)] = Some(layer);
        Ok(())
    }
}

fn check_mode(mode: ReplicaMode) -> Result<(), StoreError> {
    match mode {
        ReplicaMode::Ready => Ok(()),
        mode => Err(StoreError::WrongMode { mode }),
    }
}

/// Puts a layer's opinions in a range over those of the layers below it.
fn show_layer<F: DiskFile>(
    map: &BlockMap,
    layer: &LayerFiles<F>,
    slot: LayerSlot,
    range: BlockRange,
) -> io::Result<()> {
    layer.for_each_opinion(range, |run, kind| {
        map.set(
            run.first,
            run.end,
            (kind == ExtentKind::Data).then_some(slot),
        );
        Ok(())
    })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name under which metadata is found, for those who look for replicas.
pub const METADATA_FILE: &str = metadata::FILE_NAME;
/// The same of a replica that must not be opened.
pub const SET_ASIDE_FILE: &str = metadata::SET_ASIDE_NAME;
