//! After an engine was killed: makes the members equal where its last writes were under way.
//!
//! Such writes were never acknowledged, so either content is right, but it must be the same on all members: a block
//! that reads new today and old tomorrow is not. Reads come from one member alone until
//! all others were compared with it. A snapshot freezes the old head; where its hashes differ, the chunk is
//! read from the chosen member, under a lock, and written to all.
//!
//! A snapshot or a revert that was cut short has left members with different chains of snapshots. The chain that most
//! members have is kept; the others must be rebuilt. A deletion that was cut short is brought to its end.
//!
//! ```text
//!                     ┌────── Resting <────┐ refused
//!                     v                    │
//! Listing ─> AwaitBarrier ─> Snapshotting ─┴┬─> Comparing <─> Repairing ─> Settling ─> done
//!                                           └── the front end opens, also before it rests
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use block_core::SnapshotName;
use block_core::geometry::BlockRange;
use block_core::wire::{self, ChunkHash, Failure, LayerInfo, LayerRef, Reply, StatusCode};

use super::data::{NOT_WHAT_WAS_ASKED, Origin};
use super::membership::SyncStage;
use super::rebuild::differing_chunks;
use super::tasks::{Task, TaskId, TaskKind};
use super::{Action, EngineCore, JobId, MemberIndex, MemberSet, Moment, Purpose};
use crate::control::Notice;
use crate::io::ByteRange;

/// What one round of hash requests compares.
const COMPARE_BYTES: u64 = 1 << 30;

/// The snapshots that this makes are recognised by their names, which no user's may have: those of an engine that was killed
/// before it was done with them are compared again.
pub const NAME_PREFIX: &str = "reconcile-";
/// What people are told that it is.
pub const TASK_KIND: &str = "compare after an unclean end";

/// What a member's chain looks like to its users: the snapshots that there are, and which of them the live volume builds on,
/// newest first. A revert changes only the latter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Chain {
    kept: BTreeSet<SnapshotName>,
    live: Vec<SnapshotName>,
}

pub struct Reconcile {
    state: State,
    /// Layers whose blocks may differ, the current one last.
    layers: Vec<SnapshotName>,
    to_delete: Vec<SnapshotName>,
    differing_bytes: u64,
    pub compared_bytes: u64,
    /// What was refused, such as a repair for lack of space, is tried again then; reads stay with one member.
    again_at: Moment,
}

/// The pause before something refused is tried again.
const AGAIN_US: u64 = 1_000_000;

impl Reconcile {
    /// Nothing is done until the members have room: what makes room must be allowed.
    pub fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting)
    }
}

enum State {
    Listing {
        asked: Vec<(JobId, MemberIndex)>,
        lists: BTreeMap<MemberIndex, Vec<LayerInfo>>,
    },
    AwaitBarrier,
    Snapshotting,
    /// All members refused the snapshot, for lack of space or because there are too many.
    Resting,
    /// Hashes of the window from `from`, of each member.
    Comparing {
        from: u64,
        asked: Vec<JobId>,
        hashes: Vec<Vec<ChunkHash>>,
    },
    /// Chunks to be made equal before the next window.
    Repairing {
        next: u64,
        chunks: VecDeque<ByteRange>,
        locked: Option<BlockRange>,
        /// The read of the locked chunk; none while nobody can be read from.
        read: Option<JobId>,
        /// The chunk was read and is being written to all.
        writing: bool,
    },
    /// All that are left are equal. Members that failed meanwhile, and were not compared, must be out of the record:
    /// as long as they are in it, the next engine may believe one of them instead.
    Settling,
}

impl State {
    fn awaits(&self, job: JobId) -> bool {
        match self {
            State::Listing { asked, .. } => asked.iter().any(|(known, _)| *known == job),
            State::Comparing { asked, .. } => asked.contains(&job),
            State::Repairing { read, .. } => *read == Some(job),
            State::AwaitBarrier | State::Snapshotting | State::Resting | State::Settling => false,
        }
    }
}

