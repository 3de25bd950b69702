//! Engines and replicas: two at once, none at all, or nowhere to go.

use std::collections::BTreeSet;

use api_types::InstanceState;
use api_types::names::annotation::SALVAGE_FROM;
use attach_core::Reason as TicketReason;
use attach_core::breaker::{self, RESUME_ANNOTATION};
use jiff::SignedDuration;
use volume_core::salvage::newest_identical;
use volume_core::{NodeName, Reason, ReplicaObserved, Robustness};

use crate::codes::Code;
use crate::evidence::{Evidence, ObjectRef, time};
use crate::finding::{Finding, Severity};
use crate::index::{Case, Index};
use crate::repair::{Action, Repair};

use super::VOLUMES;
use super::nodes::is_manager_running;

/// A volume that was made just now is still getting its replicas.
const PLACED_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// LAR-121: two engines that both say that they run. A migration has two; nobody else may.
pub(super) fn two_engines(index: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let status = case.volume.status.clone().unwrap_or_default();
    let is_migration = !case.volume.spec.migration_node_id.is_empty()
        || !status.current_migration_node_id.is_empty();
    let running: Vec<_> = case
        .engines
        .iter()
        .filter(|engine| {
            engine
                .status
                .as_ref()
                .is_some_and(|status| status.current_state == InstanceState::Running)
        })
        .collect();
    let nodes: BTreeSet<&str> = running
        .iter()
        .map(|engine| engine.spec.node_id.as_str())
        .collect();
    if is_migration || nodes.len() < 2 {
        return;
    }
    let newest = running.iter().map(|engine| engine.spec.epoch).max();
    let older: Vec<String> = running
        .iter()
        .filter(|engine| Some(engine.spec.epoch) != newest)
        .map(|engine| {
            let node = &engine.spec.node_id;
            let heard = if index.is_node_ready(node) {
                "answers"
            } else {
                "does not answer, so that this may be old news"
            };
            format!("epoch {} on node {node}, which {heard}", engine.spec.epoch)
        })
        .collect();
    let shut_out = status.fence_proof.as_ref().filter(|proof| {
        let mut older = running.iter().map(|engine| engine.spec.epoch);
        older.all(|epoch| epoch < proof.epoch || Some(epoch) == newest)
    });
    let fence = match shut_out {
        Some(proof) => format!(
            "replicas {} refuse everything before epoch {}",
            proof.replicas.join(", "),
            proof.epoch
        ),
        None => "replicas refuse the older ones as soon as they have accepted the newest epoch"
            .to_owned(),
    };
    let mut found = Finding::new(
        Code::TwoEngines,
        ObjectRef::ours(VOLUMES, case.name),
        format!(
            "engines of volume {} run on {} nodes; older ones: {}. {fence}",
            case.name,
            nodes.len(),
            older.join("; ")
        ),
    )
    .volume(case.name)
    .evidence(running.iter().map(|engine| {
        Evidence::new(
            ObjectRef::new("engines.longhorn.io", &engine.metadata),
            "status.currentState",
            format!("running on node {} in epoch {}", engine.spec.node_id, engine.spec.epoch),
        )
    }))
    .advice(format!(
        "do not start anything on the older node; see what its agent says: kubectl -n longhorn-system get engines.longhorn.io \
         -l longhornvolume={} -o yaml",
        case.name
    ));
    if is_manager_running(index) {
        found = found.by_itself(
            "the agent of a node that answers stops the older engine; one that comes back finds itself fenced",
        );
    }
    findings.push(found);
}

/// LAR-122: the data is there, and a word is missing.
pub(super) fn salvageable(_: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, plan)) = &case.life else {
        return;
    };
    if plan.status.robustness != Robustness::Faulted
        && view.status.robustness != Robustness::Faulted
    {
        return;
    }
    // What is salvaged in this very moment needs nobody.
    if plan
        .reasons
        .iter()
        .any(|reason| matches!(reason, Reason::Salvaged { .. }))
    {
        return;
    }
    let members = &view.status.record.members;
    // Readable, as volume_core means it: the disk is there and the files are not known to be broken.
    let candidates = view.replicas.iter().filter(|(_, replica)| {
        let disk = view
            .nodes
            .get(&replica.spec.node)
            .filter(|_| is_ready(view, &replica.spec.node))
            .and_then(|node| node.disks.get(&replica.spec.disk));
        disk.is_some_and(|disk| disk.ready)
            && !matches!(replica.observed, ReplicaObserved::Failed { .. })
    });
    let (current, stale): (Vec<_>, Vec<_>) =
        candidates.partition(|(name, _)| members.contains(*name));
    let contents = current
        .iter()
        .filter_map(|(name, replica)| Some(((*name).clone(), replica.content.as_ref()?)))
        .collect();
    let chosen = newest_identical(&contents).ok();
    let refusal = plan.reasons.iter().find_map(|reason| match reason {
        Reason::SalvageRefused { .. } => Some(reason.to_string()),
        _ => None,
    });
    if chosen.is_none() && stale.is_empty() {
        return;
    }
    let why = refusal.unwrap_or_else(|| "the setting auto-salvage is off".to_owned());
    let evidence = current.iter().chain(&stale).map(|(name, replica)| {
        let content = replica.content.as_ref();
        let value = content.map_or_else(
            || "readable, content not reported".to_owned(),
            |content| {
                let set = if members.contains(*name) {
                    "in-sync"
                } else {
                    "left behind"
                };
                format!(
                    "{set}, epoch {}, revision {}",
                    content.epoch.0, content.revision
                )
            },
        );
        Evidence::new(
            ObjectRef::ours("replicas.longhorn.io", name.as_str()),
            "status",
            value,
        )
    });
    let mut found = Finding::new(
        Code::Salvageable,
        ObjectRef::ours(VOLUMES, case.name),
        format!(
            "volume {} is faulted, and is not salvaged: {why}",
            case.name
        ),
    )
    .volume(case.name)
    .evidence(evidence);
    match chosen {
        Some(replicas) => {
            let names: Vec<&str> = replicas
                .iter()
                .map(volume_core::ReplicaName::as_str)
                .collect();
            let text = names.join(",");
            found = found.repair(Some(Repair {
                summary: format!("salvage from {text}, which has every acknowledged write"),
                actions: vec![Action::annotate(
                    VOLUMES,
                    &case.volume.metadata,
                    &[(SALVAGE_FROM, Some(&text))],
                )],
            }));
        }
        // Losing what was acknowledged is a person's decision, and never one of a command without a name in it.
        None => {
            for (name, _) in &stale {
                found = found.advice(format!(
                    "to accept the loss of what {name} never got: kubectl -n longhorn-system annotate volumes.longhorn.io {} \
                     {SALVAGE_FROM}={name}",
                    case.name
                ));
            }
        }
    }
    findings.push(found);
}

