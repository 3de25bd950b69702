//! Reads: each goes to one member in sync, and to another if that one fails it.

use block_core::wire::{self, Failure, Reply, StatusCode};

use super::data::fault_of;
use super::member::Role;
use super::{Action, EngineCore, MemberIndex, MemberSet, Moment, Purpose};
use crate::io::{ByteRange, Outcome, RequestId};

#[derive(Debug)]
pub struct ReadState {
    pub(super) request: RequestId,
    range: ByteRange,
    arrived: Moment,
}

impl EngineCore {
    pub(super) fn start_read(&mut self, request: RequestId, range: ByteRange, arrived: Moment) {
        let id = self.read_next;
        self.read_next += 1;
        self.reads.insert(
            id,
            ReadState {
                request,
                range,
                arrived,
            },
        );
        self.dispatch_read(id);
    }

    /// Sends a read to the member that will likely answer first, or parks it until there is one.
    pub(super) fn dispatch_read(&mut self, id: u64) {
        let Some(read) = self.reads.get(&id) else {
            return;
        };
        let Some(member) = self.choose_reader(MemberSet::default()) else {
            self.reads_parked.push(id);
            return;
        };
        let lacking = self.lease_lacks(member);
        if !lacking.is_empty() {
            self.reads_parked.push(id);
            self.renew_lease(lacking);
            return;
        }
        let message = wire::Request::Read {
            offset_bytes: read.range.offset,
            length_bytes: read.range.length,
        };
        self.members[member.position()].reads_open += 1;
        self.send(member, Purpose::Read(id), message);
    }

    /// The least busy of the members in sync, then the fastest lately.
    pub(super) fn choose_reader(&self, except: MemberSet) -> Option<MemberIndex> {
        let can_read = |member: &MemberIndex| {
            let state = &self.members[member.position()];
            state.is_up() && state.role == Role::InSync && !except.contains(*member)
        };
        if let Some(pinned) = self.read_pin.filter(|member| can_read(member)) {
            return Some(pinned);
        }
        self.committed.iter().filter(can_read).min_by_key(|member| {
            let state = &self.members[member.position()];
            (state.reads_open, state.read_us)
        })
    }

    pub(super) fn wake_parked_reads(&mut self) {
        for id in std::mem::take(&mut self.reads_parked) {
            self.dispatch_read(id);
        }
    }

    pub(super) fn on_read(&mut self, id: u64, member: MemberIndex, sent_at: Moment, reply: Reply) {
        let took_us = self.now.since_us(sent_at);
        let state = &mut self.members[member.position()];
        state.reads_open = state.reads_open.saturating_sub(1);
        state.read_us = (state.read_us * 7 + took_us) / 8;
        let Some(read) = self.reads.get(&id) else {
            return;
        };
        let why = match reply {
            Reply::Data(data) if data.len() as u64 == read.range.length => {
                self.finish_read(id, Ok(data));
                return;
            }
            Reply::Failed(failure) => failure,
            _ => Failure::new(StatusCode::Io, "a read's answer has the wrong shape"),
        };
        if self.others_live(member) {
            // It is left behind, and so not asked again before it was rebuilt.
            self.fail_member(member, &why.to_string());
            self.dispatch_read(id);
        } else {
            self.finish_read(id, Err(fault_of(&why)));
        }
    }

    fn finish_read(&mut self, id: u64, outcome: Outcome) {
        if let Some(read) = self.reads.remove(&id) {
            let latency_us = self.now.since_us(read.arrived);
            self.statistics
                .read
                .record(read.range.length, latency_us, outcome.is_err());
            self.out.push(Action::Complete {
                request: read.request,
                outcome,
            });
        }
    }
}
