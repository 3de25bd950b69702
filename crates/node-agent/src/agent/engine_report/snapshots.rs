//! An engine's snapshots as its object shows them.

use std::collections::BTreeMap;

use api_types::SnapshotInfo;
use api_types::names::VOLUME_HEAD;
use engine::control::SnapshotReport;
use serde_json::{Value, json};

use super::cut;

/// What is known of the snapshots of an engine that answers.
#[derive(Clone, Debug, Default)]
pub struct SnapshotsSeen<'a> {
    /// None while the list that is there may be out of date: the object keeps what it shows.
    pub listed: Option<&'a [SnapshotReport]>,
    pub list_error: &'a str,
    /// By the snapshot's name.
    pub errors: BTreeMap<String, String>,
}

/// Adds the keys of `Engine.status` that are about snapshots. `generation` is that of the object whose requests were looked at.
pub(super) fn show(seen: &SnapshotsSeen<'_>, generation: i64, status: &mut Value) {
    status["snapshotsError"] = json!(cut(seen.list_error));
    let errors = seen.errors.iter();
    let errors: BTreeMap<&str, &str> = errors
        .map(|(name, why)| (name.as_str(), cut(why)))
        .collect();
    status["snapshotErrors"] = json!(errors);
    if let Some(listed) = seen.listed {
        status["snapshots"] = json!(infos(listed));
        status["snapshotsGeneration"] = json!(generation);
    }
}

/// The chain in both directions, as Longhorn has it: each with its parent and its children, the live volume among them.
fn infos(listed: &[SnapshotReport]) -> BTreeMap<String, SnapshotInfo> {
    let mut infos: BTreeMap<String, SnapshotInfo> = listed
        .iter()
        .map(|found| {
            let info = SnapshotInfo {
                name: found.name.clone(),
                parent: found.parent.clone().unwrap_or_default(),
                removed: found.removed,
                user_created: found.user_created,
                created: time(found.created_unix_ms),
                size: found.allocated_bytes.to_string(),
                restore_size: found.size_bytes.to_string(),
                ..SnapshotInfo::default()
            };
            (found.name.clone(), info)
        })
        .collect();
    let below_live = listed.iter().find(|found| found.below_live);
    let head = SnapshotInfo {
        name: VOLUME_HEAD.to_owned(),
        parent: below_live.map_or_else(String::new, |found| found.name.clone()),
        ..SnapshotInfo::default()
    };
    infos.insert(VOLUME_HEAD.to_owned(), head);
    let links: Vec<(String, String)> = infos
        .values()
        .map(|info| (info.parent.clone(), info.name.clone()))
        .collect();
    for (parent, child) in links {
        if let Some(parent) = infos.get_mut(&parent) {
            parent.children.insert(child, true);
        }
    }
    infos
}

fn time(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok();
    let time = time.and_then(|time| jiff::Timestamp::from_millisecond(time).ok());
    time.map_or_else(String::new, |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, parent: Option<&str>, below_live: bool) -> SnapshotReport {
        SnapshotReport {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            created_unix_ms: 1_000,
            user_created: true,
            removed: false,
            size_bytes: 4096,
            allocated_bytes: 512,
            below_live,
        }
    }

    #[test]
    fn the_chain_can_be_followed_both_ways() {
        // After a revert to `a`, the live volume builds upon it, and `b` is beside.
        let infos = infos(&[found("a", None, true), found("b", Some("a"), false)]);
        let line = |name: &str| {
            let info = &infos[name];
            let children: Vec<&str> = info.children.keys().map(String::as_str).collect();
            format!("{} < {} < {}", info.parent, info.name, children.join(" "))
        };
        assert_eq!(line("a"), " < a < b volume-head");
        assert_eq!(line("b"), "a < b < ");
        assert_eq!(line("volume-head"), "a < volume-head < ");
        assert_eq!(infos["a"].created, "1970-01-01T00:00:01Z");
        assert_eq!(infos["a"].size, "512");
        assert_eq!(infos["a"].restore_size, "4096");
    }

    #[test]
    fn a_list_without_snapshots_is_a_list() {
        let infos = infos(&[]);
        assert_eq!(infos.keys().collect::<Vec<_>>(), [VOLUME_HEAD]);
    }

    #[test]
    fn what_is_not_known_now_is_left_as_it_is() {
        let mut status = json!({});
        let seen = SnapshotsSeen {
            listed: None,
            list_error: "",
            errors: BTreeMap::new(),
        };
        show(&seen, 3, &mut status);
        assert_eq!(status, json!({"snapshotsError": "", "snapshotErrors": {}}));
        let listed = SnapshotsSeen {
            listed: Some(&[]),
            ..seen
        };
        show(&listed, 3, &mut status);
        assert_eq!(status["snapshotsGeneration"], 3);
        assert_eq!(status["snapshots"][VOLUME_HEAD]["name"], VOLUME_HEAD);
    }
}
