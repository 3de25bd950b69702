//! Which of the disks that a node's object names are served, decided from the object and from what is found at their
//! paths.

use std::collections::BTreeMap;

/// A disk that should be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub path: String,
    /// The identity that was found at this path before, if any was.
    pub known_uuid: Option<String>,
    /// Why it cannot be, by its description alone.
    pub objection: Option<String>,
}

/// What is at a disk's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Folder {
        /// The file system it is on, as the kernel numbers them.
        device: u64,
        /// The identity that is written there.
        uuid: Option<String>,
    },
    Nothing,
    /// It could not be looked at, which says nothing about what is there.
    Unclear(String),
}

/// A disk that is served now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub path: String,
    pub uuid: String,
    pub device: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Open it, with its identity or with one that is made for it.
    Open { uuid: Option<String> },
    /// It is served, and stays so; with a trouble that does not take it away from its users.
    Keep { trouble: Option<String> },
    /// It is not served, or not any longer.
    Refuse { reason: &'static str, why: String },
}

const CHANGED: &str = "DiskFilesystemChanged";
const DUPLICATE: &str = "DiskDuplicate";
const MISSING: &str = "NoDiskInfo";
const NOT_SUPPORTED: &str = "DiskNotSupported";

/// Judges each disk that is asked for. Those that are served have their places; others come by name.
#[must_use]
pub fn judge(
    asked: &BTreeMap<String, Asked>,
    found: &BTreeMap<String, Found>,
    served: &BTreeMap<String, Served>,
) -> BTreeMap<String, Verdict> {
    let mut verdicts = BTreeMap::new();
    // Name, identity and file system of each disk that has its place.
    let mut placed: Vec<(String, Option<String>, u64)> = Vec::new();
    let by_seniority = asked
        .iter()
        .filter(|(name, _)| served.contains_key(*name))
        .chain(asked.iter().filter(|(name, _)| !served.contains_key(*name)));
    for (name, disk) in by_seniority {
        let found = found.get(name).unwrap_or(&Found::Nothing);
        let verdict = match served.get(name) {
            Some(served) if served.path == disk.path => keep(served, found),
            _ => open(disk, found, &placed),
        };
        match (&verdict, found) {
            (Verdict::Keep { .. }, _) => {
                let served = &served[name];
                placed.push((name.clone(), Some(served.uuid.clone()), served.device));
            }
            (Verdict::Open { uuid }, Found::Folder { device, .. }) => {
                placed.push((name.clone(), uuid.clone(), *device));
            }
            _ => {}
        }
        verdicts.insert(name.clone(), verdict);
    }
    verdicts
}

/// Only what is surely another disk, or none, ends one that is served.
fn keep(served: &Served, found: &Found) -> Verdict {
    let path = &served.path;
    let gone = |why: String| Verdict::Refuse {
        reason: CHANGED,
        why,
    };
    match found {
        Found::Folder { device, uuid }
            if *device == served.device && uuid.as_ref() == Some(&served.uuid) =>
        {
            Verdict::Keep { trouble: None }
        }
        Found::Unclear(why) => Verdict::Keep {
            trouble: Some(format!("{path} cannot be looked at: {why}")),
        },
        Found::Nothing => gone(format!("{path} is gone")),
        Found::Folder { .. } => gone(format!(
            "{path} is not disk {} any more; is its file system still mounted?",
            served.uuid
        )),
    }
}

