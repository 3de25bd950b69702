//! The chain against a plain byte array: each layer is kept as a map of opinions, the way its files keep it, and the
//! volume and every snapshot must read as an array that was copied whole.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::geometry::{BLOCK_BYTES, BlockRange};
use crate::names::SnapshotName;

/// What one layer's files hold: data blocks, and zero marks that data wins over.
#[derive(Default)]
struct Files {
    data: BTreeMap<u64, u8>,
    marks: BTreeSet<u64>,
}

impl Files {
    /// `None` if the layer has no opinion; blocks are told apart by one byte, 0 is zero.
    fn opinion(&self, block: u64) -> Option<u8> {
        self.data
            .get(&block)
            .copied()
            .or_else(|| self.marks.contains(&block).then_some(0))
    }
}

struct Chain {
    tree: LayerTree,
    map: BlockMap,
    files: BTreeMap<LayerId, Files>,
    slots: BTreeMap<LayerId, LayerSlot>,
}

impl Chain {
    fn new(blocks: u64) -> Self {
        let tree = LayerTree::new(blocks * BLOCK_BYTES);
        let mut chain = Self {
            map: BlockMap::new(blocks),
            files: BTreeMap::new(),
            slots: BTreeMap::new(),
            tree,
        };
        chain.add_slot(chain.tree.head());
        chain
    }

    fn add_slot(&mut self, id: LayerId) {
        let free = (1..=254)
            .filter_map(LayerSlot::new)
            .find(|slot| !self.slots.values().any(|used| used == slot));
        self.slots.insert(id, free.expect("a free slot"));
        self.files.entry(id).or_default();
    }

    fn head_files(&mut self) -> &mut Files {
        self.files
            .get_mut(&self.tree.head())
            .expect("files of the head")
    }

    fn write(&mut self, block: u64, value: u8) {
        self.head_files().data.insert(block, value);
        self.map
            .set(block, block + 1, Some(self.slots[&self.tree.head()]));
    }

    fn zero(&mut self, range: BlockRange) {
        let head = self.slots[&self.tree.head()];
        let below = self.tree.live_path().len() > 1;
        for action in plan_zeroes(&self.map, range, head, below) {
            let (ZeroAction::Punch(run)
            | ZeroAction::Mark(run)
            | ZeroAction::OverwriteAndMark(run)) = action;
            for block in run.first..run.end {
                let files = self.head_files();
                match action {
                    ZeroAction::Punch(_) => drop(files.data.remove(&block)),
                    ZeroAction::Mark(_) => drop(files.marks.insert(block)),
                    ZeroAction::OverwriteAndMark(_) => {
                        files.marks.insert(block);
                        files.data.remove(&block);
                    }
                }
            }
            self.map.set(run.first, run.end, None);
        }
    }

    fn merge_all(&mut self) {
        while let Some(step) = self.tree.next_merge() {
            if let MergeStep::Merge { from, into } = step {
                let (old, live) = (
                    self.files.remove(&from).expect("files"),
                    self.slots.contains_key(&from),
                );
                let child = self.files.get_mut(&into).expect("files");
                for block in old.data.keys().chain(&old.marks) {
                    if child.opinion(*block).is_none() {
                        match old.data.get(block) {
                            Some(value) => drop(child.data.insert(*block, *value)),
                            None => drop(child.marks.insert(*block)),
                        }
                    }
                }
                if live && self.slots.contains_key(&into) {
                    self.map
                        .replace(0, self.map.blocks(), self.slots[&from], self.slots[&into]);
                }
            }
            let (MergeStep::Drop { layer: gone } | MergeStep::Merge { from: gone, .. }) = step;
            self.slots.remove(&gone);
            self.files.remove(&gone);
            self.tree.finish_merge(step);
        }
    }

    /// Rebuilds slots and map from the files, as an opened replica does.
    fn reopen(&mut self) {
        self.slots.clear();
        self.map = BlockMap::new(self.tree.size_bytes() / BLOCK_BYTES);
        for id in self.tree.live_path() {
            self.add_slot(id);
            for mark in &self.files[&id].marks {
                self.map.set(*mark, mark + 1, None);
            }
            for block in self.files[&id].data.keys() {
                self.map.set(*block, block + 1, Some(self.slots[&id]));
            }
        }
    }

