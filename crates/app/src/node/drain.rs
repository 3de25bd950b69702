//! `lariat node drain-plan`: what stands in the way of emptying a node, and in which order to clear it. Pure.

mod replicas;

use std::collections::BTreeSet;

use api_types::{DataLocality, Volume};
use attach_core::{AttacherKind, wire};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::exit::Failure;
use crate::inventory::Inventory;
use crate::output::human::age;
use crate::output::{Cell, Column, Row, Tone};
use crate::volume::attach::count;

/// How much an obstacle matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Weight {
    /// Data would be out of reach, or the drain would not end.
    Blocks,
    /// It ends by itself, if one waits.
    Wait,
    /// It works, and costs something.
    Warns,
    /// To be done in its turn.
    Do,
}

/// One thing to do, in the order in which they are to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    pub step: usize,
    pub weight: Weight,
    /// What kind of obstacle, as one word for programs.
    pub code: &'static str,
    /// The volume or pod that it is about.
    pub about: String,
    pub what: String,
    /// What a person can do about it.
    pub todo: String,
}

impl Row for Step {
    const COLUMNS: &'static [Column] = &[
        Column::new("STEP"),
        Column::new("WEIGHT"),
        Column::new("ABOUT").shrinks(),
        Column::new("WHAT").shrinks(),
        Column::new("CODE").wide(),
        Column::new("TO DO").flows(),
    ];
    const NONE: &'static str = "Nothing is on this node.";

    fn name(&self) -> String {
        format!("{}/{}", self.code, self.about)
    }

    fn cells(&self, _: Timestamp) -> Vec<Cell> {
        let (word, tone) = match self.weight {
            Weight::Blocks => ("blocks", Tone::Bad),
            Weight::Wait => ("wait", Tone::Busy),
            Weight::Warns => ("warns", Tone::Busy),
            Weight::Do => ("do", Tone::Plain),
        };
        vec![
            Cell::new(self.step.to_string()),
            Cell::toned(word, tone),
            Cell::new(&self.about),
            Cell::new(&self.what),
            Cell::new(self.code),
            Cell::new(&self.todo),
        ]
    }
}

/// Everything to do until the node is empty. The last step is the drain itself.
pub(crate) fn plan(inventory: &Inventory, node: &str, now: Timestamp) -> Vec<Step> {
    let mut steps = Vec::new();
    cordon(inventory, node, now, &mut steps);
    migrations(inventory, node, &mut steps);
    tickets(inventory, node, now, &mut steps);
    replicas::steps(inventory, node, &mut steps);
    pods(inventory, node, &mut steps);
    // Within a subject the weight decides; subjects stay in the order above, which is the order to resolve them in.
    let blocked = steps.iter().any(|step| step.weight == Weight::Blocks);
    steps.push(Step {
        step: 0,
        weight: Weight::Do,
        code: "drain",
        about: node.to_owned(),
        what: if blocked {
            "when nothing blocks any more, everything left moves by itself".to_owned()
        } else {
            "nothing blocks: everything left moves by itself".to_owned()
        },
        todo: format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"),
    });
    for (index, step) in steps.iter_mut().enumerate() {
        step.step = index + 1;
    }
    steps
}

/// Why the node cannot be drained as it is, if it cannot. Said below the plan.
pub(crate) fn blocked(node: &str, steps: &[Step]) -> Option<anyhow::Error> {
    let blocking = steps.iter().filter(|step| step.weight == Weight::Blocks);
    let blocking = blocking.count();
    (blocking > 0).then(|| {
        Failure::refused(format!(
            "a drain of node {node} is blocked by {}: see above",
            count(blocking, "thing")
        ))
    })
}

fn step(weight: Weight, code: &'static str, about: &str, what: String, todo: String) -> Step {
    Step {
        step: 0,
        weight,
        code,
        about: about.to_owned(),
        what,
        todo,
    }
}

/// First nothing new may come.
fn cordon(inventory: &Inventory, node: &str, now: Timestamp, steps: &mut Vec<Step>) {
    let Some(object) = inventory
        .nodes
        .iter()
        .find(|object| object.name_any() == node)
    else {
        return;
    };
    let seen = wire::node(object);
    if !seen.cordoned {
        let what = "new pods and replicas may still come to the node";
        steps.push(step(
            Weight::Do,
            "cordon",
            node,
            what.to_owned(),
            format!("lariat node cordon {node}"),
        ));
    }
    if !seen.ready {
        let status = object.status.clone().unwrap_or_default();
        let found =
            api_types::condition::find(&status.conditions, api_types::node_condition::READY);
        let since = found.and_then(|found| found.last_transition_time.parse().ok());
        steps.push(step(
            Weight::Blocks,
            "node-lost",
            node,
            format!("its agent has not answered for {}: it can neither stop engines nor give up replicas", age(since, now)),
            format!("bring node {node} back, or treat it as lost: its volumes are fenced and move without a drain"),
        ));
    }
}

