//! A StorageClass's parameters and a request's size, as the fields of a Volume. Pure.

use std::collections::HashMap;

use api_types::{
    AccessMode, ByteSize, DataLocality, ReplicaAutoBalance, Toggle, VolumeFrontend, VolumeSpec,
};
use tonic::Status;

use crate::capability::{self, Access};
use crate::csi::v1::CapacityRange;
use crate::limits::shown;

/// What a volume gets when nobody says how large it should be.
pub const DEFAULT_BYTES: i64 = 1 << 30;
/// Sizes are rounded up to this, so that every file system and both page sizes divide them.
pub const GRANULE_BYTES: i64 = 1 << 20;
/// The smallest volume that mkfs.xfs makes a file system on.
pub const SMALLEST_BYTES: i64 = 1 << 20;
/// 64 TiB: far below what 64-bit arithmetic or a sparse file on ext4 or xfs would hold, far above any disk here.
pub const LARGEST_BYTES: i64 = 64 << 40;

/// The sidecars' own parameters: they pass some of them on, and none concerns us but the file system.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";
const SIDECAR_FILE_SYSTEM: &str = "csi.storage.k8s.io/fstype";

/// Names of parameters that callers find again in the volume's context.
pub const FILE_SYSTEM: &str = "fsType";

/// What a StorageClass says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Empty if the class leaves the choice to us.
    pub file_system: String,
    /// Whether a volume for many nodes may be migrated.
    pub migratable: bool,
    /// The fields that the class sets; access mode and size are not among them.
    pub spec: VolumeSpec,
}

