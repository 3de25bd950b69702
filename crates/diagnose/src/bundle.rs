//! A dump as files: what `lariat support-bundle` archives, and what `--bundle` reads back.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::dump::{ClusterDump, KINDS, Unread};
use crate::redact::{redact, redact_texts};

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleFile {
    /// Relative to the bundle.
    pub path: String,
    pub bytes: Vec<u8>,
}

/// What the bundle says of itself.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    /// Of the bundle's own layout.
    format: u32,
    taken_at: Timestamp,
    /// Of the program that wrote it.
    version: String,
    #[serde(default)]
    unread: Vec<UnreadEntry>,
}

#[derive(Serialize, Deserialize)]
struct UnreadEntry {
    what: String,
    why: String,
    whole: bool,
}

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 1;

/// The objects as one List a kind, in kubectl's own form, without secrets.
#[must_use]
pub fn write_objects(dump: &ClusterDump, taken_at: Timestamp) -> Vec<BundleFile> {
    let unread = dump.unread.iter().map(|unread| UnreadEntry {
        what: unread.what.clone(),
        why: unread.why.clone(),
        whole: unread.whole,
    });
    let manifest = Manifest {
        format: FORMAT,
        taken_at,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unread: unread.collect(),
    };
    let manifest = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
    let mut files = vec![BundleFile {
        path: MANIFEST.to_owned(),
        bytes: manifest,
    }];
    for kind in KINDS.iter().filter(|kind| dump.is_listed(kind.resource)) {
        let mut items = (kind.write)(dump);
        items.iter_mut().for_each(redact);
        if kind.kind == "Event" {
            // The words of whatever failed, and not of ours alone.
            items.iter_mut().for_each(redact_texts);
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        files.push(BundleFile {
            path: path_of(kind.resource),
            bytes: serde_json::to_vec_pretty(&list).unwrap_or_default(),
        });
    }
    files
}

fn path_of(resource: &str) -> String {
    format!("objects/{resource}.json")
}

/// The objects of a bundle, and the time at which they were so. A kind without a file is one of which nothing is known.
pub fn read_objects(files: &[BundleFile]) -> Result<(ClusterDump, Timestamp), String> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let manifest = find(MANIFEST).ok_or_else(|| {
        format!("there is no {MANIFEST} in it: it was not made by `lariat support-bundle`")
    })?;
    let manifest: Manifest = serde_json::from_slice(&manifest.bytes)
        .map_err(|error| format!("its {MANIFEST} cannot be read: {error}"))?;
    if manifest.format != FORMAT {
        return Err(format!(
            "its layout is number {}, and this version reads {FORMAT}; use lariat {}",
            manifest.format, manifest.version
        ));
    }
    let mut dump = ClusterDump::default();
    for entry in manifest.unread {
        dump.unread.push(Unread {
            what: entry.what,
            why: entry.why,
            whole: entry.whole,
        });
    }
    for kind in KINDS {
        let Some(file) = find(&path_of(kind.resource)) else {
            if dump.is_listed(kind.resource) {
                dump.unread.push(Unread {
                    what: kind.resource.to_owned(),
                    why: "it is not in the bundle".to_owned(),
                    whole: true,
                });
            }
            continue;
        };
        if let Err(error) = (kind.read)(&mut dump, &file.bytes) {
            dump.unread.push(Unread {
                what: kind.resource.to_owned(),
                why: error.to_string(),
                whole: true,
            });
        }
    }
    Ok((dump, manifest.taken_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut dump = ClusterDump::default();
        dump.add(&json!({"apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": {"name": "v"}, "spec": {"size": "4096"}}));
        dump.add(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
        for (reason, message) in [
            ("Lost", "the node is lost"),
            ("FailedMount", "cannot mount with password=hunter2"),
            ("Degraded", "nothing that is looked at"),
        ] {
            dump.add(&json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": reason}, "involvedObject": {}, "reason": reason, "message": message}));
        }
        dump.unread.push(Unread {
            what: "backups.longhorn.io".to_owned(),
            why: "forbidden".to_owned(),
            whole: true,
        });
        let at = "2026-01-31T12:00:00Z".parse().expect("a time");
        let mut files = write_objects(&dump, at);
        files.retain(|file| file.path != "objects/pods.json");
        let (read, read_at) = read_objects(&files).expect("a bundle");
        assert_eq!(read_at, at);
        assert_eq!(read.volumes, dump.volumes);
        assert_eq!(read.nodes, dump.nodes);
        assert_eq!(read.events.len(), 2);
        assert!(
            files
                .iter()
                .all(|file| !String::from_utf8_lossy(&file.bytes).contains("hunter2"))
        );
        assert!(!read.is_complete("backups.longhorn.io") && !read.is_complete("pods"));
        assert!(read.is_complete("volumes.longhorn.io"));

        files[0].bytes =
            br#"{"format": 9, "takenAt": "2026-01-31T12:00:00Z", "version": "9.0"}"#.to_vec();
        let error = read_objects(&files).expect_err("a later layout");
        assert!(error.contains("use lariat 9.0"), "{error}");
        assert!(read_objects(&files[1..]).is_err());
    }
}
