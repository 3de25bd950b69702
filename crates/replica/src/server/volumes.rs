//! The replicas of one server, each opened when it is first asked for.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use block_core::VolumeName;

use crate::disk::real::RealDisk;
use crate::store::{
    CreateReplicaError, METADATA_FILE, OpenReplicaError, Replica, ReplicaSpec, SET_ASIDE_FILE,
    StoreError, lock,
};

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("there is no replica of volume {volume}")]
    NotFound { volume: VolumeName },
    #[error(
        "the replica of volume {volume} was set aside: its disk failed, and that could not be noted; delete it, or make it anew"
    )]
    SetAside { volume: VolumeName },
    #[error("there is a replica of volume {volume} already")]
    Exists { volume: VolumeName },
    #[error("cannot open the folder of volume {volume}; does another process serve it?")]
    Folder {
        volume: VolumeName,
        source: io::Error,
    },
    #[error("cannot create a replica of volume {volume}")]
    Create {
        volume: VolumeName,
        source: CreateReplicaError,
    },
    #[error("cannot open the replica of volume {volume}")]
    Open {
        volume: VolumeName,
        source: OpenReplicaError,
    },
    #[error("cannot tell the state of volume {volume}")]
    Status {
        volume: VolumeName,
        source: StoreError,
    },
    #[error("cannot remove the replica of volume {volume}")]
    Remove {
        volume: VolumeName,
        source: io::Error,
    },
}

type Slot = Arc<Mutex<Option<Arc<Replica<RealDisk>>>>>;

pub(crate) struct Volumes {
    root: PathBuf,
    /// Opening one volume, which reads its index, must not hold up the others: so each has a lock.
    slots: Mutex<HashMap<VolumeName, Slot>>,
}

impl Volumes {
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            slots: Mutex::new(HashMap::new()),
        }
    }

    pub fn exists(&self, volume: &VolumeName) -> bool {
        self.folder(volume).join(METADATA_FILE).exists()
    }

    pub fn get(&self, volume: &VolumeName) -> Result<Arc<Replica<RealDisk>>, VolumeError> {
        // Names that have no replica must not fill the table.
        if !self.exists(volume) {
            return self.get_set_aside(volume);
        }
        let slot = self.slot(volume);
        let mut slot = lock(&slot);
        if let Some(replica) = &*slot {
            return Ok(replica.clone());
        }
        let disk = RealDisk::open(&self.folder(volume)).map_err(|source| VolumeError::Folder {
            volume: volume.clone(),
            source,
        })?;
        let replica = Replica::open(disk).map_err(|source| VolumeError::Open {
            volume: volume.clone(),
            source,
        })?;
        Ok(slot.insert(Arc::new(replica)).clone())
    }

    /// The process in which its disk failed still has it open, and it tells what happened. Nobody opens it again.
    fn get_set_aside(&self, volume: &VolumeName) -> Result<Arc<Replica<RealDisk>>, VolumeError> {
        let volume = volume.clone();
        if !self.folder(&volume).join(SET_ASIDE_FILE).exists() {
            return Err(VolumeError::NotFound { volume });
        }
        let slot = lock(&self.slots).get(&volume).cloned();
        slot.and_then(|slot| lock(&slot).clone())
            .ok_or(VolumeError::SetAside { volume })
    }

    pub fn create(&self, spec: &ReplicaSpec) -> Result<Arc<Replica<RealDisk>>, VolumeError> {
        let volume = || spec.volume.clone();
        let slot = self.slot(&spec.volume);
        let mut slot = lock(&slot);
        if self.exists(&spec.volume) {
            return Err(VolumeError::Exists { volume: volume() });
        }
        if let Some(replica) = slot.take() {
            replica.retire("the replica was made anew");
        }
        let folder = self.folder(&spec.volume);
        // A folder without metadata is of a creation that was cut short, and nobody was told that it exists; or of a replica that
        // was set aside.
        unless_missing(std::fs::remove_dir_all(&folder)).map_err(|source| VolumeError::Remove {
            volume: volume(),
            source,
        })?;
        let disk = RealDisk::create(&folder).map_err(|source| VolumeError::Folder {
            volume: volume(),
            source,
        })?;
        let replica = Replica::create(disk, spec).map_err(|source| VolumeError::Create {
            volume: volume(),
            source,
        })?;
        Ok(slot.insert(Arc::new(replica)).clone())
    }

    /// Removes metadata first: without it the rest is nobody's, and a crash in between leaves nothing that opens. Also what
    /// has no metadata goes: of a replica that was set aside, or of a removal that was cut short.
    pub fn delete(&self, volume: &VolumeName) -> Result<(), VolumeError> {
        let folder = self.folder(volume);
        if !folder.exists() && !lock(&self.slots).contains_key(volume) {
            return Err(VolumeError::NotFound {
                volume: volume.clone(),
            });
        }
        let slot = self.slot(volume);
        let mut slot = lock(&slot);
        if let Some(replica) = slot.take() {
            replica.retire("the replica was removed");
        }
        let remove = || -> io::Result<()> {
            unless_missing(std::fs::remove_file(folder.join(METADATA_FILE)))?;
            std::fs::File::open(&folder)?.sync_all()?;
            std::fs::remove_dir_all(&folder)
        };
        let removed = unless_missing(remove()).map_err(|source| VolumeError::Remove {
            volume: volume.clone(),
            source,
        });
        lock(&self.slots).remove(volume);
        removed
    }

    /// Makes all replicas refuse further work.
    pub fn retire_all(&self) {
        let slots: Vec<Slot> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            if let Some(replica) = &*lock(&slot) {
                replica.retire("the server stops");
            }
        }
    }

    fn slot(&self, volume: &VolumeName) -> Slot {
        lock(&self.slots).entry(volume.clone()).or_default().clone()
    }

    fn folder(&self, volume: &VolumeName) -> PathBuf {
        self.root.join(volume.as_str())
    }
}