impl Parameters {
    /// Reads parameters. Names that nobody knows are refused: a typing mistake in `numberOfReplicas` should not cost data.
    pub fn parse(parameters: &HashMap<String, String>) -> Result<Self, Status> {
        let mut parsed = Self {
            spec: VolumeSpec {
                frontend: VolumeFrontend::BlockDevice,
                ..VolumeSpec::default()
            },
            ..Self::default()
        };
        // In the order of names, so that of two mistakes always the same one is reported.
        let mut sorted: Vec<(&String, &String)> = parameters.iter().collect();
        sorted.sort();
        for (name, value) in sorted {
            parsed.set(name, value)?;
        }
        Ok(parsed)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Status> {
        let spec = &mut self.spec;
        match name {
            FILE_SYSTEM | SIDECAR_FILE_SYSTEM => {
                capability::file_system(value)?;
                value.clone_into(&mut self.file_system);
            }
            "migratable" => self.migratable = flag(name, value)?,
            "numberOfReplicas" => spec.number_of_replicas = whole(name, value, 1, 20)?,
            "staleReplicaTimeout" => {
                spec.stale_replica_timeout = whole(name, value, 0, i64::from(i32::MAX))?;
            }
            "dataLocality" => {
                spec.data_locality = one_of(name, value, DataLocality::KNOWN)?;
            }
            "replicaAutoBalance" => {
                spec.replica_auto_balance = one_of(name, value, ReplicaAutoBalance::KNOWN)?;
            }
            "replicaSoftAntiAffinity" => {
                spec.replica_soft_anti_affinity = one_of(name, value, Toggle::KNOWN)?;
            }
            "replicaZoneSoftAntiAffinity" => {
                spec.replica_zone_soft_anti_affinity = one_of(name, value, Toggle::KNOWN)?;
            }
            "replicaDiskSoftAntiAffinity" => {
                spec.replica_disk_soft_anti_affinity = one_of(name, value, Toggle::KNOWN)?;
            }
            "unmapMarkSnapChainRemoved" => {
                spec.unmap_mark_snap_chain_removed = one_of(name, value, Toggle::KNOWN)?;
            }
            "diskSelector" => spec.disk_selector = tags(name, value)?,
            "nodeSelector" => spec.node_selector = tags(name, value)?,
            "dataEngine" if value == "v1" => {}
            "encrypted" | "fromBackup" | "backingImage" | "shareManager" | "dataEngine"
                if !is_off(value) =>
            {
                return Err(Status::invalid_argument(format!(
                    "parameter {name}={:?} is not supported yet; leave it out",
                    shown(value)
                )));
            }
            "encrypted" | "fromBackup" | "backingImage" | "shareManager" | "dataEngine" => {}
            _ if name.starts_with(SIDECAR_PREFIX) => {}
            _ => {
                return Err(Status::invalid_argument(format!(
                    "parameter {:?} is not known; correct or remove it in the StorageClass",
                    shown(name)
                )));
            }
        }
        Ok(())
    }

    /// The volume that this request asks for.
    pub fn volume(&self, access: Access, bytes: i64) -> Result<VolumeSpec, Status> {
        let mut spec = self.spec.clone();
        spec.size = ByteSize(bytes);
        spec.access_mode = match access {
            Access::SinglePod => AccessMode::ReadWriteOncePod,
            Access::SingleNode => AccessMode::ReadWriteOnce,
            Access::ManyNodes => AccessMode::ReadWriteMany,
        };
        // A class serves claims of every mode, so that `migratable` means nothing for the others.
        spec.migratable = self.migratable && access == Access::ManyNodes;
        if access == Access::ManyNodes && !spec.migratable {
            return Err(Status::invalid_argument(
                "ReadWriteMany needs the parameter migratable: \"true\" in the StorageClass: a volume is shared only while it migrates",
            ));
        }
        if spec.data_locality == DataLocality::StrictLocal && spec.number_of_replicas > 1 {
            return Err(Status::invalid_argument(
                "dataLocality strict-local goes with numberOfReplicas 1 only",
            ));
        }
        Ok(spec)
    }
}

/// The size for a range: what is required, rounded up; never above the limit.
pub fn size(range: Option<&CapacityRange>) -> Result<i64, Status> {
    let CapacityRange {
        required_bytes,
        limit_bytes,
    } = range.copied().unwrap_or_default();
    if required_bytes < 0 || limit_bytes < 0 {
        return Err(Status::invalid_argument(
            "capacity_range must not be negative",
        ));
    }
    if limit_bytes > 0 && required_bytes > limit_bytes {
        return Err(Status::invalid_argument(format!(
            "capacity_range requires {required_bytes} bytes and allows {limit_bytes}: nothing satisfies both"
        )));
    }
    let out_of_range = |sentence: String| Err(Status::out_of_range(sentence));
    if required_bytes > LARGEST_BYTES {
        return out_of_range(format!(
            "{required_bytes} bytes are required, a volume has at most {LARGEST_BYTES}"
        ));
    }
    let wanted = match (required_bytes, limit_bytes) {
        (0, 0) => DEFAULT_BYTES,
        // Only a limit: as much as is usual, if that fits.
        (0, limit) => DEFAULT_BYTES.min(limit / GRANULE_BYTES * GRANULE_BYTES),
        (required, _) => required,
    };
    let rounded = (wanted.max(SMALLEST_BYTES) + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    if limit_bytes > 0 && rounded > limit_bytes {
        return out_of_range(format!(
            "sizes are multiples of {GRANULE_BYTES} bytes, and none lies between {required_bytes} and {limit_bytes}"
        ));
    }
    Ok(rounded)
}

/// Whether an existing size is an answer to a range.
pub fn fits(bytes: i64, range: Option<&CapacityRange>) -> bool {
    range.is_none_or(|range| {
        bytes >= range.required_bytes && (range.limit_bytes == 0 || bytes <= range.limit_bytes)
    })
}

fn is_off(value: &str) -> bool {
    value.is_empty() || value.eq_ignore_ascii_case("false")
}

fn invalid(name: &str, value: &str, expected: &str) -> Status {
    Status::invalid_argument(format!(
        "parameter {name} must be {expected}, not {:?}",
        shown(value)
    ))
}

fn flag(name: &str, value: &str) -> Result<bool, Status> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" | "" => Ok(false),
        _ => Err(invalid(name, value, "true or false")),
    }
}

fn whole(name: &str, value: &str, least: i64, most: i64) -> Result<i64, Status> {
    let number = value.parse().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| {
            invalid(
                name,
                value,
                &format!("a whole number from {least} to {most}"),
            )
        })
}

fn one_of<T: for<'a> From<&'a str>>(name: &str, value: &str, known: &[&str]) -> Result<T, Status> {
    if known.contains(&value) {
        return Ok(T::from(value));
    }
    Err(invalid(
        name,
        value,
        &format!("one of {}", known.join(", ")),
    ))
}

