//! The data path: requests in, jobs to members out, answers back. Reads, which go to one member alone, are in `reads`.

use block_core::geometry::{BlockRange, check_range};
use block_core::wire::{self, Failure, Flags, Reply, StatusCode};
use bytes::Bytes;

use super::deadlines;
use super::member::Role;
use super::tasks::TaskId;
use super::{Action, EngineCore, MemberIndex, MemberSet, Moment, Phase, Purpose};
use crate::io::{IoFault, Operation, Outcome, Request, RequestId};

/// One request sent to all members that take writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FanId(pub u64);

/// Who asked.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    Client(ClientFan),
    Task(TaskId),
    /// The last flush before an orderly end.
    Seal,
}

#[derive(Clone, Copy, Debug)]
pub struct ClientFan {
    pub request: RequestId,
    pub kind: FanKind,
    pub blocks: BlockRange,
    pub bytes: u64,
    pub arrived: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanKind {
    Write,
    Unmap,
    Flush,
}

#[derive(Debug)]
pub struct Fan {
    origin: Origin,
    message: wire::Request,
    /// How many changes had been done when it began: a flush makes these durable.
    covers: u64,
    begun: Moment,
    /// How long the first member took that has done it, of those with the same data to make durable.
    first_took_us: Option<u64>,
    /// Members that were asked and have not answered yet.
    open: MemberSet,
    acked: MemberSet,
    failed: MemberSet,
    failure: Option<Failure>,
    /// Members that were asked again on a new connection and may have done it before.
    repeated: MemberSet,
}

impl Fan {
    pub fn is_of_task(&self) -> bool {
        matches!(self.origin, Origin::Task(_))
    }

    /// How long the first member took to make data durable, if that is what is asked for.
    pub fn first_sync_us(&self) -> Option<u64> {
        self.first_took_us
            .filter(|_| deadlines::syncs(&self.message))
    }

    pub fn mentions(&self, member: MemberIndex) -> bool {
        let sets = [self.open, self.acked, self.failed, self.repeated];
        sets.iter().any(|set| set.contains(member))
    }
}

impl EngineCore {
    pub(super) fn on_submit(&mut self, request: Request) {
        let id = request.id;
        if let Some(fault) = self.refusal(&request) {
            self.out.push(Action::Complete {
                request: id,
                outcome: Err(fault),
            });
            return;
        }
        if request
            .operation
            .range()
            .is_some_and(|range| range.length == 0)
        {
            self.out.push(Action::Complete {
                request: id,
                outcome: Ok(Bytes::new()),
            });
            return;
        }
        if let Err(blocked) = self.try_start(request, self.now) {
            self.waiting.push_back((self.now, blocked));
        }
    }

    fn refusal(&self, request: &Request) -> Option<IoFault> {
        match &self.phase {
            Phase::Fenced { .. } => return Some(IoFault::Fenced),
            _ if !self.takes_requests() => return Some(IoFault::ShuttingDown),
            _ => {}
        }
        let range = request.operation.range()?;
        check_range(range.offset, range.length, self.size_bytes)
            .err()
            .map(|_| IoFault::Invalid)
    }

    /// Whether the request that waits longest waits for any of these blocks. Writes that come later wait behind it: else, where
    /// many write, it might never find all of its blocks free. It is enough to look at one, since each becomes the first in
    /// time. Reads hold up nobody.
    fn is_awaited(&self, blocks: BlockRange) -> bool {
        self.waiting
            .front()
            .is_some_and(|(_, first)| blocks_of(first).overlaps(&blocks))
    }

