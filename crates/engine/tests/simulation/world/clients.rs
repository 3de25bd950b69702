//! Those who read and write, and what they may find.

use std::collections::BTreeSet;

use block_core::BLOCK_BYTES;
use block_core::wire::ReplicaMode;
use bytes::Bytes;
use engine::core::Event;
use engine::io::{ByteRange, Operation, Outcome, Request, RequestId};

use super::{BLOCKS, CONTENDED_BLOCKS, END_OF_CLIENTS_US, Expected, Happening, Open, World};
use crate::replica::{Tag, block_of, tag_of};

impl World {
    pub(super) fn client_step(&mut self) {
        let pause = 200 + self.dice.below(4_000);
        if self.now < END_OF_CLIENTS_US {
            self.schedule(pause, Happening::ClientStep);
        } else {
            return;
        }
        let serving: Vec<usize> = (0..self.engines.len())
            .filter(|at| self.engines[*at].serving && self.engines[*at].running)
            .collect();
        let Some(newest) = serving.last().copied() else {
            return;
        };
        // Sometimes the request goes to an engine that was replaced and does not know.
        let engine = if self.dice.one_in(4) {
            serving[self.dice.below(serving.len() as u64) as usize]
        } else {
            newest
        };
        if self.open.len() > 24 {
            return;
        }
        let count = 1 + self.dice.below(4);
        let first = match self.dice.below(BLOCKS - 4) {
            // Not half in one part and half in the other.
            first if first < CONTENDED_BLOCKS => first.min(CONTENDED_BLOCKS - count),
            first => first,
        };
        let range = ByteRange::new(first * BLOCK_BYTES, count * BLOCK_BYTES);
        let contended = first < CONTENDED_BLOCKS;
        let blocks = first as usize..(first + count) as usize;
        let busy = self.expected[blocks.clone()]
            .iter()
            .any(|block| block.pending.is_some());
        match self.dice.below(10) {
            0..=4 if contended || !busy => {
                let mut data = Vec::new();
                for block in blocks {
                    let tag = self.tag_next;
                    self.tag_next += 1;
                    data.extend_from_slice(&block_of(tag));
                    self.expected[block].pending = Some(tag);
                }
                let durable = self.dice.one_in(5);
                let operation = Operation::Write {
                    offset: range.offset,
                    data: Bytes::from(data),
                    durable,
                };
                self.submit(engine, operation, Vec::new());
            }
            5 if contended || !busy => {
                for block in blocks {
                    self.expected[block].pending = Some(0);
                }
                self.submit(engine, Operation::Discard { range }, Vec::new());
            }
            6 => self.submit(engine, Operation::Flush, Vec::new()),
            _ if !contended => {
                let allowed = blocks.map(|block| self.expected[block].allowed()).collect();
                self.submit(engine, Operation::Read { range }, allowed);
            }
            _ => {}
        }
    }

    pub(super) fn submit(
        &mut self,
        engine: usize,
        operation: Operation,
        allowed: Vec<BTreeSet<Tag>>,
    ) {
        let id = RequestId(self.request_next);
        self.request_next += 1;
        // What a write may leave is allowed to reads that are under way as well.
        if !operation.is_read()
            && let Some(range) = operation.range()
        {
            for (block, tag) in tags_of(&operation, range) {
                for open in self.open.values_mut() {
                    if let Some(read) = open.operation.range().filter(|_| open.operation.is_read())
                        && block >= read.offset / BLOCK_BYTES
                        && block < (read.offset + read.length) / BLOCK_BYTES
                    {
                        open.allowed[(block - read.offset / BLOCK_BYTES) as usize].insert(tag);
                    }
                }
            }
        }
        self.say(|| format!("engine {engine} is asked {}", shown(id, &operation)));
        self.open.insert(
            id,
            Open {
                engine,
                operation: operation.clone(),
                asked_at: self.now,
                replaced_by: self.newest_answered.filter(|newest| *newest > engine),
                allowed,
            },
        );
        self.tell_engine(engine, Event::Submit(Request { id, operation }));
    }

    pub(super) fn completed(&mut self, id: RequestId, outcome: Outcome) {
        let Some(open) = self.open.remove(&id) else {
            panic!("request {id:?} was answered twice");
        };
        self.say(|| {
            let answer = match &outcome {
                Ok(data) => format!(
                    "{:?}",
                    data.chunks(BLOCK_BYTES as usize)
                        .map(tag_of)
                        .collect::<Vec<_>>()
                ),
                Err(fault) => fault.to_string(),
            };
            format!(
                "engine {} answers {}: {answer}",
                open.engine,
                shown(id, &open.operation)
            )
        });
        self.check_one_writer(id, &open, outcome.is_ok());
        let Some(range) = open.operation.range() else {
            return;
        };
        if open.operation.is_read() {
            self.seen.reads += 1;
            if let Ok(data) = outcome {
                self.check_read(range, &data, &open);
            }
            return;
        }
        for (block, tag) in tags_of(&open.operation, range) {
            let contended = block < CONTENDED_BLOCKS;
            let expected = &mut self.expected[block as usize];
            if expected.pending == Some(tag) {
                expected.pending = None;
            }
            if outcome.is_ok() && !contended {
                expected.settled = tag;
                expected.floating.clear();
            } else {
                expected.floating.insert(tag);
                expected.floating_since = self.now;
            }
        }
        self.seen.writes += u64::from(outcome.is_ok());
    }