/// Tags, separated by commas.
fn tags(name: &str, value: &str) -> Result<Vec<String>, Status> {
    let tags = value
        .split(',')
        .map(str::trim)
        .filter(|tag| !tag.is_empty());
    let mut tags: Vec<String> = tags.map(str::to_owned).collect();
    if tags.iter().any(|tag| tag.len() > 63) {
        return Err(invalid(
            name,
            value,
            "tags of at most 63 bytes, separated by commas",
        ));
    }
    tags.sort();
    tags.dedup();
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn parameters_become_a_spec() {
        let parameters = Parameters::parse(&map(&[
            ("numberOfReplicas", "2"),
            ("dataLocality", "best-effort"),
            ("staleReplicaTimeout", "30"),
            ("diskSelector", "ssd, nvme,ssd"),
            ("nodeSelector", "storage"),
            ("migratable", "True"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("csi.storage.k8s.io/pvc/name", "claim"),
            ("encrypted", "false"),
            ("dataEngine", "v1"),
        ]))
        .expect("all known");
        assert_eq!(parameters.file_system, "xfs");
        let spec = parameters.volume(Access::ManyNodes, 1 << 30).expect("fine");
        assert_eq!(spec.number_of_replicas, 2);
        assert_eq!(spec.data_locality, DataLocality::BestEffort);
        assert_eq!(spec.stale_replica_timeout, 30);
        assert_eq!(spec.disk_selector, ["nvme", "ssd"]);
        assert_eq!(spec.node_selector, ["storage"]);
        assert_eq!(spec.access_mode, AccessMode::ReadWriteMany);
        assert_eq!(spec.frontend, VolumeFrontend::BlockDevice);
        assert!(spec.migratable);
        let single = parameters
            .volume(Access::SingleNode, 1 << 30)
            .expect("fine");
        assert!(!single.migratable);
    }

    #[test]
    fn mistakes_are_named() {
        let check = |name: &str, value: &str, part: &str| {
            let status = Parameters::parse(&map(&[(name, value)])).expect_err(name);
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(part), "{status}");
        };
        check("numberOfReplica", "2", "\"numberOfReplica\" is not known");
        check("numberOfReplicas", "0", "a whole number from 1 to 20");
        check("numberOfReplicas", "three", "not \"three\"");
        check(
            "dataLocality",
            "near",
            "one of disabled, best-effort, strict-local",
        );
        check("migratable", "yes", "true or false");
        check("fsType", "ntfs", "use one of ext4, xfs");
        check("encrypted", "true", "not supported yet");
        check("dataEngine", "v2", "not supported yet");
        check("diskSelector", &"x".repeat(64), "at most 63 bytes");
        let unshared = Parameters::default().volume(Access::ManyNodes, 1);
        assert!(
            unshared
                .expect_err("not migratable")
                .message()
                .contains("migratable")
        );
        let both = map(&[("dataLocality", "strict-local"), ("numberOfReplicas", "2")]);
        let both = Parameters::parse(&both).expect("each is fine");
        assert!(both.volume(Access::SingleNode, 1).is_err());
    }

    #[test]
    fn sizes_are_rounded_up_within_the_limit() {
        let check = |required_bytes: i64, limit_bytes: i64, expected: Result<i64, Code>| {
            let range = CapacityRange {
                required_bytes,
                limit_bytes,
            };
            let found = size(Some(&range)).map_err(|status| status.code());
            assert_eq!(found, expected, "{required_bytes}..{limit_bytes}");
        };
        const MIB: i64 = 1 << 20;
        assert_eq!(size(None).expect("a default"), DEFAULT_BYTES);
        check(0, 0, Ok(DEFAULT_BYTES));
        check(1, 0, Ok(MIB));
        check(MIB, MIB, Ok(MIB));
        check(MIB + 1, 0, Ok(2 * MIB));
        check(MIB + 1, MIB + 4096, Err(Code::OutOfRange));
        check(0, 10 * MIB + 5, Ok(10 * MIB));
        check(0, 100, Err(Code::OutOfRange));
        check(2 * MIB, MIB, Err(Code::InvalidArgument));
        check(-1, 0, Err(Code::InvalidArgument));
        check(LARGEST_BYTES, 0, Ok(LARGEST_BYTES));
        check(LARGEST_BYTES + 1, 0, Err(Code::OutOfRange));
        check(i64::MAX, 0, Err(Code::OutOfRange));
    }
}
