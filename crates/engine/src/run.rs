//! Running an engine: what a command line, or an agent that starts one, calls.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use block_core::geometry::{SizeError, check_size};
use block_core::wire::VolumeKey;
use block_core::{Epoch, NameError, ReplicaName, VolumeName};
use thiserror::Error;

use crate::core::{CoreConfig, MemberAddress};
use crate::frontend::{FrontendKind, FrontendOptions};
use crate::link::Identity;
use crate::shell::{CommitterKind, RunError, Shell, ShellConfig};
use crate::state_file::{RECORD_VERSION, RecordError, RecordLock, RecordedReplica, VolumeRecord};

/// Where things of running volumes are, unless told otherwise.
pub const RUNTIME_DIR: &str = "/run/lariat";
pub const DEVICE_DIR: &str = "/dev/longhorn";
pub const RECORD_DIR: &str = "/var/lib/lariat/volumes";

/// The arguments of `engine run`.
#[derive(Clone, Debug)]
pub struct RunOptions {
    pub volume: String,
    /// Needed for a volume that has no record yet; else it is taken from there.
    pub size_bytes: Option<u64>,
    /// `NAME=HOST:PORT`, or `HOST:PORT` alone: then the name is made of it.
    pub replicas: Vec<String>,
    pub frontend: FrontendKind,
    pub sector_bytes: u32,
    /// What the replicas' servers were given as their secret.
    pub secret: Vec<u8>,
    /// Whether lines to replicas are encrypted.
    pub tls: bool,
    pub runtime_dir: PathBuf,
    pub device_dir: PathBuf,
    /// Where a keeper listens, if one does.
    pub keeper: Option<PathBuf>,
    pub mode: RunMode,
    pub job_deadline: Duration,
    pub open_grace: Duration,
    pub rebuild_bytes_per_second_max: u64,
    /// Has replicas look for blocks of zeroes in what is written: they take no space, and every write some time.
    pub detect_zeroes: bool,
}

/// Not an option: a newer engine relies on the older one's. Shorter than the grace, so that opening without a replica
/// takes no longer; much longer than a round trip, so that reads do not wait for a replica that is merely slow.
const READ_LEASE: Duration = Duration::from_secs(4);

/// Who knows the volume's epoch and in-sync set.
#[derive(Clone, Debug)]
pub enum RunMode {
    /// A file of this engine's own: for use by hand.
    ByHand { record: PathBuf },
    /// The caller: it gives both, and attaches to the control socket to record changes.
    Managed {
        epoch: u64,
        generation: u64,
        /// The recorded set: names among `replicas`.
        in_sync: Vec<String>,
        /// Those of them that will hardly answer, because their node or disk is lost. They need no address.
        written_off: Vec<String>,
        /// The volume is new: replicas that do not exist yet are made.
        create: bool,
        /// Another engine has the volume, and will hand it over.
        standby: bool,
    },
}

impl RunOptions {
    /// Sensible for use by hand; `replicas` and `size_bytes` remain to be set.
    #[must_use]
    pub fn by_hand(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            size_bytes: None,
            replicas: Vec::new(),
            frontend: FrontendKind::None,
            sector_bytes: 4096,
            secret: Vec::new(),
            tls: false,
            runtime_dir: RUNTIME_DIR.into(),
            device_dir: DEVICE_DIR.into(),
            keeper: None,
            mode: RunMode::ByHand {
                record: PathBuf::from(RECORD_DIR).join(format!("{volume}.json")),
            },
            job_deadline: Duration::from_secs(8),
            open_grace: Duration::from_secs(5),
            rebuild_bytes_per_second_max: 0,
            detect_zeroes: false,
        }
    }

    /// Where the engine listens for commands.
    #[must_use]
    pub fn control_path(&self) -> PathBuf {
        control_path(&self.runtime_dir, &self.volume)
    }
}

#[must_use]
pub fn control_path(runtime_dir: &std::path::Path, volume: &str) -> PathBuf {
    runtime_dir.join(format!("{volume}.control"))
}

