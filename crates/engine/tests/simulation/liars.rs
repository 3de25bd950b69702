//! A replica that answers something else than it was asked: another shape, nonsense in the right one, twice, late, to a request that nobody
//! made, or bytes that are no answer at all. What it claims to have done it has done: that cannot be told from outside.

use std::collections::BTreeSet;

use block_core::wire::{
    Extent, ExtentKind, ExtentPage, Failure, FrameDecoder, Header, Kind, LayerInfo, LayerRef,
    RebuildPlanReply, Reply, Request, RequestId, StatusCode,
};
use block_core::{Epoch, SnapshotName};
use bytes::Bytes;
use engine::control::{Command, EngineState, Notice};
use engine::core::{Event, JobId};

use crate::replica::{ModelReplica, Tag};
use crate::scripted::{Asks, BLOCKS, LEASE_US, Script};
use crate::seen::{Dice, Told};

const SEEDS: u64 = 1500;
const STEPS: u64 = 60;

pub struct Liar {
    pub replica: usize,
    dice: Dice,
    /// Of its answers. One that hardly ever lies gets far.
    lies_one_in: u64,
    /// What it says to these requests whenever they come; then it lies about nothing else.
    always: Option<(Asks, Reply)>,
    /// What it was asked last.
    asked: Kind,
    held: Option<Event>,
    told: Told,
}

impl Liar {
    fn new(replica: usize, seed: u64) -> Self {
        Self {
            replica,
            dice: Dice(seed ^ 0x11a5),
            lies_one_in: 3 + seed % 40,
            always: None,
            asked: Kind::Status,
            held: None,
            told: Told::default(),
        }
    }

    /// What it says in place of doing what it is asked, if it does not.
    pub fn instead(&mut self, request: &Request) -> Option<Reply> {
        self.asked = request.kind();
        if let Some((to, lie)) = &self.always {
            return to(request).then(|| lie.clone());
        }
        if !self.dice.one_in(self.lies_one_in) {
            return None;
        }
        self.told.lies += 1;
        let lie = self.any_reply();
        Some(match (request, lie) {
            // That could be true.
            (Request::Read { .. } | Request::ReadLayer { .. }, Reply::Data(data)) => {
                Reply::Data(Bytes::from([&data[..], &[0]].concat()))
            }
            (Request::RebuildBegin { .. }, Reply::RebuildPlan(_)) => Reply::Done,
            (request, Reply::Done) if answered_with_nothing(request) => {
                Reply::Data(Bytes::from_static(&[0; 4096]))
            }
            (_, lie) => lie,
        })
    }

    fn any_reply(&mut self) -> Reply {
        let number = self.number();
        match self.dice.below(9) {
            0 => Reply::Done,
            1 => {
                let lengths = [0, 512, 4096, 4097, 8192, 1 << 19, 1 << 20];
                let length = lengths[self.dice.below(7) as usize];
                Reply::Data(Bytes::from(vec![0xee; length]))
            }
            2 => Reply::Digest([number as u8; 32]),
            3 => Reply::Layers(self.layers()),
            4 => Reply::Extents(self.extents()),
            5 => {
                let hash = |at: u64| (!at.is_multiple_of(3)).then_some([at as u8; 32]);
                Reply::Hashes((0..self.dice.below(200)).map(hash).collect())
            }
            6 => Reply::RebuildPlan(RebuildPlanReply {
                existing: vec![name("circle-1"), name("none")],
            }),
            _ => self.refusal(),
        }
    }

    /// Any but that of a newer engine, which is always believed.
    fn refusal(&mut self) -> Reply {
        let codes = [
            StatusCode::NoSpace,
            StatusCode::Io,
            StatusCode::OutOfRange,
            StatusCode::BadRequest,
            StatusCode::Busy,
            StatusCode::NotFound,
            StatusCode::WrongMode,
            StatusCode::Corrupt,
            StatusCode::NotPermitted,
            StatusCode::Superseded,
        ];
        let code = codes[self.dice.below(codes.len() as u64) as usize];
        Reply::Failed(Failure::new(code, "a lie"))
    }