/// What is to go and is not there has gone.
fn unless_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use block_core::wire::VolumeKey;

    use super::super::list_volumes;
    use super::*;

    /// By the process in which its disk failed and by the next: it is there, tells so, can be made anew and can be deleted.
    #[test]
    fn a_replica_that_was_set_aside_does_not_stay_for_ever() {
        let root = tempfile::tempdir().expect("a folder");
        let volume = VolumeName::new("v").expect("a name");
        let spec = ReplicaSpec {
            volume: volume.clone(),
            key: VolumeKey::from_bytes([7; 32]),
            size_bytes: 1 << 20,
        };
        for (same_process, anew) in [(true, true), (true, false), (false, true), (false, false)] {
            let what = format!("same process: {same_process}, made anew: {anew}");
            let mut volumes = Volumes::new(root.path().to_owned());
            volumes.create(&spec).expect("a replica");
            let folder = volumes.folder(&volume);
            std::fs::rename(folder.join(METADATA_FILE), folder.join(SET_ASIDE_FILE))
                .expect("a change of name");
            if !same_process {
                volumes = Volumes::new(root.path().to_owned());
            }
            let listed = || list_volumes(root.path()).expect("volumes");
            assert_eq!(listed(), std::slice::from_ref(&volume), "{what}");
            match volumes.get(&volume) {
                Ok(_) => assert!(same_process, "{what}"),
                Err(error) => assert!(
                    matches!(error, VolumeError::SetAside { .. }) && !same_process,
                    "{what}: {error}"
                ),
            }
            if anew {
                let made = volumes.create(&spec).expect(&what);
                let status = made.status().expect("a status");
                assert!(status.fault.is_empty(), "{what}");
                let again = volumes.create(&spec).map(drop);
                assert!(matches!(again, Err(VolumeError::Exists { .. })), "{what}");
            }
            volumes.delete(&volume).expect(&what);
            assert!(listed().is_empty() && !folder.exists(), "{what}");
            let again = volumes.delete(&volume);
            assert!(matches!(again, Err(VolumeError::NotFound { .. })), "{what}");
        }
    }
}
