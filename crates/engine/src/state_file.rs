//! The record of a volume that is run by hand: what the API holds for one that an agent runs.
//!
//! It is replaced as a whole, by a rename, after the new content is on stable storage.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::control::{Proposal, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeRecord {
    pub version: u32,
    pub volume: String,
    pub size_bytes: u64,
    /// The newest engine's.
    pub epoch: u64,
    pub generation: u64,
    pub in_sync: Vec<RecordedReplica>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedReplica {
    pub name: String,
    pub address: String,
}

#[derive(Debug, Error)]
pub enum RecordError {
    #[error("cannot {attempt} the volume's record {path}")]
    File {
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the volume's record {path} is damaged; restore it, or start over with `salvage`")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

pub const RECORD_VERSION: u32 = 1;

/// Held from reading a record until what follows from it is stored: two engines that start together must not both take the
/// next epoch.
pub struct RecordLock {
    _file: File,
}

impl RecordLock {
    /// Waits for whoever has it, which is never for long.
    pub fn take(path: &Path) -> Result<Self, RecordError> {
        let locked = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let mut name = path.as_os_str().to_owned();
            name.push(".lock");
            let file = File::create(&name)?;
            file.lock()?;
            Ok(Self { _file: file })
        };
        locked().map_err(|source| RecordError::File {
            attempt: "lock",
            path: path.to_owned(),
            source,
        })
    }
}

impl VolumeRecord {
    /// The record at `path`, if there is one.
    pub fn load(path: &Path) -> Result<Option<Self>, RecordError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(RecordError::File {
                    attempt: "read",
                    path: path.to_owned(),
                    source,
                });
            }
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| RecordError::Damaged {
                path: path.to_owned(),
                source,
            })
    }

    pub fn store(&self, path: &Path) -> Result<(), RecordError> {
        let text = serde_json::to_vec_pretty(self).map_err(|source| RecordError::Damaged {
            path: path.to_owned(),
            source,
        })?;
        replace_durably(path, &text).map_err(|source| RecordError::File {
            attempt: "write",
            path: path.to_owned(),
            source,
        })
    }

    /// Records a proposal if it follows from what is recorded: the compare-and-swap that fences old engines.
    pub fn commit(path: &Path, proposal: &Proposal) -> Verdict {
        let not_now = |error: RecordError| {
            let mut why = error.to_string();
            if let Some(source) = std::error::Error::source(&error) {
                why = format!("{why}: {source}");
            }
            Verdict::NotNow { why }
        };
        let _lock = match RecordLock::take(path) {
            Ok(lock) => lock,
            Err(error) => return not_now(error),
        };
        let mut record = match Self::load(path) {
            Ok(Some(record)) => record,
            Ok(None) => {
                return Verdict::NotNow {
                    why: format!("{} is gone", path.display()),
                };
            }
            Err(error) => return not_now(error),
        };
        if record.epoch != proposal.epoch {
            return Verdict::Fenced {
                why: format!("epoch {} is recorded, not {}", record.epoch, proposal.epoch),
            };
        }
        // Recorded before, and the answer was lost.
        if record.generation == proposal.generation {
            return Verdict::Recorded;
        }
        if record.generation + 1 != proposal.generation {
            return Verdict::Fenced {
                why: format!(
                    "generation {} is recorded; {} does not follow",
                    record.generation, proposal.generation
                ),
            };
        }
        record.generation = proposal.generation;
        record.in_sync = proposal
            .in_sync
            .iter()
            .zip(&proposal.addresses)
            .map(|(name, address)| RecordedReplica {
                name: name.clone(),
                address: address.clone(),
            })
            .collect();
        match record.store(path) {
            Ok(()) => Verdict::Recorded,
            Err(error) => not_now(error),
        }
    }
}

fn replace_durably(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
    }
    let mut fresh_name = path.as_os_str().to_owned();
    fresh_name.push(".new");
    let fresh = PathBuf::from(fresh_name);
    let mut file = File::create(&fresh)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> VolumeRecord {
        VolumeRecord {
            version: RECORD_VERSION,
            volume: "v".into(),
            size_bytes: 4096,
            epoch: 3,
            generation: 7,
            in_sync: vec![RecordedReplica {
                name: "a".into(),
                address: "127.0.0.1:1".into(),
            }],
        }
    }

    fn proposal(epoch: u64, generation: u64) -> Proposal {
        Proposal {
            volume: "v".into(),
            epoch,
            generation,
            in_sync: vec!["b".into()],
            addresses: vec!["127.0.0.1:2".into()],
            replaces: vec!["a".into()],
            reasons: Vec::new(),
        }
    }

    #[test]
    fn only_the_next_generation_of_the_recorded_epoch_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.json");
        for (epoch, generation, recorded, fenced) in [
            (3, 8, true, false),
            (3, 7, true, false),
            (2, 8, false, true),
            (3, 9, false, true),
            (4, 8, false, true),
        ] {
            record().store(&path).unwrap();
            let verdict = VolumeRecord::commit(&path, &proposal(epoch, generation));
            assert_eq!(
                verdict == Verdict::Recorded,
                recorded,
                "{epoch} {generation}: {verdict:?}"
            );
            assert_eq!(
                matches!(verdict, Verdict::Fenced { .. }),
                fenced,
                "{epoch} {generation}"
            );
            let now = VolumeRecord::load(&path).unwrap().unwrap();
            assert_eq!(
                now.generation,
                if (epoch, generation) == (3, 8) { 8 } else { 7 }
            );
        }
    }

    #[test]
    fn nobody_reads_a_record_that_another_one_is_about_to_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.json");
        let mut first = record();
        first.store(&path).unwrap();
        let lock = RecordLock::take(&path).unwrap();
        let other = {
            let path = path.clone();
            std::thread::spawn(move || {
                let _lock = RecordLock::take(&path).unwrap();
                VolumeRecord::load(&path).unwrap().unwrap().epoch
            })
        };
        std::thread::sleep(std::time::Duration::from_millis(20));
        first.epoch += 1;
        first.store(&path).unwrap();
        drop(lock);
        assert_eq!(other.join().unwrap(), 4);
    }

    #[test]
    fn a_damaged_record_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.json");
        assert!(VolumeRecord::load(&path).unwrap().is_none());
        std::fs::write(&path, b"{").unwrap();
        assert!(matches!(
            VolumeRecord::load(&path),
            Err(RecordError::Damaged { .. })
        ));
    }
}