    fn number(&mut self) -> u64 {
        let random = self.dice.next();
        match random % 5 {
            0 => u64::MAX,
            1 => u64::MAX - 4095,
            2 => 1 << 63,
            3 => 0,
            _ => random >> (random >> 8 & 63),
        }
    }

    /// Two that are each other's parents, and sizes that nothing has.
    fn layers(&mut self) -> Vec<LayerInfo> {
        let mut layer = |layer, parent| LayerInfo {
            layer,
            parent: Some(name(parent)),
            created_unix_ms: 0,
            user_created: true,
            removed: false,
            size_bytes: self.number(),
            allocated_bytes: self.number(),
            digest: None,
        };
        vec![
            layer(LayerRef::Snapshot(name("circle-1")), "circle-2"),
            layer(LayerRef::Snapshot(name("circle-2")), "circle-1"),
            layer(LayerRef::Head, "circle-1"),
        ]
    }

    /// In no order, over each other, without an end.
    fn extents(&mut self) -> ExtentPage {
        let count = self.dice.below(50);
        let mut extent = || Extent {
            offset_bytes: self.number(),
            length_bytes: self.number(),
            kind: if self.dice.one_in(2) {
                ExtentKind::Data
            } else {
                ExtentKind::Zero
            },
        };
        ExtentPage {
            extents: (0..count).map(|_| extent()).collect(),
            next_offset_bytes: Some(self.number()),
        }
    }

    /// What becomes of a true answer on its way, and of the facts at the beginning of a connection.
    pub fn distort(&mut self, event: Event) -> Vec<Event> {
        let lies = self.always.is_none() && self.dice.one_in(self.lies_one_in);
        self.told.lies += u64::from(lies);
        let mut events: Vec<Event> = self.held.take().into_iter().collect();
        match event {
            Event::LinkUp {
                member,
                incarnation,
                mut facts,
            } => {
                let sizes = [0, 4097, 1 << 60, u64::MAX];
                if lies {
                    facts.size_bytes = sizes[self.dice.below(4) as usize];
                }
                events.push(Event::LinkUp {
                    member,
                    incarnation,
                    facts,
                });
            }
            Event::Reply {
                member,
                incarnation,
                job,
                mut reply,
            } => {
                if let (true, Reply::Layers(layers)) = (lies, &mut reply) {
                    let takes_all = |layer: &mut LayerInfo| layer.allocated_bytes = u64::MAX;
                    layers.iter_mut().for_each(takes_all);
                }
                let say = |job, reply| Event::Reply {
                    member,
                    incarnation,
                    job,
                    reply,
                };
                let stray = JobId(job.0 ^ 1 << (32 + self.dice.below(30)));
                let may_be_missed = may_be_missed(self.asked);
                match self.dice.below(20) {
                    _ if !lies => events.push(say(job, reply)),
                    0..6 => events.extend([say(job, reply.clone()), say(job, reply)]),
                    6..12 => events.extend([say(stray, Reply::Done), say(job, reply)]),
                    12 if may_be_missed => events.push(say(stray, reply)),
                    13..16 if may_be_missed => self.held = Some(say(job, reply)),
                    _ => {
                        let sent = self.over_the_line(job, &reply);
                        events.push(sent.map_or_else(
                            |reason| Event::LinkDown {
                                member,
                                incarnation,
                                reason,
                            },
                            |(job, reply)| say(job, reply),
                        ));
                    }
                }
            }
            other => events.push(other),
        }
        events
    }

