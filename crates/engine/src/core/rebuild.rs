//! Bringing a replica up to date while I/O runs.
//!
//! ```text
//! Connecting ─> AwaitBarrier ─> Snapshotting ─> Listing ─> Beginning ─┐   (writes held back only here)
//!      ^                                                              v
//!      │ broken                                    per layer: Comparing ─> Clearing ─> Copying
//!      └──────────────────────────────────────────────────────────────┤
//!                            Joined <─ Joining <─ Committing <─ Verifying
//! ```
//! A snapshot freezes what is there; from the moment that the target has begun, live writes go to
//! it as well. All frozen layers are then copied, parents first, also those that a revert has left beside the live volume: they are
//! snapshots like all others. A layer that the target has in some state already, from
//! its life before or from a rebuild that broke off, is compared by hashes and only what
//! differs is copied: so a rebuild resumes by being started again.
//!
//! Rebuilds that wait begin together, over one snapshot. Snapshots that are taken meanwhile go to the targets as well.

mod copy;
mod ending;
mod plan;
mod progress;

use std::collections::VecDeque;

use block_core::SnapshotName;
use block_core::wire::request::RebuildLayer;
use block_core::wire::{self, ChunkHash, Failure, Reply};

use super::data::Origin;
use super::id_map::IdMap;
use super::member::Role;
use super::membership::SyncStage;
use super::tasks::{Task, TaskId, TaskKind};
use super::{EngineCore, JobId, MemberIndex, MemberSet, Moment, Purpose};
use crate::io::ByteRange;
pub(super) use copy::differing_chunks;
use copy::{items_of, page_is_sound};
use plan::layers_to_copy;
use progress::Progress;

/// The snapshots that rebuilds take are recognised by their names, which no user's may have.
pub const NAME_PREFIX: &str = "rebuild-";

/// Reads and writes of one rebuild under way, and what they carry: enough to keep both ends busy, also where every piece is a
/// single block, and little enough that live requests do not queue behind them.
const COPIES_OPEN_MAX: usize = 64;
const COPY_BYTES_OPEN_MAX: u64 = 8 * wire::layer::REBUILD_WRITE_BYTES_MAX;

/// How often a rebuild that breaks off is begun again, before the caller is told.
const ATTEMPTS_MAX: u32 = 5;

/// The pause before the second attempt; it doubles.
const RETRY_FIRST_US: u64 = 100_000;

/// A layer that differs after so many copies is not copied right.
pub(super) const COMPARISONS_MAX: u32 = 4;

/// What one pair of hash requests compares: 64 Ki chunks would be the limit; a smaller window shows progress.
const COMPARE_BYTES: u64 = 1 << 30;

#[derive(Debug)]
enum Step {
    Connecting,
    AwaitBarrier,
    Snapshotting,
    Listing,
    Beginning,
    /// Both sides' hashes of a window of the layer.
    Comparing {
        from: u64,
        ours: Option<Vec<ChunkHash>>,
        theirs: Option<Vec<ChunkHash>>,
    },
    Clearing,
    Extents {
        from: u64,
    },
    /// Items of one page of extents; `next` is where the next page begins.
    Copying {
        next: Option<u64>,
    },
    Digesting,
    Verifying,
    Committing,
    Joining,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Data(ByteRange),
    Zero(ByteRange),
    Clear(ByteRange),
}

/// What a job of this rebuild was for.
#[derive(Clone, Copy, Debug)]
enum CopyJob {
    /// A step's single request.
    Step,
    SourceHashes,
    TargetHashes,
    Fetch(ByteRange),
    Store(ByteRange),
    Mark,
    /// What the whole is to show, in the end.
    SourceDigest,
}

pub struct Rebuild {
    pub target: MemberIndex,
    source: Option<MemberIndex>,
    step: Step,
    attempts: u32,
    /// It broke off while its snapshot was being taken, and begins again when that is done.
    abandoned: bool,
    /// Not before this: what broke a rebuild off may need a moment to pass.
    begin_at: Moment,
    /// The snapshot that this rebuild took, to be deleted in the end.
    snapshot: Option<SnapshotName>,
    barrier_since: Option<Moment>,
    layers: Vec<RebuildLayer>,
    existing: Vec<SnapshotName>,
    layer_at: usize,
    /// How often the current layer was compared.
    comparisons: u32,
    /// What the source shows at the snapshot; computed while the last layer is copied.
    digest: Option<[u8; 32]>,
    /// The parts of the current layer to be copied, in order.
    wanted: Vec<ByteRange>,
    queue: VecDeque<Item>,
    jobs: IdMap<JobId, CopyJob>,
    pub progress: Progress,
    pub copied_bytes: u64,
    allowance_bytes: u64,
    refilled_at: Moment,
}

