//! The parts themselves: agents, the manager, their clocks and versions, and what nodes have left over.

use std::collections::BTreeMap;

use api_types::names::{annotation::PUT_AWAY, event_reason};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::codes::Code;
use crate::evidence::{Evidence, ObjectRef, time};
use crate::finding::Finding;
use crate::index::{Index, name};
use crate::repair::{Action, Precondition, Repair};

use super::attachments::node_evidence;
use super::{LEASES, NODES};

/// The lease that says who leads.
pub(crate) const MANAGER_LEASE: &str = "lariat-manager";
/// What the names of nodes' leases begin with.
pub(crate) const NODE_LEASE_PREFIX: &str = "lariat-node-";
/// On the manager's lease: the version of whoever leads.
pub(crate) const VERSION_ANNOTATION: &str = "lariat.io/version";

/// Leases are renewed every second and given up after 4 to 6: one that has been silent for this long is not merely late.
const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(15);

/// Renewals take a moment, and the server writes whole seconds: less than this is no skew.
const SKEW_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Lost this often within [`FLAP_WINDOW`] is not an accident any more.
const FLAPS_MAX: i32 = 3;
const FLAP_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// When the API server last saw the lease change, by the server's clock.
fn written_at(lease: &Lease) -> Option<Timestamp> {
    let fields = lease.metadata.managed_fields.iter().flatten();
    fields
        .filter_map(|entry| entry.time.as_ref())
        .map(|time| time.0)
        .max()
}

fn renewed_at(lease: &Lease) -> Option<Timestamp> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

/// How long the lease has been silent.
pub(crate) fn lease_age(index: &Index<'_>, lease: &Lease) -> Option<SignedDuration> {
    let at = written_at(lease).or_else(|| renewed_at(lease))?;
    Some(index.now.duration_since(at))
}

/// Why nobody stands behind this lease, if nobody does.
fn silence(index: &Index<'_>, lease: Option<&Lease>) -> Option<&'static str> {
    let Some(lease) = lease else {
        return Some("has never taken its lease");
    };
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref());
    if holder.unwrap_or_default().is_empty() {
        return Some("has given its lease back: it was stopped in order");
    }
    lease_age(index, lease)
        .is_none_or(|age| age > SILENT_AFTER)
        .then_some("does not renew its lease")
}

fn lease_evidence(lease: Option<&Lease>, lease_name: &str) -> Evidence {
    let Some(lease) = lease else {
        return Evidence::missing(ObjectRef::ours(LEASES, lease_name));
    };
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.clone());
    Evidence::new(
        ObjectRef::new(LEASES, &lease.metadata),
        "spec.holderIdentity",
        holder.unwrap_or_default(),
    )
    .since(written_at(lease).or_else(|| renewed_at(lease)))
}

/// Whether anything that the manager does will happen. A dump without leases does not say that nobody has one.
pub(crate) fn is_manager_running(index: &Index<'_>) -> bool {
    !index.dump.is_complete(LEASES) || silence(index, index.lease(MANAGER_LEASE)).is_none()
}

/// LAR-132.
pub(super) fn agents(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for node in &index.dump.longhorn_nodes {
        let node_name = name(&node.metadata);
        let lease_name = format!("{NODE_LEASE_PREFIX}{node_name}");
        let lease = index.lease(&lease_name);
        let Some(why) = silence(index, lease) else {
            continue;
        };
        let found = Finding::new(
            Code::AgentNotRunning,
            ObjectRef::new(NODES, &node.metadata),
            format!("the agent of node {node_name} {why}"),
        )
        .evidence([lease_evidence(lease, &lease_name)])
        .evidence(node_evidence(index, node_name))
        .by_itself("volumes of the node are fenced and attached elsewhere when their pods are; replicas there are rebuilt")
        .advice(format!(
            "on node {node_name}: see whether `lariat node run --name {node_name}` runs, and read its log; if the node is gone for \
             good: kubectl delete node {node_name}, then kubectl -n longhorn-system delete {NODES} {node_name}"
        ));
        findings.push(found);
    }
}