/// A volume between two nodes must arrive first.
fn migrations(inventory: &Inventory, node: &str, steps: &mut Vec<Step>) {
    for volume in &inventory.volumes {
        let status = volume.status.clone().unwrap_or_default();
        let target = [
            &volume.spec.migration_node_id,
            &status.current_migration_node_id,
        ]
        .into_iter()
        .find(|target| !target.is_empty());
        let Some(target) = target else { continue };
        if target == node || volume.spec.node_id == node || status.current_node_id == node {
            let from = [&status.current_node_id, &volume.spec.node_id]
                .into_iter()
                .find(|from| !from.is_empty());
            let from = from.map_or_else(String::new, |from| format!(" from node {from}"));
            steps.push(step(
                Weight::Wait,
                "migration",
                &volume.name_any(),
                format!("migrates{from} to node {target}"),
                format!("let it end: lariat volume show {}", volume.name_any()),
            ));
        }
    }
}

/// Whoever else holds a volume on the node: people never leave by themselves, jobs do.
fn tickets(inventory: &Inventory, node: &str, now: Timestamp, steps: &mut Vec<Step>) {
    for attachment in &inventory.attachments {
        let volume = attachment.name_any();
        for ticket in wire::tickets(attachment).values() {
            if ticket.node.as_str() != node {
                continue;
            }
            match ticket.attacher.kind() {
                Some(AttacherKind::Csi) => {}
                Some(AttacherKind::Manual) => {
                    let by = ticket
                        .lease
                        .owner
                        .as_ref()
                        .map(|owner| owner.name.to_string());
                    let by = by.unwrap_or_else(|| ticket.last_attached_by.to_string());
                    let by = if by.is_empty() {
                        "somebody".to_owned()
                    } else {
                        by
                    };
                    let until = ticket.lease.deadline.filter(|deadline| *deadline > now);
                    let until = until.map_or_else(
                        || "without a deadline".to_owned(),
                        |deadline| format!("until {}", deadline.strftime("%Y-%m-%d %H:%M UTC")),
                    );
                    steps.push(step(
                        Weight::Blocks,
                        "manual-ticket",
                        &volume,
                        format!("{by} attached it to this node by hand, {until}"),
                        format!("lariat volume detach {volume} --node {node}"),
                    ));
                }
                Some(AttacherKind::ShareManager) => steps.push(step(
                    Weight::Wait,
                    "share-manager",
                    &volume,
                    "its share is served from this node".to_owned(),
                    "it moves with the drain; clients pause until the share is served elsewhere"
                        .to_owned(),
                )),
                Some(kind) => steps.push(step(
                    Weight::Wait,
                    "job",
                    &volume,
                    format!("{} works on it on this node", kind.wire()),
                    format!("let it end: lariat ticket show {volume} {}", ticket.id),
                )),
                None => steps.push(step(
                    Weight::Blocks,
                    "unknown-ticket",
                    &volume,
                    format!(
                        "{ticket} is of a type that is not known here, and is never interrupted"
                    ),
                    format!(
                        "ask whoever filed it: lariat ticket show {volume} {}",
                        ticket.id
                    ),
                )),
            }
        }
    }
}

/// Pods move with the drain, if something makes them anew.
fn pods(inventory: &Inventory, node: &str, steps: &mut Vec<Step>) {
    for pod in &inventory.pods {
        let Some(spec) = pod
            .spec
            .as_ref()
            .filter(|spec| spec.node_name.as_deref() == Some(node))
        else {
            continue;
        };
        let volumes = claimed(inventory, pod);
        if volumes.is_empty() {
            continue;
        }
        debug_assert!(spec.volumes.is_some());
        let about = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let owner = pod.owner_references().first();
        let strict = volumes
            .iter()
            .find(|volume| volume.spec.data_locality == DataLocality::StrictLocal);
        let names: Vec<String> = volumes.iter().map(|volume| volume.name_any()).collect();
        let uses = format!("uses {}", names.join(", "));
        if let Some(volume) = strict {
            steps.push(step(
                Weight::Blocks,
                "strict-local",
                &about,
                format!(
                    "{uses}; {} is strict-local and cannot be attached elsewhere",
                    volume.name_any()
                ),
                "stop the pod, or change the volume's dataLocality once it is detached".to_owned(),
            ));
        } else if let Some(owner) = owner {
            steps.push(step(
                Weight::Do,
                "pod",
                &about,
                format!(
                    "{uses}; {} {} starts it anew elsewhere",
                    owner.kind, owner.name
                ),
                "nothing: it moves with the drain".to_owned(),
            ));
        } else {
            steps.push(step(
                Weight::Warns,
                "bare-pod",
                &about,
                format!("{uses}; nothing starts it anew"),
                "start it yourself on another node; kubectl drain needs --force for it".to_owned(),
            ));
        }
    }
}