    /// Starts a request, or gives it back if it must wait.
    fn try_start(&mut self, request: Request, arrived: Moment) -> Result<(), Request> {
        let blocks = blocks_of(&request);
        let id = request.id;
        let (kind, message, bytes) = match &request.operation {
            Operation::Read { range } => {
                if self.locks.touches(blocks) {
                    return Err(request);
                }
                self.start_read(id, *range, arrived);
                return Ok(());
            }
            Operation::Flush => (FanKind::Flush, wire::Request::Flush, 0),
            Operation::Write {
                offset,
                data,
                durable,
            } => {
                let message = wire::Request::Write {
                    offset_bytes: *offset,
                    data: data.clone(),
                    flags: self.write_flags(*durable),
                };
                (FanKind::Write, message, data.len() as u64)
            }
            Operation::WriteZeroes { range, durable, .. } => {
                let message = wire::Request::WriteZeroes {
                    offset_bytes: range.offset,
                    length_bytes: range.length,
                    flags: durability(*durable),
                };
                (FanKind::Unmap, message, range.length)
            }
            Operation::Discard { range } => {
                let message = wire::Request::Discard {
                    offset_bytes: range.offset,
                    length_bytes: range.length,
                };
                (FanKind::Unmap, message, range.length)
            }
        };
        if kind != FanKind::Flush {
            if self.barrier.is_some() || self.is_awaited(blocks) || !self.locks.try_lock(blocks) {
                return Err(request);
            }
            self.writes_open += 1;
        }
        let client = ClientFan {
            request: id,
            kind,
            blocks,
            bytes,
            arrived,
        };
        self.start_fan(Origin::Client(client), message);
        Ok(())
    }

    /// Sends a message to every member that takes writes.
    pub(super) fn start_fan(&mut self, origin: Origin, message: wire::Request) -> FanId {
        let id = FanId(self.fan_next);
        self.fan_next += 1;
        let empty = MemberSet::default();
        let fan = Fan {
            origin,
            message,
            covers: self.changes_done,
            begun: self.now,
            first_took_us: None,
            open: empty,
            acked: empty,
            failed: empty,
            failure: None,
            repeated: empty,
        };
        self.fans.insert(id, fan);
        for position in 0..self.members.len() {
            if self.members[position].takes_writes() {
                self.send_leg(id, MemberIndex::from_position(position));
            }
        }
        id
    }

    fn send_leg(&mut self, id: FanId, member: MemberIndex) {
        let fan = self.fans.get_mut(&id).expect("a fan that is sent is known");
        fan.open.insert(member);
        let message = fan.message.clone();
        self.send(member, Purpose::Leg(id), message);
    }

    /// A member is lost, and perhaps its machine: what it has done of requests that are not answered yet may be gone with its
    /// memory. It does not count, for one that is left behind, and is done once more, by the last one.
    pub(super) fn forget_acks(&mut self, member: MemberIndex) {
        for fan in self.fans.values_mut() {
            fan.acked.remove(member);
        }
    }

    /// After the last member came back: everything that is not answered yet, in order.
    pub(super) fn resend_legs(&mut self, member: MemberIndex) {
        let mut missing: Vec<FanId> = self
            .fans
            .iter()
            .filter(|(_, fan)| !fan.acked.contains(member) && !fan.open.contains(member))
            .map(|(id, _)| *id)
            .collect();
        missing.sort_unstable();
        for id in missing {
            if let Some(fan) = self.fans.get_mut(&id) {
                fan.repeated.insert(member);
            }
            self.send_leg(id, member);
        }
    }

    pub(super) fn on_leg(&mut self, id: FanId, member: MemberIndex, reply: Reply) {
        let Some(fan) = self.fans.get_mut(&id) else {
            return;
        };
        fan.open.remove(member);
        let done_before = fan.repeated.contains(member) && says_done_before(&fan.message, &reply);
        match done(reply) {
            Err(failure) if !done_before => {
                fan.failed.insert(member);
                fan.failure.get_or_insert(failure);
            }
            _ => {
                fan.acked.insert(member);
                let state = &self.members[member.position()];
                if state.role == Role::InSync && state.flushes_as_others {
                    let took_us = self.now.since_us(fan.begun);
                    fan.first_took_us.get_or_insert(took_us);
                }
                // It was asked again, and does now what it refused before.
                fan.failed.remove(member);
            }
        }
        self.settle_fan(id);
    }

    /// A member will not answer any more.
    pub(super) fn leg_lost(&mut self, id: FanId, member: MemberIndex) {
        if let Some(fan) = self.fans.get_mut(&id) {
            fan.open.remove(member);
            self.settle_fan(id);
        }
    }

