//! For each block of the live volume, the layer that has its data: one byte a block, and nothing where nothing is.
//!
//! A block that reads as zero has no layer here, whether it was never written or was zeroed over older data: readers
//! need no difference. Entries are atomic, so that reads and writes of different blocks share the map without a lock;
//! the order of conflicting operations is their caller's concern.

use std::num::NonZeroU8;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// A layer's number in the map. Numbers are reused after a layer has been merged away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerSlot(NonZeroU8);

impl LayerSlot {
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        NonZeroU8::new(number).map(Self)
    }

    #[must_use]
    pub fn number(self) -> u8 {
        self.0.get()
    }
}

/// Neighbouring blocks with the same layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub slot: Option<LayerSlot>,
    pub end_block: u64,
}

/// 16 MiB of volume in 4 KiB of memory: fine enough for sparse volumes, and 64 Ki entries for 1 TiB.
const CHUNK_BLOCKS: u64 = 4096;

type Chunk = Box<[AtomicU8]>;

#[derive(Debug, Default)]
pub struct BlockMap {
    /// Chunks in which any block ever had a layer.
    chunks: Vec<OnceLock<Chunk>>,
    blocks: u64,
}

impl BlockMap {
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let mut map = Self::default();
        map.grow(blocks);
        map
    }

    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Makes the map cover more blocks. It never covers fewer.
    pub fn grow(&mut self, blocks: u64) {
        self.blocks = self.blocks.max(blocks);
        let chunks =
            usize::try_from(self.blocks.div_ceil(CHUNK_BLOCKS)).expect("chunks fit in memory");
        self.chunks.resize_with(chunks, OnceLock::new);
    }

    #[must_use]
    pub fn get(&self, block: u64) -> Option<LayerSlot> {
        let (chunk, at) = self.place(block);
        LayerSlot::new(self.chunks[chunk].get()?[at].load(Ordering::Acquire))
    }

    /// The layer of `block` and how far it goes on, up to `end_block`.
    #[must_use]
    pub fn run_at(&self, block: u64, end_block: u64) -> Run {
        let end_block = end_block.min(self.blocks);
        let slot = self.get(block);
        let wanted = slot.map_or(0, LayerSlot::number);
        let mut next = block + 1;
        while next < end_block {
            let (chunk, at) = self.place(next);
            match self.chunks[chunk].get() {
                None if wanted == 0 => next = (next / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS,
                None => break,
                Some(entries) => {
                    let same = |entry: &&AtomicU8| entry.load(Ordering::Acquire) == wanted;
                    let stretch = entries[at..].iter().take_while(same).count() as u64;
                    next += stretch;
                    if (at as u64 + stretch) < CHUNK_BLOCKS {
                        break;
                    }
                }
            }
        }
        Run {
            slot,
            end_block: next.min(end_block),
        }
    }

    /// Says that blocks `first..end` are now in `slot`, or read as zero.
    pub fn set(&self, first: u64, end: u64, slot: Option<LayerSlot>) {
        assert!(
            end <= self.blocks,
            "block {end} is past the map's end at {}",
            self.blocks
        );
        let number = slot.map_or(0, LayerSlot::number);
        self.for_each_piece(first, end, |place, from, to| {
            let entries = match (place.get(), number) {
                (None, 0) => return,
                (None, _) => place.get_or_init(new_chunk),
                (Some(entries), _) => entries,
            };
            for entry in &entries[from..to] {
                entry.store(number, Ordering::Release);
            }
        });
    }

    /// Blocks of `first..end` that are in `from` move to `to`.
    pub fn replace(&self, first: u64, end: u64, from: LayerSlot, to: LayerSlot) {
        self.for_each_piece(first, end.min(self.blocks), |place, at, until| {
            for entry in place.get().map_or(&[][..], |entries| &entries[at..until]) {
                // Another writer may have put the block into the head meanwhile: that one wins.
                let _ = entry.compare_exchange(
                    from.number(),
                    to.number(),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                );
            }
        });
    }

    /// The blocks that have a layer.
    #[must_use]
    pub fn mapped_blocks(&self) -> u64 {
        let mapped = |entries: &Chunk| {
            entries
                .iter()
                .filter(|entry| entry.load(Ordering::Relaxed) != 0)
                .count()
        };
        self.chunks
            .iter()
            .filter_map(OnceLock::get)
            .map(|entries| mapped(entries) as u64)
            .sum()
    }

    /// The memory that the map takes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let chunks = self
            .chunks
            .iter()
            .filter(|chunk| chunk.get().is_some())
            .count() as u64;
        chunks * CHUNK_BLOCKS + (self.chunks.len() * size_of::<OnceLock<Chunk>>()) as u64
    }

    fn place(&self, block: u64) -> (usize, usize) {
        assert!(
            block < self.blocks,
            "block {block} is past the map's end at {}",
            self.blocks
        );
        (
            (block / CHUNK_BLOCKS) as usize,
            (block % CHUNK_BLOCKS) as usize,
        )
    }

    fn for_each_piece(
        &self,
        first: u64,
        end: u64,
        mut visit: impl FnMut(&OnceLock<Chunk>, usize, usize),
    ) {
        let mut block = first;
        while block < end {
            let (chunk, at) = self.place(block);
            let piece = (CHUNK_BLOCKS - at as u64).min(end - block);
            visit(&self.chunks[chunk], at, at + piece as usize);
            block += piece;
        }
    }
}

fn new_chunk() -> Chunk {
    (0..CHUNK_BLOCKS).map(|_| AtomicU8::new(0)).collect()
}