    /// From the first thing that an engine has done for a client, no older one does a write that is asked of it then, or
    /// says that one is durable. What was asked before may have been done before, and be answered late. Not a matter of
    /// times: everything here happens one after the other, and what is asked notes what has happened.
    fn check_one_writer(&mut self, id: RequestId, open: &Open, is_done: bool) {
        if !open.operation.is_read()
            && let Some(newer) = open.replaced_by
        {
            assert!(
                !is_done,
                "two writers: engine {} of epoch {} did {}, asked at {}, answered at {}, \
                 and before it was asked engine {newer} of epoch {} had answered",
                open.engine,
                self.engines[open.engine].epoch,
                shown(id, &open.operation),
                open.asked_at,
                self.now,
                self.engines[newer].epoch,
            );
            self.seen.replaced_writers += 1;
        }
        if is_done {
            self.newest_answered = self.newest_answered.max(Some(open.engine));
        }
    }

    pub(super) fn check_read(&mut self, range: ByteRange, data: &[u8], open: &Open) {
        for (at, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
            let number = range.offset / BLOCK_BYTES + at as u64;
            if number < CONTENDED_BLOCKS {
                continue;
            }
            let found = tag_of(block);
            assert!(
                open.allowed[at].contains(&found),
                "block {number} reads {found} at {} from engine {}, allowed are {:?}",
                self.now,
                open.engine,
                open.allowed[at]
            );
            // Once somebody has seen what an unanswered write left, everybody does. Writes that are under way, and
            // others that read at the same time, may make it look different for a moment; and a read that was asked
            // before the write was given up, and answered late, may have come before it.
            let alone = self.open.values().all(|other| {
                other.operation.range().is_none_or(|other| {
                    !other.overlaps(ByteRange::new(number * BLOCK_BYTES, BLOCK_BYTES))
                })
            });
            let expected = &self.expected[number as usize];
            let late = open.asked_at <= expected.floating_since;
            if expected.floating.is_empty() || expected.pending.is_some() || !alone || late {
                continue;
            }
            // The known limit: while members are compared after a crash, the loss of the one that is read from may take
            // an unanswered write with it.
            let running: Vec<_> = self
                .engines
                .iter()
                .filter(|engine| engine.running)
                .collect();
            let comparing = |status: engine::control::EngineStatus| {
                status
                    .tasks
                    .iter()
                    .any(|task| task.kind.starts_with("compare"))
            };
            if running.len() != 1 || comparing(running[0].core.status()) {
                continue;
            }
            let expected = &mut self.expected[number as usize];
            if expected.floating.contains(&found) || expected.settled == found {
                expected.settled = found;
                expected.floating.clear();
            }
        }
    }

    /// The engine is dead: what it had under way may have happened, or not.
    pub(super) fn forget_requests_of(&mut self, engine: usize) {
        let lost: Vec<RequestId> = self
            .open
            .iter()
            .filter(|(_, open)| open.engine == engine)
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            let Some(open) = self.open.remove(&id) else {
                continue;
            };
            if open.operation.is_read() {
                continue;
            }
            let Some(range) = open.operation.range() else {
                continue;
            };
            for (block, tag) in tags_of(&open.operation, range) {
                let expected = &mut self.expected[block as usize];
                if expected.pending == Some(tag) {
                    expected.pending = None;
                }
                expected.floating.insert(tag);
                expected.floating_since = self.now;
            }
        }
    }

    pub(super) fn check_the_end(&mut self) {
        assert!(
            self.shutting_down,
            "the volume did not come to rest: {:?}, open requests {:?}",
            self.engines.last().map(|engine| engine.core.status()),
            self.open.keys().collect::<Vec<_>>()
        );
        assert!(self.open.is_empty(), "requests were never answered");
        let contents: Vec<Vec<Tag>> = self
            .nodes
            .iter()
            .map(|node| node.replica.live_blocks())
            .collect();
        for (at, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.replica.mode, ReplicaMode::Ready, "replica {at}");
            assert_eq!(contents[at], contents[0], "replica {at} differs at rest");
        }
        let snapshots: Vec<_> = self
            .nodes
            .iter()
            .map(|node| node.replica.snapshots())
            .collect();
        for at in 1..snapshots.len() {
            assert!(
                snapshots[at] == snapshots[0],
                "a snapshot of replica {at} differs at rest"
            );
        }
        for block in CONTENDED_BLOCKS..BLOCKS {
            let allowed = self.expected[block as usize].allowed();
            let found = contents[0][block as usize];
            assert!(
                allowed.contains(&found),
                "block {block} holds {found}, allowed are {allowed:?}"
            );
        }
    }
}

impl Expected {
    pub(super) fn allowed(&self) -> BTreeSet<Tag> {
        let mut allowed = self.floating.clone();
        allowed.insert(self.settled);
        allowed.extend(self.pending);
        allowed
    }
}

fn shown(id: RequestId, operation: &Operation) -> String {
    let kind = match operation {
        Operation::Read { .. } => "read",
        Operation::Write { .. } => "write",
        Operation::Discard { .. } | Operation::WriteZeroes { .. } => "discard",
        Operation::Flush => "flush",
    };
    let blocks = operation.range().map(|range| {
        (range.offset / BLOCK_BYTES..(range.offset + range.length) / BLOCK_BYTES)
            .collect::<Vec<_>>()
    });
    let tags = match operation.range() {
        Some(range) if !operation.is_read() => tags_of(operation, range),
        _ => Vec::new(),
    };
    format!("{kind} #{} of {blocks:?} {tags:?}", id.0)
}

/// What an operation that changes the volume leaves in each block.
fn tags_of(operation: &Operation, range: ByteRange) -> Vec<(u64, Tag)> {
    let first = range.offset / BLOCK_BYTES;
    match operation {
        Operation::Write { data, .. } => data
            .chunks(BLOCK_BYTES as usize)
            .enumerate()
            .map(|(at, block)| (first + at as u64, tag_of(block)))
            .collect(),
        _ => (first..first + range.length / BLOCK_BYTES)
            .map(|block| (block, 0))
            .collect(),
    }
}
