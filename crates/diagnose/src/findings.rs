//! The findings: one table of rules, one file a family.
//!
//! To add one: a row in `codes`, a page in `docs/findings`, a function in the file of its family, a line in [`RULES`].

mod attachments;
mod engines;
mod finalizers;
mod nodes;
mod tickets;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod world;

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::index::{Case, Index};

pub(crate) use attachments::node_evidence;
pub(crate) use engines::engine_evidence;
pub(crate) use finalizers::is_only_kept;
pub(crate) use nodes::{NODE_LEASE_PREFIX, is_manager_running};
pub(crate) use tickets::ticket_evidence;

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Everything,
    /// What concerns these volumes, and the parts of the cluster that all volumes need.
    Volumes(BTreeSet<String>),
}

impl Scope {
    fn has_volume(&self, name: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Volumes(names) => names.contains(name),
        }
    }

    fn has(&self, finding: &Finding) -> bool {
        *self == Self::Everything
            || finding.code.is_of_a_part()
            || finding.volumes.iter().any(|name| self.has_volume(name))
    }
}

/// One rule, and the kinds that it concludes from the absence of: while one of them cannot be read, the rule says nothing.
/// Kinds that are only looked at for what is there are not named.
struct Rule {
    needs: &'static [&'static str],
    looks_at: Look,
}

/// A rule looks at one volume, or at the whole cluster.
enum Look {
    Volume(for<'a> fn(&Index<'a>, &Case<'_>, &mut Vec<Finding>)),
    Cluster(for<'a> fn(&Index<'a>, &mut Vec<Finding>)),
}

impl Rule {
    const fn volume(
        needs: &'static [&'static str],
        rule: for<'a> fn(&Index<'a>, &Case<'_>, &mut Vec<Finding>),
    ) -> Self {
        let looks_at = Look::Volume(rule);
        Self { needs, looks_at }
    }

    const fn cluster(
        needs: &'static [&'static str],
        rule: for<'a> fn(&Index<'a>, &mut Vec<Finding>),
    ) -> Self {
        let looks_at = Look::Cluster(rule);
        Self { needs, looks_at }
    }
}

const PODS: &str = "pods";
const CLAIMS: &str = "persistentvolumeclaims";
const PERSISTENT_VOLUMES: &str = "persistentvolumes";
const KUBERNETES_NODES: &str = "nodes";
const KUBERNETES_ATTACHMENTS: &str = "volumeattachments.storage.k8s.io";
const CSI_NODES: &str = "csinodes.storage.k8s.io";
const CSI_DRIVERS: &str = "csidrivers.storage.k8s.io";
const LEASES: &str = "leases.coordination.k8s.io";
const VOLUMES: &str = "volumes.longhorn.io";
const ATTACHMENTS: &str = "volumeattachments.longhorn.io";
const ENGINES: &str = "engines.longhorn.io";
const REPLICAS: &str = "replicas.longhorn.io";
const NODES: &str = "nodes.longhorn.io";

#[rustfmt::skip]
const RULES: &[Rule] = &[
    // The reaper knows by itself what it must not conclude from; whether somebody uses the volume is in the nodes.
    Rule::volume(&[KUBERNETES_NODES], tickets::abandoned),
    Rule::volume(&[], tickets::conflicting),
    Rule::volume(&[], tickets::incompatible),
    Rule::volume(&[PODS, CLAIMS, PERSISTENT_VOLUMES], tickets::dead_migration),
    Rule::volume(&[], tickets::unusable),
    Rule::cluster(
        &[CSI_DRIVERS, CSI_NODES, PERSISTENT_VOLUMES, VOLUMES, ATTACHMENTS, ENGINES, KUBERNETES_NODES],
        finalizers::stuck,
    ),
    Rule::volume(&[ATTACHMENTS, ENGINES], attachments::attached_in_kubernetes_only),
    Rule::volume(&[], attachments::attached_in_engine_only),
    Rule::volume(&[KUBERNETES_NODES], attachments::waits_for_dead_node),
    Rule::cluster(&[KUBERNETES_ATTACHMENTS], attachments::stale_annotations),
    Rule::cluster(&[], attachments::full_nodes),
    Rule::volume(&[], engines::two_engines),
    Rule::volume(&[ENGINES, REPLICAS, NODES], engines::salvageable),
    Rule::volume(&[ENGINES, REPLICAS, NODES, KUBERNETES_NODES], engines::no_schedulable_disk),
    Rule::volume(&[], engines::held),
    Rule::cluster(&[], nodes::left_over),
    Rule::cluster(&[LEASES], nodes::agents),
    Rule::cluster(&[LEASES], nodes::manager),
    Rule::cluster(&[], nodes::versions),
    Rule::cluster(&[], nodes::flapping),
    Rule::cluster(&[], nodes::skewed_clocks),
];

/// Everything that is wrong, the worst first.
#[must_use]
pub fn examine(index: &Index<'_>, scope: &Scope) -> Vec<Finding> {
    let is_known = |rule: &&Rule| {
        let mut needs = rule.needs.iter();
        needs.all(|resource| index.dump.is_complete(resource))
    };
    let rules: Vec<&Rule> = RULES.iter().filter(is_known).collect();
    let mut findings = Vec::new();
    for rule in &rules {
        if let Look::Cluster(rule) = &rule.looks_at {
            rule(index, &mut findings);
        }
    }
    for name in index.volume_names().filter(|name| scope.has_volume(name)) {
        let Some(case) = index.case(name) else {
            continue;
        };
        for rule in &rules {
            if let Look::Volume(rule) = &rule.looks_at {
                rule(index, &case, &mut findings);
            }
        }
    }
    findings.retain(|finding| scope.has(finding));
    findings.sort_by(|a, b| {
        let key = |finding: &Finding| (finding.severity, finding.code);
        (key(a), &a.subject, &a.part).cmp(&(key(b), &b.subject, &b.part))
    });
    findings
}
