//! `lariat disk remove`: what keeps a disk, and what is given up with a dead one.

use std::collections::BTreeSet;

use anyhow::Result;
use api_types::{ConditionStatus, Node, Replica, condition, disk_condition, node_condition};
use clap::Args;
use kube::ResourceExt;
use serde_json::Value;

use super::change::{named, patch, replicas_on, with_disk};
use crate::client::ApiArguments;
use crate::complete;
use crate::exit::Failure;
use crate::inventory::Inventory;
use crate::output::tell;
use crate::volume::attach::count;

#[derive(Args)]
pub(crate) struct RemoveArguments {
    #[arg(add = complete::nodes())]
    pub node: String,
    #[arg(add = complete::disks())]
    pub disk: String,
    /// It cannot be read and will not come back: take it also with replicas on it, which are given up
    #[arg(long)]
    pub dead: bool,
    #[command(flatten)]
    pub api: ApiArguments,
}

pub(crate) async fn remove(arguments: RemoveArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let inventory = Inventory::of_volumes(&client).await?;
    let (node, disk) = (&arguments.node, &arguments.disk);
    let object = with_disk(&inventory, node, disk)?;
    let replicas = replicas_on(&inventory, object, disk);
    if let Some(refusal) = keeps(&inventory, object, disk, &replicas, arguments.dead) {
        return Err(refusal);
    }
    let last_of = last_of(&inventory, &replicas);
    patch(&client, node, disk, &Value::Null).await?;
    if replicas.is_empty() {
        tell!("{}", removed(node, disk));
    } else {
        tell!("{}", given_up(node, disk, &replicas, &last_of));
    }
    Ok(())
}

pub(super) fn removed(node: &str, disk: &str) -> String {
    format!("disk {disk} is removed from node {node}; what is in its folder was left alone")
}

pub(super) fn given_up(
    node: &str,
    disk: &str,
    replicas: &BTreeSet<String>,
    last_of: &[String],
) -> String {
    let mut said = format!(
        "disk {disk} is removed from node {node} and given up with {} ({}): those that were deleted go now, others when \
         their volumes have another",
        count(replicas.len(), "replica"),
        named(replicas)
    );
    if !last_of.is_empty() {
        said += &format!(
            "; no other copy can be used now of {}: mount the disk and add it again if that is possible",
            last_of.join(", ")
        );
    }
    said + "; until they are gone, a new disk in its place wants another name"
}

/// What is wrong with a disk, by its node's last report.
fn trouble<'a>(node: &'a Node, disk: &str) -> Option<&'a str> {
    let status = node.status.as_ref()?.disk_status.get(disk)?;
    let ready = condition::find(&status.conditions, disk_condition::READY)?;
    (ready.status != ConditionStatus::True).then_some(ready.message.as_str())
}

/// Volumes with a replica on this disk of which no copy that can be used now is known elsewhere.
fn last_of(inventory: &Inventory, on_disk: &BTreeSet<String>) -> Vec<String> {
    let volumes: BTreeSet<&str> = inventory
        .replicas
        .iter()
        .filter(|replica| on_disk.contains(&replica.name_any()) && !is_ending(replica))
        .map(|replica| replica.spec.volume_name.as_str())
        .collect();
    let has_other = |name: &str| {
        let status = inventory
            .volume(name)
            .and_then(|volume| volume.status.as_ref());
        let members = status.map_or(&[][..], |status| &status.in_sync_replicas);
        inventory.replicas_of(name).any(|replica| {
            let replica_name = replica.name_any();
            members.contains(&replica_name)
                && !on_disk.contains(&replica_name)
                && !is_ending(replica)
                && replica.spec.failed_at.is_empty()
                && is_on_ready_disk(inventory, replica)
        })
    };
    volumes
        .into_iter()
        .filter(|volume| !has_other(volume))
        .map(|volume| format!("volume {volume}"))
        .collect()
}

