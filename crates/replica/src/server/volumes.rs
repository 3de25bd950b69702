//! The replicas of one server, each opened when it is first asked for.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use block_core::VolumeName;

use crate::disk::real::RealDisk;
use crate::store::{
    CreateReplicaError, METADATA_FILE, OpenReplicaError, Replica, ReplicaSpec, StoreError, lock,
};

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("there is no replica of volume {volume}")]
    NotFound { volume: VolumeName },
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
            return Err(VolumeError::NotFound {
                volume: volume.clone(),
            });
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

    pub fn create(&self, spec: &ReplicaSpec) -> Result<Arc<Replica<RealDisk>>, VolumeError> {
        let volume = || spec.volume.clone();
        let slot = self.slot(&spec.volume);
        let mut slot = lock(&slot);
        if slot.is_some() || self.exists(&spec.volume) {
            return Err(VolumeError::Exists { volume: volume() });
        }
        let folder = self.folder(&spec.volume);
        // A folder without metadata is of a creation that was cut short: nobody was told that it exists.
        match std::fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(VolumeError::Remove {
                    volume: volume(),
                    source,
                });
            }
            _ => {}
        }
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

    /// Removes metadata first: without it the rest is nobody's, and a crash in between leaves nothing that opens.
    pub fn delete(&self, volume: &VolumeName) -> Result<(), VolumeError> {
        if !self.exists(volume) {
            return Err(VolumeError::NotFound {
                volume: volume.clone(),
            });
        }
        let slot = self.slot(volume);
        let mut slot = lock(&slot);
        if let Some(replica) = slot.take() {
            replica.retire("the replica was removed");
        }
        let folder = self.folder(volume);
        let remove = || -> io::Result<()> {
            std::fs::remove_file(folder.join(METADATA_FILE))?;
            std::fs::File::open(&folder)?.sync_all()?;
            std::fs::remove_dir_all(&folder)
        };
        let removed = remove().map_err(|source| VolumeError::Remove {
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
