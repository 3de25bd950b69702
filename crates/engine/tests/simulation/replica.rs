//! A replica as a value: it obeys the protocol, and keeps one number per block instead of its bytes.

use std::collections::BTreeMap;

use block_core::epoch::{EpochDecision, EpochRefusal, Tenure, accept_tenure, check_tenure};
use block_core::wire::request::ExtentScope;
use block_core::wire::{
    Extent, ExtentKind, ExtentPage, Failure, Flags, LayerInfo, LayerRef, RebuildPlanReply,
    ReplicaMode, ReplicaStatus, Reply, Request, StatusCode, SyncMeta,
};
use block_core::{BLOCK_BYTES, Epoch, SnapshotName, VolumeName};
use bytes::Bytes;
use engine::core::{Incarnation, LinkRefusal};

/// What a block holds; 0 is zeroes.
pub type Tag = u64;

const CHUNK_BLOCKS: u64 = block_core::wire::layer::HASH_CHUNK_BYTES / BLOCK_BYTES;

#[derive(Clone, Debug, Default)]
struct Layer {
    name: Option<SnapshotName>,
    parent: Option<SnapshotName>,
    user_created: bool,
    removed: bool,
    blocks: BTreeMap<u64, Tag>,
}

/// Requests that a replica does not do, and what it says then.
#[derive(Clone, Copy, Debug)]
pub struct Refuses {
    pub what: fn(&Request) -> bool,
    pub code: StatusCode,
}

#[derive(Clone, Debug)]
pub struct ModelReplica {
    pub accepted: Tenure,
    pub mode: ReplicaMode,
    size_bytes: u64,
    /// Parents before children, the head last.
    layers: Vec<Layer>,
    sync: Option<(Epoch, SyncMeta)>,
    verified: Option<SnapshotName>,
    /// The newest of the layers that a rebuild copies.
    copied_top: Option<SnapshotName>,
    /// When an engine was last heard, and one that is replaced by now.
    heard_us: u64,
    older_heard_us: u64,
    /// Which start of its machine this is, and in which one an engine last opened it.
    pub host_boot: u8,
    opened_in: Option<u8>,
    pub restarted: bool,
    /// The layers as they are after a restart of the machine.
    durable: Vec<Layer>,
    /// Every write fails for lack of space.
    pub full: bool,
    /// What is refused besides, and how.
    pub refuses: Option<Refuses>,
}

impl ModelReplica {
    pub fn new(size_bytes: u64) -> Self {
        Self {
            accepted: Tenure::default(),
            mode: ReplicaMode::Ready,
            size_bytes,
            layers: vec![Layer::default()],
            sync: None,
            verified: None,
            copied_top: None,
            heard_us: 0,
            older_heard_us: 0,
            host_boot: 1,
            opened_in: None,
            restarted: false,
            durable: vec![Layer::default()],
            full: false,
            refuses: None,
        }
    }

    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// What the live volume has at a block.
    pub fn live(&self, block: u64) -> Tag {
        self.view(self.layers.len() - 1, block)
    }

    pub fn live_blocks(&self) -> Vec<Tag> {
        (0..self.size_bytes / BLOCK_BYTES)
            .map(|block| self.live(block))
            .collect()
    }

    /// What a restart of the machine would leave of them.
    pub fn durable_blocks(&self) -> Vec<Tag> {
        let restarted = Self {
            layers: self.durable.clone(),
            ..self.clone()
        };
        restarted.live_blocks()
    }

    /// What each snapshot that is not removed shows.
    pub fn snapshots(&self) -> BTreeMap<SnapshotName, Vec<Tag>> {
        let blocks = || 0..self.size_bytes / BLOCK_BYTES;
        let layers = self.layers.iter().enumerate();
        layers
            .filter(|(_, layer)| !layer.removed)
            .filter_map(|(at, layer)| {
                let shown = blocks().map(|block| self.view(at, block)).collect();
                Some((layer.name.clone()?, shown))
            })
            .collect()
    }

