//! The disks of a node: folders, each of a file system of its own, whose replicas are served.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api_types::{DiskSpec, DiskType, Node};
use block_core::wire::VolumeKey;
use block_core::{Epoch, VolumeName};
use events::sentence;
use replica::server::VolumeError;
use replica::{KeyPolicy, ReplicaServer, ReplicaSpec, ServerConfig};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::disk_plan::{Asked, Found, Served, Standing, Verdict, judge, renamed, standing};
use super::replica_plan::{OnDisk, Unusable};
use super::{Layout, write_durably};

/// The name of the disk that a node has unless people say otherwise.
pub const DEFAULT_DISK: &str = "default";

/// In a disk's folder: who the disk is.
const IDENTITY: &str = "lariat-disk.json";

/// The identity of a disk, kept on the disk: it moves with it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiskIdentity {
    disk_uuid: String,
}

/// All disks that a node's object names.
pub struct Disks {
    layout: Layout,
    host: IpAddr,
    secret: Vec<u8>,
    requires_tls: bool,
    slots: Mutex<BTreeMap<String, Slot>>,
    changes: watch::Sender<u64>,
}

/// One disk by its name in the node's object.
#[derive(Clone)]
pub enum Slot {
    Open {
        disk: Arc<Disk>,
        /// What is wrong with it although it is served.
        trouble: Option<String>,
        /// The node's object names it; otherwise it is here for the replicas that are still on it.
        is_listed: bool,
    },
    Refused {
        /// Who it was when it was served last.
        uuid: String,
        reason: &'static str,
        why: String,
        is_listed: bool,
    },
}

/// Where a replica's disk is.
pub enum Place {
    /// With its name in the node's object, if that names it still.
    Here {
        disk: Arc<Disk>,
        name: String,
        is_listed: bool,
    },
    Nowhere(Unusable),
}

