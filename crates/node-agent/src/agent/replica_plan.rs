//! What to do about one Replica object, decided from it and from what is on its disk.

use api_types::Replica;

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
    /// It cannot be served; a person or the volume controller has to act.
    Refuse(String),
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
            Step::Refuse(_) => "refuse".to_owned(),
        };
        assert_eq!(step, expected, "{replica:?} {on_disk:?}");
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