#[derive(Debug, Error)]
pub enum StartError {
    #[error("the volume's name is not one")]
    Volume(#[source] NameError),
    #[error("replica {text:?} is not NAME=HOST:PORT")]
    Replica {
        text: String,
        #[source]
        source: Option<NameError>,
    },
    #[error("volume {0} has no record yet: give its size and its replicas")]
    New(String),
    #[error("the volume's size cannot be used")]
    Size(#[source] SizeError),
    #[error("replica {0} is recorded as in sync, but its address was not given")]
    Address(String),
    #[error("no replica is in sync")]
    Empty,
    #[error("the record is of volume {0}")]
    OtherVolume(String),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("a keeper or control path cannot be used")]
    Run(#[from] RunError),
}

/// Makes an engine ready to [`run`](Shell::run). With a record of its own, the new epoch is on stable storage
/// before any replica hears of it.
pub fn prepare(options: &RunOptions) -> Result<Shell, StartError> {
    let volume = VolumeName::new(&options.volume).map_err(StartError::Volume)?;
    let given = options
        .replicas
        .iter()
        .map(|text| parse_replica(text))
        .collect::<Result<Vec<_>, _>>()?;
    let start = match &options.mode {
        RunMode::ByHand { record } => start_by_hand(options, record, &given)?,
        RunMode::Managed {
            epoch,
            generation,
            in_sync,
            written_off,
            create,
            standby,
        } => Start {
            epoch: *epoch,
            generation: *generation,
            size_bytes: options
                .size_bytes
                .ok_or_else(|| StartError::New(options.volume.clone()))?,
            in_sync: in_sync
                .iter()
                .map(|name| address_of(name, &given, written_off.contains(name)))
                .collect::<Result<_, _>>()?,
            written_off: written_off
                .iter()
                .map(|name| replica_name(name))
                .collect::<Result<_, _>>()?,
            create: *create,
            committer: CommitterKind::Attached,
            standby: *standby,
        },
    };
    check_size(start.size_bytes).map_err(StartError::Size)?;
    if start.in_sync.is_empty() {
        return Err(StartError::Empty);
    }
    // Writing back under memory pressure must not wait for ourselves. It needs a capability that
    // containers often lack, and only that rare case is worse without it.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "cannot declare this process an I/O flusher");
    }
    let epoch = Epoch(start.epoch);
    let identity = Identity {
        key: VolumeKey::derive(&options.secret, &volume),
        volume,
        epoch,
        tls: options.tls,
    };
    let started_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_millis() as u64);
    Ok(Shell::new(ShellConfig {
        core: CoreConfig {
            volume: options.volume.clone(),
            epoch,
            size_bytes: start.size_bytes,
            in_sync: start.in_sync,
            written_off: start.written_off,
            generation: start.generation,
            create: start.create,
            detect_zeroes: options.detect_zeroes,
            job_deadline_us: options.job_deadline.as_micros() as u64,
            open_grace_us: options.open_grace.as_micros() as u64,
            read_lease_us: READ_LEASE.as_micros() as u64,
            rebuild_bytes_per_second_max: options.rebuild_bytes_per_second_max,
            started_unix_ms,
        },
        identity,
        frontend: options.frontend,
        frontend_options: FrontendOptions {
            volume: options.volume.clone(),
            size_bytes: start.size_bytes,
            runtime_dir: options.runtime_dir.clone(),
            device_dir: options.device_dir.clone(),
            sector_bytes: options.sector_bytes,
            keeper: options.keeper.clone(),
        },
        control_path: options.control_path(),
        committer: start.committer,
        standby: start.standby,
    })?)
}

struct Start {
    epoch: u64,
    generation: u64,
    size_bytes: u64,
    in_sync: Vec<MemberAddress>,
    written_off: BTreeSet<ReplicaName>,
    create: bool,
    committer: CommitterKind,
    standby: bool,
}

