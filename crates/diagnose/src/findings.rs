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
        finding.volumes.is_empty() || finding.volumes.iter().any(|name| self.has_volume(name))
    }
}

/// A rule looks at one volume, or at the whole cluster.
#[derive(Clone, Copy)]
enum Rule {
    Volume(for<'a> fn(&Index<'a>, &Case<'_>, &mut Vec<Finding>)),
    Cluster(for<'a> fn(&Index<'a>, &mut Vec<Finding>)),
}

const RULES: &[Rule] = &[
    Rule::Volume(tickets::abandoned),
    Rule::Volume(tickets::conflicting),
    Rule::Volume(tickets::incompatible),
    Rule::Volume(tickets::dead_migration),
    Rule::Volume(tickets::unusable),
    Rule::Cluster(finalizers::stuck),
    Rule::Volume(attachments::attached_in_kubernetes_only),
    Rule::Volume(attachments::attached_in_engine_only),
    Rule::Volume(attachments::waits_for_dead_node),
    Rule::Cluster(attachments::stale_annotations),
    Rule::Cluster(attachments::full_nodes),
    Rule::Volume(engines::two_engines),
    Rule::Volume(engines::salvageable),
    Rule::Volume(engines::no_schedulable_disk),
    Rule::Volume(engines::held),
    Rule::Cluster(nodes::left_over),
    Rule::Cluster(nodes::agents),
    Rule::Cluster(nodes::manager),
    Rule::Cluster(nodes::versions),
    Rule::Cluster(nodes::flapping),
    Rule::Cluster(nodes::skewed_clocks),
];

/// Everything that is wrong, the worst first.
#[must_use]
pub fn examine(index: &Index<'_>, scope: &Scope) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in RULES {
        if let Rule::Cluster(rule) = rule {
            rule(index, &mut findings);
        }
    }
    for name in index.volume_names().filter(|name| scope.has_volume(name)) {
        let Some(case) = index.case(name) else {
            continue;
        };
        for rule in RULES {
            if let Rule::Volume(rule) = rule {
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