fn open(disk: &Asked, found: &Found, placed: &[(String, Option<String>, u64)]) -> Verdict {
    let path = &disk.path;
    let refuse = |reason, why| Verdict::Refuse { reason, why };
    if let Some(objection) = &disk.objection {
        return refuse(NOT_SUPPORTED, objection.clone());
    }
    let (device, uuid) = match found {
        Found::Folder { device, uuid } => (*device, uuid),
        Found::Nothing => {
            return refuse(
                MISSING,
                format!("there is no folder {path}; make it, or mount its file system"),
            );
        }
        Found::Unclear(why) => return refuse(MISSING, format!("{path} cannot be used: {why}")),
    };
    // An unmounted disk looks like an empty folder: with a new identity its replicas would seem to be lost.
    match (&disk.known_uuid, uuid) {
        (Some(known), None) => {
            return refuse(
                CHANGED,
                format!(
                    "{path} had disk {known} and has none now; mount it again, or remove the disk from the node to start anew"
                ),
            );
        }
        (Some(known), Some(uuid)) if known != uuid => {
            return refuse(
                CHANGED,
                format!(
                    "{path} had disk {known} and has disk {uuid} now; mount the right one, or remove the disk from the node \
                     and add it again"
                ),
            );
        }
        _ => {}
    }
    for (name, other_uuid, other_device) in placed {
        if uuid.is_some() && uuid == other_uuid {
            return refuse(DUPLICATE, format!("{path} is disk {name}, or a copy of it"));
        }
        if device == *other_device {
            return refuse(
                DUPLICATE,
                format!(
                    "{path} is on the file system of disk {name}: its room would count twice, and both would fail together"
                ),
            );
        }
    }
    Verdict::Open { uuid: uuid.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks as words: `name:asked:found:served`, with `asked` = a known identity or `-`, `found` = `device/uuid`,
    /// `none` or `unclear`, `served` = `device/uuid` or `-`. All are at the path of their name.
    fn check(disks: &str, expected: &str) {
        let (mut asked, mut found, mut served) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let pair = |word: &str| {
            let (device, uuid) = word.split_once('/').expect("device/uuid");
            (device.parse::<u64>().expect("a number"), uuid.to_owned())
        };
        for disk in disks.split_whitespace() {
            let words: Vec<&str> = disk.split(':').collect();
            let [name, known, at_path, now] = words[..] else {
                panic!("{disk}");
            };
            let known_uuid = (known != "-").then(|| known.to_owned());
            let entry = Asked {
                path: format!("/{name}"),
                known_uuid,
                objection: (known == "block").then(|| "block".to_owned()),
            };
            asked.insert(name.to_owned(), entry);
            let at_path = match at_path {
                "none" => Found::Nothing,
                "unclear" => Found::Unclear("EIO".to_owned()),
                word => {
                    let (device, uuid) = pair(word);
                    Found::Folder {
                        device,
                        uuid: (!uuid.is_empty()).then_some(uuid),
                    }
                }
            };
            found.insert(name.to_owned(), at_path);
            if now != "-" {
                let (device, uuid) = pair(now);
                let path = format!("/{name}");
                served.insert(name.to_owned(), Served { path, uuid, device });
            }
        }
        let verdicts = judge(&asked, &found, &served);
        let said: Vec<String> = verdicts
            .iter()
            .map(|(name, verdict)| match verdict {
                Verdict::Open { uuid: None } => format!("{name}=new"),
                Verdict::Open { uuid: Some(uuid) } => format!("{name}={uuid}"),
                Verdict::Keep { trouble: None } => format!("{name}=keep"),
                Verdict::Keep { trouble: Some(_) } => format!("{name}=trouble"),
                Verdict::Refuse { reason, .. } => format!("{name}={reason}"),
            })
            .collect();
        assert_eq!(said.join(" "), expected, "{disks}");
    }

    #[test]
    fn disks_are_opened_and_kept() {
        check("a:-:1/:-", "a=new");
        check("a:-:1/x:-", "a=x");
        check("a:x:1/x:-", "a=x");
        check("a:x:1/x:1/x", "a=keep");
        check("a:x:1/x:1/x b:-:2/:-", "a=keep b=new");
    }

    #[test]
    fn a_disk_that_is_not_mounted_is_not_taken_for_an_empty_one() {
        check("a:x:1/:-", "a=DiskFilesystemChanged");
        check("a:x:1/y:-", "a=DiskFilesystemChanged");
        check("a:x:none:-", "a=NoDiskInfo");
        check("a:-:unclear:-", "a=NoDiskInfo");
    }

    #[test]
    fn two_disks_are_two_file_systems() {
        check("a:-:1/:- b:-:1/:-", "a=new b=DiskDuplicate");
        check("a:-:1/x:- b:-:2/x:-", "a=x b=DiskDuplicate");
        // Who is served goes before who comes first by name.
        check("a:-:2/:- b:x:2/x:2/x", "a=DiskDuplicate b=keep");
        // One that is refused takes nobody's place.
        check("a:x:1/:- b:-:1/:-", "a=DiskFilesystemChanged b=new");
        check("a:block:1/:- b:-:1/:-", "a=DiskNotSupported b=new");
    }

    #[test]
    fn only_certainty_takes_a_disk_from_its_users() {
        check("a:x:unclear:1/x", "a=trouble");
        check("a:x:none:1/x", "a=DiskFilesystemChanged");
        check("a:x:1/y:1/x", "a=DiskFilesystemChanged");
        check("a:x:2/x:1/x", "a=DiskFilesystemChanged");
        check("a:x:1/:1/x", "a=DiskFilesystemChanged");
    }
}
