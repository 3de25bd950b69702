//! A standby among replicas that the rows play.

use std::collections::BTreeSet;

use block_core::wire::{Failure, StatusCode, SyncMeta};
use block_core::{Epoch, ReplicaName, VolumeName};

use super::*;
use crate::brain::Brain;
use crate::control::ReplicaAt;
use crate::io::RequestId;

fn at(name: &str) -> MemberAddress {
    MemberAddress {
        name: ReplicaName::new(name).expect("a name"),
        address: format!("{name}:1"),
    }
}

fn config() -> CoreConfig {
    CoreConfig {
        create: false,
        detect_zeroes: false,
        volume: "v".into(),
        epoch: Epoch(2),
        size_bytes: 1 << 20,
        in_sync: vec![at("a"), at("b")],
        written_off: BTreeSet::new(),
        generation: 3,
        job_deadline_us: 1_000_000,
        open_grace_us: 1_000_000,
        read_lease_us: 1_000_000,
        rebuild_bytes_per_second_max: 0,
        started_unix_ms: 0,
    }
}

fn status(generation: u64) -> ReplicaStatus {
    ReplicaStatus {
        volume: VolumeName::new("v").expect("a name"),
        mode: wire::ReplicaMode::Ready,
        size_bytes: 1 << 20,
        accepted_epoch: Epoch(1),
        sync_epoch: Epoch(1),
        sync: Some(SyncMeta {
            replica: ReplicaName::new("a").expect("a name"),
            generation,
            in_sync: vec![],
            clean: false,
        }),
        allocated_bytes: 0,
        layers: 1,
        purge_done_bytes: 0,
        purge_total_bytes: 0,
        older_silent_us: 0,
        host_boot: [1; 16],
        restarted_since_opened: false,
        fault: String::new(),
    }
}

/// An engine whose connections are made at once, and what it asked of its replicas.
struct Bench {
    brain: Brain,
    now: Moment,
    connections: Vec<(MemberIndex, Incarnation)>,
    asked: Vec<(MemberIndex, JobId, wire::Request)>,
    addresses: Vec<String>,
    seen: Vec<String>,
}

impl Bench {
    fn start() -> Self {
        let mut bench = Self {
            brain: Brain::standby(config()),
            now: Moment(0),
            connections: Vec::new(),
            asked: Vec::new(),
            addresses: Vec::new(),
            seen: Vec::new(),
        };
        bench.apply(Event::Start);
        let endpoint = crate::frontend::Endpoint::BlockDevice("/dev/x".into());
        bench.apply(Event::FrontendChanged(FrontendState::Ready { endpoint }));
        bench
    }

    fn apply(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.brain.apply(self.now, event, &mut actions);
        for action in actions {
            match action {
                Action::Connect {
                    member,
                    incarnation,
                    to,
                    ..
                } => {
                    self.seen.push(format!("connect {}", to.name));
                    self.addresses.push(to.address);
                    self.connections.retain(|(known, _)| *known != member);
                    self.connections.push((member, incarnation));
                    self.apply(Event::LinkUp {
                        member,
                        incarnation,
                        facts: status(3),
                    });
                }
                Action::Send {
                    member,
                    job,
                    request,
                } => self.asked.push((member, job, request)),
                Action::Complete { request, outcome } => {
                    let outcome = outcome.map(|data| data.len());
                    self.seen
                        .push(format!("request {}: {outcome:?}", request.0));
                }
                Action::OpenFrontend { .. } => self.seen.push("open".into()),
                Action::CloseFrontend => {
                    self.seen.push("close".into());
                    self.apply(Event::FrontendChanged(FrontendState::Closed));
                }
                Action::Exit { clean } => self.seen.push(format!("exit {clean}")),
                Action::Notify(Notice::WantsTakeOver) => self.seen.push("wants".into()),
                Action::Disconnect { .. }
                | Action::Answer { .. }
                | Action::Notify(_)
                | Action::Propose(_)
                | Action::ResizeFrontend { .. } => {}
            }
        }
    }

    fn submit(&mut self, id: u64, operation: Operation) {
        let id = RequestId(id);
        self.apply(Event::Submit(Request { id, operation }));
    }

    /// Answers everything that was asked: reads with data, all else with a record of this generation.
    fn answer(&mut self, generation: u64) {
        for (member, job, request) in std::mem::take(&mut self.asked) {
            let reply = match request {
                wire::Request::Read { length_bytes, .. } => {
                    Reply::Data(vec![7; length_bytes as usize].into())
                }
                wire::Request::Status => Reply::Status(status(generation)),
                wire::Request::ListLayers => Reply::Layers(vec![]),
                wire::Request::LayerHashes { .. } => Reply::Hashes(vec![]),
                _ => Reply::Done,
            };
            self.reply(member, job, reply);
        }
    }

