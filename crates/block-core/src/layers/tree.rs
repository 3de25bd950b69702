//! Which layers a replica has, and how operations change that.
//!
//! Snapshots form a tree, because a revert starts a new branch and leaves the newer snapshots where they are:
//!
//! ```text
//! a ── b ── c            a ── b ── c          after reverting to b
//!            └─ head           └─ head
//! ```
//!
//! A deleted snapshot is first only marked as removed. It can be merged away once it has a single child, into which its
//! opinions move wherever the child has none; the child's content does not change by that.

use std::collections::BTreeMap;

use crate::names::SnapshotName;
use crate::wire::layer::LAYERS_MAX;

/// A layer's number within its replica, part of its files' names, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId(pub u64);

/// One layer. The head is the one without a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub name: Option<SnapshotName>,
    pub parent: Option<LayerId>,
    pub created_unix_ms: u64,
    pub user_created: bool,
    pub removed: bool,
    pub size_bytes: u64,
    /// The digest of the volume as this snapshot shows it, once computed. Merges below do not change it.
    pub digest: Option<[u8; 32]>,
}

/// Something to do about a removed snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeStep {
    /// Nothing builds on it: its files can go.
    Drop { layer: LayerId },
    /// One layer builds on it: move its blocks there, then its files can go.
    Merge { from: LayerId, into: LayerId },
}

/// Why an operation on the tree is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("snapshot {name} exists already")]
    Exists { name: SnapshotName },
    #[error("there is no snapshot {name}")]
    NotFound { name: SnapshotName },
    #[error("snapshot {name} is being deleted")]
    Removed { name: SnapshotName },
    #[error("{LAYERS_MAX} layers are the most; delete and purge snapshots first")]
    TooManyLayers,
    #[error(
        "size {wanted_bytes} is smaller than the volume's size of {size_bytes}; volumes cannot shrink"
    )]
    Shrink { wanted_bytes: u64, size_bytes: u64 },
    #[error("the layers do not form a tree under one head: {problem}")]
    Inconsistent { problem: &'static str },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTree {
    layers: BTreeMap<LayerId, Layer>,
    head: LayerId,
    next_id: u64,
}