    fn view(&self, at: usize, block: u64) -> Tag {
        let below = |at: &usize| {
            let parent = self.layers[*at].parent.as_ref()?;
            // Nearly always the one before.
            let before = at.checked_sub(1)?;
            if self.layers[before].name.as_ref() == Some(parent) {
                return Some(before);
            }
            self.find(parent).ok()
        };
        std::iter::successors(Some(at), below)
            .find_map(|at| self.layers[at].blocks.get(&block).copied())
            .unwrap_or(0)
    }

    fn find(&self, name: &SnapshotName) -> Result<usize, Failure> {
        self.layers
            .iter()
            .position(|layer| layer.name.as_ref() == Some(name))
            .ok_or_else(|| Failure::new(StatusCode::NotFound, name.as_str()))
    }

    /// Accepts an engine, as the handshake's end does.
    pub fn open(&mut self, now_us: u64, offered: Tenure) -> Result<ReplicaStatus, Failure> {
        let decision = accept_tenure(self.accepted, offered).map_err(refusal)?;
        if decision != EpochDecision::Rejoin {
            self.older_heard_us = self.heard_us;
        }
        self.heard_us = now_us;
        let status = self.status();
        self.restarted = status.restarted_since_opened;
        self.opened_in = Some(self.host_boot);
        self.accepted = offered;
        if let Some((_, sync)) = &mut self.sync {
            sync.clean = false;
        }
        Ok(status)
    }

    /// What an engine makes of a failed [`ModelReplica::open`].
    pub fn refusal_of(&self, failure: Failure) -> LinkRefusal {
        match failure.code {
            StatusCode::StaleEpoch => LinkRefusal::StaleEpoch(failure.text),
            StatusCode::Superseded => LinkRefusal::Superseded {
                newest: Incarnation(self.accepted.session),
                why: failure.text,
            },
            _ => LinkRefusal::Unreachable(failure.text),
        }
    }

    /// The process is another: it knows of no connections, and not who was heard when.
    pub fn restart(&mut self, now_us: u64) {
        self.accepted.session = 0;
        self.heard_us = now_us;
        self.older_heard_us = now_us;
    }

    /// The machine is another as well: what was not on its disk is gone. Answers whether anything was.
    pub fn restart_machine(&mut self, now_us: u64) -> bool {
        self.restart(now_us);
        self.host_boot += 1;
        let before = self.live_blocks();
        self.layers = self.durable.clone();
        self.live_blocks() != before
    }

    fn may_lack_writes(&self) -> bool {
        let ended_in_order = self.sync.as_ref().is_some_and(|(_, sync)| sync.clean);
        let is_another = self.opened_in.is_some_and(|boot| boot != self.host_boot);
        self.restarted || (!ended_in_order && is_another)
    }

    pub fn status(&self) -> ReplicaStatus {
        ReplicaStatus {
            volume: VolumeName::new("v").unwrap(),
            mode: self.mode,
            size_bytes: self.size_bytes,
            accepted_epoch: self.accepted.epoch,
            sync_epoch: self.sync.as_ref().map_or(Epoch::NONE, |(epoch, _)| *epoch),
            sync: self.sync.as_ref().map(|(_, sync)| sync.clone()),
            allocated_bytes: 0,
            layers: self.layers.len() as u32,
            purge_done_bytes: 0,
            purge_total_bytes: 0,
            older_silent_us: self.heard_us - self.older_heard_us,
            host_boot: [self.host_boot; 16],
            restarted_since_opened: self.may_lack_writes(),
            fault: String::new(),
        }
    }

