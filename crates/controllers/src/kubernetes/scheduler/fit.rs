//! Where a pod can go, and why not elsewhere: pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cluster_core::UniqueVolumeName;
use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};
use kube::ResourceExt as _;

/// A node and what it has.
#[derive(Clone)]
pub(super) struct Candidate<'a> {
    pub node: &'a Node,
    /// Pods that are there or on their way.
    pub pods: usize,
    pub volumes: BTreeSet<UniqueVolumeName>,
    /// By driver, where there is a limit.
    pub volumes_max: BTreeMap<String, u32>,
}

/// What a pod brings along.
#[derive(Clone, Default)]
pub(super) struct Luggage {
    pub volumes: Vec<Volume>,
    /// Drivers of volumes that are made only when the node is known, once for each volume.
    pub unmade: Vec<String>,
    /// A node that was selected for such a volume before.
    pub selected: Option<String>,
}

#[derive(Clone)]
pub(super) struct Volume {
    pub name: UniqueVolumeName,
    /// Where it can be used; anywhere if there are no terms.
    pub terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    NotReady,
    Cordoned,
    Taint(String),
    Affinity,
    VolumeElsewhere(String),
    VolumeSelected(String),
    Full {
        driver: String,
        volumes: usize,
        volumes_max: u32,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotReady => f.write_str("it is not ready"),
            Obstacle::Cordoned => f.write_str("it is cordoned (kubectl uncordon)"),
            Obstacle::Taint(taint) => write!(f, "the pod does not tolerate its taint {taint}"),
            Obstacle::Affinity => {
                f.write_str("it does not match the pod's node selector or affinity")
            }
            Obstacle::VolumeElsewhere(volume) => write!(f, "volume {volume} cannot be used there"),
            Obstacle::VolumeSelected(node) => {
                write!(f, "a volume of the pod is being made for node {node}")
            }
            Obstacle::Full {
                driver,
                volumes,
                volumes_max,
            } => write!(
                f,
                "it would have {volumes} volumes of {driver}, and {volumes_max} are allowed"
            ),
        }
    }
}

/// Why a pod cannot go anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NowhereToGo {
    pub obstacles: Vec<(String, Obstacle)>,
}

impl fmt::Display for NowhereToGo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.obstacles.is_empty() {
            return f.write_str("0/0 nodes are available: there are no nodes");
        }
        write!(f, "0/{} nodes are available: ", self.obstacles.len())?;
        for (index, (node, obstacle)) in self.obstacles.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{node}: {obstacle}")?;
        }
        Ok(())
    }
}

/// The node with the fewest pods of those where the pod can go.
pub(super) fn place(
    pod: &Pod,
    luggage: &Luggage,
    candidates: &[Candidate<'_>],
) -> Result<String, NowhereToGo> {
    let mut obstacles = Vec::new();
    let mut best: Option<(usize, String)> = None;
    for candidate in candidates {
        let name = candidate.node.name_any();
        match obstacle(pod, luggage, candidate) {
            Some(obstacle) => obstacles.push((name, obstacle)),
            None => {
                let rank = (candidate.pods, name);
                if best.as_ref().is_none_or(|best| rank < *best) {
                    best = Some(rank);
                }
            }
        }
    }
    best.map(|(_, name)| name).ok_or(NowhereToGo { obstacles })
}

fn obstacle(pod: &Pod, luggage: &Luggage, candidate: &Candidate<'_>) -> Option<Obstacle> {
    let node = candidate.node;
    let name = node.name_any();
    if node.metadata.deletion_timestamp.is_some() || !cluster_core::wire::node(node).ready {
        return Some(Obstacle::NotReady);
    }
    let spec = node.spec.as_ref();
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default();
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    if spec.is_some_and(|spec| spec.unschedulable == Some(true))
        && !is_tolerated(&cordon, tolerations)
    {
        return Some(Obstacle::Cordoned);
    }
    let taints = spec
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let bad = taints.iter().find(|taint| {
        matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            && !is_tolerated(taint, tolerations)
    });
    if let Some(taint) = bad {
        return Some(Obstacle::Taint(format!("{}:{}", taint.key, taint.effect)));
    }
    if !matches_pod(pod, node) {
        return Some(Obstacle::Affinity);
    }
    if let Some(selected) = luggage.selected.as_ref().filter(|other| **other != name) {
        return Some(Obstacle::VolumeSelected(selected.clone()));
    }
    let elsewhere = luggage
        .volumes
        .iter()
        .find(|volume| !volume.terms.is_empty() && !matches_any(&volume.terms, node));
    if let Some(volume) = elsewhere {
        return Some(Obstacle::VolumeElsewhere(volume.name.handle.to_string()));
    }
    full(luggage, candidate)
}

fn full(luggage: &Luggage, candidate: &Candidate<'_>) -> Option<Obstacle> {
    candidate.volumes_max.iter().find_map(|(driver, max)| {
        let mut volumes: BTreeSet<&UniqueVolumeName> = candidate
            .volumes
            .iter()
            .filter(|volume| volume.driver.as_str() == driver)
            .collect();
        let before = volumes.len();
        volumes.extend(
            luggage
                .volumes
                .iter()
                .map(|volume| &volume.name)
                .filter(|volume| volume.driver.as_str() == driver),
        );
        let unmade = luggage.unmade.iter().filter(|other| *other == driver);
        let after = volumes.len() + unmade.count();
        // A node that is too full already can still take a pod that brings nothing new.
        (after > before && after > usize::try_from(*max).unwrap_or(usize::MAX)).then(|| {
            Obstacle::Full {
                driver: driver.clone(),
                volumes: after,
                volumes_max: *max,
            }
        })
    })
}

fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let key = toleration.key.as_deref().unwrap_or_default();
        let exists = toleration.operator.as_deref() == Some("Exists");
        (effect.is_empty() || effect == taint.effect)
            && (key == taint.key || (key.is_empty() && exists))
            && (exists
                || toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default())
    })
}

fn matches_pod(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let labels = node.labels();
    let selector = spec.node_selector.iter().flatten();
    let is_selected = selector
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    is_selected && required.is_none_or(|required| matches_any(&required.node_selector_terms, node))
}

fn matches_any(terms: &[NodeSelectorTerm], node: &Node) -> bool {
    terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let name = node.name_any();
        // A term without requirements matches nothing.
        (!expressions.is_empty() || !fields.is_empty())
            && expressions
                .iter()
                .all(|rule| matches(rule, node.labels().get(&rule.key)))
            && fields
                .iter()
                .all(|rule| rule.key == "metadata.name" && matches(rule, Some(&name)))
    })
}

fn matches(rule: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = rule.values.as_deref().unwrap_or_default();
    let compare = |wanted: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse().ok());
        let actual = value.and_then(|value| value.parse().ok());
        matches!((actual, bound), (Some(actual), Some(bound)) if wanted(actual, bound))
    };
    match rule.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|actual, bound| actual > bound),
        "Lt" => compare(|actual, bound| actual < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