impl LayerTree {
    /// A volume without snapshots.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        let head = LayerId(1);
        Self {
            layers: BTreeMap::from([(head, new_head(None, size_bytes))]),
            head,
            next_id: 2,
        }
    }

    /// A tree from stored parts, checked.
    pub fn from_parts(
        layers: BTreeMap<LayerId, Layer>,
        head: LayerId,
        next_id: u64,
    ) -> Result<Self, TreeError> {
        let bad = |problem| Err(TreeError::Inconsistent { problem });
        if layers.len() > LAYERS_MAX {
            return Err(TreeError::TooManyLayers);
        }
        if layers
            .keys()
            .next_back()
            .is_none_or(|last| last.0 >= next_id)
        {
            return bad("the next layer number is in use");
        }
        if layers.get(&head).is_none_or(|layer| layer.name.is_some()) {
            return bad("the head is missing or has a name");
        }
        let mut names = std::collections::BTreeSet::new();
        for (id, layer) in &layers {
            if *id != head && !layer.name.as_ref().is_some_and(|name| names.insert(name)) {
                return bad("a snapshot has no name or one that another has");
            }
            if layer.parent == Some(head) {
                return bad("a layer builds on the head");
            }
            let mut steps = 0;
            let mut at = layer.parent;
            while let Some(parent) = at {
                steps += 1;
                let Some(next) = layers.get(&parent) else {
                    return bad("a parent is missing");
                };
                if steps > layers.len() {
                    return bad("parents form a circle");
                }
                at = next.parent;
            }
        }
        Ok(Self {
            layers,
            head,
            next_id,
        })
    }

    #[must_use]
    pub fn head(&self) -> LayerId {
        self.head
    }

    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.layers[&self.head].size_bytes
    }

    #[must_use]
    pub fn layers(&self) -> &BTreeMap<LayerId, Layer> {
        &self.layers
    }

    /// A snapshot that has not been deleted.
    pub fn find(&self, name: &SnapshotName) -> Result<LayerId, TreeError> {
        let id = self
            .find_any(name)
            .ok_or_else(|| TreeError::NotFound { name: name.clone() })?;
        if self.layers[&id].removed {
            Err(TreeError::Removed { name: name.clone() })
        } else {
            Ok(id)
        }
    }

    /// A snapshot, also one that is deleted and not merged away yet.
    pub fn find_removed_too(&self, name: &SnapshotName) -> Result<LayerId, TreeError> {
        self.find_any(name)
            .ok_or_else(|| TreeError::NotFound { name: name.clone() })
    }

    /// A snapshot, deleted or not.
    #[must_use]
    pub fn find_any(&self, name: &SnapshotName) -> Option<LayerId> {
        self.layers
            .iter()
            .find(|(_, layer)| layer.name.as_ref() == Some(name))
            .map(|(id, _)| *id)
    }

    /// The layers from the oldest to `top`: what a view of the volume as of `top` is made of.
    #[must_use]
    pub fn path_to(&self, top: LayerId) -> Vec<LayerId> {
        let mut path = vec![top];
        while let Some(parent) = self.layers[&path[path.len() - 1]].parent {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// The layers of the live volume, the head last.
    #[must_use]
    pub fn live_path(&self) -> Vec<LayerId> {
        self.path_to(self.head)
    }

    #[must_use]
    pub fn children(&self, of: LayerId) -> Vec<LayerId> {
        self.layers
            .iter()
            .filter(|(_, layer)| layer.parent == Some(of))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The head becomes the snapshot `name`, under a new and empty head, whose id is returned.
    pub fn snapshot(
        &mut self,
        name: &SnapshotName,
        created_unix_ms: u64,
        user_created: bool,
    ) -> Result<LayerId, TreeError> {
        if self.find_any(name).is_some() {
            return Err(TreeError::Exists { name: name.clone() });
        }
        if self.layers.len() >= LAYERS_MAX {
            return Err(TreeError::TooManyLayers);
        }
        let size_bytes = self.size_bytes();
        let old_head = self
            .layers
            .get_mut(&self.head)
            .expect("the head is a layer");
        old_head.name = Some(name.clone());
        old_head.created_unix_ms = created_unix_ms;
        old_head.user_created = user_created;
        Ok(self.add_head(Some(self.head), size_bytes))
    }

    /// The live volume becomes what `name` shows. Returns the head that is dropped; the size stays.
    pub fn revert(&mut self, name: &SnapshotName) -> Result<LayerId, TreeError> {
        let target = self.find(name)?;
        let size_bytes = self.size_bytes();
        let dropped = self.head;
        self.layers.remove(&dropped);
        self.add_head(Some(target), size_bytes);
        Ok(dropped)
    }

    /// Marks a snapshot as removed. Marking it twice is no error, so that a broken-off deletion can be repeated.
    pub fn mark_removed(&mut self, name: &SnapshotName) -> Result<(), TreeError> {
        let id = self
            .find_any(name)
            .ok_or_else(|| TreeError::NotFound { name: name.clone() })?;
        self.layers.get_mut(&id).expect("it was found").removed = true;
        Ok(())
    }

    /// The next thing to do about removed snapshots, newest first, so that each block is moved as few times as possible.
    /// A removed snapshot on which two or more branches build has to stay.
    #[must_use]
    pub fn next_merge(&self) -> Option<MergeStep> {
        self.layers
            .iter()
            .rev()
            .filter(|(_, layer)| layer.removed)
            .find_map(|(id, _)| match self.children(*id).as_slice() {
                [] => Some(MergeStep::Drop { layer: *id }),
                [child] => Some(MergeStep::Merge {
                    from: *id,
                    into: *child,
                }),
                _ => None,
            })
    }

    /// Forgets the layer that a step has emptied.
    ///
    /// # Panics
    /// If the step is not one that [`LayerTree::next_merge`] could have given for this tree.
    pub fn finish_merge(&mut self, step: MergeStep) {
        let gone = match step {
            MergeStep::Drop { layer } => layer,
            MergeStep::Merge { from, .. } => from,
        };
        let layer = self
            .layers
            .remove(&gone)
            .expect("a merged layer is in the tree");
        assert!(layer.removed, "only removed snapshots are merged away");
        for child in self
            .layers
            .values_mut()
            .filter(|child| child.parent == Some(gone))
        {
            child.parent = layer.parent;
        }
    }

    /// Forgets a layer whose opinions the removed layer below it has taken over, together with its identity.
    ///
    /// # Panics
    /// If `from` is not a removed layer with `into`, a snapshot, as its only child.
    pub fn finish_absorb(&mut self, from: LayerId, into: LayerId) {
        assert!(
            self.children(from) == [into] && into != self.head,
            "only a snapshot that is an only child is absorbed"
        );
        let child = self.layers.remove(&into).expect("it is a child");
        let layer = self.layers.get_mut(&from).expect("it has a child");
        assert!(layer.removed, "only removed snapshots are merged away");
        *layer = Layer {
            parent: layer.parent,
            ..child
        };
        for grandchild in self
            .layers
            .values_mut()
            .filter(|layer| layer.parent == Some(into))
        {
            grandchild.parent = Some(from);
        }
    }

    pub fn expand(&mut self, wanted_bytes: u64) -> Result<(), TreeError> {
        let size_bytes = self.size_bytes();
        if wanted_bytes < size_bytes {
            return Err(TreeError::Shrink {
                wanted_bytes,
                size_bytes,
            });
        }
        self.layers
            .get_mut(&self.head)
            .expect("the head is a layer")
            .size_bytes = wanted_bytes;
        Ok(())
    }

    pub fn set_digest(&mut self, id: LayerId, digest: Option<[u8; 32]>) {
        if let Some(layer) = self.layers.get_mut(&id) {
            layer.digest = digest;
        }
    }

    fn add_head(&mut self, parent: Option<LayerId>, size_bytes: u64) -> LayerId {
        self.head = LayerId(self.next_id);
        self.next_id += 1;
        self.layers.insert(self.head, new_head(parent, size_bytes));
        self.head
    }
}

fn new_head(parent: Option<LayerId>, size_bytes: u64) -> Layer {
    Layer {
        name: None,
        parent,
        created_unix_ms: 0,
        user_created: false,
        removed: false,
        size_bytes,
        digest: None,
    }
}
