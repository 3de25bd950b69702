//! Looking for bits that a disk has changed by itself: every replica reads its snapshots anew.
//!
//! Snapshots do not change, so this works while an engine runs. Those that engines make for themselves are left out: they
//! come and go, and the one of a comparison may differ by right until it is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;

use block_core::verification::{Digest, Found, SnapshotVerdict, judge};
use block_core::wire::{LayerRef, Reply, Request, StatusCode};
use block_core::{ReplicaName, SnapshotName};

use super::{InspectError, Inspection};
use crate::core::MemberAddress;
use crate::link::{ConnectError, Conversation};

/// What was found of one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedSnapshot {
    pub name: SnapshotName,
    pub verdicts: BTreeMap<ReplicaName, SnapshotVerdict>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// In the order in which they were taken.
    pub snapshots: Vec<VerifiedSnapshot>,
    /// Those that could not even say which snapshots they have, and why.
    pub silent: BTreeMap<ReplicaName, String>,
}

impl Verification {
    /// Whether there is damage.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.verdicts().any(SnapshotVerdict::is_wrong)
    }

    /// Whether there may be damage that nobody has looked for.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        !self.silent.is_empty() || self.verdicts().any(SnapshotVerdict::is_open)
    }

    fn verdicts(&self) -> impl Iterator<Item = &SnapshotVerdict> {
        self.snapshots.iter().flat_map(|one| one.verdicts.values())
    }
}

/// A replica has read one snapshot more.
#[derive(Clone, Debug)]
pub struct Step {
    pub replica: ReplicaName,
    pub snapshot: SnapshotName,
}

/// What one replica says of its snapshots, with when they were taken.
type Findings = BTreeMap<SnapshotName, (u64, Found)>;

enum News {
    Step(Step),
    Done(ReplicaName, Result<Findings, ConnectError>),
}

impl Inspection {
    /// Has every replica read each of its snapshots anew and compare it with what it was, and compares them with each
    /// other. It changes nothing, but what is read for the first time is kept for the next time.
    pub fn verify(&self, mut tell: impl FnMut(&Step)) -> Result<Verification, InspectError> {
        self.check_given_once()?;
        let (mut heard, mut silent) = (BTreeMap::new(), BTreeMap::new());
        // Each reads its own disk: so all at once, and a thread for each.
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            for to in &self.replicas {
                let send = send.clone();
                scope.spawn(move || {
                    let found = self.read_snapshots(to, &send);
                    send.send(News::Done(to.name.clone(), found)).ok()
                });
            }
            drop(send);
            for news in receive {
                match news {
                    News::Step(step) => tell(&step),
                    News::Done(replica, Ok(found)) => {
                        heard.insert(replica, found);
                    }
                    News::Done(replica, Err(error)) => {
                        silent.insert(replica, error.chain());
                    }
                }
            }
        });
        Ok(Verification {
            snapshots: compare(&heard),
            silent,
        })
    }

    fn check_given_once(&self) -> Result<(), InspectError> {
        let mut seen = BTreeSet::new();
        match self.replicas.iter().find(|to| !seen.insert(&to.name)) {
            Some(to) => Err(InspectError::GivenTwice {
                name: to.name.clone(),
            }),
            None => Ok(()),
        }
    }

    fn read_snapshots(
        &self,
        to: &MemberAddress,
        news: &mpsc::Sender<News>,
    ) -> Result<Findings, ConnectError> {
        let mut line = self.connect(to)?;
        let Reply::Layers(layers) = line.ask(Request::ListLayers)? else {
            return Err(ConnectError::Protocol(
                "no layers in answer to a request for them".into(),
            ));
        };
        let mut findings = Findings::new();
        let mut broken: Option<String> = None;
        for layer in layers {
            let LayerRef::Snapshot(name) = &layer.layer else {
                continue;
            };
            if layer.removed || !layer.user_created {
                continue;
            }
            let found = match &broken {
                // What was read before counts; the rest is not asked for over a line that is gone.
                Some(why) => Found::Unread { why: why.clone() },
                None => read_snapshot(&mut line, name, layer.digest).unwrap_or_else(|error| {
                    let why = error.chain();
                    broken = Some(why.clone());
                    Found::Unread { why }
                }),
            };
            findings.insert(name.clone(), (layer.created_unix_ms, found));
            // If nobody listens any more, the answer is not wanted either.
            let _ = news.send(News::Step(Step {
                replica: to.name.clone(),
                snapshot: name.clone(),
            }));
        }
        Ok(findings)
    }
}

fn read_snapshot(
    line: &mut Conversation,
    name: &SnapshotName,
    kept: Option<Digest>,
) -> Result<Found, ConnectError> {
    let request = Request::SnapshotDigest {
        name: name.clone(),
        recompute: true,
    };
    match line.ask_long(request) {
        Ok(Reply::Digest(digest)) if kept.is_some() => Ok(Found::AsItWas(digest)),
        Ok(Reply::Digest(digest)) => Ok(Found::FirstTime(digest)),
        Ok(_) => Err(ConnectError::Protocol(
            "no digest in answer to a request for one".into(),
        )),
        Err(ConnectError::Refused(failure)) => Ok(match failure.code {
            StatusCode::Corrupt => Found::Changed {
                kept,
                why: failure.text,
            },
            StatusCode::NotFound => Found::Missing,
            _ => Found::Unread { why: failure.text },
        }),
        Err(error) => Err(error),
    }
}

fn compare(heard: &BTreeMap<ReplicaName, Findings>) -> Vec<VerifiedSnapshot> {
    let names: BTreeSet<(u64, &SnapshotName)> = heard
        .values()
        .flatten()
        .map(|(name, (created_unix_ms, _))| (*created_unix_ms, name))
        .collect();
    let of = |name: &SnapshotName| {
        let found = heard.iter().map(|(replica, findings)| {
            let found = findings.get(name).map(|(_, found)| found.clone());
            (replica.clone(), found.unwrap_or(Found::Missing))
        });
        VerifiedSnapshot {
            name: name.clone(),
            verdicts: judge(&found.collect()),
        }
    };
    let mut seen = BTreeSet::new();
    names
        .into_iter()
        .filter(|(_, name)| seen.insert(*name))
        .map(|(_, name)| of(name))
        .collect()
}