    /// Its bytes, of which some change; a header that was changed has the right checksum.
    fn over_the_line(&mut self, job: JobId, reply: &Reply) -> Result<(JobId, Reply), String> {
        self.told.mutated_frames += 1;
        let mut request = Header::request(self.asked, RequestId(job.0), Epoch(1));
        if let Reply::Data(data) = reply {
            request.length_bytes = data.len() as u64;
        }
        let mut bytes = reply.clone().into_frame(&request, Epoch(1)).to_vec();
        let at = self.dice.below(bytes.len() as u64) as usize;
        match self.dice.below(3) {
            0 => bytes[at] ^= 1 << self.dice.below(8),
            1 => bytes.truncate(at),
            _ => {
                bytes[at % 52] = self.dice.next() as u8;
                let checksum = crc32c::crc32c(&bytes[..52]);
                bytes[52..56].copy_from_slice(&checksum.to_le_bytes());
            }
        }
        let decoded = decode(&bytes);
        self.told.connections_ended += u64::from(decoded.is_err());
        match decoded {
            Ok((_, Reply::Failed(failure))) if failure.code == StatusCode::StaleEpoch => {
                Ok((job, reply.clone()))
            }
            Ok((other, _)) if other != job && !may_be_missed(self.asked) => {
                Ok((job, reply.clone()))
            }
            decoded => decoded,
        }
    }
}

/// As a connection takes what it receives.
fn decode(bytes: &[u8]) -> Result<(JobId, Reply), String> {
    let mut decoder = FrameDecoder::new();
    decoder.push(bytes);
    let frame = decoder.next_frame().map_err(|error| error.to_string())?;
    let frame = frame.ok_or("the replica has hung up")?;
    if frame.header.kind == Kind::Goodbye {
        return Err("it hung up".into());
    }
    let reply = Reply::from_frame(&frame.header, &frame.payload);
    let reply = reply.map_err(|error| error.to_string())?;
    Ok((JobId(frame.header.request_id.0), reply))
}

/// Whether an engine misses the answer. What takes time by the amount of data is waited for as long as a replica answers anything.
fn may_be_missed(asked: Kind) -> bool {
    !matches!(
        asked,
        Kind::Flush
            | Kind::Expand
            | Kind::SnapshotPrepare
            | Kind::SnapshotPurge
            | Kind::SnapshotDigest
            | Kind::LayerHashes
            | Kind::RebuildBegin
            | Kind::RebuildVerify
            | Kind::RebuildCommit
    )
}

fn answered_with_nothing(request: &Request) -> bool {
    !matches!(
        request,
        Request::Read { .. }
            | Request::ReadLayer { .. }
            | Request::SnapshotDigest { .. }
            | Request::ListLayers
            | Request::LayerExtents { .. }
            | Request::LayerHashes { .. }
            | Request::RebuildBegin { .. }
            | Request::Status
    )
}

/// What is made of an answer must still be something that can be sent.
pub fn assert_fits_a_frame(request: &Request) {
    let frame = request.clone().into_frame(RequestId(1), Epoch(1));
    let _ = frame.encode_header();
}

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).expect("a plain name")
}

