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
    /// The node's object names it; otherwise it is asked for because of the replicas that are still on it.
    pub is_listed: bool,
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

/// Whether what is at the path of a disk that is served is still that disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    InPlace,
    /// It could not be looked at.
    Uncertain(String),
    Gone(String),
}

/// As long as replicas of the old disk are there, its name stands for it, also after it was removed.
const ANEW: &str = "remove the disk from the node and add the folder under another name";

const CHANGED: &str = "DiskFilesystemChanged";
const DUPLICATE: &str = "DiskDuplicate";
const MISSING: &str = "NoDiskInfo";
const NOT_SUPPORTED: &str = "DiskNotSupported";

/// Names of disks that are served under an old name although the node's object lists their path under a new one: the same disk,
/// which needs not be closed to be called by its new name.
#[must_use]
pub fn renamed(
    asked: &BTreeMap<String, Asked>,
    served: &BTreeMap<String, Served>,
) -> Vec<(String, String)> {
    let is_listed = |name: &String| asked.get(name).is_some_and(|disk| disk.is_listed);
    let given_up = served.iter().filter(|(name, _)| !is_listed(name));
    let renamed = given_up.filter_map(|(old, disk)| {
        let is_new_name = |(name, asked): &(&String, &Asked)| {
            asked.is_listed
                && asked.path == disk.path
                && asked.objection.is_none()
                && asked
                    .known_uuid
                    .as_ref()
                    .is_none_or(|known| *known == disk.uuid)
                && !served.contains_key(*name)
        };
        let (new, _) = asked.iter().find(is_new_name)?;
        Some((old.clone(), new.clone()))
    });
    renamed.collect()
}

/// A disk that has its place.
struct Placed {
    name: String,
    uuid: Option<String>,
    device: u64,
    is_listed: bool,
}

/// Judges each disk that is asked for. Those that are served have their places, then come those that were, then others by name. A
/// disk that is found under a listed name and under an old one is that of the listed name.
#[must_use]
pub fn judge(
    asked: &BTreeMap<String, Asked>,
    found: &BTreeMap<String, Found>,
    served: &BTreeMap<String, Served>,
) -> BTreeMap<String, Verdict> {
    let mut verdicts = BTreeMap::new();
    let mut placed: Vec<Placed> = Vec::new();
    let mut by_seniority: Vec<(&String, &Asked)> = asked.iter().collect();
    by_seniority.sort_by_key(|(name, disk)| {
        let is_new = disk.known_uuid.is_none();
        (!served.contains_key(*name), is_new, !disk.is_listed)
    });
    for (name, disk) in by_seniority {
        let found = found.get(name).unwrap_or(&Found::Nothing);
        let verdict = match served.get(name) {
            Some(served) if served.path == disk.path => keep(served, found),
            _ => open(disk, found, &placed),
        };
        let (uuid, device) = match (&verdict, found) {
            (Verdict::Keep { .. }, _) => (Some(served[name].uuid.clone()), served[name].device),
            (Verdict::Open { uuid }, Found::Folder { device, .. }) => (uuid.clone(), *device),
            _ => {
                verdicts.insert(name.clone(), verdict);
                continue;
            }
        };
        if let Some(old) = placed.iter().position(|other| other.yields_to(disk, &uuid)) {
            let old = placed.swap_remove(old).name;
            let why = format!("it is disk {name} now");
            let reason = DUPLICATE;
            verdicts.insert(old, Verdict::Refuse { reason, why });
        }
        placed.push(Placed {
            name: name.clone(),
            uuid,
            device,
            is_listed: disk.is_listed,
        });
        verdicts.insert(name.clone(), verdict);
    }
    verdicts
}

impl Placed {
    /// It is the same disk under an old name.
    fn yields_to(&self, disk: &Asked, uuid: &Option<String>) -> bool {
        disk.is_listed && !self.is_listed && uuid.is_some() && self.uuid == *uuid
    }
}

/// Compares a disk that is served with what is at its path.
#[must_use]
pub fn standing(served: &Served, found: &Found) -> Standing {
    let path = &served.path;
    match found {
        Found::Folder { device, uuid }
            if *device == served.device && uuid.as_ref() == Some(&served.uuid) =>
        {
            Standing::InPlace
        }
        Found::Unclear(why) => Standing::Uncertain(format!("{path} cannot be looked at: {why}")),
        Found::Nothing => Standing::Gone(format!("{path} is gone")),
        Found::Folder { .. } => Standing::Gone(format!(
            "{path} is not disk {} any more; is its file system still mounted?",
            served.uuid
        )),
    }
}

