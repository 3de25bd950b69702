//! Where a node's things are.

use std::io;
use std::path::{Path, PathBuf};

/// A node's folder.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    pub fn create(&self) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        let folders = [self.disk(), self.run(), self.devices(), self.kubelet()];
        for folder in folders {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        Ok(())
    }

    /// The one disk that a node has unless people add more.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.root.join("disks/default")
    }

    /// Sockets, FUSE mounts, logs.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.run().join("agent.lock")
    }

    /// Exists while an agent that was asked to stop has only its replicas left.
    #[must_use]
    pub fn drained(&self) -> PathBuf {
        self.run().join("drained")
    }

    /// Where the replicas of a disk were served last.
    #[must_use]
    pub fn replica_port(&self, disk_uuid: &str) -> PathBuf {
        self.run().join(format!("replica-port.{disk_uuid}"))
    }

    #[must_use]
    pub fn keeper_socket(&self) -> PathBuf {
        self.run().join("keeper")
    }

    #[must_use]
    pub fn keeper_pid(&self) -> PathBuf {
        self.run().join("keeper.pid")
    }

    #[must_use]
    pub fn csi_socket(&self) -> PathBuf {
        self.run().join("csi.sock")
    }

    #[must_use]
    pub fn control(&self, volume: &str) -> PathBuf {
        engine::run::control_path(&self.run(), volume)
    }

    #[must_use]
    pub fn engine_log(&self, volume: &str) -> PathBuf {
        self.run().join(format!("{volume}.log"))
    }

    /// What this node's agent knows of the engine process of a volume, for its successor.
    #[must_use]
    pub fn engine_record(&self, volume: &str) -> PathBuf {
        self.run().join(format!("{volume}.engine.json"))
    }

    /// Links to the volumes' devices.
    #[must_use]
    pub fn devices(&self) -> PathBuf {
        self.root.join("dev")
    }

    #[must_use]
    pub fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }
}