/// Those who use the volume, and whoever looks after it.
struct Run {
    script: Script,
    engine: usize,
    dice: Dice,
    /// What each block may hold.
    allowed: Vec<BTreeSet<Tag>>,
    open: Vec<(engine::io::RequestId, u64, Tag)>,
    tag_next: Tag,
    liar: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut script = Script::new(3);
        let engine = script.start_engine(1, &[0, 1, 2], &[]);
        let liar = seed as usize % 3;
        script.liar = Some(Liar::new(liar, seed));
        Self {
            script,
            engine,
            dice: Dice(seed),
            allowed: vec![BTreeSet::from([0]); BLOCKS as usize],
            open: Vec::new(),
            tag_next: 1,
            liar,
        }
    }

    fn step(&mut self) {
        let block = self.dice.below(BLOCKS);
        let is_busy = self.open.iter().any(|(_, open, _)| *open == block);
        match self.dice.below(18) {
            0..8 if !is_busy => {
                let tag = self.tag_next;
                self.tag_next += 1;
                let id = self.script.write(self.engine, block, tag);
                self.allowed[block as usize].insert(tag);
                self.open.push((id, block, tag));
            }
            8 | 9 => {
                let read = self.script.read(self.engine, block);
                if let Some(found) = self.script.found(self.engine, read) {
                    let allowed = &self.allowed[block as usize];
                    assert!(allowed.contains(&found), "block {block}: {found}");
                }
            }
            10 => drop(self.script.flush(self.engine)),
            11 => {
                let name = format!("s{}", self.tag_next);
                self.tag_next += 1;
                let created_unix_ms = 0;
                let command = Command::Snapshot {
                    name,
                    created_unix_ms,
                };
                self.script.command(self.engine, command);
            }
            12 | 13 => self.rebuild_missing(),
            // So that the liar is copied from.
            14 => {
                let name = format!("r{}", (self.liar + 1) % 3);
                let command = Command::RemoveReplica { name };
                self.script.command(self.engine, command);
            }
            15 if self.dice.one_in(3) => self.replace_engine(),
            _ => self.script.pass(LEASE_US),
        }
        self.look_at_answers();
        self.check_the_engine();
    }

    fn rebuild_missing(&mut self) {
        let status = self.script.engines[self.engine].core.status();
        for at in 0..3 {
            let name = format!("r{at}");
            let member = status.members.iter().find(|member| member.name == name);
            if member.is_none_or(|member| member.role == "out") {
                let address = at.to_string();
                let command = Command::Rebuild { name, address };
                self.script.command(self.engine, command);
            }
        }
    }

    fn replace_engine(&mut self) {
        if !self.script.engines[self.engine].serving {
            return;
        }
        let status = self.script.engines[self.engine].core.status();
        self.script.kill_engine(self.engine);
        // Nobody is there to hear it.
        self.script
            .liar
            .iter_mut()
            .for_each(|liar| liar.held = None);
        self.open.clear();
        let number = |name: &String| name[1..].parse().expect("a number");
        let in_sync: Vec<usize> = status.in_sync.iter().map(number).collect();
        self.engine = self.script.start_engine(status.generation, &in_sync, &[]);
    }

    fn look_at_answers(&mut self) {
        let answers = &self.script.engines[self.engine].answers;
        let (allowed, liar) = (&mut self.allowed, &mut self.script.liar);
        self.open.retain(|(id, block, tag)| {
            let answer = answers.get(id);
            if let Some(Ok(_)) = answer {
                allowed[*block as usize] = BTreeSet::from([*tag]);
                liar.iter_mut().for_each(|liar| liar.told.written += 1);
            }
            answer.is_none()
        });
    }

    /// It serves, and nobody but the liar is left behind, unless by command.
    fn check_the_engine(&mut self) {
        let engine = &mut self.script.engines[self.engine];
        let state = engine.core.status().state;
        assert!(!matches!(state, EngineState::Fenced { .. }), "{state:?}");
        let liar = format!("r{}", self.liar);
        for notice in engine.notices.drain(..) {
            match notice {
                Notice::MemberFailed { member, why } => {
                    assert!(member == liar || why.contains("command"), "{member}: {why}");
                    let told = self.script.liar.as_mut().map(|liar| &mut liar.told);
                    told.into_iter().for_each(|told| told.left_behind += 1);
                }
                Notice::RebuildFinished { .. } => {
                    let told = self.script.liar.as_mut().map(|liar| &mut liar.told);
                    told.into_iter().for_each(|told| told.rebuilt += 1);
                }
                _ => {}
            }
        }
    }

    /// It tells the truth from now on: all replicas become equal, and have what was acknowledged.
    fn end(mut self) -> Told {
        let (engine, mut rounds) = (self.engine, 0);
        let liar = self.script.liar.take().expect("it was there all the time");
        if let Some(late) = liar.held {
            self.script.tell(engine, late);
        }
        loop {
            let status = self.script.engines[engine].core.status();
            self.look_at_answers();
            let is_settled = self.open.is_empty()
                && status.in_sync.len() == 3
                && status.tasks.is_empty()
                && status.proposal.is_none()
                && self.script.engines[engine].serving;
            if is_settled {
                break;
            }
            rounds += 1;
            assert!(rounds < 1000, "it never comes to rest: {status:#?}");
            self.rebuild_missing();
            self.script.pass(LEASE_US);
        }
        let contents: Vec<Vec<Tag>> = self
            .script
            .replicas
            .iter()
            .map(ModelReplica::live_blocks)
            .collect();
        for (block, allowed) in self.allowed.iter().enumerate() {
            let found: Vec<Tag> = contents.iter().map(|content| content[block]).collect();
            assert!(
                found.iter().all(|tag| *tag == found[0]),
                "{block}: {found:?}"
            );
            assert!(
                allowed.contains(&found[0]),
                "{block}: {found:?} {allowed:?}"
            );
        }
        liar.told
    }
}

