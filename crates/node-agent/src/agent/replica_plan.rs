//! What to do about one Replica object, decided from it and from what is on its disk.

use api_types::Replica;

use super::disk_plan::Standing;

/// A Replica object of this node, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    pub volume: String,
    /// The UUID of its disk; empty in objects that do not say.
    pub disk: String,
    pub epoch: u64,
    pub deleting: bool,
    /// Its status says that its data was there once.
    pub started: bool,
}

impl Wanted {
    #[must_use]
    pub fn read(replica: &Replica) -> Self {
        Self {
            name: replica.metadata.name.clone().unwrap_or_default(),
            volume: replica.spec.volume_name.clone(),
            disk: replica.spec.disk_id.clone(),
            epoch: u64::try_from(replica.spec.epoch).unwrap_or(0),
            deleting: replica.metadata.deletion_timestamp.is_some(),
            started: replica.status.as_ref().is_some_and(|status| status.started),
        }
    }
}

/// What the disk has of the volume. A disk holds at most one replica of a volume: a second one would protect
/// against nothing that the first does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDisk {
    Nothing,
    /// Data, and the name of the Replica that it is of.
    Data {
        owner: String,
        accepted_epoch: u64,
    },
    /// Data that no Replica was noted for.
    Stray,
    /// Data that cannot be opened.
    Broken {
        owner: String,
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the data, then accept the epoch.
    Create,
    AcceptEpoch(u64),
    /// All is as it should be.
    Serve,
    /// Remove the data of this Replica, which is not wanted any more, and look again.
    RemoveData {
        of: String,
    },
    /// Nothing is left: let the object go.
    Release,
    /// It cannot be served now, and may come back as it was.
    Await(String),
    /// It cannot be served; a person or the volume controller has to act.
    Refuse(String),
}

/// Why a replica's disk cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// A disk of this node that is not served now. `is_listed`: the node's object still names it.
    Closed {
        disk: String,
        why: String,
        is_listed: bool,
    },
    /// No disk of this node.
    Elsewhere,
}

/// What to do about a replica without its disk. A person who takes a disk from its node gives up what is on it: nobody waits
/// for its data to be removed, which may never be possible.
#[must_use]
pub fn plan_without_disk(replica: &Wanted, node: &str, unusable: &Unusable) -> Step {
    match unusable {
        Unusable::Closed {
            is_listed: false, ..
        }
        | Unusable::Elsewhere
            if replica.deleting =>
        {
            Step::Release
        }
        Unusable::Closed { disk, why, .. } if replica.deleting => Step::Await(format!(
            "this Replica cannot be deleted: disk {disk} is not served: {why}; {}",
            ways_out(node, disk)
        )),
        // Not an error of the replica: like one of a silent node, it may come back as it was.
        Unusable::Closed { disk, why, .. } => {
            Step::Await(format!("disk {disk} is not served: {why}"))
        }
        Unusable::Elsewhere => Step::Refuse(format!("disk {} is not on node {node}", replica.disk)),
    }
}

/// What to do instead of what was found, if the disk did not stand behind it: an unmounted disk looks like an empty one, and one that
/// cannot be read like one that has no notes. What is there is there, whether or not the disk can be looked at.
#[must_use]
pub fn plan_for_standing(
    replica: &Wanted,
    node: &str,
    disk: &str,
    is_listed: bool,
    on_disk: &OnDisk,
    standing: &Standing,
) -> Option<Step> {
    let why = match (standing, on_disk) {
        (Standing::InPlace, _)
        | (Standing::Uncertain(_), OnDisk::Data { .. } | OnDisk::Broken { .. }) => return None,
        (Standing::Gone(why), _) => why,
        // Data would be left behind, although perhaps it can be removed in a moment.
        (Standing::Uncertain(why), OnDisk::Nothing | OnDisk::Stray)
            if replica.deleting && !is_listed =>
        {
            return Some(Step::Await(format!(
                "this Replica cannot be deleted: disk {disk} was removed from node {node}, and {why}; mend the disk, or unmount it to \
                 give it up"
            )));
        }
        (Standing::Uncertain(why), OnDisk::Nothing | OnDisk::Stray) => why,
    };
    let closed = Unusable::Closed {
        disk: disk.to_owned(),
        why: why.clone(),
        is_listed,
    };
    Some(plan_without_disk(replica, node, &closed))
}