impl EngineCore {
    /// Whether the members may differ; then the comparison opens the front end, once it has chosen whom to believe.
    pub(super) fn reconcile_if_unclean(&mut self) -> bool {
        if !self.predecessor_was_killed() || self.committed.len() < 2 {
            return false;
        }
        let reconcile = Reconcile {
            state: State::Listing {
                asked: Vec::new(),
                lists: BTreeMap::new(),
            },
            layers: Vec::new(),
            to_delete: Vec::new(),
            differing_bytes: 0,
            compared_bytes: 0,
            again_at: self.now,
        };
        let id = self.add_task(None, TaskKind::Reconcile(Box::new(reconcile)));
        self.list_members(id);
        true
    }

    pub(super) fn reconcile_runs(&self) -> bool {
        self.tasks
            .values()
            .any(|task| matches!(task.kind, TaskKind::Reconcile(_)))
    }

    fn reconcile_mut(&mut self, id: TaskId) -> Option<&mut Reconcile> {
        match self.tasks.get_mut(&id) {
            Some(Task {
                kind: TaskKind::Reconcile(reconcile),
                ..
            }) => Some(reconcile),
            _ => None,
        }
    }

    fn writers(&self) -> Vec<MemberIndex> {
        self.committed
            .iter()
            .filter(|m| self.members[m.position()].takes_writes())
            .collect()
    }

    fn list_members(&mut self, id: TaskId) {
        let mut asked = Vec::new();
        for member in self.writers() {
            let job = self.send(member, Purpose::Task(id), wire::Request::ListLayers);
            asked.push((job, member));
        }
        if let Some(reconcile) = self.reconcile_mut(id) {
            reconcile.state = State::Listing {
                asked,
                lists: BTreeMap::new(),
            };
        }
    }

    pub(super) fn advance_reconcile(&mut self, id: TaskId, holds_barrier: bool) {
        let (epoch, now) = (self.config.epoch, self.now);
        let (purging, alone) = (self.purge_runs(), self.committed.len() < 2);
        let Some(reconcile) = self.reconcile_mut(id) else {
            return;
        };
        if reconcile.again_at > now {
            return;
        }
        match &mut reconcile.state {
            State::Listing { asked, .. } => {
                let open: Vec<JobId> = asked.iter().map(|(job, _)| *job).collect();
                // A member left meanwhile, or all have: ask those that remain.
                if self.any_lost(&open) {
                    self.list_members(id);
                }
            }
            State::AwaitBarrier if holds_barrier => {
                let name = SnapshotName::new(&format!("{NAME_PREFIX}{epoch}"))
                    .expect("made of letters and digits");
                // It may be there on some members, if it was refused by others before.
                if !reconcile.layers.contains(&name) {
                    reconcile.layers.push(name.clone());
                }
                reconcile.state = State::Snapshotting;
                let created_unix_ms = self.unix_ms();
                let request = wire::Request::SnapshotCreate {
                    name,
                    created_unix_ms,
                    user_created: false,
                };
                self.start_fan(Origin::Task(id), request);
            }
            State::Comparing { from, asked, .. } => {
                let (from, open) = (*from, asked.clone());
                if self.any_lost(&open) {
                    self.compare_members(id, from);
                }
            }
            State::Repairing {
                next,
                chunks,
                locked,
                read,
                writing,
            } => {
                if let Some(blocks) = *locked {
                    let (read, writing) = (*read, *writing);
                    if !writing && read.is_none_or(|job| !self.jobs.contains_key(&job)) {
                        self.read_chunk(id, blocks);
                    }
                    return;
                }
                let next = *next;
                match chunks.front() {
                    None => self.compare_members(id, next),
                    Some(chunk) => {
                        let blocks = BlockRange::touched_by(chunk.offset, chunk.length);
                        // Clients that write here now make it equal themselves; wait for them, and not for those that come behind.
                        if self.barrier.is_none() && self.locks.try_lock_next(blocks) {
                            self.writes_open += 1;
                            self.read_chunk(id, blocks);
                        }
                    }
                }
            }
            State::Settling => self.settle_reconcile(id),
            State::Resting if alone => self.settle_reconcile(id),
            // A purge changes the chain, and is what makes room.
            State::Resting if !purging => {
                reconcile.state = State::AwaitBarrier;
                self.barrier_queue.push_back(id);
            }
            State::Resting | State::AwaitBarrier | State::Snapshotting => {}
        }
    }

