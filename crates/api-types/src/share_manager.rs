//! `sharemanagers.longhorn.io`: the NFS server in front of an `rwx` volume.

use kube::CustomResource;

use crate::wire::{object, string_enum};

string_enum! {
    /// What a share does.
    pub open enum ShareManagerState {
        /// There is no share, as for a volume that only one node uses.
        #[default]
        None = "",
        /// Its node does not answer.
        Unknown = "unknown",
        /// It is being started.
        Starting = "starting",
        /// It serves.
        Running = "running",
        /// It is being stopped.
        Stopping = "stopping",
        /// It is stopped.
        Stopped = "stopped",
        /// It ended by itself.
        Error = "error",
    }
}

object! {
    /// What a share should be.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "ShareManager", namespaced,
        shortname = "lhsm", status = "ShareManagerStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "The server in front of a volume that many nodes use. It has the volume's name.",
        printcolumn(name = "State", type_ = "string", json_path = ".status.state", description = "The state of the share"),
        printcolumn(name = "Node", type_ = "string", json_path = ".status.ownerID", description = "The node whose manager looks after it"),
        printcolumn(name = "Image", type_ = "string", json_path = ".status.currentImage", description = "The current image of the share"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    pub struct ShareManagerSpec {
        /// The image of its pod.
        pub image: String,
    }

    /// What a share is.
    pub struct ShareManagerStatus {
        /// The node whose manager looks after it.
        #[serde(rename = "ownerID")]
        pub owner_id: String,
        /// What it does.
        pub state: ShareManagerState,
        /// The image in use.
        pub current_image: String,
        /// Where the file system can be mounted from.
        pub endpoint: String,
    }
}