impl Rebuild {
    pub fn new(target: MemberIndex, now: Moment) -> Self {
        Self {
            target,
            source: None,
            step: Step::Connecting,
            attempts: 0,
            abandoned: false,
            begin_at: now,
            snapshot: None,
            barrier_since: None,
            layers: Vec::new(),
            existing: Vec::new(),
            layer_at: 0,
            comparisons: 0,
            digest: None,
            wanted: Vec::new(),
            queue: VecDeque::new(),
            jobs: IdMap::default(),
            progress: Progress::default(),
            copied_bytes: 0,
            allowance_bytes: 0,
            refilled_at: now,
        }
    }

    pub fn concerns(&self, member: MemberIndex) -> bool {
        self.target == member || self.source == Some(member)
    }

    pub fn step_name(&self) -> &'static str {
        match self.step {
            Step::Connecting => "connecting",
            Step::AwaitBarrier | Step::Snapshotting => "taking a snapshot",
            Step::Listing | Step::Beginning => "beginning",
            Step::Comparing { .. } | Step::Clearing => "comparing",
            Step::Extents { .. } | Step::Copying { .. } => "copying",
            Step::Digesting | Step::Verifying => "verifying",
            Step::Committing | Step::Joining => "joining",
        }
    }

    fn refill(&mut self, now: Moment, rate: u64) {
        const SECOND_US: u64 = 1_000_000;
        if rate == 0 {
            return;
        }
        let elapsed_us = now.since_us(self.refilled_at).min(SECOND_US);
        let earned_bytes = scaled(rate, elapsed_us, SECOND_US);
        // Time that has not earned a whole byte yet is kept: under load this is called every few microseconds.
        let spent_us = scaled(earned_bytes, SECOND_US, rate);
        self.refilled_at = Moment(now.0 - (elapsed_us - spent_us));
        // At most a second's worth is saved up; and always enough for one piece, or nothing would move.
        let most = rate.max(wire::layer::REBUILD_WRITE_BYTES_MAX);
        self.allowance_bytes = self.allowance_bytes.saturating_add(earned_bytes).min(most);
    }

    fn copies_open(&self) -> usize {
        let is_copy = |job: &&CopyJob| !matches!(job, CopyJob::SourceDigest);
        self.jobs.values().filter(is_copy).count()
    }

    fn may_copy_more(&self) -> bool {
        let carried = self.jobs.values().map(|job| match job {
            CopyJob::Fetch(range) | CopyJob::Store(range) => range.length,
            _ => 0,
        });
        self.copies_open() < COPIES_OPEN_MAX && carried.sum::<u64>() < COPY_BYTES_OPEN_MAX
    }

    fn layer_name(&self) -> SnapshotName {
        self.layers[self.layer_at].name.clone()
    }
}

impl EngineCore {
    fn rebuild_mut(&mut self, id: TaskId) -> Option<&mut Rebuild> {
        match self.tasks.get_mut(&id) {
            Some(Task {
                kind: TaskKind::Rebuild(rebuild),
                ..
            }) => Some(rebuild),
            _ => None,
        }
    }

    /// Takes the steps that need no answer from a member.
    pub(super) fn advance_rebuild(&mut self, id: TaskId, holds_barrier: bool) {
        let (now, rate) = (self.now, self.rebuild_rate);
        let owns_barrier = self.barrier == Some(id);
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let target = rebuild.target;
        rebuild.refill(now, rate);
        if owns_barrier {
            rebuild.barrier_since.get_or_insert(now);
        }
        match &rebuild.step {
            Step::Connecting => {
                let due = rebuild.begin_at <= now;
                // A purge changes the chain as well, and ends by itself.
                let free = !self.purge_runs() && !self.reconcile_runs();
                if due && free && self.members[target.position()].is_up() {
                    self.set_step(id, Step::AwaitBarrier);
                    self.barrier_queue.push_back(id);
                }
            }
            Step::AwaitBarrier if holds_barrier => self.take_rebuild_snapshot(id),
            Step::Copying { next } if rebuild.queue.is_empty() && rebuild.copies_open() == 0 => {
                match *next {
                    Some(from) => self.fetch_extents(id, from),
                    // All that the last layer has is seen in what the whole shows, and that is verified.
                    None if rebuild.layer_at + 1 == rebuild.layers.len() => self.next_layer(id),
                    // What was copied is compared, and copied again where it differs.
                    None => self.compare(id, 0),
                }
            }
            Step::Clearing if rebuild.queue.is_empty() && rebuild.copies_open() == 0 => {
                let from = rebuild.wanted.first().map_or(0, |range| range.offset);
                self.fetch_extents(id, from);
            }
            Step::Copying { .. } | Step::Clearing => self.feed_copies(id),
            Step::Joining => match self.members[target.position()].role.clone() {
                Role::InSync if self.stage == SyncStage::Settled => self.end_rebuild(id, Ok(())),
                Role::Out { why } | Role::Failed { why } => self.end_rebuild(id, Err(why)),
                _ => {}
            },
            _ => {}
        }
    }