/// What a node that does not answer said last of its disks is no news.
fn is_on_ready_disk(inventory: &Inventory, replica: &Replica) -> bool {
    let node = inventory.node(&replica.spec.node_id).ok();
    let Some(status) = node.and_then(|node| node.status.as_ref()) else {
        return false;
    };
    condition::is_true(&status.conditions, node_condition::READY)
        && status.disk_status.values().any(|disk| {
            disk.disk_uuid == replica.spec.disk_id
                && condition::is_true(&disk.conditions, disk_condition::READY)
        })
}

fn is_ending(replica: &Replica) -> bool {
    replica.metadata.deletion_timestamp.is_some()
}

/// Why a disk with these replicas on it is not taken from its node, if it is not.
pub(super) fn keeps(
    inventory: &Inventory,
    node: &Node,
    disk: &str,
    replicas: &BTreeSet<String>,
    is_dead: bool,
) -> Option<anyhow::Error> {
    if replicas.is_empty() {
        return None;
    }
    let name = node.name_any();
    let refuse = |to_do: &str| Some(not_removed(&name, disk, replicas, to_do));
    let evict = format!("`lariat disk evict {name} {disk}`");
    match (
        is_dead,
        trouble(node, disk),
        only_ending(inventory, replicas),
    ) {
        (true, Some(_), _) => None,
        // A disk that can be read and not written to lets nothing be deleted.
        (true, None, true) => None,
        (false, None, true) => refuse(
            "what was deleted goes as soon as the disk lets it; if it never does, give it up with --dead",
        ),
        (_, None, false) => refuse(&format!("move them away with {evict}")),
        (false, Some(why), true) => refuse(&format!(
            "it cannot be read ({why}): mount it again, or if it is dead, give them up with --dead"
        )),
        (false, Some(why), false) => refuse(&format!(
            "it cannot be read ({why}): have others made in their place with {evict}, mount it again, or if it is dead, give them \
             up with --dead"
        )),
    }
}

/// Whether each of them is known to be deleted. What a node reports may be of before, or of a Replica that is not there yet.
fn only_ending(inventory: &Inventory, replicas: &BTreeSet<String>) -> bool {
    let ending: BTreeSet<String> = inventory
        .replicas
        .iter()
        .filter(|replica| is_ending(replica))
        .map(ResourceExt::name_any)
        .collect();
    replicas.is_subset(&ending)
}

