//! `lariat up` in a temporary folder: its API alone, or a cluster of several nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use kube::Client;

use crate::control_plane::client_of;
use crate::process::Process;

/// A running embedded cluster, stopped in good order when this is dropped.
pub struct Embedded {
    _process: Process,
    folder: tempfile::TempDir,
}

impl Embedded {
    /// Starts it and waits until it says that it is ready.
    ///
    /// # Errors
    /// If it cannot be started or does not become ready; with its last words.
    pub async fn start(lariat: &Path, nodes: u16) -> Result<Self> {
        // Sockets have short paths.
        let folder = tempfile::Builder::new().prefix("lr").tempdir_in("/tmp")?;
        let data = folder.path().join("d");
        let mut command = Command::new(lariat);
        command
            .args([
                "up",
                "--listen",
                "127.0.0.1:0",
                "--nodes",
                &nodes.to_string(),
                "--data-dir",
            ])
            .arg(&data);
        let mut process = Process::start("lariat-up", &mut command, folder.path())?;
        let (own, ready) = (process.id().to_string(), data.join("ready"));
        process
            .until("it is ready", async || {
                fs::read_to_string(&ready).is_ok_and(|pid| pid.trim() == own)
            })
            .await?;
        Ok(Self {
            _process: process,
            folder,
        })
    }

    /// The cluster's data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    /// An administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data().join("kubeconfig")
    }

    /// A client with that kubeconfig.
    ///
    /// # Errors
    /// If the kubeconfig is gone.
    pub async fn client(&self) -> Result<Client> {
        client_of(&self.kubeconfig()).await
    }
}