    fn set_step(&mut self, id: TaskId, step: Step) {
        if let Some(rebuild) = self.rebuild_mut(id) {
            rebuild.step = step;
        }
    }

    /// Those that hold writes back because their target has not begun yet.
    fn rebuilds_begin(&self) -> bool {
        self.tasks.values().any(|task| match &task.kind {
            TaskKind::Rebuild(rebuild) => {
                matches!(
                    rebuild.step,
                    Step::Snapshotting | Step::Listing | Step::Beginning
                )
            }
            _ => false,
        })
    }

    fn take_rebuild_snapshot(&mut self, id: TaskId) {
        let (epoch, created_unix_ms) = (self.config.epoch, self.unix_ms());
        self.snapshot_next += 1;
        let number = self.snapshot_next;
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let text = format!("{NAME_PREFIX}{epoch}-{number}");
        let name = SnapshotName::new(&text).expect("made of letters and digits");
        rebuild.snapshot = Some(name.clone());
        rebuild.step = Step::Snapshotting;
        let request = wire::Request::SnapshotCreate {
            name,
            created_unix_ms,
            user_created: false,
        };
        self.start_fan(Origin::Task(id), request);
    }

    /// The snapshot is on all members: what is below it will not change.
    pub(super) fn rebuild_fan_done(&mut self, id: TaskId, result: Result<(), Failure>) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        assert!(
            matches!(rebuild.step, Step::Snapshotting),
            "only this step sends to all"
        );
        rebuild.step = Step::Connecting;
        if std::mem::take(&mut rebuild.abandoned) {
            let snapshot = rebuild.snapshot.take();
            self.delete_rebuild_snapshot(snapshot);
            self.release_rebuild_barrier();
            return;
        }
        if let Err(failure) = result {
            self.rebuild_interrupted(id, &failure.to_string());
            return;
        }
        let snapshot = self
            .rebuild_mut(id)
            .and_then(|rebuild| rebuild.snapshot.clone());
        let Some(source) = self.choose_reader(MemberSet::default()) else {
            self.rebuild_interrupted(id, "no replica in sync can be read");
            return;
        };
        // All that wait begin here: writers are held back once instead of once for each.
        let together: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(other, task)| match &task.kind {
                TaskKind::Rebuild(rebuild) => {
                    **other == id || matches!(rebuild.step, Step::AwaitBarrier)
                }
                _ => false,
            })
            .map(|(other, _)| *other)
            .collect();
        for other in together {
            self.barrier_queue.retain(|waiting| *waiting != other);
            if let Some(rebuild) = self.rebuild_mut(other) {
                rebuild.source = Some(source);
                rebuild.snapshot.clone_from(&snapshot);
            }
            self.ask(
                other,
                source,
                Step::Listing,
                CopyJob::Step,
                wire::Request::ListLayers,
            );
        }
    }

    /// Writes go on when every target that begins has begun.
    fn release_rebuild_barrier(&mut self) {
        let Some(holder) = self.barrier else {
            return;
        };
        let done = match self.tasks.get(&holder).map(|task| &task.kind) {
            None => true,
            Some(TaskKind::Rebuild(rebuild)) => !matches!(rebuild.step, Step::AwaitBarrier),
            Some(_) => false,
        };
        if done && !self.rebuilds_begin() {
            self.release_barrier(holder);
        }
    }

    fn ask(
        &mut self,
        id: TaskId,
        member: MemberIndex,
        step: Step,
        what: CopyJob,
        request: wire::Request,
    ) {
        self.set_step(id, step);
        self.ask_more(id, member, what, request);
    }

    fn ask_more(&mut self, id: TaskId, member: MemberIndex, what: CopyJob, request: wire::Request) {
        let job = self.send(member, Purpose::Task(id), request);
        if let Some(rebuild) = self.rebuild_mut(id) {
            rebuild.jobs.insert(job, what);
        }
    }

    pub(super) fn on_rebuild_reply(&mut self, id: TaskId, job: JobId, reply: Reply) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        // Of an attempt that broke off.
        let Some(what) = rebuild.jobs.remove(&job) else {
            return;
        };
        if let Reply::Failed(failure) = &reply {
            let why = format!("{} failed: {failure}", rebuild.step_name());
            self.rebuild_interrupted(id, &why);
            return;
        }
        match (what, reply) {
            (CopyJob::Step, reply) => self.on_step_reply(id, reply),
            (CopyJob::SourceHashes, Reply::Hashes(hashes)) => {
                self.on_hashes(id, Some(hashes), None);
            }
            (CopyJob::TargetHashes, Reply::Hashes(hashes)) => {
                self.on_hashes(id, None, Some(hashes));
            }
            (CopyJob::Fetch(range), Reply::Data(data)) if data.len() as u64 == range.length => {
                let name = rebuild.layer_name();
                let target = rebuild.target;
                let request = wire::Request::RebuildWrite {
                    name,
                    offset_bytes: range.offset,
                    data,
                };
                self.ask_more(id, target, CopyJob::Store(range), request);
            }
            (CopyJob::Store(range), Reply::Done) => {
                rebuild.progress.add(range.length);
                rebuild.copied_bytes += range.length;
            }
            (CopyJob::Mark, Reply::Done) => {}
            (CopyJob::SourceDigest, Reply::Digest(digest)) => {
                rebuild.digest = Some(digest);
                if matches!(rebuild.step, Step::Digesting) {
                    self.verify(id);
                }
            }
            (_, _) => self.rebuild_interrupted(id, "a replica answered something else than asked"),
        }
    }

    fn on_step_reply(&mut self, id: TaskId, reply: Reply) {
        let size_bytes = self.size_bytes;
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let target = rebuild.target;
        match (&rebuild.step, reply) {
            (Step::Listing, Reply::Layers(layers)) => {
                let head_parent = rebuild.snapshot.clone();
                let plan = layers_to_copy(&layers, head_parent.as_ref());
                let (layers, layers_bytes): (Vec<_>, Vec<_>) = plan.into_iter().unzip();
                rebuild.layers.clone_from(&layers);
                rebuild.progress = Progress::of(layers_bytes);
                let request = wire::Request::RebuildBegin {
                    size_bytes,
                    layers,
                    head_parent,
                };
                self.ask(id, target, Step::Beginning, CopyJob::Step, request);
            }
            (Step::Beginning, Reply::RebuildPlan(plan)) => {
                rebuild.existing = plan.existing;
                // Each layer's own blocks are compared when it is copied; what they show together, in the end.
                rebuild.digest = None;
                rebuild.comparisons = 0;
                rebuild.layer_at = 0;
                let since = rebuild.barrier_since.take();
                // From here on the target gets what the others get.
                self.members[target.position()].role = Role::Joining {
                    task: id,
                    live: true,
                };
                self.members[target.position()].size_bytes = size_bytes;
                if let Some(since) = since {
                    self.statistics.barrier.record(self.now.since_us(since));
                }
                self.start_layer(id);
                self.release_rebuild_barrier();
            }
            (Step::Extents { from }, Reply::Extents(page)) if page_is_sound(&page, *from) => {
                let items = items_of(&page.extents, &rebuild.wanted);
                let past_wanted = rebuild.wanted.last().is_none_or(|last| {
                    page.next_offset_bytes
                        .is_some_and(|next| next >= last.offset + last.length)
                });
                let next = page.next_offset_bytes.filter(|_| !past_wanted);
                rebuild.queue.extend(items);
                rebuild.step = Step::Copying { next };
                self.feed_copies(id);
            }
            (Step::Verifying, Reply::Done) => {
                let request = wire::Request::RebuildCommit;
                self.ask(id, target, Step::Committing, CopyJob::Step, request);
            }
            (Step::Committing, Reply::Done) => {
                rebuild.step = Step::Joining;
                self.members[target.position()].role = Role::JoinReady;
            }
            (_, _) => self.rebuild_interrupted(id, "a replica answered something else than asked"),
        }
    }
}

/// `value * by / of`, which is no larger than `value` or `by`: a rate may be any number, and its product more than one holds.
fn scaled(value: u64, by: u64, of: u64) -> u64 {
    (u128::from(value) * u128::from(by) / u128::from(of)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_can_be_kept_to() {
        for (rate, expected) in [
            (0, 0),
            (1, 0),
            (1_000_000, 500_000),
            (1 << 50, 1 << 49),
            (u64::MAX, u64::MAX),
        ] {
            let mut rebuild = Rebuild::new(MemberIndex::from_position(0), Moment(0));
            // Also when a second's worth is saved up.
            for half in 1..=4 {
                rebuild.refill(Moment(half * 500_000), rate);
                if half == 1 && rate < u64::MAX {
                    assert_eq!(rebuild.allowance_bytes, expected, "{rate}");
                }
            }
            assert!(rebuild.allowance_bytes >= expected, "{rate}");
        }
    }
}
