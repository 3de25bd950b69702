//! Salvage: using failed replicas again, after checking them.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Draft;
use crate::epoch::InSyncRecord;
use crate::identity::ReplicaName;
use crate::reason::Reason;
use crate::salvage::{SalvageRefusal, newest_identical};
use crate::view::{ReplicaObserved, ReplicaVersion};

/// Brings a faulted volume back if that can be done without guessing.
pub(super) fn salvage(draft: &mut Draft<'_>) {
    let members = &draft.status.record.members;
    let has_failed = |name: &ReplicaName| {
        draft
            .replicas
            .get(name)
            .is_none_or(|spec| spec.failed_at.is_some())
    };
    if members.is_empty() || !members.iter().all(has_failed) {
        return;
    }
    // Not while anything may still be writing.
    if !draft.engines.keys().all(|name| draft.is_released(name)) {
        return;
    }
    let by_name = !draft.view.volume.salvage_from.is_empty();
    let choice = if by_name {
        chosen_by_a_person(draft)
    } else {
        chosen_by_rule(draft)
    };
    match choice {
        Ok(Some(replicas)) => revive(draft, replicas, by_name),
        Ok(None) => {}
        Err(refusal) => draft.say(Reason::SalvageRefused { refusal }),
    }
}

fn chosen_by_a_person(draft: &Draft<'_>) -> Result<Option<BTreeSet<ReplicaName>>, SalvageRefusal> {
    let wanted = &draft.view.volume.salvage_from;
    let candidates = verified(draft, wanted.iter())?;
    if candidates.is_empty() {
        return Err(SalvageRefusal::NoMember {
            missing: wanted.clone(),
            stale: readable_others(draft, wanted),
        });
    }
    newest_identical(&candidates).map(Some)
}

fn chosen_by_rule(draft: &Draft<'_>) -> Result<Option<BTreeSet<ReplicaName>>, SalvageRefusal> {
    if !draft.view.settings.auto_salvage {
        return Ok(None);
    }
    let members = &draft.status.record.members;
    let candidates = verified(draft, members.iter())?;
    if candidates.is_empty() {
        return Err(SalvageRefusal::NoMember {
            missing: members.clone(),
            stale: readable_others(draft, members),
        });
    }
    let attempts = draft.status.salvage_attempts;
    if attempts >= draft.view.settings.salvage_attempts_max {
        return Err(SalvageRefusal::TooManyAttempts { attempts });
    }
    newest_identical(&candidates).map(Some)
}

/// Those of `names` whose files can be read, with what they contain.
fn verified<'d>(
    draft: &'d Draft<'_>,
    names: impl Iterator<Item = &'d ReplicaName>,
) -> Result<BTreeMap<ReplicaName, &'d ReplicaVersion>, SalvageRefusal> {
    let mut candidates = BTreeMap::new();
    for name in names.filter(|name| is_readable(draft, name)) {
        let content = draft
            .view
            .replicas
            .get(name)
            .and_then(|replica| replica.content.as_ref());
        let content = content.ok_or_else(|| SalvageRefusal::NotVerified(name.clone()))?;
        candidates.insert(name.clone(), content);
    }
    Ok(candidates)
}

fn is_readable(draft: &Draft<'_>, name: &ReplicaName) -> bool {
    draft
        .replicas
        .get(name)
        .is_some_and(|spec| draft.view.is_place_ready(spec))
        && !matches!(draft.observed(name), ReplicaObserved::Failed { .. })
}

fn readable_others(draft: &Draft<'_>, names: &BTreeSet<ReplicaName>) -> BTreeSet<ReplicaName> {
    draft
        .replicas
        .keys()
        .filter(|name| !names.contains(*name) && is_readable(draft, name))
        .cloned()
        .collect()
}

/// A new epoch, so that nobody who remembers the old set can bring it back.
fn revive(draft: &mut Draft<'_>, replicas: BTreeSet<ReplicaName>, by_name: bool) {
    draft.status.record = InSyncRecord {
        members: replicas.clone(),
        ..draft.status.record.issue()
    };
    for name in &replicas {
        if let Some(spec) = draft.replicas.get_mut(name) {
            spec.failed_at = None;
            spec.healthy_at = Some(draft.now);
        }
    }
    draft.status.remount_requested_at = Some(draft.now);
    // A person's choice starts a new count.
    draft.status.salvage_attempts = if by_name {
        0
    } else {
        draft.status.salvage_attempts.saturating_add(1)
    };
    draft.say(Reason::Salvaged {
        replicas,
        attempt: draft.status.salvage_attempts,
    });
}
