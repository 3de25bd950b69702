//! Copying layers: what differs, what is there, and proof that it arrived.

use block_core::wire::request::ExtentScope;
use block_core::wire::{self, ChunkHash, ExtentKind};

use super::super::EngineCore;
use super::super::tasks::TaskId;
use super::{COMPARE_BYTES, COMPARISONS_MAX, CopyJob, Item, Step};
use crate::io::ByteRange;

impl EngineCore {
    /// Begins to copy or to compare the layer that is next.
    pub(super) fn start_layer(&mut self, id: TaskId) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let Some(layer) = rebuild.layers.get(rebuild.layer_at) else {
            if rebuild.layers.is_empty() {
                self.ask_for_digest(id);
            }
            self.verify(id);
            return;
        };
        let is_last = rebuild.layer_at + 1 == rebuild.layers.len();
        let whole = ByteRange::new(0, layer.size_bytes);
        if rebuild.existing.contains(&layer.name) {
            self.compare(id, 0);
        } else {
            rebuild.wanted = vec![whole];
            self.fetch_extents(id, 0);
        }
        if is_last {
            self.ask_for_digest(id);
        }
    }

    /// The source computes it while the last layer is copied.
    fn ask_for_digest(&mut self, id: TaskId) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let (Some(source), Some(name)) = (rebuild.source, rebuild.snapshot.clone()) else {
            return;
        };
        let request = wire::Request::SnapshotDigest {
            name,
            recompute: false,
        };
        self.ask_more(id, source, CopyJob::SourceDigest, request);
    }

    pub(super) fn next_layer(&mut self, id: TaskId) {
        if let Some(rebuild) = self.rebuild_mut(id) {
            rebuild.layer_at += 1;
            rebuild.comparisons = 0;
            rebuild.progress.layer_done();
        }
        self.start_layer(id);
    }

    pub(super) fn compare(&mut self, id: TaskId, from: u64) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let (Some(source), target) = (rebuild.source, rebuild.target) else {
            return;
        };
        if from == 0 {
            rebuild.wanted.clear();
            rebuild.comparisons += 1;
        }
        let layer = &rebuild.layers[rebuild.layer_at];
        let end = (from + COMPARE_BYTES).min(layer.size_bytes);
        let length_bytes = (end - from).next_multiple_of(wire::layer::HASH_CHUNK_BYTES);
        let request = wire::Request::LayerHashes {
            name: layer.name.clone(),
            offset_bytes: from,
            length_bytes,
        };
        self.set_step(
            id,
            Step::Comparing {
                from,
                ours: None,
                theirs: None,
            },
        );
        self.ask_more(id, source, CopyJob::SourceHashes, request.clone());
        self.ask_more(id, target, CopyJob::TargetHashes, request);
    }

    pub(super) fn on_hashes(
        &mut self,
        id: TaskId,
        source: Option<Vec<ChunkHash>>,
        target: Option<Vec<ChunkHash>>,
    ) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let Step::Comparing { from, ours, theirs } = &mut rebuild.step else {
            return;
        };
        *ours = ours.take().or(source);
        *theirs = theirs.take().or(target);
        let (from, Some(ours), Some(theirs)) = (*from, &*ours, &*theirs) else {
            return;
        };
        let size_bytes = rebuild.layers[rebuild.layer_at].size_bytes;
        let differing = differing_chunks(from, size_bytes, ours, theirs);
        rebuild.progress.add(equal_bytes(ours, theirs));
        let window_end = (from + COMPARE_BYTES).min(size_bytes);
        for range in differing {
            match rebuild.wanted.last_mut() {
                Some(last) if last.offset + last.length == range.offset => {
                    last.length += range.length;
                }
                _ => rebuild.wanted.push(range),
            }
        }
        if window_end < size_bytes {
            self.compare(id, window_end);
        } else if rebuild.wanted.is_empty() {
            self.next_layer(id);
        } else if rebuild.comparisons > COMPARISONS_MAX {
            self.rebuild_interrupted(id, "a layer differs after it was copied");
        } else {
            rebuild
                .queue
                .extend(rebuild.wanted.iter().map(|range| Item::Clear(*range)));
            rebuild.step = Step::Clearing;
            self.feed_copies(id);
        }
    }

    pub(super) fn fetch_extents(&mut self, id: TaskId, from: u64) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let Some(source) = rebuild.source else {
            return;
        };
        let request = wire::Request::LayerExtents {
            name: rebuild.layer_name(),
            scope: ExtentScope::Own,
            from_offset_bytes: from,
        };
        self.ask(id, source, Step::Extents { from }, CopyJob::Step, request);
    }

    /// Keeps a few copies under way, as far as the rate allows.
    pub(super) fn feed_copies(&mut self, id: TaskId) {
        let rate = self.rebuild_rate;
        loop {
            let Some(rebuild) = self.rebuild_mut(id) else {
                return;
            };
            if !rebuild.may_copy_more() {
                return;
            }
            let Some(item) = rebuild.queue.front().copied() else {
                return;
            };
            if let Item::Data(range) = item
                && rate > 0
            {
                if rebuild.allowance_bytes < range.length {
                    return;
                }
                rebuild.allowance_bytes -= range.length;
            }
            rebuild.queue.pop_front();
            let (name, target) = (rebuild.layer_name(), rebuild.target);
            let Some(source) = rebuild.source else {
                return;
            };
            match item {
                Item::Data(range) => {
                    let request = wire::Request::ReadLayer {
                        name,
                        offset_bytes: range.offset,
                        length_bytes: range.length,
                    };
                    self.ask_more(id, source, CopyJob::Fetch(range), request);
                }
                Item::Zero(range) | Item::Clear(range) => {
                    let kind = matches!(item, Item::Zero(_)).then_some(ExtentKind::Zero);
                    let request = wire::Request::RebuildMark {
                        name,
                        offset_bytes: range.offset,
                        length_bytes: range.length,
                        kind,
                    };
                    self.ask_more(id, target, CopyJob::Mark, request);
                }
            }
        }
    }

    /// Has the target compare what it shows with what the source shows, once that is known.
    pub(super) fn verify(&mut self, id: TaskId) {
        let Some(rebuild) = self.rebuild_mut(id) else {
            return;
        };
        let target = rebuild.target;
        let (Some(digest), Some(name)) = (rebuild.digest, rebuild.snapshot.clone()) else {
            rebuild.step = Step::Digesting;
            return;
        };
        let request = wire::Request::RebuildVerify { name, digest };
        self.ask(id, target, Step::Verifying, CopyJob::Step, request);
    }
}

