//! Where pods' volumes are mounted: the kubelet's own layout, so that tools which know it find them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::resolve::PodVolume;

/// The kubelet's folder.
#[derive(Clone, Debug)]
pub struct KubeletDir {
    root: PathBuf,
}

/// What was begun for a pod, kept in its folder: without the objects, which may be gone, it tells what to undo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMounts {
    /// By the PersistentVolume's name.
    pub volumes: BTreeMap<String, Mounted>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mounted {
    pub name: String,
    pub driver: String,
    pub handle: String,
    pub block: bool,
}

impl From<&PodVolume> for Mounted {
    fn from(volume: &PodVolume) -> Self {
        Self {
            name: volume.name.clone(),
            driver: volume.driver.clone(),
            handle: volume.handle.clone(),
            block: volume.block,
        }
    }
}

impl KubeletDir {
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    #[must_use]
    pub fn staging(&self, pv: &str, mounted: &Mounted) -> PathBuf {
        let csi = self.root.join("plugins/kubernetes.io/csi");
        if mounted.block {
            return csi.join("volumeDevices/staging").join(pv);
        }
        let digest = Sha256::digest(mounted.handle.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        csi.join(&mounted.driver).join(hex).join("globalmount")
    }

    #[must_use]
    pub fn target(&self, pod_uid: &str, pv: &str, block: bool) -> PathBuf {
        let pod = self.pod(pod_uid);
        if block {
            pod.join("volumeDevices/kubernetes.io~csi").join(pv)
        } else {
            pod.join("volumes/kubernetes.io~csi").join(pv).join("mount")
        }
    }

    #[must_use]
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    fn mounts_file(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("lariat-volumes.json")
    }

    #[must_use]
    pub fn load(&self, uid: &str) -> PodMounts {
        std::fs::read(self.mounts_file(uid))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default()
    }

    /// Kept before anything is mounted, and removed with the pod's folder after everything is unmounted.
    pub fn save(&self, uid: &str, mounts: &PodMounts) -> io::Result<()> {
        std::fs::create_dir_all(self.pod(uid))?;
        crate::agent::write_durably(&self.mounts_file(uid), &serde_json::to_string(mounts)?)
    }

    /// Removes a pod's folder. Only empty folders and our own file go: what is in a volume that is still mounted stays.
    pub fn forget(&self, uid: &str, mounts: &PodMounts) {
        for (pv, mounted) in &mounts.volumes {
            let target = self.target(uid, pv, mounted.block);
            let _ = std::fs::remove_dir(&target);
            let mut folder = target.parent();
            while let Some(path) = folder.filter(|path| *path != self.pod(uid)) {
                if std::fs::remove_dir(path).is_err() {
                    break;
                }
                folder = path.parent();
            }
        }
        let _ = std::fs::remove_file(self.mounts_file(uid));
        let _ = std::fs::remove_dir(self.pod(uid));
    }

    /// The pods that have a folder.
    #[must_use]
    pub fn pods(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root.join("pods")) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_the_kubelets() {
        let dir = KubeletDir::new("/k".into());
        let mounted = |block| Mounted {
            name: "data".into(),
            driver: "d".into(),
            handle: "vol-1".into(),
            block,
        };
        // Computed with: printf '%s' vol-1 | sha256sum
        assert_eq!(
            dir.staging("pv", &mounted(false)),
            Path::new("/k/plugins/kubernetes.io/csi/d")
                .join("d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49")
                .join("globalmount")
        );
        assert_eq!(
            dir.staging("pv", &mounted(true)),
            Path::new("/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv")
        );
        assert_eq!(
            dir.target("u", "pv", false),
            Path::new("/k/pods/u/volumes/kubernetes.io~csi/pv/mount")
        );
        assert_eq!(
            dir.target("u", "pv", true),
            Path::new("/k/pods/u/volumeDevices/kubernetes.io~csi/pv")
        );
    }

    #[test]
    fn a_pods_folder_goes_when_it_is_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = KubeletDir::new(folder.path().to_owned());
        let mounts = PodMounts {
            volumes: [(
                "pv".to_owned(),
                Mounted {
                    name: "data".into(),
                    driver: "d".into(),
                    handle: "h".into(),
                    block: false,
                },
            )]
            .into(),
        };
        dir.save("u", &mounts).expect("a file");
        assert_eq!(dir.load("u"), mounts);
        let target = dir.target("u", "pv", false);
        std::fs::create_dir_all(&target).expect("a folder");
        std::fs::write(target.join("kept"), "").expect("a file");
        dir.forget("u", &mounts);
        assert!(
            target.join("kept").exists(),
            "a volume's content is never removed"
        );
        std::fs::remove_file(target.join("kept")).expect("a file");
        dir.forget("u", &mounts);
        assert_eq!(dir.pods(), Vec::<String>::new());
    }
}
