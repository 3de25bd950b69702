//! Volume capabilities, parsed once: who may use the volume, and as what. Pure.

use tonic::Status;

use crate::csi::v1::{
    VolumeCapability,
    volume_capability::{AccessType, access_mode::Mode},
};
use crate::limits::{self, shown};

/// File systems that a volume can be given.
pub const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];
/// The one it gets when nobody chose.
pub const DEFAULT_FILE_SYSTEM: &str = "ext4";

/// Who may use a volume at once. The order is that of permission: each admits all that those before it admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// One pod.
    SinglePod,
    /// Pods on one node.
    SingleNode,
    /// Two nodes at once, for a live migration.
    ManyNodes,
}

/// What a volume is used as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    Block,
    Mount {
        /// Empty if the caller leaves the choice to us.
        file_system: String,
        flags: Vec<String>,
    },
}

/// A capability that we have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub access: Access,
    /// Whether the mode itself forbids writing.
    pub read_only: bool,
    pub usage: Usage,
}

/// Why a capability is not one of ours, as a sentence; or that it is malformed, as a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Malformed(String),
    Unsupported(String),
}

impl Refusal {
    pub fn sentence(&self) -> &str {
        match self {
            Self::Malformed(sentence) | Self::Unsupported(sentence) => sentence,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::invalid_argument(refusal.sentence())
    }
}

impl Capability {
    /// Reads a capability that must be there.
    pub fn parse_required(capability: Option<&VolumeCapability>) -> Result<Self, Refusal> {
        let missing = || Refusal::Malformed("volume_capability is missing".to_owned());
        Self::parse(capability.ok_or_else(missing)?)
    }

    /// Reads a capability, or says why we do not have it.
    pub fn parse(capability: &VolumeCapability) -> Result<Self, Refusal> {
        let malformed = |sentence: &str| Refusal::Malformed(sentence.to_owned());
        let mode = capability
            .access_mode
            .ok_or_else(|| malformed("volume_capability.access_mode is missing"))?;
        let usage = match &capability.access_type {
            None => {
                return Err(malformed(
                    "volume_capability.access_type is missing: it must be block or mount",
                ));
            }
            Some(AccessType::Block(_)) => Usage::Block,
            Some(AccessType::Mount(mount)) => {
                file_system(&mount.fs_type)?;
                if !mount.volume_mount_group.is_empty() {
                    return Err(Refusal::Unsupported(
                        "volume_mount_group is not supported; set fsGroup on the pod".to_owned(),
                    ));
                }
                Usage::Mount {
                    file_system: mount.fs_type.clone(),
                    flags: mount_flags(&mount.mount_flags)?,
                }
            }
        };
        let unsupported = |name: &str| {
            Refusal::Unsupported(format!(
                "access mode {name} is not supported: use ReadWriteOnce or ReadWriteOncePod, or ReadWriteMany with volumeMode Block"
            ))
        };
        let (access, read_only) = match mode.mode() {
            Mode::Unknown => {
                return Err(malformed("volume_capability.access_mode.mode is missing"));
            }
            Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => (Access::SingleNode, false),
            Mode::SingleNodeSingleWriter => (Access::SinglePod, false),
            Mode::SingleNodeReaderOnly => (Access::SingleNode, true),
            Mode::MultiNodeMultiWriter => (Access::ManyNodes, false),
            Mode::MultiNodeReaderOnly => return Err(unsupported("MULTI_NODE_READER_ONLY")),
            Mode::MultiNodeSingleWriter => return Err(unsupported("MULTI_NODE_SINGLE_WRITER")),
        };
        // Two nodes that mount one ext4 or xfs destroy it. A migration hands a raw device over.
        if access == Access::ManyNodes && usage != Usage::Block {
            return Err(Refusal::Unsupported(
                "a file system cannot be shared by many nodes: use ReadWriteMany with volumeMode Block, or ReadWriteOnce".to_owned(),
            ));
        }
        Ok(Self {
            access,
            read_only,
            usage,
        })
    }

    /// The capability that all of these together need.
    pub fn parse_all(capabilities: &[VolumeCapability]) -> Result<Access, Refusal> {
        let mut access = Access::SinglePod;
        for capability in capabilities {
            access = access.max(Self::parse(capability)?.access);
        }
        Ok(access)
    }
}

/// Checks the name of a file system; the empty one leaves the choice to us.
pub fn file_system(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || FILE_SYSTEMS.contains(&name) {
        return Ok(());
    }
    Err(Refusal::Unsupported(format!(
        "file system {:?} is not supported: use one of {}",
        shown(name),
        FILE_SYSTEMS.join(", ")
    )))
}

/// Checks mount flags: bounded, and nothing by which a flag could become two, or an option of ours be undone.
fn mount_flags(flags: &[String]) -> Result<Vec<String>, Refusal> {
    let refused = |sentence: String| Err(Refusal::Malformed(sentence));
    let bytes: usize = flags.iter().map(String::len).sum();
    if bytes > limits::MAP_BYTES_MAX {
        return refused(format!(
            "mount_flags has {bytes} bytes, at most {} are allowed",
            limits::MAP_BYTES_MAX
        ));
    }
    for flag in flags {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=.:/+@%".contains(&byte);
        if flag.is_empty() || flag.starts_with('-') || !flag.bytes().all(is_plain) {
            return refused(format!(
                "mount flag {:?} is not a plain option such as noatime or commit=30",
                shown(flag)
            ));
        }
        let name = flag.split('=').next().unwrap_or_default();
        if matches!(
            name,
            "bind"
                | "rbind"
                | "move"
                | "remount"
                | "loop"
                | "offset"
                | "sizelimit"
                | "user"
                | "users"
        ) {
            return refused(format!(
                "mount flag {:?} is not allowed: it changes what is mounted, not how",
                shown(flag)
            ));
        }
    }
    Ok(flags.to_vec())
}

#[cfg(test)]
mod tests;