/// LAR-133.
pub(super) fn manager(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let lease = index.lease(MANAGER_LEASE);
    let Some(why) = silence(index, lease) else {
        return;
    };
    findings.push(
        Finding::new(
            Code::ManagerNotRunning,
            ObjectRef::ours(LEASES, MANAGER_LEASE),
            format!("no manager is at work: whoever led {why}. No ticket is served and no volume moves until one is"),
        )
        .evidence([lease_evidence(lease, MANAGER_LEASE)])
        .by_itself("nothing; volumes that are attached go on working")
        .advice("start one: `lariat manager`, or `lariat up` for the cluster on this machine"),
    );
}

/// LAR-134: by what the agents and the leader say of themselves.
pub(super) fn versions(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let mut parts: Vec<(ObjectRef, &str)> = Vec::new();
    if let Some(lease) = index.lease(MANAGER_LEASE)
        && let Some(version) = lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(VERSION_ANNOTATION))
    {
        parts.push((ObjectRef::new(LEASES, &lease.metadata), version));
    }
    for node in &index.dump.longhorn_nodes {
        let agent = node
            .status
            .as_ref()
            .and_then(|status| status.agent.as_ref());
        if let Some(agent) = agent.filter(|agent| !agent.version.is_empty()) {
            parts.push((ObjectRef::new(NODES, &node.metadata), &agent.version));
        }
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, version) in &parts {
        *counts.entry(version).or_default() += 1;
    }
    if counts.len() < 2 {
        return;
    }
    let list: Vec<String> = counts
        .iter()
        .map(|(version, count)| format!("{count} of {version}"))
        .collect();
    let evidence = parts.into_iter().map(|(object, version)| {
        let field = if object.resource == LEASES {
            format!("metadata.annotations[{VERSION_ANNOTATION}]")
        } else {
            "status.agent.version".to_owned()
        };
        Evidence::new(object, &field, version)
    });
    findings.push(
        Finding::new(
            Code::VersionsDiffer,
            ObjectRef::ours(LEASES, MANAGER_LEASE),
            format!(
                "the parts of the cluster are not of one version: {}",
                list.join(", ")
            ),
        )
        .evidence(evidence)
        .advice("finish the upgrade: the manager first, then node by node"),
    );
}

/// LAR-131: what agents report of devices and mounts without an engine.
pub(super) fn left_over(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for node in &index.dump.longhorn_nodes {
        let node_name = name(&node.metadata);
        let agent = node
            .status
            .as_ref()
            .and_then(|status| status.agent.as_ref());
        let leftovers = agent.map_or(&[][..], |agent| &agent.leftovers);
        let newest = leftovers.iter().filter_map(|it| time(&it.since)).max();
        for leftover in leftovers {
            let object = ObjectRef::new(NODES, &node.metadata);
            let refused = match leftover.message.as_str() {
                "" => String::new(),
                message => format!("; it could not be put away: {message}"),
            };
            let mut found = Finding::new(
                Code::LeftOver,
                object.clone(),
                format!(
                    "node {node_name} has a {} of volume {} left over: {}{refused}",
                    leftover.kind, leftover.volume, leftover.path
                ),
            )
            .part(&leftover.path)
            .evidence([
                Evidence::new(object, "status.agent.leftovers", &leftover.path)
                    .since(time(&leftover.since)),
            ])
            .by_itself("the agent puts away what it finds when it starts")
            .repair(newest.map(|newest| put_away(&node.metadata, newest)))
            .advice(match leftover.kind.as_str() {
                "mount" => format!("on node {node_name}: umount {}", leftover.path),
                _ => format!(
                    "on node {node_name}: losetup --list, then losetup --detach the device over {}",
                    leftover.path
                ),
            });
            if index.volume(&leftover.volume).is_some() {
                found.volumes.push(leftover.volume.clone());
            }
            findings.push(found);
        }
    }
}

