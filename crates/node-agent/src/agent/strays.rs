//! Devices and mounts that this node has although no engine of their volume is here.
//!
//! They are reported in the node's object, so that whoever wonders why a volume hangs can see them from afar. Nothing is
//! taken away here: that is done when an agent starts, before anything of its own is there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use api_types::Leftover;
use jiff::Timestamp;

use super::layout::Layout;
use crate::mount_table;

/// An engine that starts has its device a moment before its record: only what is seen this often is left over.
const LOOKS_MIN: u32 = 3;
/// More than this is one trouble, not many.
const REPORTED_MAX: usize = 50;

/// What was seen, by kind and path: since when, and how often in a row.
#[derive(Default)]
pub(super) struct Strays {
    seen: BTreeMap<Stray, (Timestamp, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stray {
    kind: &'static str,
    path: String,
    volume: String,
}

impl Strays {
    /// Looks once more, and gives what has been there for a while.
    pub(super) async fn look(&mut self, layout: &Layout) -> Vec<Leftover> {
        let layout = layout.clone();
        let found = tokio::task::spawn_blocking(move || find(&layout)).await;
        match found {
            Ok(Ok(found)) => self.count(found, Timestamp::now()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot look for devices and mounts that are left over");
                Vec::new()
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn count(&mut self, found: Vec<Stray>, now: Timestamp) -> Vec<Leftover> {
        let before = std::mem::take(&mut self.seen);
        for stray in found {
            let (since, looks) = before.get(&stray).copied().unwrap_or((now, 0));
            self.seen.insert(stray, (since, looks.saturating_add(1)));
        }
        self.seen
            .iter()
            .filter(|(_, (_, looks))| *looks >= LOOKS_MIN)
            .take(REPORTED_MAX)
            .map(|(stray, (since, _))| Leftover {
                kind: stray.kind.to_owned(),
                volume: stray.volume.clone(),
                path: stray.path.clone(),
                since: since.to_string(),
                ..Leftover::default()
            })
            .collect()
    }
}

fn find(layout: &Layout) -> io::Result<Vec<Stray>> {
    let mut strays = Vec::new();
    let mut alive = Vec::new();
    for (device, file) in loops_in(&layout.run())? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let volume = name.strip_suffix(".fuse").unwrap_or(&name).to_owned();
        if layout.engine_record(&volume).exists() {
            alive.push(device);
        } else {
            strays.push(Stray {
                kind: "device",
                path: format!("{} over {}", device.display(), file.display()),
                volume,
            });
        }
    }
    for mount in mount_table::below(&layout.kubelet())? {
        let source = if mount.kind.ends_with("tmpfs") {
            Path::new("/dev").join(mount.root.strip_prefix("/").unwrap_or(&mount.root))
        } else {
            PathBuf::from(&mount.source)
        };
        let is_loop = source
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("loop"));
        if is_loop && !alive.contains(&source) {
            strays.push(Stray {
                kind: "mount",
                path: mount.target.display().to_string(),
                volume: volume_of(&mount.target),
            });
        }
    }
    Ok(strays)
}

/// The loop devices over files of a folder.
fn loops_in(folder: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = backing.trim_end().trim_end_matches(" (deleted)");
        if Path::new(backing).parent() == Some(folder) {
            found.push((Path::new("/dev").join(entry.file_name()), backing.into()));
        }
    }
    Ok(found)
}

/// `…/kubernetes.io~csi/VOLUME/…`; other paths do not say.
fn volume_of(target: &Path) -> String {
    let mut parts = target
        .components()
        .map(|part| part.as_os_str().to_string_lossy());
    parts
        .find(|part| part == "kubernetes.io~csi")
        .and_then(|_| parts.next())
        .unwrap_or_default()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_is_left_over() {
        let stray = |path: &str| Stray {
            kind: "device",
            path: path.to_owned(),
            volume: "v".to_owned(),
        };
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut strays = Strays::default();
        assert_eq!(strays.count(vec![stray("a"), stray("b")], at(0)), []);
        assert_eq!(strays.count(vec![stray("a"), stray("b")], at(5)), []);
        let told = strays.count(vec![stray("a")], at(10));
        assert_eq!((told.len(), told[0].path.as_str()), (1, "a"));
        assert_eq!(told[0].since, at(0).to_string());
        // One that went and came back is a new one.
        assert_eq!(strays.count(vec![stray("b")], at(15)), []);
        assert_eq!(strays.count(vec![stray("a")], at(20)), []);
    }

    #[test]
    fn mounts_of_pods_say_their_volume() {
        let pod = Path::new("/n/kubelet/pods/u/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(volume_of(pod), "pvc-1");
        assert_eq!(volume_of(Path::new("/n/kubelet/plugins/x/globalmount")), "");
    }
}