    /// Completes a fan if nobody needs to be waited for.
    pub(super) fn settle_fan(&mut self, id: FanId) {
        let Some(fan) = self.fans.get(&id) else {
            return;
        };
        let required = self.required();
        let (open, acked, failed) = (fan.open, fan.acked, fan.failed);
        // A rebuild's target is waited for as well: it may run requests in any order, so the next
        // write to the same blocks must not be sent before it has done this one.
        if !open.is_empty() {
            return;
        }
        if required.is_subset_of(acked) {
            for member in failed.iter() {
                self.fail_for(member, id);
            }
            self.finish_fan(id, Ok(()));
            return;
        }
        // Who has joined since this was sent is needed now and was never asked. It cannot be a write: those
        // were held back when the member began to take them.
        let joined: Vec<MemberIndex> = required
            .without(acked.union(failed))
            .iter()
            .filter(|member| self.members[member.position()].takes_writes())
            .collect();
        if !joined.is_empty() {
            for member in joined {
                self.send_leg(id, member);
            }
            return;
        }
        if failed.is_empty() {
            return;
        }
        if !acked.intersection(required).is_empty() {
            if self.is_no_fault(id) {
                if let Some(fan) = self.fans.get_mut(&id) {
                    fan.acked = acked.union(failed);
                    fan.failed = MemberSet::default();
                }
                self.settle_fan(id);
                return;
            }
            // Some have it: those that refused are left behind, and the rest is for the set's change.
            for member in failed.iter() {
                self.fail_for(member, id);
            }
        } else if required.is_subset_of(failed) {
            // All refused: nobody is better than the others, so the caller hears of it. A rebuild's target that
            // did it has now what nobody else has, and must begin again.
            for member in acked.iter() {
                self.fail_member(member, "it took a write that all others refused");
            }
            let failure = self.fans.get(&id).and_then(|fan| fan.failure.clone());
            self.finish_fan(id, Err(failure.unwrap_or_else(unexplained)));
        }
    }

    /// Whether a refusal leaves a member as good as the others.
    fn is_no_fault(&self, id: FanId) -> bool {
        self.fans.get(&id).is_some_and(|fan| {
            let code = fan.failure.as_ref().map(|failure| failure.code);
            match fan.message {
                // Somebody was faster.
                wire::Request::SnapshotDelete { .. } => code == Some(StatusCode::NotFound),
                // What shows is the same before and after; the next purge does what is left. An earlier engine's may still run.
                wire::Request::SnapshotPurge => {
                    matches!(code, Some(StatusCode::Busy | StatusCode::NoSpace))
                }
                _ => false,
            }
        })
    }

    fn fail_for(&mut self, member: MemberIndex, id: FanId) {
        let why = match self.fans.get(&id).and_then(|fan| fan.failure.as_ref()) {
            Some(failure) => failure.to_string(),
            None => "it refused a request".to_owned(),
        };
        self.fail_member(member, &why);
    }

    /// The set has changed: look at all fans again.
    pub(super) fn settle_all(&mut self) {
        let mut ids: Vec<FanId> = self.fans.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.settle_fan(id);
        }
    }

    fn finish_fan(&mut self, id: FanId, result: Result<(), Failure>) {
        let Some(fan) = self.fans.remove(&id) else {
            return;
        };
        if result.is_ok() {
            self.note_done(&fan);
        }
        match fan.origin {
            Origin::Client(client) => {
                let outcome = result
                    .map(|()| Bytes::new())
                    .map_err(|failure| fault_of(&failure));
                self.finish_client(client, outcome);
            }
            Origin::Task(task) => self.on_task_fan(task, fan.message, result),
            Origin::Seal => self.on_sealed(result.is_ok()),
        }
    }

    /// Counts what only the members' memory has, whoever asked for it, and what is on their disks.
    fn note_done(&mut self, fan: &Fan) {
        match fan.message {
            wire::Request::Write { .. }
            | wire::Request::WriteZeroes { .. }
            | wire::Request::Discard { .. }
            | wire::Request::SnapshotCreate { .. } => self.changes_done += 1,
            wire::Request::Flush | wire::Request::SnapshotPrepare => {
                self.changes_durable = self.changes_durable.max(fan.covers);
                for member in fan.acked.iter() {
                    self.members[member.position()].flushes_as_others = true;
                }
            }
            _ => {}
        }
    }