fn is_ready(view: &volume_core::VolumeView, node: &NodeName) -> bool {
    view.nodes
        .get(node)
        .is_some_and(|node| node.health == volume_core::NodeHealth::Ready)
}

/// LAR-123: with the rule that excludes each disk.
pub(super) fn no_schedulable_disk(index: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, plan)) = &case.life else {
        return;
    };
    let created = case.volume.metadata.creation_timestamp.as_ref();
    if created.is_some_and(|created| index.now.duration_since(created.0) < PLACED_AFTER) {
        return;
    }
    let Some(failure) = plan.reasons.iter().find_map(|reason| match reason {
        Reason::Unschedulable { failure } => Some(failure),
        _ => None,
    }) else {
        return;
    };
    let usable = view.status.record.members.len();
    let wanted = view.volume.replicas_wanted;
    let evidence = failure.excluded.iter().map(|(place, rules)| {
        let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let field = if place.disk.as_str().is_empty() {
            "status.diskStatus".to_owned()
        } else {
            format!("status.diskStatus[{}]", place.disk)
        };
        Evidence::new(
            ObjectRef::ours("nodes.longhorn.io", place.node.as_str()),
            &field,
            rules.join("; "),
        )
    });
    let mut found = Finding::new(
        Code::NoSchedulableDisk,
        ObjectRef::ours(VOLUMES, case.name),
        format!(
            "volume {} has {usable} of {wanted} replicas, and no disk can take another",
            case.name
        ),
    )
    .volume(case.name)
    .evidence(evidence)
    .by_itself("a replica is placed as soon as one of these rules no longer holds")
    .advice("add a node or a disk, or free space; or allow two replicas on a node: kubectl -n longhorn-system patch \
         settings.longhorn.io replica-soft-anti-affinity --type merge -p '{\"value\":\"true\"}'");
    if usable == 0 {
        found.severity = Severity::Error;
    }
    findings.push(found);
}

/// LAR-124: the circuit breaker.
pub(super) fn held(_: &Index<'_>, case: &Case<'_>, findings: &mut Vec<Finding>) {
    let Ok((view, plan)) = &case.tickets else {
        return;
    };
    let Some(reason @ TicketReason::Held { .. }) = plan
        .reasons
        .iter()
        .find(|reason| matches!(reason, TicketReason::Held { .. }))
    else {
        return;
    };
    let record = view.volume.attach.as_ref();
    let last = record.and_then(|record| record.last_failure.as_ref());
    let evidence = Evidence::new(
        ObjectRef::ours(VOLUMES, case.name),
        &format!("metadata.annotations[{}]", breaker::ANNOTATION),
        last.map_or_else(String::new, |last| {
            format!("on node {}: {}", last.node, last.reason)
        }),
    )
    .since(last.map(|last| last.at));
    // Any new value resumes; the time of the last failure is new each time that it is held.
    let value = last.map_or_else(|| "resumed".to_owned(), |last| last.at.to_string());
    findings.push(
        Finding::new(
            Code::AttachHeld,
            ObjectRef::ours(VOLUMES, case.name),
            format!("volume {}: {reason}", case.name),
        )
        .volume(case.name)
        .evidence([evidence])
        .by_itself(
            "attaching is tried again when a node, an engine or a ticket of this volume changes",
        )
        .repair(Some(Repair {
            summary: "let the volume try again, with a new budget".to_owned(),
            actions: vec![Action::annotate(
                VOLUMES,
                &case.volume.metadata,
                &[(RESUME_ANNOTATION, Some(&format!("after {value}")))],
            )],
        })),
    );
}

/// When the volume's engine last changed, for `why`.
pub(crate) fn engine_evidence(case: &Case<'_>) -> Vec<Evidence> {
    case.engines
        .iter()
        .filter(|engine| engine.spec.desire_state == InstanceState::Running)
        .map(|engine| {
            let status = engine.status.clone().unwrap_or_default();
            let mut value = format!("{} on node {}", status.current_state, engine.spec.node_id);
            if !status.message.is_empty() {
                value = format!("{value}: {}", status.message);
            }
            let since = case
                .volume
                .status
                .as_ref()
                .and_then(|status| time(&status.running_since));
            let created = engine
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0);
            Evidence::new(
                ObjectRef::new("engines.longhorn.io", &engine.metadata),
                "status.currentState",
                value,
            )
            .since(since.or(created))
        })
        .collect()
}