    pub fn execute(&mut self, now_us: u64, tenure: Tenure, request: Request) -> Reply {
        self.heard_us = now_us;
        let is_durable = |flags: &Flags| flags.contains(Flags::FORCE_UNIT_ACCESS);
        let stays_in_memory = matches!(
            &request,
            Request::Write { flags, .. } | Request::WriteZeroes { flags, .. } if !is_durable(flags)
        ) || matches!(
            request,
            Request::Read { .. }
                | Request::Discard { .. }
                | Request::SnapshotCreate { .. }
                | Request::ListLayers
                | Request::LayerExtents { .. }
                | Request::ReadLayer { .. }
                | Request::LayerHashes { .. }
                | Request::SnapshotDigest { .. }
                | Request::RebuildWrite { .. }
                | Request::RebuildMark { .. }
                | Request::Status
                | Request::SetMeta(_)
        );
        let done = check_tenure(self.accepted, tenure)
            .map_err(refusal)
            .and_then(|()| self.try_execute(tenure.epoch, request));
        if done.is_ok() && !stays_in_memory {
            self.durable.clone_from(&self.layers);
        }
        done.unwrap_or_else(Reply::Failed)
    }

    fn try_execute(&mut self, epoch: Epoch, request: Request) -> Result<Reply, Failure> {
        let wrong = || Failure::new(StatusCode::WrongMode, "wrong mode");
        if let Some(refuses) = self.refuses
            && (refuses.what)(&request)
        {
            return Err(Failure::new(refuses.code, "as the test wants it"));
        }
        Ok(match request {
            Request::Read {
                offset_bytes,
                length_bytes,
            } => {
                if self.mode != ReplicaMode::Ready {
                    return Err(wrong());
                }
                let last = self.layers.len() - 1;
                Reply::Data(self.bytes(last, offset_bytes, length_bytes))
            }
            Request::Write {
                offset_bytes, data, ..
            } => {
                if self.full {
                    return Err(Failure::new(StatusCode::NoSpace, "full"));
                }
                let head = self.layers.last_mut().expect("there is a head");
                for (at, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                    head.blocks
                        .insert(offset_bytes / BLOCK_BYTES + at as u64, tag_of(block));
                }
                Reply::Done
            }
            Request::WriteZeroes {
                offset_bytes,
                length_bytes,
                ..
            }
            | Request::Discard {
                offset_bytes,
                length_bytes,
            } => {
                let head = self.layers.last_mut().expect("there is a head");
                for block in blocks(offset_bytes, length_bytes) {
                    head.blocks.insert(block, 0);
                }
                Reply::Done
            }
            Request::Flush | Request::SnapshotPrepare => Reply::Done,
            Request::SnapshotCreate {
                name, user_created, ..
            } => {
                if self.find(&name).is_ok() {
                    return Err(Failure::new(StatusCode::AlreadyExists, name.as_str()));
                }
                let head = self.layers.last_mut().expect("there is a head");
                head.name = Some(name.clone());
                head.user_created = user_created;
                self.layers.push(Layer {
                    parent: Some(name),
                    ..Layer::default()
                });
                Reply::Done
            }
            Request::SnapshotDelete { name } => {
                let at = self.find(&name)?;
                self.layers[at].removed = true;
                Reply::Done
            }
            // Nothing of what was there is merged away: the layers above the snapshot become a branch.
            Request::SnapshotRevert { name } => {
                self.find(&name)?;
                self.layers.pop();
                self.layers.push(Layer {
                    parent: Some(name),
                    ..Layer::default()
                });
                Reply::Done
            }
            Request::SnapshotPurge => {
                self.purge();
                Reply::Done
            }
            Request::ListLayers => Reply::Layers(
                self.layers
                    .iter()
                    .map(|layer| info(layer, self.size_bytes))
                    .collect(),
            ),
            Request::LayerExtents {
                name,
                scope,
                from_offset_bytes,
            } => {
                assert_eq!(scope, ExtentScope::Own, "the engine copies layer by layer");
                let layer = &self.layers[self.find(&name)?];
                let extents = layer
                    .blocks
                    .range(from_offset_bytes / BLOCK_BYTES..)
                    .map(|(block, tag)| Extent {
                        offset_bytes: block * BLOCK_BYTES,
                        length_bytes: BLOCK_BYTES,
                        kind: if *tag == 0 {
                            ExtentKind::Zero
                        } else {
                            ExtentKind::Data
                        },
                    })
                    .collect();
                Reply::Extents(ExtentPage {
                    extents,
                    next_offset_bytes: None,
                })
            }
            Request::ReadLayer {
                name,
                offset_bytes,
                length_bytes,
            } => {
                let at = self.find(&name)?;
                Reply::Data(self.bytes(at, offset_bytes, length_bytes))
            }
            Request::LayerHashes {
                name,
                offset_bytes,
                length_bytes,
            } => {
                let layer = &self.layers[self.find(&name)?];
                let first = offset_bytes / BLOCK_BYTES;
                let chunks = length_bytes / BLOCK_BYTES / CHUNK_BLOCKS;
                Reply::Hashes(
                    (0..chunks)
                        .map(|at| hash(layer, first + at * CHUNK_BLOCKS))
                        .collect(),
                )
            }
            Request::SnapshotDigest { name, .. } => Reply::Digest(self.digest(self.find(&name)?)),
            Request::RebuildBegin {
                size_bytes,
                layers,
                head_parent,
            } => {
                for (at, layer) in layers.iter().enumerate() {
                    let is_above =
                        |parent: &SnapshotName| layers[..at].iter().any(|it| it.name == *parent);
                    if !layer.parent.as_ref().is_none_or(is_above) {
                        return Err(Failure::new(StatusCode::BadRequest, "no chain"));
                    }
                }
                let old = std::mem::take(&mut self.layers);
                let mut existing = Vec::new();
                for plan in layers {
                    let kept = old
                        .iter()
                        .find(|layer| layer.name.as_ref() == Some(&plan.name));
                    if kept.is_some() {
                        existing.push(plan.name.clone());
                    }
                    self.layers.push(Layer {
                        name: Some(plan.name),
                        parent: plan.parent,
                        user_created: plan.user_created,
                        removed: plan.removed,
                        blocks: kept.map(|layer| layer.blocks.clone()).unwrap_or_default(),
                    });
                }
                self.copied_top.clone_from(&head_parent);
                self.layers.push(Layer {
                    parent: head_parent,
                    ..Layer::default()
                });
                self.mode = ReplicaMode::Rebuilding;
                self.size_bytes = size_bytes;
                self.sync = None;
                self.restarted = false;
                self.verified = None;
                Reply::RebuildPlan(RebuildPlanReply { existing })
            }
            Request::RebuildWrite {
                name,
                offset_bytes,
                data,
            } => {
                self.rebuilding()?;
                let at = self.find(&name)?;
                self.verified = None;
                for (index, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                    let block_at = offset_bytes / BLOCK_BYTES + index as u64;
                    self.layers[at].blocks.insert(block_at, tag_of(block));
                }
                Reply::Done
            }
            Request::RebuildMark {
                name,
                offset_bytes,
                length_bytes,
                kind,
            } => {
                self.rebuilding()?;
                let at = self.find(&name)?;
                self.verified = None;
                for block in blocks(offset_bytes, length_bytes) {
                    match kind {
                        Some(_) => self.layers[at].blocks.insert(block, 0),
                        None => self.layers[at].blocks.remove(&block),
                    };
                }
                Reply::Done
            }
            Request::RebuildVerify { name, digest } => {
                self.rebuilding()?;
                if self.digest(self.find(&name)?) != digest {
                    return Err(Failure::new(StatusCode::Corrupt, "digest differs"));
                }
                self.verified = Some(name);
                Reply::Done
            }
            Request::RebuildCommit => {
                self.rebuilding()?;
                if self.verified != self.copied_top {
                    return Err(Failure::new(StatusCode::WrongMode, "verify first"));
                }
                self.mode = ReplicaMode::Ready;
                Reply::Done
            }
            Request::Status => Reply::Status(self.status()),
            Request::SetMeta(meta) => {
                self.sync = Some((epoch, meta));
                self.restarted = false;
                Reply::Done
            }
            Request::Expand { size_bytes } => {
                self.size_bytes = self.size_bytes.max(size_bytes);
                Reply::Done
            }
            other => panic!("the engine sent {other:?}"),
        })
    }