/// The disk is served, but does not let go of data: a file system that has become read-only, for example.
#[must_use]
pub fn plan_after_failed_removal(node: &str, disk: &str, why: &str, is_listed: bool) -> Step {
    if is_listed {
        Step::Refuse(format!(
            "the data cannot be removed from disk {disk}: {why}; {}",
            ways_out(node, disk)
        ))
    } else {
        Step::Release
    }
}

fn ways_out(node: &str, disk: &str) -> String {
    format!("mount or mend it, or give it up with `lariat disk remove {node} {disk} --dead`")
}

/// `owner_exists` says whether the Replica that the data is of is still an object of the API.
#[must_use]
pub fn plan(replica: &Wanted, on_disk: &OnDisk, owner_exists: bool) -> Step {
    let own = |owner: &String| *owner == replica.name;
    if replica.deleting {
        return match on_disk {
            OnDisk::Data { owner, .. } | OnDisk::Broken { owner, .. } if own(owner) => {
                Step::RemoveData { of: owner.clone() }
            }
            _ => Step::Release,
        };
    }
    match on_disk {
        OnDisk::Nothing if replica.started => Step::Refuse(
            "its data is gone from the disk; remove this Replica to have another one rebuilt"
                .to_owned(),
        ),
        OnDisk::Nothing => Step::Create,
        OnDisk::Broken { owner, why } if own(owner) => Step::Refuse(why.clone()),
        OnDisk::Data {
            owner,
            accepted_epoch,
        } if own(owner) => {
            if *accepted_epoch < replica.epoch {
                Step::AcceptEpoch(replica.epoch)
            } else {
                Step::Serve
            }
        }
        OnDisk::Data { owner, .. } | OnDisk::Broken { owner, .. } if owner_exists => {
            Step::Refuse(format!(
                "the disk has replica {owner} of this volume already; a disk holds one of a volume"
            ))
        }
        // Its object was removed while this node was away: nobody counts on the data any more.
        OnDisk::Data { owner, .. } | OnDisk::Broken { owner, .. } => {
            Step::RemoveData { of: owner.clone() }
        }
        OnDisk::Stray => Step::Refuse(format!(
            "the disk has data of volume {} that no Replica was noted for; move it away to go on",
            replica.volume
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(epoch: u64) -> Wanted {
        Wanted {
            name: "v-r-1".into(),
            volume: "v".into(),
            disk: "d1".into(),
            epoch,
            deleting: false,
            started: false,
        }
    }

    fn data(owner: &str, accepted_epoch: u64) -> OnDisk {
        OnDisk::Data {
            owner: owner.into(),
            accepted_epoch,
        }
    }

    #[track_caller]
    #[allow(
        clippy::needless_pass_by_value,
        reason = "rows read better without references"
    )]
    fn check(replica: Wanted, on_disk: OnDisk, owner_exists: bool, expected: &str) {
        let step = match plan(&replica, &on_disk, owner_exists) {
            Step::Create => "create".to_owned(),
            Step::AcceptEpoch(epoch) => format!("accept {epoch}"),
            Step::Serve => "serve".to_owned(),
            Step::RemoveData { of } => format!("remove {of}"),
            Step::Release => "release".to_owned(),
            Step::Await(_) => "await".to_owned(),
            Step::Refuse(_) => "refuse".to_owned(),
        };
        assert_eq!(step, expected, "{replica:?} {on_disk:?}");
    }

    #[test]
    fn a_disk_that_was_given_up_keeps_no_replica() {
        let deleting = || Wanted {
            deleting: true,
            ..wanted(1)
        };
        let closed = |is_listed| Unusable::Closed {
            disk: "fast".to_owned(),
            why: "/srv/fast is gone".to_owned(),
            is_listed,
        };
        let check = |replica: &Wanted, unusable: &Unusable, expected: &str| {
            let said = match plan_without_disk(replica, "n", unusable) {
                Step::Release => "release".to_owned(),
                Step::Await(why) => format!("await: {why}"),
                Step::Refuse(why) => format!("refuse: {why}"),
                other => panic!("{other:?}"),
            };
            assert_eq!(said, expected);
        };
        let waits = "await: disk fast is not served: /srv/fast is gone";
        check(&wanted(1), &closed(true), waits);
        check(&wanted(1), &closed(false), waits);
        check(
            &deleting(),
            &closed(true),
            "await: this Replica cannot be deleted: disk fast is not served: /srv/fast is gone; mount or mend it, or give it \
             up with `lariat disk remove n fast --dead`",
        );
        check(&deleting(), &closed(false), "release");
        check(&deleting(), &Unusable::Elsewhere, "release");
        check(
            &wanted(1),
            &Unusable::Elsewhere,
            "refuse: disk d1 is not on node n",
        );
        assert_eq!(
            plan_after_failed_removal("n", "fast", "read-only", false),
            Step::Release
        );
        assert_eq!(
            plan_after_failed_removal("n", "fast", "read-only", true),
            Step::Refuse(
                "the data cannot be removed from disk fast: read-only; mount or mend it, or give it up with `lariat disk \
                 remove n fast --dead`"
                    .to_owned()
            )
        );
    }

    #[test]
    fn only_a_disk_in_its_place_shows_that_something_is_missing() {
        let check = |deleting, is_listed, expected: [[&str; 4]; 3]| {
            let replica = Wanted {
                deleting,
                ..wanted(1)
            };
            let standings = [
                Standing::InPlace,
                Standing::Uncertain("EIO".to_owned()),
                Standing::Gone("/d is gone".to_owned()),
            ];
            let broken = OnDisk::Broken {
                owner: "v-r-1".into(),
                why: "torn".into(),
            };
            let looks = [OnDisk::Nothing, OnDisk::Stray, data("v-r-1", 1), broken];
            let said = standings.map(|standing| {
                looks.each_ref().map(|on_disk| {
                    match plan_for_standing(&replica, "n", "fast", is_listed, on_disk, &standing) {
                        None => "as found",
                        Some(Step::Await(_)) => "await",
                        Some(Step::Release) => "release",
                        Some(other) => panic!("{other:?}"),
                    }
                })
            });
            assert_eq!(said, expected, "deleting {deleting} listed {is_listed}");
        };
        let in_place = ["as found"; 4];
        let uncertain = ["await", "await", "as found", "as found"];
        check(false, true, [in_place, uncertain, ["await"; 4]]);
        check(true, true, [in_place, uncertain, ["await"; 4]]);
        check(false, false, [in_place, uncertain, ["await"; 4]]);
        // What is surely gone was given up with its disk.
        check(true, false, [in_place, uncertain, ["release"; 4]]);
        let deleting = Wanted {
            deleting: true,
            ..wanted(1)
        };
        let standing = Standing::Uncertain("/d cannot be looked at: EIO".to_owned());
        let step = plan_for_standing(&deleting, "n", "fast", false, &OnDisk::Nothing, &standing);
        assert_eq!(
            step,
            Some(Step::Await(
                "this Replica cannot be deleted: disk fast was removed from node n, and /d cannot be looked at: EIO; mend the disk, \
                 or unmount it to give it up"
                    .to_owned()
            ))
        );
    }

    #[test]
    fn replicas_are_made_served_and_removed() {
        check(wanted(1), OnDisk::Nothing, false, "create");
        check(wanted(1), data("v-r-1", 0), true, "accept 1");
        check(wanted(1), data("v-r-1", 1), true, "serve");
        check(wanted(1), data("v-r-1", 5), true, "serve");
        let deleting = || Wanted {
            deleting: true,
            ..wanted(1)
        };
        check(deleting(), data("v-r-1", 1), true, "remove v-r-1");
        check(deleting(), OnDisk::Nothing, false, "release");
        let broken = OnDisk::Broken {
            owner: "v-r-1".into(),
            why: "torn".into(),
        };
        check(deleting(), broken.clone(), true, "remove v-r-1");
        check(wanted(1), broken, true, "refuse");
        // Another one's data is left alone by a removal.
        check(deleting(), data("v-r-2", 1), true, "release");
    }

    #[test]
    fn what_could_lose_data_is_refused() {
        let started = || Wanted {
            started: true,
            ..wanted(1)
        };
        // An empty replica in the place of one that was in sync would look like all the data.
        check(started(), OnDisk::Nothing, false, "refuse");
        check(started(), data("v-r-1", 1), true, "serve");
        check(wanted(1), OnDisk::Stray, false, "refuse");
        check(wanted(1), data("v-r-2", 1), true, "refuse");
        check(wanted(1), data("v-r-2", 1), false, "remove v-r-2");
    }
}