pub(in crate::core) fn differing_chunks(
    from: u64,
    size_bytes: u64,
    ours: &[ChunkHash],
    theirs: &[ChunkHash],
) -> Vec<ByteRange> {
    let chunk_bytes = wire::layer::HASH_CHUNK_BYTES;
    let count = ours.len().max(theirs.len());
    (0..count)
        .filter(|at| ours.get(*at).copied().flatten() != theirs.get(*at).copied().flatten())
        .map(|at| {
            let offset = from + at as u64 * chunk_bytes;
            ByteRange::new(offset, chunk_bytes.min(size_bytes.saturating_sub(offset)))
        })
        .filter(|range| range.length > 0)
        .collect()
}

/// What the chunks take in which both have the same; where neither has anything there is nothing to have.
fn equal_bytes(ours: &[ChunkHash], theirs: &[ChunkHash]) -> u64 {
    let pairs = ours.iter().zip(theirs);
    let equal = pairs.filter(|(ours, theirs)| ours.is_some() && ours == theirs);
    equal.count() as u64 * wire::layer::HASH_CHUNK_BYTES
}

/// Whether extents come one after the other, and the next page behind this one: else there would be no end to them.
pub(super) fn page_is_sound(page: &wire::ExtentPage, from: u64) -> bool {
    let mut end = Some(0);
    for extent in &page.extents {
        if end.is_none_or(|end| extent.offset_bytes < end) {
            return false;
        }
        end = extent.offset_bytes.checked_add(extent.length_bytes);
    }
    end.is_some() && page.next_offset_bytes.is_none_or(|next| next > from)
}

/// The parts of `extents` that lie in `wanted`, cut to pieces that one message can carry.
pub(super) fn items_of(extents: &[wire::Extent], wanted: &[ByteRange]) -> Vec<Item> {
    let mut items = Vec::new();
    for extent in extents {
        let end = extent.offset_bytes + extent.length_bytes;
        let from =
            wanted.partition_point(|range| range.offset + range.length <= extent.offset_bytes);
        for range in wanted[from..].iter().take_while(|range| range.offset < end) {
            let start = range.offset.max(extent.offset_bytes);
            let stop = (range.offset + range.length).min(end);
            let part = ByteRange::new(start, stop - start);
            match extent.kind {
                ExtentKind::Data => items.extend(
                    part.pieces(wire::layer::REBUILD_WRITE_BYTES_MAX)
                        .map(Item::Data),
                ),
                ExtentKind::Zero => items.push(Item::Zero(part)),
            }
        }
    }
    items
}