    fn settle_reconcile(&mut self, id: TaskId) {
        if self.stage == SyncStage::Settled {
            self.end_reconcile(id);
        } else if let Some(reconcile) = self.reconcile_mut(id) {
            reconcile.state = State::Settling;
        }
    }

    fn any_lost(&self, jobs: &[JobId]) -> bool {
        jobs.is_empty() || jobs.iter().any(|job| !self.jobs.contains_key(job))
    }

    /// All have listed their layers: whoever has another chain than most is left behind.
    fn on_listed(&mut self, id: TaskId, lists: &BTreeMap<MemberIndex, Vec<LayerInfo>>) {
        // What one member has marked as removed was to be removed from all.
        let dying: BTreeSet<SnapshotName> = lists
            .values()
            .flatten()
            .filter(|layer| layer.removed)
            .filter_map(|layer| name_of(layer).cloned())
            .collect();
        let chains: BTreeMap<MemberIndex, Chain> = lists
            .iter()
            .map(|(member, layers)| (*member, Chain::of(layers, &dying)))
            .collect();
        let mut votes: BTreeMap<&Chain, usize> = BTreeMap::new();
        for chain in chains.values() {
            *votes.entry(chain).or_default() += 1;
        }
        let Some(kept) = votes
            .iter()
            .max_by_key(|(_, votes)| **votes)
            .map(|(chain, _)| (*chain).clone())
        else {
            return;
        };
        self.read_pin = chains
            .iter()
            .find(|(_, chain)| **chain == kept)
            .map(|(member, _)| *member);
        // Layers of a comparison that was cut short. Some members may lack one: the snapshot itself was cut short, or
        // it was merged away already; what they have in its place is compared as if it was nothing.
        let unfinished: BTreeSet<SnapshotName> = lists
            .values()
            .flatten()
            .filter(|layer| is_of_comparison(layer))
            .filter_map(|layer| name_of(layer).cloned())
            .collect();
        let not_everywhere = lists
            .values()
            .flatten()
            .filter(|layer| !layer.removed)
            .filter_map(name_of)
            .filter(|name| dying.contains(name) && !unfinished.contains(name));
        let to_delete: BTreeSet<SnapshotName> = not_everywhere.cloned().collect();
        if let Some(reconcile) = self.reconcile_mut(id) {
            reconcile.layers = unfinished.into_iter().collect();
            reconcile.to_delete = to_delete.into_iter().collect();
            reconcile.state = State::AwaitBarrier;
        }
        self.barrier_queue.push_back(id);
        for (member, chain) in chains {
            if chain != kept {
                self.fail_member(member, "its chain of snapshots differs from the others'");
            }
        }
    }

    fn compare_members(&mut self, id: TaskId, from: u64) {
        let (size_bytes, alone) = (self.size_bytes, self.committed.len() < 2);
        let Some(reconcile) = self.reconcile_mut(id) else {
            return;
        };
        let mut from = from;
        if from >= size_bytes {
            reconcile.to_delete.extend(reconcile.layers.pop());
            from = 0;
        }
        let Some(name) = reconcile.layers.last().cloned().filter(|_| !alone) else {
            self.settle_reconcile(id);
            return;
        };
        let end = (from + COMPARE_BYTES).min(size_bytes);
        let length_bytes = (end - from).next_multiple_of(wire::layer::HASH_CHUNK_BYTES);
        let mut asked = Vec::new();
        for member in self.writers() {
            let request = wire::Request::LayerHashes {
                name: name.clone(),
                offset_bytes: from,
                length_bytes,
            };
            asked.push(self.send(member, Purpose::Task(id), request));
        }
        if let Some(reconcile) = self.reconcile_mut(id) {
            reconcile.state = State::Comparing {
                from,
                asked,
                hashes: Vec::new(),
            };
        }
    }