fn not_removed(node: &str, disk: &str, replicas: &BTreeSet<String>, to_do: &str) -> anyhow::Error {
    Failure::refused(format!(
        "disk {disk} of node {node} is not removed: {} on it ({}); {to_do}",
        if replicas.len() == 1 {
            "1 replica is".to_owned()
        } else {
            format!("{} replicas are", replicas.len())
        },
        named(replicas)
    ))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::exit;
    use crate::inventory::sample;
    use crate::output::golden;

    fn set_ready(conditions: &mut Vec<api_types::Condition>, ready: bool, message: &str) {
        let (kind, status) = (disk_condition::READY, ConditionStatus::from(ready));
        condition::set(conditions, kind, status, "", message, "");
    }

    fn set_disk_ready(node: &mut Node, ready: bool, message: &str) {
        let status = node.status.as_mut().expect("a status");
        set_ready(&mut status.conditions, true, "");
        let disk = status.disk_status.get_mut("default").expect("a disk");
        set_ready(&mut disk.conditions, ready, message);
    }

    #[test]
    fn a_disk_with_replicas_is_given_up_only_when_it_is_dead() {
        let mut inventory = sample::cluster();
        let on_disk = replicas_on(&inventory, &inventory.nodes[1], "default");
        let check = |inventory: &Inventory, is_dead: bool, expected: Option<&str>| {
            let said = keeps(inventory, &inventory.nodes[1], "default", &on_disk, is_dead);
            match (said.map(|said| said.to_string()), expected) {
                (None, None) => {}
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                (said, _) => panic!("{said:?} {expected:?}"),
            }
        };
        check(&inventory, false, Some("lariat disk evict"));
        check(&inventory, true, Some("lariat disk evict"));
        // What is deleted and cannot go needs no other place.
        let mut ending = inventory.clone();
        for replica in &mut ending.replicas {
            replica.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        }
        check(
            &ending,
            false,
            Some("if it never does, give it up with --dead"),
        );
        check(&ending, true, None);
        assert_eq!(last_of(&ending, &on_disk), [""; 0]);
        // Of a name without an object nobody knows that.
        let mut unknown = ending.clone();
        unknown.replicas.remove(0);
        check(&unknown, false, Some("lariat disk evict"));
        check(&unknown, true, Some("lariat disk evict"));
        for inventory in [&mut inventory, &mut ending] {
            set_disk_ready(&mut inventory.nodes[1], false, "it is gone");
        }
        check(
            &inventory,
            false,
            Some("(it is gone): have others made in their place with `lariat disk evict"),
        );
        check(&inventory, true, None);
        check(&ending, false, Some("(it is gone): mount it again"));
        check(&ending, true, None);
    }

    #[test]
    fn what_keeps_a_disk_is_said_with_what_to_do() {
        let healthy = sample::cluster();
        let on_disk = replicas_on(&healthy, &healthy.nodes[1], "default");
        let mut ending = healthy.clone();
        for replica in &mut ending.replicas {
            replica.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        }
        let mut page = String::new();
        for (state, inventory) in [("in use", &healthy), ("deleted", &ending)] {
            for trouble in [None, Some("/srv/fast is not mounted")] {
                let mut inventory = inventory.clone();
                set_disk_ready(
                    &mut inventory.nodes[1],
                    trouble.is_none(),
                    trouble.unwrap_or(""),
                );
                for is_dead in [false, true] {
                    let dead = if is_dead { ", --dead" } else { "" };
                    let disk = if trouble.is_some() { "broken" } else { "sound" };
                    page += &format!("# replicas {state}, disk {disk}{dead}\n");
                    let node = &inventory.nodes[1];
                    page += &match keeps(&inventory, node, "default", &on_disk, is_dead) {
                        Some(refusal) => exit::told(&refusal) + "\n",
                        None => {
                            let last_of = last_of(&inventory, &on_disk);
                            given_up("node-2", "default", &on_disk, &last_of) + "\n"
                        }
                    };
                }
            }
        }
        golden::check("disk-remove", &page);
    }

    #[test]
    fn what_is_given_up_is_the_last_unless_another_copy_can_be_used() {
        let sample = sample::cluster();
        let on_disk = replicas_on(&sample, &sample.nodes[1], "default");
        // Whether the volume's third replica, on node-3, counts as another copy.
        let check = |edit: fn(&mut Inventory), expected: bool| {
            let mut inventory = sample.clone();
            set_disk_ready(&mut inventory.nodes[2], true, "");
            edit(&mut inventory);
            let last_of = last_of(&inventory, &on_disk);
            let (mut last, others) = last_of.split_at(last_of.len() - 2);
            assert_eq!(others, ["volume pvc-22222222", "volume scratch"]);
            if expected {
                assert_eq!(last, ["volume pvc-11111111"]);
                last = &[];
            }
            assert_eq!(last, [""; 0]);
        };
        check(|_| {}, false);
        check(
            |inventory| set_disk_ready(&mut inventory.nodes[2], false, "it is gone"),
            true,
        );
        check(
            |inventory| {
                let status = inventory.nodes[2].status.as_mut().expect("a status");
                set_ready(&mut status.conditions, false, "its agent is silent");
            },
            true,
        );
        check(
            |inventory| inventory.replicas[2].spec.failed_at = "2026-03-01T11:00:00Z".to_owned(),
            true,
        );
        check(
            |inventory| {
                let deleted = Some(Time(jiff::Timestamp::UNIX_EPOCH));
                inventory.replicas[2].metadata.deletion_timestamp = deleted;
            },
            true,
        );
        check(
            |inventory| {
                let status = inventory.volumes[0].status.as_mut().expect("a status");
                status.in_sync_replicas.pop();
            },
            true,
        );
    }
}