/// The volumes that a pod uses.
fn claimed<'a>(inventory: &'a Inventory, pod: &k8s_openapi::api::core::v1::Pod) -> Vec<&'a Volume> {
    let namespace = pod.namespace();
    let claims: BTreeSet<&str> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
        .collect();
    let names: BTreeSet<String> = inventory
        .persistent_volumes
        .iter()
        .filter(|persistent| {
            let claim = persistent
                .spec
                .as_ref()
                .and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| {
                claim.namespace == namespace
                    && claim
                        .name
                        .as_deref()
                        .is_some_and(|name| claims.contains(name))
            })
        })
        .map(ResourceExt::name_any)
        .collect();
    let volumes = inventory.volumes.iter();
    volumes
        .filter(|volume| names.contains(&volume.name_any()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::replicas::tests::{codes, eviction_first, volume};
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Screen, golden, list};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("a sound object")
    }

    /// A node that is lost, with a volume that is on its way to another one and wanted by everybody.
    fn contended() -> Inventory {
        let mut inventory = volume(3, true, 2);
        inventory.nodes[0] = read(sample::node("node-1", false, false));
        inventory.volumes[0].spec.node_id = "node-1".to_owned();
        inventory.volumes[0].spec.migration_node_id = "node-2".to_owned();
        let ticket = |id: &str, kind: &str, node: &str| sample::ticket(id, kind, node, &json!({}));
        inventory.attachments = vec![read(sample::attachment(
            "v",
            &[
                ticket("a", "longhorn-api", "node-1"),
                ticket("b", "backup-controller", "node-1"),
                ticket("c", "csi-attacher", "node-1"),
                ticket("d", "longhorn-api", "node-2"),
                ticket("e", "teleport", "node-1"),
                ticket("f", "share-manager-controller", "node-1"),
            ],
            &[],
        ))];
        inventory
    }

    #[test]
    fn tickets_migrations_and_lost_nodes_come_in_their_order() {
        assert_eq!(
            codes(&contended(), "node-1"),
            "do:cordon:node-1 blocks:node-lost:node-1 wait:migration:v blocks:manual-ticket:v wait:job:v \
             blocks:unknown-ticket:v wait:share-manager:v warns:degraded:v do:drain:node-1"
        );
    }

    /// A volume with three pods, one of which nothing starts anew, and one of which is on another node.
    fn used() -> Inventory {
        let mut inventory = volume(2, true, 2);
        inventory.persistent_volumes = vec![read(json!({
            "metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "default", "name": "data"}},
        }))];
        let pod = |name: &str, node: &str, owner: Value| {
            read(json!({
                "metadata": {"name": name, "namespace": "default", "ownerReferences": owner},
                "spec": {"nodeName": node, "containers": [], "volumes": [
                    {"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
            }))
        };
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u"}]);
        inventory.pods = vec![
            pod("db-0", "node-1", owner),
            pod("lonely", "node-1", json!([])),
            pod("away", "node-2", json!([])),
        ];
        inventory
    }

    #[test]
    fn pods_move_if_something_starts_them_anew() {
        let mut inventory = used();
        assert_eq!(
            codes(&inventory, "node-1"),
            "do:pod:default/db-0 warns:bare-pod:default/lonely do:drain:node-1"
        );
        inventory.volumes[0].spec.data_locality = DataLocality::StrictLocal;
        assert_eq!(
            codes(&inventory, "node-1"),
            "blocks:strict-local:default/db-0 blocks:strict-local:default/lonely do:drain:node-1"
        );
    }

    #[test]
    fn what_blocks_a_drain_is_said_with_what_to_do() {
        let mut strict = used();
        strict.volumes[0].spec.data_locality = DataLocality::StrictLocal;
        let mut alone = volume(3, true, 1);
        alone.nodes[1] = read(sample::node("node-2", false, false));
        let mut page = String::new();
        for (about, inventory) in [
            (
                "a lost node, a migration, tickets of every kind",
                contended(),
            ),
            ("pods", used()),
            ("pods of a strict-local volume", strict),
            ("every replica is to be moved away first", eviction_first()),
            ("no other replica can be used", alone),
        ] {
            let steps = plan(&inventory, "node-1", sample::now());
            page += &format!("# {about}\n");
            page += &list(&steps, None, Screen::default(), sample::now()).unwrap();
            if let Some(refusal) = blocked("node-1", &steps) {
                page += &format!("{}\n", crate::exit::told(&refusal));
            }
        }
        golden::check("node-drain-obstacles", &page);
    }

    #[test]
    fn a_plan_reads_well() {
        let inventory = sample::cluster();
        let mut page = String::new();
        for node in ["node-1", "node-2", "node-3"] {
            let steps = plan(&inventory, node, sample::now());
            page += &format!("# {node}\n");
            page += &list(&steps, None, Screen::default(), sample::now()).unwrap();
        }
        golden::check("node-drain-plan", &page);
    }
}