    /// Reads a locked chunk from the chosen member.
    fn read_chunk(&mut self, id: TaskId, blocks: BlockRange) {
        let range = self
            .reconcile_mut(id)
            .and_then(|reconcile| match &mut reconcile.state {
                State::Repairing { chunks, locked, .. } => {
                    *locked = Some(blocks);
                    chunks.front().copied()
                }
                _ => None,
            });
        let (Some(range), Some(member)) = (range, self.choose_reader(MemberSet::default())) else {
            return;
        };
        let request = wire::Request::Read {
            offset_bytes: range.offset,
            length_bytes: range.length,
        };
        let job = self.send(member, Purpose::Task(id), request);
        if let Some(Reconcile {
            state: State::Repairing { read, .. },
            ..
        }) = self.reconcile_mut(id)
        {
            *read = Some(job);
        }
    }

    pub(super) fn on_reconcile_reply(
        &mut self,
        id: TaskId,
        member: MemberIndex,
        job: JobId,
        reply: Reply,
    ) {
        let size_bytes = self.size_bytes;
        let flags = self.write_flags(false);
        let Some(reconcile) = self.reconcile_mut(id) else {
            return;
        };
        let is_awaited = reconcile.state.awaits(job);
        let comparing = matches!(reconcile.state, State::Comparing { .. });
        let reply = match reply {
            Reply::Failed(failure) if comparing && failure.code == StatusCode::NotFound => {
                Reply::Hashes(Vec::new())
            }
            reply => reply,
        };
        match (&mut reconcile.state, reply) {
            (State::Listing { asked, lists }, Reply::Layers(layers)) => {
                let Some(at) = asked.iter().position(|(known, _)| *known == job) else {
                    return;
                };
                let (_, member) = asked.swap_remove(at);
                lists.insert(member, layers);
                if asked.is_empty() {
                    let lists = std::mem::take(lists);
                    self.on_listed(id, &lists);
                }
            }
            (
                State::Comparing {
                    from,
                    asked,
                    hashes,
                },
                Reply::Hashes(found),
            ) => {
                asked.retain(|known| *known != job);
                hashes.push(found);
                if !asked.is_empty() {
                    return;
                }
                let next = (*from + COMPARE_BYTES).min(size_bytes);
                let mut chunks: Vec<ByteRange> = Vec::new();
                for theirs in &hashes[1..] {
                    chunks.extend(differing_chunks(*from, size_bytes, &hashes[0], theirs));
                }
                chunks.sort_unstable();
                chunks.dedup();
                reconcile.compared_bytes = next;
                reconcile.differing_bytes += chunks.iter().map(|chunk| chunk.length).sum::<u64>();
                reconcile.state = State::Repairing {
                    next,
                    chunks: chunks.into(),
                    locked: None,
                    read: None,
                    writing: false,
                };
            }
            (
                State::Repairing {
                    chunks,
                    read,
                    writing,
                    ..
                },
                Reply::Data(data),
            ) if *read == Some(job)
                && chunks
                    .front()
                    .is_some_and(|range| range.length == data.len() as u64) =>
            {
                *read = None;
                *writing = true;
                let Some(range) = chunks.front().copied() else {
                    return;
                };
                let request = wire::Request::Write {
                    offset_bytes: range.offset,
                    data,
                    flags,
                };
                self.start_fan(Origin::Task(id), request);
            }
            (_, Reply::Failed(failure)) => self.reconcile_refused(id, member, &failure),
            _ if is_awaited => {
                let failure = Failure::new(StatusCode::Io, NOT_WHAT_WAS_ASKED);
                self.reconcile_refused(id, member, &failure);
            }
            // Late, to a question that was asked again since.
            _ => {}
        }
    }

