//! The choices a volume is created with.

use crate::wire::string_enum;

string_enum! {
    /// How a volume is offered to its node.
    pub checked enum VolumeFrontend {
        /// A block device.
        BlockDevice = "blockdev",
        /// An iSCSI target.
        Iscsi = "iscsi",
        /// An NVMe-oF target.
        Nvmf = "nvmf",
        /// A ublk device.
        Ublk = "ublk",
        /// Not at all.
        #[default]
        None = "",
    }

    /// How many nodes and pods may use a volume at once.
    pub checked enum AccessMode {
        /// One node.
        #[default]
        ReadWriteOnce = "rwo",
        /// One pod.
        ReadWriteOncePod = "rwop",
        /// Many nodes.
        ReadWriteMany = "rwx",
    }

    /// Whether a replica should be on the node that uses the volume.
    pub checked enum DataLocality {
        /// It does not matter.
        #[default]
        Disabled = "disabled",
        /// If there is room.
        BestEffort = "best-effort",
        /// The only replica is there, or the volume is not attached.
        StrictLocal = "strict-local",
    }

    /// Whether replicas are spread again when nodes join.
    pub checked enum ReplicaAutoBalance {
        /// As the setting says.
        #[default]
        Ignored = "ignored",
        /// No.
        Disabled = "disabled",
        /// Until every replica has a node or zone of its own.
        LeastEffort = "least-effort",
        /// Until nodes carry the same number.
        BestEffort = "best-effort",
    }

    /// Whether snapshots are hashed and checked.
    pub checked enum SnapshotDataIntegrity {
        /// As the setting says.
        #[default]
        Ignored = "ignored",
        /// No.
        Disabled = "disabled",
        /// Always.
        Enabled = "enabled",
        /// Only when a file's time or size has changed.
        FastCheck = "fast-check",
    }

    /// How a clone gets its data.
    pub checked enum CloneMode {
        /// As a full copy, or not a clone at all.
        #[default]
        Unset = "",
        /// By copying all of it.
        FullCopy = "full-copy",
        /// By sharing the source's blocks.
        LinkedClone = "linked-clone",
    }

    /// Which implementation moves the blocks.
    pub checked enum DataEngine {
        /// Files and a block front end; Lariat's native engine.
        #[default]
        V1 = "v1",
        /// SPDK; Lariat does not run it.
        V2 = "v2",
    }

    /// A volume's answer to a question that a setting answers for all volumes.
    pub checked enum Toggle {
        /// As the setting says.
        #[default]
        Ignored = "ignored",
        /// Yes, whatever the setting says.
        Enabled = "enabled",
        /// No, whatever the setting says.
        Disabled = "disabled",
    }
}

impl Toggle {
    /// The answer for this volume, given the setting's.
    pub fn or(&self, setting: bool) -> bool {
        match self {
            Self::Enabled => true,
            Self::Disabled => false,
            Self::Ignored | Self::Other(_) => setting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volumes_own_answer_goes_before_the_settings() {
        let check = |toggle: &str, setting: bool, expected: bool| {
            assert_eq!(Toggle::from(toggle).or(setting), expected, "{toggle}");
        };
        check("enabled", false, true);
        check("disabled", true, false);
        check("ignored", true, true);
        check("ignored", false, false);
        check("", true, true);
        check("of-a-later-version", true, true);
    }
}