impl Disks {
    #[must_use]
    pub fn new(layout: Layout, host: IpAddr, secret: Vec<u8>, requires_tls: bool) -> Self {
        Self {
            layout,
            host,
            secret,
            requires_tls,
            slots: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Counts what changed here; zero until the disks were looked at for the first time.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    #[must_use]
    pub fn slots(&self) -> BTreeMap<String, Slot> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk of that identity. Replicas of old that do not say are on the default one.
    #[must_use]
    pub fn place(&self, uuid: &str) -> Place {
        let slots = self.lock();
        let wanted = |name: &str, of: &str| {
            if uuid.is_empty() {
                name == DEFAULT_DISK
            } else {
                of == uuid
            }
        };
        // An open disk wins over one that was known by the same identity.
        let open = slots.iter().find_map(|(name, slot)| match slot {
            Slot::Open {
                disk, is_listed, ..
            } if wanted(name, &disk.uuid) => Some(Place::Here {
                disk: disk.clone(),
                name: name.clone(),
                is_listed: *is_listed,
            }),
            _ => None,
        });
        let closed = || {
            let known = slots.iter().filter_map(|(name, slot)| match slot {
                Slot::Refused {
                    uuid: of,
                    why,
                    is_listed,
                    ..
                } if wanted(name, of) => Some((name, why, *is_listed)),
                _ => None,
            });
            // A disk that has a new name in the node's object is not given up.
            let (name, why, is_listed) = known.max_by_key(|(_, _, is_listed)| *is_listed)?;
            Some(Place::Nowhere(Unusable::Closed {
                disk: name.clone(),
                why: why.clone(),
                is_listed,
            }))
        };
        open.or_else(closed)
            .unwrap_or(Place::Nowhere(Unusable::Elsewhere))
    }

    /// Every disk that is served.
    #[must_use]
    pub fn open_disks(&self) -> Vec<Arc<Disk>> {
        let slots = self.lock();
        let open = slots.values().filter_map(|slot| match slot {
            Slot::Open { disk, .. } => Some(disk.clone()),
            Slot::Refused { .. } => None,
        });
        open.collect()
    }

    /// Serves the disks that `node` names and that can be, and no others; `is_used` tells which identities replicas are
    /// still on. It blocks, and is called by one at a time; the lock is held for moments only.
    pub fn settle(&self, node: &Node, is_used: impl Fn(&str) -> bool) {
        let mut served = self.served();
        let mut changed = *self.changes.borrow() == 0;
        for (old, new) in renamed(&asked(node, &served, &is_used), &served) {
            tracing::info!(disk.name = %new, "disk {old} has a new name");
            let mut slots = self.lock();
            if let Some(slot) = slots.remove(&old) {
                slots.insert(new, slot);
            }
            drop(slots);
            served = self.served();
            changed = true;
        }
        let asked = asked(node, &served, &is_used);
        let found = asked
            .iter()
            .map(|(name, disk)| (name.clone(), look_at(Path::new(&disk.path))))
            .collect();
        let verdicts = judge(&asked, &found, &served);
        // First those that go: one that comes may want their place.
        changed |= self.close_others(&verdicts);
        for (name, verdict) in verdicts {
            let disk = &asked[&name];
            let is_listed = node.spec.disks.contains_key(&name);
            let slot = match verdict {
                Verdict::Keep { trouble } => {
                    if let Some(Slot::Open {
                        trouble: known,
                        is_listed: was_listed,
                        ..
                    }) = self.lock().get_mut(&name)
                    {
                        *known = trouble;
                        changed |= *was_listed != is_listed;
                        *was_listed = is_listed;
                    }
                    continue;
                }
                Verdict::Open { uuid } => match self.open(Path::new(&disk.path), uuid.clone()) {
                    Ok(opened) => {
                        tracing::info!(disk.name = %name, disk.path = %disk.path, disk.uuid = %opened.uuid, "a disk is served");
                        let disk = Arc::new(opened);
                        Slot::Open {
                            disk,
                            trouble: None,
                            is_listed,
                        }
                    }
                    Err(why) => Slot::Refused {
                        // Also one that was found just now: its replicas are not to be taken for given up.
                        uuid: uuid
                            .filter(|uuid| is_used(uuid))
                            .or_else(|| disk.known_uuid.clone())
                            .unwrap_or_default(),
                        reason: "DiskNotReady",
                        why,
                        is_listed,
                    },
                },
                Verdict::Refuse { reason, why } => Slot::Refused {
                    uuid: disk.known_uuid.clone().unwrap_or_default(),
                    reason,
                    why,
                    is_listed,
                },
            };
            let before = self.lock().insert(name.clone(), slot.clone());
            match (&slot, before) {
                (
                    Slot::Refused { why, .. },
                    Some(Slot::Refused {
                        why: known,
                        is_listed: was_listed,
                        ..
                    }),
                ) if *why == known => changed |= was_listed != is_listed,
                (Slot::Refused { why, .. }, _) => {
                    tracing::warn!(disk.name = %name, "a disk is not served: {why}");
                    changed = true;
                }
                (Slot::Open { .. }, _) => changed = true,
            }
        }
        if changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    fn served(&self) -> BTreeMap<String, Served> {
        let slots = self.lock();
        let open = slots.iter().filter_map(|(name, slot)| match slot {
            Slot::Open { disk, .. } => Some((name.clone(), disk.served())),
            Slot::Refused { .. } => None,
        });
        open.collect()
    }

    /// Forgets disks that nobody asks for and closes those that are not to be kept; says whether there were any.
    fn close_others(&self, verdicts: &BTreeMap<String, Verdict>) -> bool {
        let closed: Vec<(String, Slot)> = self
            .lock()
            .extract_if(.., |name, slot| match verdicts.get(name) {
                Some(Verdict::Keep { .. }) => false,
                Some(_) => matches!(slot, Slot::Open { .. }),
                None => true,
            })
            .collect();
        for (name, slot) in &closed {
            if let Slot::Open { disk, .. } = slot {
                tracing::info!(disk.name = %name, disk.path = %disk.path.display(), "a disk is not served any more");
            }
        }
        // Dropping one waits for what is under way on it: not under the lock.
        !closed.is_empty()
    }

    fn open(&self, path: &Path, uuid: Option<String>) -> Result<Disk, String> {
        let identity = path.join(IDENTITY);
        let uuid = match uuid {
            Some(uuid) => uuid,
            None => give_identity(&identity)
                .map_err(|error| format!("cannot write {}: {error}", identity.display()))?,
        };
        let lock = lock_disk(&identity)?;
        let device = std::fs::metadata(path)
            .map_err(|error| format!("cannot use {}: {error}", path.display()))?
            .dev();
        let owners = path.join("owners");
        let replicas = path.join("replicas");
        for folder in [&owners, &replicas] {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        }
        let server = self.serve(&replicas, &uuid)?;
        Ok(Disk {
            server,
            path: path.to_owned(),
            device,
            owners,
            replicas,
            uuid,
            secret: self.secret.clone(),
            _lock: lock,
        })
    }

    /// Serves on the port that the disk had before, if it is free: engines come back to it by themselves.
    fn serve(&self, replicas: &Path, uuid: &str) -> Result<ReplicaServer, String> {
        let mut config = ServerConfig::new(replicas.to_owned());
        config.keys = KeyPolicy::Derived {
            secret: self.secret.clone(),
            clients_may_create: false,
        };
        config.requires_tls = self.requires_tls;
        let note = self.layout.replica_port(uuid);
        let port = std::fs::read_to_string(&note)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0);
        config.listen = (self.host, port).into();
        let bound = ReplicaServer::bind(config.clone()).or_else(|error| {
            if port == 0 {
                return Err(error);
            }
            tracing::warn!(
                port,
                error = &error as &dyn std::error::Error,
                "the port of before is taken; choosing another"
            );
            config.listen.set_port(0);
            ReplicaServer::bind(config)
        });
        let server = bound.map_err(|error| sentence(&error))?;
        let port = server.local_addr().port();
        std::fs::write(&note, port.to_string())
            .map_err(|error| format!("cannot write {}: {error}", note.display()))?;
        Ok(server)
    }
}

/// The disks of the spec, and those that still have replicas although people took them out of it. One that has another name in the
/// spec is asked for under that alone.
fn asked(
    node: &Node,
    served: &BTreeMap<String, Served>,
    is_used: impl Fn(&str) -> bool,
) -> BTreeMap<String, Asked> {
    let statuses = node.status.as_ref().map(|status| &status.disk_status);
    let known = |name: &str| statuses.and_then(|statuses| statuses.get(name));
    let mut asked = BTreeMap::new();
    let mut has_new_name = BTreeSet::new();
    for (name, spec) in &node.spec.disks {
        let known_uuid = known(name)
            .filter(|status| status.disk_path == spec.path && !status.disk_uuid.is_empty())
            .map(|status| status.disk_uuid.clone());
        let open = served.get(name).filter(|disk| disk.path == spec.path);
        has_new_name.extend(known_uuid.clone());
        has_new_name.extend(open.map(|disk| disk.uuid.clone()));
        let entry = Asked {
            path: spec.path.clone(),
            known_uuid,
            objection: objection(spec),
            is_listed: true,
        };
        asked.insert(name.clone(), entry);
    }
    let reported = statuses.into_iter().flatten();
    let reported = reported.map(|(name, disk)| (name, &disk.disk_path, &disk.disk_uuid));
    let open = served
        .iter()
        .map(|(name, disk)| (name, &disk.path, &disk.uuid));
    for (name, path, uuid) in open.chain(reported) {
        if !node.spec.disks.contains_key(name) && is_used(uuid) && !has_new_name.contains(uuid) {
            asked.entry(name.clone()).or_insert_with(|| Asked {
                path: path.clone(),
                known_uuid: Some(uuid.clone()),
                objection: None,
                is_listed: false,
            });
        }
    }
    asked
}

/// What is wrong with the description of a disk.
fn objection(spec: &DiskSpec) -> Option<String> {
    if spec.disk_type == DiskType::Block {
        return Some(
            "a block disk is not supported; make a file system on it and name its folder"
                .to_owned(),
        );
    }
    let path = Path::new(&spec.path);
    let is_plain = !path.components().any(|part| part.as_os_str() == "..");
    (!path.is_absolute() || !is_plain).then(|| format!("{:?} is not an absolute path", spec.path))
}

fn look_at(path: &Path) -> Found {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => return Found::Unclear("it is not a folder".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing,
        Err(error) => return Found::Unclear(error.to_string()),
    };
    match read_identity(&path.join(IDENTITY)) {
        Ok(uuid) => Found::Folder {
            device: metadata.dev(),
            uuid,
        },
        Err(error) => Found::Unclear(format!("{IDENTITY}: {error}")),
    }
}

fn read_identity(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read(path) {
        Ok(text) => {
            let identity: DiskIdentity = serde_json::from_slice(&text)?;
            Ok(Some(identity.disk_uuid))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn give_identity(path: &Path) -> io::Result<String> {
    let disk_uuid = uuid::Uuid::new_v4().to_string();
    let text = serde_json::to_string(&DiskIdentity {
        disk_uuid: disk_uuid.clone(),
    })?;
    write_durably(path, &text)?;
    Ok(disk_uuid)
}

/// One agent for one disk, also if two nodes are told of the same folder.
fn lock_disk(identity: &Path) -> Result<File, String> {
    let file = File::open(identity)
        .map_err(|error| format!("cannot open {}: {error}", identity.display()))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        format!(
            "{} is in use: another agent serves this disk",
            identity.display()
        )
    })?;
    Ok(file)
}

/// Free and total bytes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub available: i64,
    pub maximum: i64,
}

/// One disk, its replicas and who they are of.
pub struct Disk {
    pub server: ReplicaServer,
    pub path: PathBuf,
    pub uuid: String,
    device: u64,
    owners: PathBuf,
    replicas: PathBuf,
    secret: Vec<u8>,
    _lock: File,
}

impl Disk {
    fn served(&self) -> Served {
        Served {
            path: self.path.display().to_string(),
            uuid: self.uuid.clone(),
            device: self.device,
        }
    }

    /// Whether what is at its path is still this disk. The node looks for that now and then; whoever concludes something from
    /// data that is *not* there has to ask himself: an unmounted disk looks like an empty one.
    #[must_use]
    pub fn standing(&self) -> Standing {
        standing(&self.served(), &look_at(&self.path))
    }

    pub fn figures(&self) -> io::Result<Figures> {
        let stat = rustix::fs::statvfs(&self.path)?;
        let bytes =
            |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
        // Coarse, so that a node at rest writes nothing: others on the same disk change it all the time.
        const STEP: i64 = 16 << 20;
        Ok(Figures {
            available: bytes(stat.f_bavail) / STEP * STEP,
            maximum: bytes(stat.f_blocks),
        })
    }

    fn owner_path(&self, volume: &VolumeName) -> PathBuf {
        self.owners.join(volume.as_str())
    }

    #[must_use]
    pub fn look(&self, volume: &VolumeName) -> OnDisk {
        let status = self.server.status(volume);
        if let Err(VolumeError::NotFound { .. }) = status {
            return OnDisk::Nothing;
        }
        let Ok(owner) = std::fs::read_to_string(self.owner_path(volume)) else {
            return OnDisk::Stray;
        };
        match status {
            Ok(status) => OnDisk::Data {
                owner,
                accepted_epoch: status.accepted_epoch.0,
            },
            Err(error) => OnDisk::Broken {
                owner,
                why: sentence(&error),
            },
        }
    }

    /// Whose the data is, is on the disk before the data.
    pub fn create(&self, name: &str, volume: &VolumeName, size_bytes: u64) -> Result<(), String> {
        write_durably(&self.owner_path(volume), name)
            .map_err(|error| format!("cannot note the owner of its data: {error}"))?;
        self.server
            .create_volume(&ReplicaSpec {
                volume: volume.clone(),
                key: VolumeKey::derive(&self.secret, volume),
                size_bytes,
            })
            .map_err(|error| sentence(&error))
    }

    pub fn accept(&self, volume: &VolumeName, epoch: u64) -> Result<(), String> {
        let replica = self
            .server
            .replica(volume)
            .map_err(|error| sentence(&error))?;
        replica
            .fence(Epoch(epoch))
            .map_err(|error| sentence(&error))
    }

    pub fn remove(&self, volume: &VolumeName) -> Result<(), String> {
        match self.server.delete_volume(volume) {
            Ok(()) | Err(VolumeError::NotFound { .. }) => {}
            Err(error) => return Err(sentence(&error)),
        }
        match std::fs::remove_file(self.owner_path(volume)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove the note of its owner: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// Volumes whose data is here, for a warning about those that nobody asks for.
    #[must_use]
    pub fn volumes(&self) -> Vec<String> {
        let listed = replica::server::list_volumes(&self.replicas).unwrap_or_default();
        listed.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_keeps_its_identity() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(IDENTITY);
        assert_eq!(read_identity(&path).expect("nothing"), None);
        let first = give_identity(&path).expect("an identity");
        assert_eq!(read_identity(&path).expect("an identity"), Some(first));
        let locked = lock_disk(&path).expect("a lock");
        assert!(lock_disk(&path).is_err(), "two agents serve one disk");
        drop(locked);
        lock_disk(&path).expect("a lock");
        std::fs::write(&path, "torn").expect("a write");
        assert!(
            matches!(look_at(folder.path()), Found::Unclear(_)),
            "a torn identity is not replaced"
        );
    }
}