    fn revert(&mut self, name: &SnapshotName) {
        let dropped = self.tree.revert(name).expect("a snapshot");
        self.files.remove(&dropped);
        self.files.entry(self.tree.head()).or_default();
        self.reopen();
    }

    fn read_live(&self) -> Vec<u8> {
        let by_slot = |slot| {
            self.slots
                .iter()
                .find(|(_, used)| **used == slot)
                .expect("a layer of the slot")
                .0
        };
        let read = |block| {
            self.map
                .get(block)
                .map_or(0, |slot| self.files[by_slot(slot)].data[&block])
        };
        (0..self.map.blocks()).map(read).collect()
    }

    fn read_view(&self, top: LayerId) -> Vec<u8> {
        let path = self.tree.path_to(top);
        let blocks = self.tree.layers()[&top].size_bytes / BLOCK_BYTES;
        let opinion = |block| {
            path.iter()
                .rev()
                .find_map(|id| self.files[id].opinion(block))
        };
        (0..blocks)
            .map(|block| opinion(block).unwrap_or(0))
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Write(u64, u8),
    Zero(u64, u64),
    Snapshot,
    Delete(usize),
    Revert(usize),
    Merge,
    Expand(u64),
    Reopen,
}

const BLOCKS: u64 = 24;

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (0..BLOCKS, 1_u8..=255).prop_map(|(block, value)| Operation::Write(block, value)),
        5 => (0..BLOCKS, 1_u64..9).prop_map(|(first, blocks)| Operation::Zero(first, blocks)),
        4 => Just(Operation::Snapshot),
        2 => (0_usize..8).prop_map(Operation::Delete),
        1 => (0_usize..8).prop_map(Operation::Revert),
        2 => Just(Operation::Merge),
        1 => (1_u64..4).prop_map(Operation::Expand),
        1 => Just(Operation::Reopen),
    ]
}

fn snapshot_name(number: usize) -> SnapshotName {
    SnapshotName::new(&format!("s{number}")).expect("a name")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_chain_reads_as_plain_arrays(operations in proptest::collection::vec(operation(), 1..80)) {
        let mut chain = Chain::new(BLOCKS);
        let mut live = vec![0_u8; BLOCKS as usize];
        let mut snapshots: BTreeMap<SnapshotName, Vec<u8>> = BTreeMap::new();
        for (number, operation) in operations.into_iter().enumerate() {
            let nth = |at: usize| snapshots.keys().nth(at % snapshots.len().max(1)).cloned();
            match operation {
                Operation::Write(block, value) => {
                    chain.write(block, value);
                    live[block as usize] = value;
                }
                Operation::Zero(first, blocks) => {
                    let end = (first + blocks).min(live.len() as u64);
                    chain.zero(BlockRange { first, end });
                    live[first as usize..end as usize].fill(0);
                }
                Operation::Snapshot => {
                    let name = snapshot_name(number);
                    let head = chain.tree.snapshot(&name, 0, true).expect("a snapshot");
                    chain.add_slot(head);
                    snapshots.insert(name, live.clone());
                }
                Operation::Delete(at) => if let Some(name) = nth(at) {
                    chain.tree.mark_removed(&name).expect("a snapshot");
                    snapshots.remove(&name);
                },
                Operation::Revert(at) => if let Some(name) = nth(at) {
                    chain.revert(&name);
                    let blocks = live.len();
                    live.clone_from(&snapshots[&name]);
                    live.resize(blocks, 0);
                },
                Operation::Merge => chain.merge_all(),
                Operation::Expand(blocks) => {
                    live.resize(live.len() + blocks as usize, 0);
                    chain.tree.expand(live.len() as u64 * BLOCK_BYTES).expect("a larger size");
                    chain.map.grow(live.len() as u64);
                }
                Operation::Reopen => chain.reopen(),
            }
            prop_assert_eq!(&chain.read_live(), &live);
            for (name, content) in &snapshots {
                let found = chain.read_view(chain.tree.find(name).expect("a snapshot"));
                prop_assert_eq!(&found, content, "snapshot {}", name);
            }
        }
        let tree = chain.tree.clone();
        let parts = LayerTree::from_parts(tree.layers().clone(), tree.head(), tree.next_id());
        prop_assert_eq!(parts, Ok(tree));
    }

    #[test]
    fn the_map_is_a_byte_array(
        sets in proptest::collection::vec((0_u64..20_000, 1_u64..6000, 0_u8..4), 1..20),
        probes in proptest::collection::vec(0_u64..20_000, 1..40),
    ) {
        let map = BlockMap::new(20_000);
        let mut plain = vec![0_u8; 20_000];
        for (first, blocks, number) in sets {
            let end = (first + blocks).min(20_000);
            map.set(first, end, LayerSlot::new(number));
            plain[first as usize..end as usize].fill(number);
        }
        for block in probes {
            let run = map.run_at(block, 19_000.max(block + 1));
            let wanted = plain[block as usize];
            let end = (block + 1..19_000.max(block + 1)).find(|at| plain[*at as usize] != wanted);
            prop_assert_eq!(run.slot, LayerSlot::new(wanted));
            prop_assert_eq!(run.end_block, end.unwrap_or(19_000.max(block + 1)));
        }
        prop_assert_eq!(map.mapped_blocks(), plain.iter().filter(|number| **number != 0).count() as u64);
    }
}

