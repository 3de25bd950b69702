//! The folder of a cluster on this machine: what lies where, and who runs on it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;

pub(crate) struct DataDir {
    root: PathBuf,
}

impl DataDir {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Makes the folder, for its owner alone.
    pub(crate) fn create(&self) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.root)
            .with_context(|| {
                format!(
                    "cannot make the folder {}; choose another with --data-dir",
                    self.root.display()
                )
            })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    pub(crate) fn token(&self) -> PathBuf {
        self.root.join("token")
    }

    /// Where a node of this cluster keeps its things.
    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.root.join("nodes").join(name)
    }

    /// What a part of this cluster has to say.
    pub(crate) fn log(&self, part: &str) -> PathBuf {
        self.root.join("logs").join(format!("{part}.log"))
    }

    /// Where the CSI controller service listens.
    pub(crate) fn csi_socket(&self) -> PathBuf {
        self.root.join("csi.sock")
    }

    /// Exists while the cluster is up and answers.
    pub(crate) fn ready(&self) -> PathBuf {
        self.root.join("ready")
    }

    fn pid_file(&self) -> PathBuf {
        self.root.join("lariat.pid")
    }

    /// Takes the folder for this process, or says who has it.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let path = self.pid_file();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| {
                format!(
                    "cannot open {}; run it as the owner of the folder, or choose another with --data-dir",
                    path.display()
                )
            })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            file.read_to_string(&mut pid).ok();
            bail!(
                "{} is in use by a running lariat (process {}); stop it with: lariat down --data-dir {}",
                self.root.display(),
                pid.trim(),
                self.root.display(),
            );
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .with_context(|| {
                format!(
                    "cannot write {}; see whether its disk is full",
                    path.display()
                )
            })?;
        Ok(Lock { _file: file })
    }

    /// Whether the folder is there, as far as this account can see.
    pub(crate) fn is_there(&self) -> bool {
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        match fs::metadata(&self.root) {
            Ok(found) => found.is_dir(),
            Err(error) => !absent.contains(&error.kind()),
        }
    }

    /// The process that has the folder, if one does.
    pub(crate) fn running(&self) -> Result<Option<Pid>> {
        let path = self.pid_file();
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "cannot tell what runs on {}: cannot open {}; run it as the user who ran `lariat up`",
                        self.root.display(),
                        path.display()
                    )
                });
            }
        };
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return Ok(None);
        }
        let mut text = String::new();
        file.read_to_string(&mut text)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        Ok(Some(pid.with_context(|| {
            let path = path.display();
            format!(
                "a process has {path} locked, and its id is not in it; find that process with: fuser {path}"
            )
        })?))
    }
}

/// Held for as long as the process runs; the kernel lets go of it even after `kill -9`.
pub(crate) struct Lock {
    _file: File,
}
