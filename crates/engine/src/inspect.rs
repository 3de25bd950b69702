//! Replicas, asked by themselves: what a tool can know without an engine. None of it takes the volume.

mod verify;

use std::collections::BTreeSet;
use std::sync::mpsc;

use block_core::salvage::{Evidence, SalvageRefusal, Verdict, salvage};
use block_core::wire::{Reply, Request, VolumeKey};
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
    #[error("an engine took replica {name} while it was read: end that engine first")]
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

    /// Says which replicas have every acknowledged write, from what they know of themselves, and refuses to guess.
    pub fn salvage(&self) -> Result<Verdict, InspectError> {
        salvage(&self.evidence()?).map_err(InspectError::Refused)
    }

    /// Like [`Inspection::salvage`], and has those that may be started from read all that they have, to say whether they
    /// are identical. No engine may run: what it writes reaches them at different moments.
    pub fn salvage_comparing(
        &self,
        tell: impl FnMut(Comparing<'_>),
    ) -> Result<Verdict, InspectError> {
        let mut evidence = self.evidence()?;
        let verdict = salvage(&evidence).map_err(InspectError::Refused)?;
        // One is identical to itself.
        if verdict.newest.len() < 2 {
            return Ok(verdict);
        }
        for (name, digest) in self.digests(&verdict.newest, tell)? {
            if let Some(one) = evidence.iter_mut().find(|one| one.replica == name) {
                one.digest = Some(digest);
            }
        }
        salvage(&evidence).map_err(InspectError::Refused)
    }

    fn evidence(&self) -> Result<Vec<Evidence>, InspectError> {
        let ask = |to: &MemberAddress| {
            let status = self.connect(to).and_then(|mut line| line.status());
            let status = status.map_err(|source| cannot_ask(to, source))?;
            Ok(Evidence {
                replica: to.name.clone(),
                mode: status.mode,
                sync: status.sync.map(|sync| (status.sync_epoch, sync)),
                digest: None,
                faulted: !status.fault.is_empty(),
            })
        };
        self.replicas.iter().map(ask).collect()
    }

    /// Each reads its own disk: so all at once, and a thread for each.
    fn digests(
        &self,
        wanted: &BTreeSet<ReplicaName>,
        mut tell: impl FnMut(Comparing<'_>),
    ) -> Result<Vec<(ReplicaName, [u8; 32])>, InspectError> {
        tell(Comparing::Begun(wanted));
        let chosen = self.replicas.iter().filter(|to| wanted.contains(&to.name));
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            for to in chosen {
                let send = send.clone();
                // If somebody before it failed, nobody waits for the rest.
                scope.spawn(move || send.send((to, self.volume_digest(to))).ok());
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

    fn volume_digest(&self, to: &MemberAddress) -> Result<[u8; 32], InspectError> {
        let ask = || {
            let mut line = self.connect(to)?;
            let before = line.status()?.accepted_epoch;
            let Reply::Digest(digest) = line.ask_long(Request::VolumeDigest)? else {
                return Err(ConnectError::Protocol(
                    "no digest in answer to a request for one".into(),
                ));
            };
            Ok((digest, before == line.status()?.accepted_epoch))
        };
        match ask().map_err(|source| cannot_ask(to, source))? {
            (digest, true) => Ok(digest),
            (_, false) => Err(InspectError::Taken {
                name: to.name.clone(),
            }),
        }
    }

    fn connect(&self, to: &MemberAddress) -> Result<Conversation, ConnectError> {
        let mut line = Conversation::start(&to.address, self.identity.tls)?;
        line.handshake(&self.identity)?;
        Ok(line)
    }
}

fn cannot_ask(to: &MemberAddress, source: ConnectError) -> InspectError {
    InspectError::Ask {
        name: to.name.clone(),
        address: to.address.clone(),
        source,
    }
}
