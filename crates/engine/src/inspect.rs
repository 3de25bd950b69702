//! Replicas, asked by themselves: what a tool can know without an engine. None of it takes the volume.

mod verify;

use std::collections::BTreeSet;
use std::sync::mpsc;

use block_core::salvage::{Evidence, SalvageRefusal, Verdict, salvage};
use block_core::wire::{ReplicaStatus, Reply, Request, VolumeKey};
use block_core::{Epoch, NameError, ReplicaName, VolumeName};
use thiserror::Error;

use crate::core::MemberAddress;
use crate::link::{ConnectError, Conversation, Identity};
use crate::run::{StartError, parse_replica};

pub use verify::{Step, Verification, VerifiedSnapshot};

#[derive(Debug, Error)]
pub enum InspectError {
    #[error(transparent)]
    Replica(#[from] StartError),
    #[error("the volume's name is not one")]
    Volume(#[source] NameError),
    #[error("replica {name} at {address} cannot be asked")]
    Ask {
        name: ReplicaName,
        address: String,
        #[source]
        source: ConnectError,
    },
    #[error("an engine was at work on replica {name} while it was read: end that engine first")]
    Taken { name: ReplicaName },
    #[error("replica {name} was given twice")]
    GivenTwice { name: ReplicaName },
    #[error("it is not safe to choose")]
    Refused(#[source] SalvageRefusal),
}

/// How far a comparison is.
#[derive(Clone, Copy, Debug)]
pub enum Comparing<'a> {
    /// All of these read what they have.
    Begun(&'a BTreeSet<ReplicaName>),
    /// This one has; so many have not.
    Read {
        replica: &'a ReplicaName,
        left: usize,
    },
}

/// What one replica said of itself.
struct Asked<'a> {
    to: &'a MemberAddress,
    status: ReplicaStatus,
}

/// The replicas of one volume, and what is needed to be listened to.
#[derive(Clone, Debug)]
pub struct Inspection {
    identity: Identity,
    replicas: Vec<MemberAddress>,
}

impl Inspection {
    /// `replicas` are as [`parse_replica`] reads them.
    pub fn new(
        volume: &str,
        secret: &[u8],
        tls: bool,
        replicas: &[String],
    ) -> Result<Self, InspectError> {
        let volume = VolumeName::new(volume).map_err(InspectError::Volume)?;
        let replicas = replicas
            .iter()
            .map(|text| parse_replica(text))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            identity: Identity {
                key: VolumeKey::derive(secret, &volume),
                volume,
                epoch: Epoch::NONE,
                tls,
            },
            replicas,
        })
    }

    /// Says which replicas have every acknowledged write, from what they know of themselves, and refuses to guess. If the
    /// machines of all of these were restarted, [`Verdict::all_restarted`] says so.
    pub fn salvage(&self) -> Result<Verdict, InspectError> {
        let asked = self.ask_all()?;
        let evidence: Vec<Evidence> = asked.iter().map(Asked::evidence).collect();
        salvage(&evidence).map_err(InspectError::Refused)
    }

    /// Like [`Inspection::salvage`], and has those that may be started from read all that they have, to say whether they
    /// are identical. No engine may run: what it writes reaches them at different moments. One that comes, records a set or
    /// ends in order meanwhile is noticed; one that only writes is not.
    pub fn salvage_comparing(
        &self,
        tell: impl FnMut(Comparing<'_>),
    ) -> Result<Verdict, InspectError> {
        let asked = self.ask_all()?;
        let mut evidence: Vec<Evidence> = asked.iter().map(Asked::evidence).collect();
        let verdict = salvage(&evidence).map_err(InspectError::Refused)?;
        // One is identical to itself.
        if verdict.newest.len() < 2 {
            return Ok(verdict);
        }
        for (name, digest) in self.digests(&asked, &verdict.newest, tell)? {
            if let Some(one) = evidence.iter_mut().find(|one| one.replica == name) {
                one.digest = Some(digest);
            }
        }
        salvage(&evidence).map_err(InspectError::Refused)
    }

    fn ask_all(&self) -> Result<Vec<Asked<'_>>, InspectError> {
        let mut asked = Vec::new();
        for to in &self.replicas {
            let status = self.connect(to).and_then(|mut line| line.status());
            let status = status.map_err(|source| cannot_ask(to, source))?;
            asked.push(Asked { to, status });
        }
        Ok(asked)
    }

    /// Each reads its own disk: so all at once, and a thread for each.
    fn digests(
        &self,
        asked: &[Asked<'_>],
        wanted: &BTreeSet<ReplicaName>,
        mut tell: impl FnMut(Comparing<'_>),
    ) -> Result<Vec<(ReplicaName, [u8; 32])>, InspectError> {
        tell(Comparing::Begun(wanted));
        let chosen = asked.iter().filter(|one| wanted.contains(&one.to.name));
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            for one in chosen {
                let send = send.clone();
                // If somebody before it failed, nobody hears of it; but this ends only when all have read, for the scope
                // waits for its threads.
                scope.spawn(move || send.send((one.to, self.volume_digest(one))).ok());
            }
            drop(send);
            let mut digests = Vec::new();
            for (to, digest) in receive {
                digests.push((to.name.clone(), digest?));
                tell(Comparing::Read {
                    replica: &to.name,
                    left: wanted.len() - digests.len(),
                });
            }
            Ok(digests)
        })
    }

    fn volume_digest(&self, asked: &Asked<'_>) -> Result<[u8; 32], InspectError> {
        let ask = || {
            let mut line = self.connect(asked.to)?;
            let Reply::Digest(digest) = line.ask_long(Request::VolumeDigest)? else {
                return Err(ConnectError::Protocol(
                    "no digest in answer to a request for one".into(),
                ));
            };
            Ok((digest, line.status()?))
        };
        let (digest, now) = ask().map_err(|source| cannot_ask(asked.to, source))?;
        if asked.has_traces_of_an_engine(&now) {
            return Err(InspectError::Taken {
                name: asked.to.name.clone(),
            });
        }
        Ok(digest)
    }

    fn connect(&self, to: &MemberAddress) -> Result<Conversation, ConnectError> {
        let mut line = Conversation::start(&to.address, self.identity.tls)?;
        line.handshake(&self.identity)?;
        Ok(line)
    }
}

impl Asked<'_> {
    fn evidence(&self) -> Evidence {
        let status = &self.status;
        Evidence {
            replica: self.to.name.clone(),
            mode: status.mode,
            sync: status.sync.clone().map(|sync| (status.sync_epoch, sync)),
            digest: None,
            faulted: !status.fault.is_empty(),
            restarted: status.restarted_since_opened,
        }
    }

    /// Whether an engine came, recorded a set or ended in order since.
    fn has_traces_of_an_engine(&self, now: &ReplicaStatus) -> bool {
        let before = &self.status;
        (before.accepted_epoch, before.sync_epoch) != (now.accepted_epoch, now.sync_epoch)
            || before.sync != now.sync
    }
}

fn cannot_ask(to: &MemberAddress, source: ConnectError) -> InspectError {
    InspectError::Ask {
        name: to.name.clone(),
        address: to.address.clone(),
        source,
    }
}