#[test]
fn one_byte_for_a_block_and_little_for_nothing() {
    let empty = BlockMap::new((1_u64 << 40) / BLOCK_BYTES);
    assert!(
        empty.resident_bytes() < 2 << 20,
        "an empty TiB takes {}",
        empty.resident_bytes()
    );
    let blocks = (4_u64 << 30) / BLOCK_BYTES;
    let full = BlockMap::new(blocks);
    full.set(0, blocks, LayerSlot::new(1));
    let allowed = blocks + blocks / 100;
    assert!(
        full.resident_bytes() < allowed,
        "{blocks} blocks take {}",
        full.resident_bytes()
    );
}

#[test]
fn broken_trees_are_refused() {
    let mut tree = LayerTree::new(8192);
    tree.snapshot(&snapshot_name(1), 0, true)
        .expect("a snapshot");
    tree.snapshot(&snapshot_name(2), 0, true)
        .expect("a snapshot");
    let check = |change: fn(&mut BTreeMap<LayerId, Layer>)| {
        let mut layers = tree.layers().clone();
        change(&mut layers);
        LayerTree::from_parts(layers, tree.head(), tree.next_id()).is_err()
    };
    assert!(!check(|_| ()));
    assert!(
        check(|layers| drop(layers.remove(&LayerId(1)))),
        "a missing parent"
    );
    assert!(
        check(|layers| layers.get_mut(&LayerId(1)).expect("a layer").parent = Some(LayerId(2))),
        "a circle"
    );
    assert!(
        check(|layers| layers.get_mut(&LayerId(1)).expect("a layer").name = Some(snapshot_name(2))),
        "a twin"
    );
    assert!(
        check(|layers| layers.get_mut(&LayerId(3)).expect("a layer").name = Some(snapshot_name(3))),
        "no head"
    );
    assert!(
        LayerTree::from_parts(tree.layers().clone(), tree.head(), 3).is_err(),
        "a number in use"
    );
}

#[test]
fn operations_on_the_tree_say_why_not() {
    let (one, two) = (snapshot_name(1), snapshot_name(2));
    let mut tree = LayerTree::new(8192);
    tree.snapshot(&one, 0, true).expect("a snapshot");
    assert!(matches!(
        tree.snapshot(&one, 0, true),
        Err(TreeError::Exists { .. })
    ));
    assert!(matches!(tree.revert(&two), Err(TreeError::NotFound { .. })));
    assert!(matches!(tree.expand(4096), Err(TreeError::Shrink { .. })));
    tree.mark_removed(&one).expect("a snapshot");
    assert!(matches!(tree.revert(&one), Err(TreeError::Removed { .. })));
    assert_eq!(
        tree.next_merge(),
        Some(MergeStep::Merge {
            from: LayerId(1),
            into: LayerId(2)
        })
    );
    for number in 3..300 {
        if tree.snapshot(&snapshot_name(number), 0, true).is_err() {
            assert_eq!(tree.layers().len(), crate::wire::layer::LAYERS_MAX);
            return;
        }
    }
    panic!("there is no limit to layers");
}