    /// A member that cannot read what it has is left behind, if others live. Everything else is tried again after a while.
    fn reconcile_refused(&mut self, id: TaskId, member: MemberIndex, failure: &Failure) {
        tracing::warn!(%failure, "comparing replicas was refused; trying again");
        if matches!(failure.code, StatusCode::Io | StatusCode::Corrupt) && self.others_live(member)
        {
            self.fail_member(member, &failure.to_string());
            return;
        }
        let again_at = self.now.after(AGAIN_US);
        if let Some(reconcile) = self.reconcile_mut(id) {
            reconcile.again_at = again_at;
        }
    }

    pub(super) fn reconcile_fan_done(&mut self, id: TaskId, result: &Result<(), Failure>) {
        let now = self.now;
        let Some(reconcile) = self.reconcile_mut(id) else {
            return;
        };
        match &mut reconcile.state {
            State::Snapshotting => {
                if result.is_err() {
                    // Without it nothing can be compared: whoever is chosen is believed until then.
                    reconcile.state = State::Resting;
                    reconcile.again_at = now.after(AGAIN_US);
                }
                self.release_barrier(id);
                self.open_frontend();
                if result.is_ok() {
                    self.compare_members(id, 0);
                }
            }
            State::Repairing {
                chunks,
                locked,
                writing,
                ..
            } => {
                *writing = false;
                if result.is_ok() {
                    chunks.pop_front();
                } else {
                    reconcile.again_at = now.after(AGAIN_US);
                }
                if let Some(blocks) = locked.take() {
                    self.writes_open -= 1;
                    self.locks.unlock(blocks);
                    self.wake_waiting();
                }
            }
            State::Listing { .. }
            | State::AwaitBarrier
            | State::Resting
            | State::Comparing { .. }
            | State::Settling => {}
        }
    }

    fn end_reconcile(&mut self, id: TaskId) {
        let Some(Task {
            kind: TaskKind::Reconcile(reconcile),
            ..
        }) = self.tasks.remove(&id)
        else {
            return;
        };
        self.release_barrier(id);
        self.locks.give_up_next();
        self.read_pin = None;
        let differing_bytes = reconcile.differing_bytes;
        self.out
            .push(Action::Notify(Notice::Reconciled { differing_bytes }));
        // Layers are left where there is nobody to compare with any more.
        for name in reconcile.to_delete.into_iter().chain(reconcile.layers) {
            self.delete_system_snapshot(Some(name));
        }
        self.wake_waiting();
    }
}

impl Chain {
    fn of(layers: &[LayerInfo], dying: &BTreeSet<SnapshotName>) -> Self {
        let counts = |layer: &&LayerInfo| {
            !layer.removed
                && !is_of_comparison(layer)
                && name_of(layer).is_some_and(|name| !dying.contains(name))
        };
        let by_name: BTreeMap<&SnapshotName, &LayerInfo> = layers
            .iter()
            .filter_map(|layer| Some((name_of(layer)?, layer)))
            .collect();
        let head = layers.iter().find(|layer| layer.layer == LayerRef::Head);
        let below = |layer: &&LayerInfo| by_name.get(layer.parent.as_ref()?).copied();
        let names = |layer: &LayerInfo| name_of(layer).cloned();
        Self {
            kept: layers.iter().filter(counts).filter_map(names).collect(),
            // Parents that form a circle must not lead round it for ever.
            live: std::iter::successors(head, below)
                .take(layers.len())
                .filter(counts)
                .filter_map(names)
                .collect(),
        }
    }
}

fn is_of_comparison(layer: &LayerInfo) -> bool {
    !layer.user_created && name_of(layer).is_some_and(|name| name.as_str().starts_with(NAME_PREFIX))
}

fn name_of(layer: &LayerInfo) -> Option<&SnapshotName> {
    match &layer.layer {
        LayerRef::Snapshot(name) => Some(name),
        LayerRef::Head => None,
    }
}