    fn finish_client(&mut self, client: ClientFan, outcome: Outcome) {
        let latency_us = self.now.since_us(client.arrived);
        let statistics = match client.kind {
            FanKind::Write => &mut self.statistics.write,
            FanKind::Unmap => &mut self.statistics.unmap,
            FanKind::Flush => &mut self.statistics.flush,
        };
        statistics.record(client.bytes, latency_us, outcome.is_err());
        self.out.push(Action::Complete {
            request: client.request,
            outcome,
        });
        if client.kind != FanKind::Flush {
            self.writes_open -= 1;
            self.locks.unlock(client.blocks);
            self.wake_waiting();
        }
    }

    /// Tries again what waited for a lock or a barrier, in the order of arrival: who still waits is ahead of those behind it.
    pub(super) fn wake_waiting(&mut self) {
        if self.waiting.is_empty() || !self.takes_requests() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        for (arrived, request) in waiting {
            if let Err(blocked) = self.try_start(request, arrived) {
                self.waiting.push_back((arrived, blocked));
            }
        }
    }

    /// Ends every request with an error; what members answer later is ignored.
    pub(super) fn fail_all_requests(&mut self, fault: IoFault) {
        let mut requests: Vec<RequestId> =
            self.reads.drain().map(|(_, read)| read.request).collect();
        self.reads_parked.clear();
        requests.extend(self.fans.drain().filter_map(|(_, fan)| match fan.origin {
            Origin::Client(client) => Some(client.request),
            Origin::Task(_) | Origin::Seal => None,
        }));
        requests.extend(self.waiting.drain(..).map(|(_, request)| request.id));
        requests.sort_unstable();
        self.locks = super::WriteLocks::default();
        self.writes_open = 0;
        self.jobs.clear();
        for request in requests {
            self.out.push(Action::Complete {
                request,
                outcome: Err(fault),
            });
        }
    }

    /// Whether any client waits for an answer.
    pub(super) fn requests_open(&self) -> usize {
        self.reads.len() + self.waiting.len() + self.fans.len()
    }
}

fn blocks_of(request: &Request) -> BlockRange {
    let range = request.operation.range();
    range.map_or(BlockRange { first: 0, end: 0 }, |range| {
        BlockRange::touched_by(range.offset, range.length)
    })
}

/// Whether what was asked for is done. Who answers anything else has not understood, and has perhaps done something else.
pub(super) fn done(reply: Reply) -> Result<(), Failure> {
    match reply {
        Reply::Done => Ok(()),
        Reply::Failed(failure) => Err(failure),
        _ => Err(Failure::new(StatusCode::Io, NOT_WHAT_WAS_ASKED)),
    }
}

/// Of a replica that cannot be believed.
pub(super) const NOT_WHAT_WAS_ASKED: &str = "it answered something else than it was asked";

/// Most requests can be done twice. A snapshot cannot, and its refusal then tells that it is there.
fn says_done_before(message: &wire::Request, reply: &Reply) -> bool {
    match (message, reply) {
        (wire::Request::SnapshotCreate { .. }, Reply::Failed(failure)) => {
            failure.code == StatusCode::AlreadyExists
        }
        (wire::Request::SnapshotDelete { .. }, Reply::Failed(failure)) => {
            failure.code == StatusCode::NotFound
        }
        _ => false,
    }
}

impl EngineCore {
    /// What a write of data asks of the replicas.
    pub(super) fn write_flags(&self, durable: bool) -> Flags {
        if self.config.detect_zeroes {
            return durability(durable).with(Flags::DETECT_ZEROES);
        }
        durability(durable)
    }
}

fn durability(durable: bool) -> Flags {
    if durable {
        Flags::FORCE_UNIT_ACCESS
    } else {
        Flags::NONE
    }
}

pub(super) fn fault_of(failure: &Failure) -> IoFault {
    match failure.code {
        StatusCode::NoSpace => IoFault::NoSpace,
        StatusCode::OutOfRange | StatusCode::BadRequest => IoFault::Invalid,
        StatusCode::StaleEpoch => IoFault::Fenced,
        _ => IoFault::Failed,
    }
}

fn unexplained() -> Failure {
    Failure::new(StatusCode::Io, "refused without a reason")
}