fn run(seed: u64) -> Told {
    let mut run = Run::new(seed);
    for _ in 0..STEPS {
        run.step();
    }
    run.end()
}

#[test]
fn nonsense_costs_the_replica_that_answers_it_and_nobody_else() {
    let mut all = Told::default();
    for seed in 0..SEEDS {
        let told = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|panic| {
            eprintln!("seed {seed} failed");
            std::panic::resume_unwind(panic)
        });
        all.lies += told.lies;
        all.mutated_frames += told.mutated_frames;
        all.connections_ended += told.connections_ended;
        all.left_behind += told.left_behind;
        all.rebuilt += told.rebuilt;
        all.written += told.written;
    }
    println!("{all:?}");
    // Else little of it was heard.
    assert!(all.lies > 5000, "{all:?}");
    assert!(
        all.mutated_frames > 100 && all.connections_ended > 50,
        "{all:?}"
    );
    assert!(
        all.left_behind > SEEDS && all.rebuilt > SEEDS / 2,
        "{all:?}"
    );
    assert!(all.written > 10 * SEEDS, "{all:?}");
}

/// An engine was killed in the middle of a write. The replica that the next one reads from answers a part of the comparison with
/// nonsense, each time that it is asked: it is left behind, and the others are made equal.
#[test]
fn a_comparison_does_not_wait_for_a_replica_that_answers_nonsense() {
    type Case = (&'static str, Asks, Reply);
    let cases: [Case; 4] = [
        (
            "lists",
            |request| matches!(request, Request::ListLayers),
            Reply::Done,
        ),
        (
            "hashes",
            |request| matches!(request, Request::LayerHashes { .. }),
            Reply::Done,
        ),
        (
            "no data",
            |request| matches!(request, Request::Read { .. }),
            Reply::Done,
        ),
        // It would be written to all, also behind the chunk that was asked for.
        (
            "too much data",
            |request| matches!(request, Request::Read { .. }),
            Reply::Data(Bytes::from_static(&[0xee; 3 * BLOCKS as usize * 4096])),
        ),
    ];
    for (case, to, lie) in cases {
        let mut script = Script::new(3);
        script.size_bytes = 2 * BLOCKS * 4096;
        let killed = script.start_engine(1, &[0, 1, 2], &[]);
        for block in 0..2 * BLOCKS {
            assert!(script.written(killed, block, 10 + block), "{case}");
        }
        script.unanswered = vec![(1, |request| matches!(request, Request::Write { .. }))];
        script.write(killed, 3, 99);
        script.unanswered.clear();
        script.kill_engine(killed);
        let mut liar = Liar::new(0, 0);
        liar.always = Some((to, lie));
        script.liar = Some(liar);
        let engine = script.start_engine(1, &[0, 1, 2], &[]);
        script.pass_until(case, |script| {
            let status = script.engines[engine].core.status();
            status.tasks.is_empty() && status.in_sync == ["r1", "r2"]
        });
        assert!(script.engines[engine].serving, "{case}");
        let why = script.engines[engine].notices.iter().find_map(|notice| {
            let Notice::MemberFailed { member, why } = notice else {
                return None;
            };
            Some(format!("{member}: {why}"))
        });
        let why = why.unwrap_or_default();
        assert!(
            why.starts_with("r0") && why.contains("something else"),
            "{case}: {why}"
        );
        let content = script.replicas[1].live_blocks();
        assert_eq!(content, script.replicas[2].live_blocks(), "{case}");
        for (block, tag) in content.into_iter().enumerate() {
            let either = [10 + block as u64, if block == 3 { 99 } else { 0 }];
            assert!(either.contains(&tag), "{case}: {tag} in block {block}");
        }
    }
}