/// All that the node has reported so far: its agent takes away what nobody uses. The object's version does not matter, and
/// changes with every figure that the agent reports.
fn put_away(node: &ObjectMeta, newest: Timestamp) -> Repair {
    Repair {
        summary: format!(
            "node {} puts away what it had left over at {newest}, unless somebody uses it",
            name(node)
        ),
        actions: vec![Action::Patch {
            object: ObjectRef::new(NODES, node),
            patch: json!({"metadata": {"annotations": {PUT_AWAY: newest.to_string()}}}),
            when: Precondition::same_object(node),
        }],
    }
}

/// LAR-135: by the events of the node monitor.
pub(super) fn flapping(index: &Index<'_>, findings: &mut Vec<Finding>) {
    let mut lost: BTreeMap<&str, (i32, Option<Timestamp>)> = BTreeMap::new();
    for event in &index.dump.events {
        let about = &event.involved_object;
        let is_ours = about.api_version.as_deref() == Some(api_types::names::API_VERSION)
            && about.kind.as_deref() == Some("Node");
        let at = crate::evidence::last_seen(event);
        let is_recent = at.is_some_and(|at| index.now.duration_since(at) <= FLAP_WINDOW);
        let node = about.name.as_deref().unwrap_or_default();
        if is_ours && is_recent && event.reason.as_deref() == Some(event_reason::LOST) {
            let entry = lost.entry(node).or_default();
            entry.0 += times_within_window(event, index.now);
            entry.1 = entry.1.max(at);
        }
    }
    for (node, (count, last)) in lost {
        if count < FLAPS_MAX {
            continue;
        }
        findings.push(
            Finding::new(
                Code::LeaseFlaps,
                ObjectRef::ours(NODES, node),
                format!("node {node} was lost {count} times within the last hour and came back each time"),
            )
            .evidence([Evidence::new(
                ObjectRef::ours(LEASES, &format!("{NODE_LEASE_PREFIX}{node}")),
                "Lost events",
                count,
            )
            .since(last)])
            .advice(format!(
                "look at the network between node {node} and the API, and at the node's load; a longer `lariat manager \
                 --node-lost-after` tolerates more, and fails over later"
            )),
        );
    }
}

/// A recorder counts for as long as it runs: of an old event only the share of the window counts.
fn times_within_window(event: &Event, now: Timestamp) -> i32 {
    let count = i64::from(event.count.unwrap_or(1).max(1));
    let first = event.first_timestamp.as_ref().map(|time| time.0);
    let age = first.map_or(FLAP_WINDOW, |first| now.duration_since(first));
    let share = count * FLAP_WINDOW.as_secs() / age.max(FLAP_WINDOW).as_secs();
    i32::try_from(share).unwrap_or(i32::MAX)
}

/// LAR-136: each part writes its own clock into its lease, and the API server writes down when it did.
pub(super) fn skewed_clocks(index: &Index<'_>, findings: &mut Vec<Finding>) {
    for lease in &index.dump.leases {
        let lease_name = name(&lease.metadata);
        let who = match lease_name.strip_prefix(NODE_LEASE_PREFIX) {
            Some(node) => format!("node {node}"),
            None if lease_name == MANAGER_LEASE => "the manager".to_owned(),
            None => continue,
        };
        let (Some(said), Some(seen)) = (renewed_at(lease), written_at(lease)) else {
            continue;
        };
        let skew = said.duration_since(seen);
        if skew.abs() <= SKEW_MAX {
            continue;
        }
        let word = if skew.is_negative() {
            "behind"
        } else {
            "ahead of"
        };
        let object = || ObjectRef::new(LEASES, &lease.metadata);
        findings.push(
            Finding::new(
                Code::ClockSkew,
                object(),
                format!(
                    "the clock of {who} is {} s {word} the API server's",
                    skew.abs().as_secs()
                ),
            )
            .evidence([
                Evidence::new(object(), "spec.renewTime", said),
                Evidence::new(object(), "metadata.managedFields.time", seen),
            ])
            .by_itself("attaching and fencing do not depend on clocks; deadlines, ages and the order of logs do")
            .advice(format!("set up time synchronisation for {who}: see `timedatectl` there")),
        );
    }
}