    fn rebuilding(&self) -> Result<(), Failure> {
        if self.mode == ReplicaMode::Rebuilding {
            return Ok(());
        }
        Err(Failure::new(StatusCode::WrongMode, "no rebuild"))
    }

    /// As replicas do it: what two branches build on has to stay.
    fn purge(&mut self) {
        let children = |layers: &[Layer], at: usize| -> Vec<usize> {
            let builds_on_it = |child: &usize| layers[*child].parent == layers[at].name;
            (at + 1..layers.len()).filter(builds_on_it).collect()
        };
        for at in (0..self.layers.len() - 1).rev() {
            let children = children(&self.layers, at);
            if !self.layers[at].removed || children.len() > 1 {
                continue;
            }
            let gone = self.layers[at].clone();
            for child in children {
                let child = &mut self.layers[child];
                for (block, tag) in &gone.blocks {
                    child.blocks.entry(*block).or_insert(*tag);
                }
                child.parent.clone_from(&gone.parent);
            }
            self.layers.remove(at);
        }
    }

    fn bytes(&self, at: usize, offset_bytes: u64, length_bytes: u64) -> Bytes {
        let mut data = Vec::with_capacity(length_bytes as usize);
        for block in blocks(offset_bytes, length_bytes) {
            data.extend_from_slice(&block_of(self.view(at, block)));
        }
        Bytes::from(data)
    }