    fn reply(&mut self, member: MemberIndex, job: JobId, reply: Reply) {
        let incarnation = self
            .connections
            .iter()
            .find(|(known, _)| *known == member)
            .expect("a connection")
            .1;
        self.apply(Event::Reply {
            member,
            incarnation,
            job,
            reply,
        });
    }

    fn later(&mut self) {
        self.now = self.now.after(RETRY_US);
        self.apply(Event::Tick);
    }

    #[track_caller]
    fn saw(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.seen), expected);
    }
}

fn read() -> Operation {
    Operation::Read {
        range: ByteRange::new(4096, 4096),
    }
}

fn write() -> Operation {
    Operation::Write {
        offset: 0,
        data: vec![1; 4096].into(),
        durable: false,
    }
}

#[test]
fn a_read_counts_when_every_member_still_records_the_known_set() {
    let mut bench = Bench::start();
    bench.saw(&["connect a", "connect b", "open"]);
    bench.submit(1, read());
    assert_eq!(bench.asked.len(), 3, "the data, and two records");
    bench.answer(3);
    bench.saw(&["request 1: Ok(4096)"]);

    // A newer record somewhere: what was read may be what a replica that was left behind has.
    bench.submit(2, read());
    bench.answer(4);
    bench.saw(&[]);
    bench.later();
    bench.answer(4);
    bench.saw(&[]);
    bench.apply(Event::Command {
        id: CommandId(1),
        command: Command::Follow {
            generation: 4,
            in_sync: vec![ReplicaAt {
                name: "b".into(),
                address: "b:1".into(),
            }],
        },
    });
    bench.answer(4);
    bench.saw(&["connect b", "request 2: Ok(4096)"]);
}

#[test]
fn a_read_that_fails_is_asked_elsewhere_and_fails_in_the_end() {
    let mut bench = Bench::start();
    bench.seen.clear();
    bench.submit(1, read());
    let mut readers = Vec::new();
    for _ in 0..=FAILURES_MAX {
        for (member, job, request) in std::mem::take(&mut bench.asked) {
            let reply = match request {
                wire::Request::Read { .. } => {
                    readers.push(member.position());
                    Reply::Failed(Failure::new(StatusCode::Io, "a bad sector"))
                }
                _ => Reply::Status(status(3)),
            };
            bench.reply(member, job, reply);
        }
        bench.later();
    }
    bench.saw(&["request 1: Err(Failed)"]);
    assert!(readers.contains(&0) && readers.contains(&1));
}

#[test]
fn writes_wait_for_the_hand_over_and_then_run() {
    let mut bench = Bench::start();
    bench.seen.clear();
    bench.submit(1, Operation::Flush);
    bench.saw(&["request 1: Ok(0)"]);
    bench.submit(2, write());
    bench.submit(3, write());
    bench.submit(4, read());
    bench.saw(&["wants"]);
    assert!(!bench.brain.claims_replicas());

    bench.asked.clear();
    let in_sync = ["a", "b"].map(|name| ReplicaAt {
        name: name.into(),
        address: format!("{name}:1"),
    });
    bench.apply(Event::Command {
        id: CommandId(1),
        command: Command::Promote {
            generation: 3,
            in_sync: in_sync.into(),
        },
    });
    assert!(bench.brain.claims_replicas());
    bench.submit(5, write());
    // Records, lists and the snapshot of the comparison come first; nobody's request fails meanwhile.
    for _ in 0..16 {
        bench.answer(3);
    }
    let seen = std::mem::take(&mut bench.seen);
    assert_eq!(seen[..3], ["connect a", "connect b", "open"]);
    for request in 2..=5 {
        let done = seen
            .iter()
            .filter(|line| line.starts_with(&format!("request {request}: Ok")));
        assert_eq!(done.count(), 1, "request {request} in {seen:?}");
    }
}

#[test]
fn a_standby_that_is_not_wanted_any_more_ends() {
    let mut bench = Bench::start();
    bench.seen.clear();
    bench.submit(1, write());
    bench.apply(Event::Command {
        id: CommandId(1),
        command: Command::Shutdown,
    });
    bench.saw(&[
        "wants",
        "close",
        "request 1: Err(ShuttingDown)",
        "exit true",
    ]);
}

#[test]
fn a_replica_that_has_moved_is_looked_for_at_its_new_address() {
    let mut bench = Bench::start();
    bench.seen.clear();
    let (member, incarnation) = bench.connections[0];
    bench.apply(Event::LinkDown {
        member,
        incarnation,
        reason: "gone".into(),
    });
    bench.saw(&[]);
    bench.apply(Event::Command {
        id: CommandId(1),
        command: Command::SetAddress {
            name: "a".into(),
            address: "elsewhere:1".into(),
        },
    });
    bench.saw(&["connect a"]);
    assert_eq!(bench.addresses, ["a:1", "b:1", "elsewhere:1"]);
    // The reads that waited are asked for.
    bench.submit(1, read());
    bench.answer(3);
    bench.saw(&["request 1: Ok(4096)"]);
}
