//! Devices and mounts that this node has although no engine of their volume is here.
//!
//! They are reported in the node's object, so that whoever wonders why a volume hangs can see them from afar. They are
//! taken away when an agent starts, before anything of its own is there, and when the node's object asks for it: what
//! comes about while an agent runs may be somebody's, and is a person's decision.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api_types::Leftover;
use csi_driver::node::{Lazily, unmount_newest};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::layout::Layout;
use super::{Context, leftovers};
use crate::mount_table;

/// An engine that starts has its device a moment before its record: only what is seen this often is left over.
const LOOKS_MIN: u32 = 3;
/// More than this is one trouble, not many.
const REPORTED_MAX: usize = 50;

#[derive(Default)]
pub(super) struct Strays {
    /// Since when, and how often in a row.
    seen: BTreeMap<Stray, (Timestamp, u32)>,
    /// Why the last attempt to put something away failed.
    refused: BTreeMap<Stray, String>,
    /// The attempt that is under way. An unmount can take as long as it likes.
    attempt: Option<JoinHandle<BTreeMap<Stray, String>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stray {
    kind: Kind,
    path: String,
    volume: String,
}

/// In the order in which they are put away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Mount,
    Device,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Device => "device",
        }
    }
}

impl Strays {
    /// Looks once more, and gives what has been there for a while. What was so at the time of `request` is put away.
    pub(super) async fn look(
        &mut self,
        context: &Arc<Context>,
        request: Option<Timestamp>,
    ) -> Vec<Leftover> {
        self.end_attempt().await;
        let layout = context.layout.clone();
        let found = tokio::task::spawn_blocking(move || find(&layout)).await;
        match found {
            Ok(Ok(found)) => self.count(found, Timestamp::now()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot look for devices and mounts that are left over");
                return Vec::new();
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
        if let Some(request) = request {
            self.attempt(context, request);
        }
        self.left_over()
            .take(REPORTED_MAX)
            .map(|(stray, since)| Leftover {
                kind: stray.kind.as_str().to_owned(),
                volume: stray.volume.clone(),
                path: stray.path.clone(),
                since: since.to_string(),
                message: self.refused.get(stray).cloned().unwrap_or_default(),
                ..Leftover::default()
            })
            .collect()
    }

    fn count(&mut self, found: Vec<Stray>, now: Timestamp) {
        let before = std::mem::take(&mut self.seen);
        for stray in found {
            let (since, looks) = before.get(&stray).copied().unwrap_or((now, 0));
            self.seen.insert(stray, (since, looks.saturating_add(1)));
        }
        let seen = &self.seen;
        self.refused.retain(|stray, _| seen.contains_key(stray));
    }

    fn left_over(&self) -> impl Iterator<Item = (&Stray, Timestamp)> {
        self.seen
            .iter()
            .filter(|(_, (_, looks))| *looks >= LOOKS_MIN)
            .map(|(stray, (since, _))| (stray, *since))
    }

    fn attempt(&mut self, context: &Arc<Context>, request: Timestamp) {
        let due: Vec<Stray> = self
            .left_over()
            .filter(|(_, since)| *since <= request)
            .map(|(stray, _)| stray.clone())
            .collect();
        if due.is_empty() || self.attempt.is_some() {
            return;
        }
        let context = context.clone();
        self.attempt = Some(tokio::spawn(async move {
            let mut refused = BTreeMap::new();
            for stray in due {
                match put_away(&context, &stray).await {
                    Ok(()) => {
                        tracing::info!(volume.name = %stray.volume, kind = stray.kind.as_str(), path = stray.path, "put away what was left over");
                    }
                    Err(error) => {
                        refused.insert(stray, error.to_string());
                    }
                }
            }
            refused
        }));
    }

    async fn end_attempt(&mut self) {
        if let Some(attempt) = self.attempt.take_if(|attempt| attempt.is_finished()) {
            match attempt.await {
                Ok(refused) => self.refused = refused,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}

/// Takes one thing away if it is still left over, and if nobody uses it.
async fn put_away(context: &Context, stray: &Stray) -> io::Result<()> {
    // Or else an engine that starts now could get the number of a device that is about to be cleared.
    let _alone = match stray.kind {
        Kind::Device => Some(context.starts.write().await),
        Kind::Mount => None,
    };
    let (layout, again) = (context.layout.clone(), stray.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let is_there = find(&layout)?.contains(&again);
        if is_there && again.kind == Kind::Device {
            check_unused(&layout, &again.volume)?;
        }
        Ok::<bool, io::Error>(is_there)
    });
    let is_there = match checked.await {
        Ok(is_there) => is_there?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    if !is_there {
        return Ok(());
    }
    match stray.kind {
        Kind::Device => leftovers::clear(&context.layout, &stray.volume, false).await,
        Kind::Mount => {
            let deadline = Instant::now() + leftovers::UNMOUNT_TIMEOUT;
            let unmounted = unmount_newest(Path::new(&stray.path), Lazily::No, deadline).await;
            unmounted.map_err(|error| io::Error::other(error.message().to_owned()))?;
        }
    }
    Ok(())
}

/// Says who uses a volume's devices, if somebody does.
fn check_unused(layout: &Layout, volume: &str) -> io::Result<()> {
    let file = engine::frontend::fuse::mount_path(&layout.run(), volume);
    let devices = mount_table::loops_over(&file)?;
    if devices.is_empty() {
        return Err(io::Error::other("no engine makes such a device"));
    }
    for device in devices {
        if let Some(mount) = mount_table::of_device(&device)?.first() {
            return Err(io::Error::other(format!(
                "{} is mounted at {}",
                device.display(),
                mount.target.display()
            )));
        }
    }
    Ok(())
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
                kind: Kind::Device,
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
                kind: Kind::Mount,
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
            kind: Kind::Device,
            path: path.to_owned(),
            volume: "v".to_owned(),
        };
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut strays = Strays::default();
        let mut look = |found: &[&str], second: i64| -> Vec<(String, Timestamp)> {
            strays.count(found.iter().copied().map(stray).collect(), at(second));
            let left = strays.left_over();
            left.map(|(stray, since)| (stray.path.clone(), since))
                .collect()
        };
        assert_eq!(look(&["a", "b"], 0), []);
        assert_eq!(look(&["a", "b"], 5), []);
        assert_eq!(look(&["a"], 10), [("a".to_owned(), at(0))]);
        // One that went and came back is a new one.
        assert_eq!(look(&["b"], 15), []);
        assert_eq!(look(&["a"], 20), []);
    }

    #[test]
    fn mounts_of_pods_say_their_volume() {
        let pod = Path::new("/n/kubelet/pods/u/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(volume_of(pod), "pvc-1");
        assert_eq!(volume_of(Path::new("/n/kubelet/plugins/x/globalmount")), "");
    }
}