    fn digest(&self, at: usize) -> [u8; 32] {
        let tags = (0..self.size_bytes / BLOCK_BYTES).map(|block| self.view(at, block));
        mix(tags)
    }
}

fn refusal(refusal: EpochRefusal) -> Failure {
    let code = match refusal {
        EpochRefusal::Stale { .. } => StatusCode::StaleEpoch,
        EpochRefusal::Superseded { .. } => StatusCode::Superseded,
        EpochRefusal::None => StatusCode::WrongMode,
    };
    Failure::new(code, refusal.to_string())
}

pub fn block_of(tag: Tag) -> [u8; BLOCK_BYTES as usize] {
    let mut block = [0; BLOCK_BYTES as usize];
    block[..8].copy_from_slice(&tag.to_le_bytes());
    block
}

pub fn tag_of(block: &[u8]) -> Tag {
    u64::from_le_bytes(
        block[..8]
            .try_into()
            .expect("a block has more than 8 bytes"),
    )
}

fn blocks(offset_bytes: u64, length_bytes: u64) -> impl Iterator<Item = u64> {
    offset_bytes / BLOCK_BYTES..(offset_bytes + length_bytes) / BLOCK_BYTES
}

fn hash(layer: &Layer, first: u64) -> Option<[u8; 32]> {
    let own = || layer.blocks.range(first..first + CHUNK_BLOCKS);
    own().next()?;
    Some(mix(own().flat_map(|(block, tag)| [*block, *tag])))
}

/// Not a good hash, but a different one for different content.
fn mix(values: impl Iterator<Item = u64>) -> [u8; 32] {
    let mut state = [0x9e37_79b9_7f4a_7c15u64; 4];
    for (at, value) in values.enumerate() {
        let slot = &mut state[at % 4];
        *slot = (slot.rotate_left(23) ^ value.wrapping_mul(0xff51_afd7_ed55_8ccd))
            .wrapping_mul(0xc4ce_b9fe_1a85_ec53)
            .wrapping_add(at as u64);
    }
    let mut out = [0; 32];
    for (at, value) in state.iter().enumerate() {
        out[at * 8..at * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
    out
}

fn info(layer: &Layer, size_bytes: u64) -> LayerInfo {
    LayerInfo {
        layer: layer
            .name
            .clone()
            .map_or(LayerRef::Head, LayerRef::Snapshot),
        parent: layer.parent.clone(),
        created_unix_ms: 0,
        user_created: layer.user_created,
        removed: layer.removed,
        size_bytes,
        allocated_bytes: layer.blocks.len() as u64 * BLOCK_BYTES,
        digest: None,
    }
}