fn start_by_hand(
    options: &RunOptions,
    path: &std::path::Path,
    given: &[MemberAddress],
) -> Result<Start, StartError> {
    let _lock = RecordLock::take(path)?;
    let (mut record, create) = match VolumeRecord::load(path)? {
        Some(record) if record.volume != options.volume => {
            return Err(StartError::OtherVolume(record.volume));
        }
        Some(record) => (record, false),
        None => {
            let size_bytes = options
                .size_bytes
                .filter(|_| !given.is_empty())
                .ok_or_else(|| StartError::New(options.volume.clone()))?;
            check_size(size_bytes).map_err(StartError::Size)?;
            let in_sync = given
                .iter()
                .map(|to| RecordedReplica {
                    name: to.name.to_string(),
                    address: to.address.clone(),
                })
                .collect();
            let record = VolumeRecord {
                version: RECORD_VERSION,
                volume: options.volume.clone(),
                size_bytes,
                epoch: 0,
                generation: 1,
                in_sync,
            };
            (record, true)
        }
    };
    for replica in &mut record.in_sync {
        if let Some(to) = given.iter().find(|to| to.name.as_str() == replica.name) {
            replica.address.clone_from(&to.address);
        }
    }
    record.epoch += 1;
    record.size_bytes = record.size_bytes.max(options.size_bytes.unwrap_or(0));
    record.store(path)?;
    let in_sync = record
        .in_sync
        .iter()
        .map(|replica| {
            Ok(MemberAddress {
                name: replica_name(&replica.name)?,
                address: replica.address.clone(),
            })
        })
        .collect::<Result<_, StartError>>()?;
    Ok(Start {
        epoch: record.epoch,
        generation: record.generation,
        size_bytes: record.size_bytes,
        in_sync,
        written_off: BTreeSet::new(),
        create,
        committer: CommitterKind::File(path.to_owned()),
        standby: false,
    })
}

fn replica_name(name: &str) -> Result<ReplicaName, StartError> {
    ReplicaName::new(name).map_err(|source| StartError::Replica {
        text: name.to_owned(),
        source: Some(source),
    })
}

/// Nobody may know where a member is that was written off, such as one whose disk is gone. The engine must know of it all the
/// same, or it could not leave it behind; it looks for it nowhere.
fn address_of(
    name: &str,
    given: &[MemberAddress],
    is_written_off: bool,
) -> Result<MemberAddress, StartError> {
    match given.iter().find(|to| to.name.as_str() == name) {
        Some(to) => Ok(to.clone()),
        None if is_written_off => Ok(MemberAddress {
            name: replica_name(name)?,
            address: String::new(),
        }),
        None => Err(StartError::Address(name.to_owned())),
    }
}

/// Reads `NAME=HOST:PORT`, or `HOST:PORT` whose name is the address with a dash for each colon.
pub fn parse_replica(text: &str) -> Result<MemberAddress, StartError> {
    let bad = |source| StartError::Replica {
        text: text.to_owned(),
        source,
    };
    let (name, address) = match text.split_once('=') {
        Some((name, address)) => (name.to_owned(), address),
        None => (
            text.replace([':', '[', ']'], "-")
                .trim_matches('-')
                .to_owned(),
            text,
        ),
    };
    if address
        .rsplit_once(':')
        .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
    {
        return Err(bad(None));
    }
    let name = ReplicaName::new(&name).map_err(|source| bad(Some(source)))?;
    Ok(MemberAddress {
        name,
        address: address.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_from_text() {
        for (text, expected) in [
            ("a=127.0.0.1:9502", Some(("a", "127.0.0.1:9502"))),
            ("127.0.0.1:9502", Some(("127.0.0.1-9502", "127.0.0.1:9502"))),
            ("b=[::1]:9502", Some(("b", "[::1]:9502"))),
            ("a=host", None),
            ("a=:1", None),
            ("/=h:1", None),
            ("a=h:70000", None),
        ] {
            let parsed = parse_replica(text).ok();
            let found = parsed
                .as_ref()
                .map(|to| (to.name.as_str(), to.address.as_str()));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn only_those_written_off_need_no_address() {
        let given = [parse_replica("a=h:1").expect("a replica")];
        let found = |name, off| address_of(name, &given, off).map(|to| to.address).ok();
        assert_eq!(found("a", false).as_deref(), Some("h:1"));
        assert_eq!(found("a", true).as_deref(), Some("h:1"));
        assert_eq!(found("b", false), None);
        assert_eq!(found("b", true).as_deref(), Some(""));
        assert_eq!(found("/", true), None);
    }
}