/// Only what is surely another disk, or none, ends one that is served.
fn keep(served: &Served, found: &Found) -> Verdict {
    match standing(served, found) {
        Standing::InPlace => Verdict::Keep { trouble: None },
        Standing::Uncertain(why) => Verdict::Keep { trouble: Some(why) },
        Standing::Gone(why) => Verdict::Refuse {
            reason: CHANGED,
            why,
        },
    }
}

fn open(disk: &Asked, found: &Found, placed: &[Placed]) -> Verdict {
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
                    "{path} had disk {known} and has none now; mount it again, or to start anew there, {ANEW}"
                ),
            );
        }
        (Some(known), Some(uuid)) if known != uuid => {
            return refuse(
                CHANGED,
                format!(
                    "{path} had disk {known} and has disk {uuid} now; mount the right one, or to use what is there, {ANEW}"
                ),
            );
        }
        _ => {}
    }
    for other in placed.iter().filter(|other| !other.yields_to(disk, uuid)) {
        let name = &other.name;
        if uuid.is_some() && *uuid == other.uuid {
            return refuse(DUPLICATE, format!("{path} is disk {name}, or a copy of it"));
        }
        if device == other.device {
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
    /// `none` or `unclear`, `served` = `device/uuid` or `-`. All are at the path of their name. One whose name ends with `~` is not
    /// in the node's object any more.
    #[track_caller]
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
                is_listed: !name.ends_with('~'),
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
    fn a_disk_that_comes_back_under_another_name_has_that() {
        let of = |old: &str, new: &str, expected: &str| {
            // Whichever is looked at first.
            check(
                &format!("a~:x:{old} b:{new}"),
                &format!("a~=DiskDuplicate b={expected}"),
            );
            check(
                &format!("c~:x:{old} b:{new}"),
                &format!("b={expected} c~=DiskDuplicate"),
            );
        };
        of("1/x:1/x", "-:1/x:-", "x");
        of("1/x:-", "-:1/x:-", "x");
        of("2/x:2/x", "-:1/x:-", "x");
        of("1/x:-", "x:1/x:-", "x");
        of("1/x:-", "x:1/x:1/x", "keep");
        // The new name cannot have it: it stays where it is.
        check("a~:x:1/x:1/x b:block:1/x:-", "a~=keep b=DiskNotSupported");
        check("a~:x:1/x:1/x b:y:1/x:-", "a~=keep b=DiskFilesystemChanged");
    }

    #[test]
    fn a_disk_that_was_given_up_is_not_in_the_way_of_a_new_one_in_its_place() {
        check("a~:x:1/:- b:-:1/:-", "a~=DiskFilesystemChanged b=new");
        check("a~:x:1/y:- b:y:1/y:1/y", "a~=DiskFilesystemChanged b=keep");
        // Another one beside it on its file system waits until it is empty, and so after a restart.
        check("a~:x:1/x:1/x b:-:1/:-", "a~=keep b=DiskDuplicate");
        check("a~:x:1/x:- b:-:1/:-", "a~=x b=DiskDuplicate");
        check("a~:x:1/x:- b:y:1/y:-", "a~=DiskDuplicate b=y");
    }

    #[test]
    fn a_disk_with_a_new_name_for_its_path_is_called_by_it() {
        let at = |path: &str| Served {
            path: path.to_owned(),
            uuid: "x".to_owned(),
            device: 1,
        };
        let asked = |path: &str, is_listed: bool| Asked {
            path: path.to_owned(),
            known_uuid: (!is_listed).then(|| "x".to_owned()),
            objection: None,
            is_listed,
        };
        let check = |asked_for: &[(&str, Asked)], served: &[(&str, Served)], expected: &[&str]| {
            let asked_for = asked_for.iter().cloned();
            let asked_for = asked_for.map(|(name, disk)| (name.to_owned(), disk));
            let served = served.iter().cloned();
            let served = served.map(|(name, disk)| (name.to_owned(), disk));
            let renamed = renamed(&asked_for.collect(), &served.collect());
            let said: Vec<_> = renamed
                .iter()
                .map(|(old, new)| format!("{old}>{new}"))
                .collect();
            assert_eq!(said, expected);
        };
        let (new, old) = (("new", asked("/d", true)), ("old", asked("/d", false)));
        let served = [("old", at("/d"))];
        check(std::slice::from_ref(&new), &served, &["old>new"]);
        check(&[new.clone(), old.clone()], &served, &["old>new"]);
        check(&[("new", asked("/e", true)), old.clone()], &served, &[]);
        let mut another = new.clone();
        another.1.known_uuid = Some("y".to_owned());
        check(&[another, old.clone()], &served, &[]);
        check(&[old], &served, &[]);
        check(&[("old", asked("/d", true))], &served, &[]);
        check(&[new], &[("old", at("/d")), ("new", at("/d"))], &[]);
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
