//! `lariat disk add` and `evict`: what a node's disks should be.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use api_types::{ConditionStatus, Node, condition, disk_condition};
use clap::Args;
use futures::{StreamExt as _, stream};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::client::ApiArguments;
use crate::exit::{Failure, Outcome};
use crate::inventory::{Inventory, api_error, inside};
use crate::output::human::{parse_lasting, parse_size};
use crate::output::{tell, watch};
use crate::volume::attach::count;
use crate::{complete, suggest};

/// More names would not fit a line.
const NAMES_SHOWN: usize = 3;

#[derive(Args)]
pub(crate) struct AddArguments {
    #[arg(add = complete::nodes())]
    pub node: String,
    /// What to call it
    pub disk: String,
    /// The folder on the node that replicas are put into
    pub path: String,
    /// How much of it replicas must leave free
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub reserve: i64,
    /// What volumes can ask for in their disk selector
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub tags: Vec<String>,
    /// How long to wait until the node's agent has taken it
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_lasting)]
    pub timeout: Duration,
    #[command(flatten)]
    pub api: ApiArguments,
}

#[derive(Args)]
pub(crate) struct EvictArguments {
    #[arg(add = complete::nodes())]
    pub node: String,
    #[arg(add = complete::disks())]
    pub disk: String,
    /// Let replicas stay and come again
    #[arg(long)]
    pub cancel: bool,
    /// Do not wait until the disk is empty
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait for that
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_lasting)]
    pub timeout: Duration,
    #[command(flatten)]
    pub api: ApiArguments,
}

/// Why this disk cannot be added, if it cannot.
fn objection(node: &Node, disk: &str, path: &str) -> Option<String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if disk.is_empty() || disk.len() > 63 || !disk.chars().all(fits) {
        return Some(format!(
            "{disk:?} cannot be a disk's name: use at most 63 letters, digits and -_."
        ));
    }
    let parts_are_plain = !Path::new(path)
        .components()
        .any(|part| part.as_os_str() == "..");
    if !Path::new(path).is_absolute() || !parts_are_plain {
        return Some(format!(
            "{path:?} is not an absolute path on the node; give one that begins with / and has no .. in it"
        ));
    }
    if let Some(known) = node.spec.disks.get(disk) {
        return Some(format!(
            "node {} has a disk {disk} already, in {}; choose another name",
            node.name_any(),
            known.path
        ));
    }
    let trimmed = path.trim_end_matches('/');
    let other = node.spec.disks.iter().find(|(_, known)| {
        let known = known.path.trim_end_matches('/');
        known == trimmed
            || trimmed.starts_with(&format!("{known}/"))
            || known.starts_with(&format!("{trimmed}/"))
    });
    other.map(|(name, known)| {
        format!(
            "{path} and {}, which is disk {name}, are the same place or inside each other; choose another folder",
            known.path
        )
    })
}

pub(crate) async fn add(arguments: AddArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let inventory = Inventory::of_volumes(&client).await?;
    let node = inventory.node(&arguments.node)?;
    let (name, disk) = (&arguments.node, &arguments.disk);
    if let Some(refusal) = not_added(node, disk, &arguments.path) {
        return Err(refusal);
    }
    let spec = json!({
        "diskType": "filesystem", "path": arguments.path, "allowScheduling": true, "evictionRequested": false,
        "storageReserved": arguments.reserve, "tags": arguments.tags,
    });
    patch(&client, name, disk, &spec).await?;
    tell!("{}", added(name, disk, &arguments.path));
    let mut changes = watch::changes::<Node>(inside(&client));
    let deadline = Instant::now() + arguments.timeout;
    loop {
        let inventory = Inventory::of_volumes(&client).await?;
        let node = inventory.node(name)?;
        if let Some(judged) = judged(node, disk) {
            tell!("{}", judged?);
            return Ok(());
        }
        if timeout_at(deadline, changes.next()).await.is_err() {
            return Err(not_looked_at(name, disk, arguments.timeout));
        }
    }
}

fn not_added(node: &Node, disk: &str, path: &str) -> Option<anyhow::Error> {
    let objection = objection(node, disk, path)?;
    let name = node.name_any();
    Some(anyhow!(
        "disk {disk} is not added to node {name}: {objection}"
    ))
}

/// What the node's agent says of a disk, once it has looked at it.
fn judged(node: &Node, disk: &str) -> Option<Result<&'static str>> {
    let status = node.status.as_ref()?.disk_status.get(disk)?;
    let ready = condition::find(&status.conditions, disk_condition::READY)?;
    if ready.status == ConditionStatus::True {
        return Some(Ok("it is ready"));
    }
    let name = node.name_any();
    let message = format!(
        "node {name} does not serve disk {disk}: {}; it goes on looking, or {}",
        ready.message,
        undo(&name, disk)
    );
    Some(Err(Failure::new(Outcome::Unfinished, message).into()))
}

fn not_looked_at(node: &str, disk: &str, patience: Duration) -> anyhow::Error {
    let message = format!(
        "node {node} has not looked at disk {disk} after {} s: does its agent run? See `lariat node show {node}`; {}",
        patience.as_secs(),
        undo(node, disk)
    );
    Failure::new(Outcome::Unfinished, message).into()
}

fn undo(node: &str, disk: &str) -> String {
    format!("undo this with `lariat disk remove {node} {disk}`")
}

fn added(node: &str, disk: &str, path: &str) -> String {
    format!("disk {disk} in {path} is added to node {node}")
}

fn kept(node: &str, disk: &str) -> String {
    format!("disk {disk} of node {node} keeps its replicas, and gets new ones")
}

fn asked_to_leave(node: &str, disk: &str) -> String {
    format!("disk {disk} of node {node} gets no new replicas, and those on it are asked to leave")
}

fn emptied(node: &str, disk: &str) -> String {
    format!("disk {disk} of node {node} is empty; remove it with: lariat disk remove {node} {disk}")
}

pub(super) async fn patch(client: &Client, node: &str, disk: &str, value: &Value) -> Result<()> {
    let nodes: Api<Node> = inside(client);
    let patch = Patch::Merge(json!({"spec": {"disks": {(disk): value}}}));
    let patched = nodes.patch(node, &PatchParams::default(), &patch).await;
    patched.map_err(|error| api_error(error, "change the disks of node", node))?;
    Ok(())
}

/// The node, if it has a disk of that name.
pub(super) fn with_disk<'a>(inventory: &'a Inventory, node: &str, disk: &str) -> Result<&'a Node> {
    let object = inventory.node(node)?;
    if object.spec.disks.contains_key(disk) {
        return Ok(object);
    }
    let known = object.spec.disks.keys().map(String::as_str);
    let list_with = format!("lariat disk list {node}");
    Err(suggest::unknown(
        &format!("disk of node {node}"),
        disk,
        known,
        &list_with,
    ))
}

/// The replicas that are on a disk, by the objects and by what the node reports.
pub(super) fn replicas_on(inventory: &Inventory, node: &Node, disk: &str) -> BTreeSet<String> {
    let status = node
        .status
        .as_ref()
        .and_then(|status| status.disk_status.get(disk));
    let uuid = status
        .map(|status| status.disk_uuid.as_str())
        .unwrap_or_default();
    let objects = inventory
        .replicas
        .iter()
        .filter(|replica| !uuid.is_empty() && replica.spec.disk_id == uuid)
        .map(ResourceExt::name_any);
    let reported = status
        .into_iter()
        .flat_map(|status| status.scheduled_replica.keys().cloned());
    objects.chain(reported).collect()
}

pub(super) fn named(replicas: &BTreeSet<String>) -> String {
    let mut names: Vec<&str> = replicas
        .iter()
        .map(String::as_str)
        .take(NAMES_SHOWN)
        .collect();
    if replicas.len() > NAMES_SHOWN {
        names.push("…");
    }
    names.join(", ")
}

/// How far an eviction is.
fn leaving(left: &BTreeSet<String>) -> String {
    format!("  {} left: {}", count(left.len(), "replica"), named(left))
}

fn not_empty(node: &str, disk: &str, left: &BTreeSet<String>, patience: Duration) -> anyhow::Error {
    let message = format!(
        "{} on disk {disk} of node {node} after {} s ({}); the request stays, and replicas leave when their volumes \
         are attached and other disks have room; take it back with --cancel",
        if left.len() == 1 {
            "1 replica is still".to_owned()
        } else {
            format!("{} replicas are still", left.len())
        },
        patience.as_secs(),
        named(left)
    );
    Failure::new(Outcome::Unfinished, message).into()
}

pub(crate) async fn evict(arguments: EvictArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let (node, disk) = (&arguments.node, &arguments.disk);
    let inventory = Inventory::of_volumes(&client).await?;
    with_disk(&inventory, node, disk)?;
    let wanted =
        json!({"allowScheduling": arguments.cancel, "evictionRequested": !arguments.cancel});
    patch(&client, node, disk, &wanted).await?;
    if arguments.cancel {
        tell!("{}", kept(node, disk));
        return Ok(());
    }
    tell!("{}", asked_to_leave(node, disk));
    if arguments.no_wait {
        return Ok(());
    }
    let mut changes = stream::select_all([
        watch::changes::<api_types::Replica>(inside(&client)),
        watch::changes::<Node>(inside(&client)),
    ]);
    let deadline = Instant::now() + arguments.timeout;
    let mut before = None;
    loop {
        let inventory = Inventory::of_volumes(&client).await?;
        let left = replicas_on(&inventory, with_disk(&inventory, node, disk)?, disk);
        if left.is_empty() {
            tell!("{}", emptied(node, disk));
            return Ok(());
        }
        if before.as_ref() != Some(&left) {
            tell!("{}", leaving(&left));
            before = Some(left.clone());
        }
        if timeout_at(deadline, changes.next()).await.is_err() {
            return Err(not_empty(node, disk, &left, arguments.timeout));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::remove::{given_up, keeps, removed};
    use super::*;
    use crate::exit;
    use crate::inventory::sample;
    use crate::output::golden;

    #[test]
    fn disks_that_cannot_be_are_refused_with_a_reason() {
        let inventory = sample::cluster();
        let check = |disk: &str, path: &str, expected: Option<&str>| {
            let said = objection(&inventory.nodes[0], disk, path);
            match (&said, expected) {
                (None, None) => {}
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                _ => panic!("{disk} {path}: {said:?}"),
            }
        };
        check("fast", "/srv/fast", None);
        check("", "/srv/fast", Some("cannot be a disk's name"));
        check("a b", "/srv/fast", Some("cannot be a disk's name"));
        check("fast", "srv/fast", Some("not an absolute path"));
        check("fast", "/srv/../etc", Some("not an absolute path"));
        check("default", "/srv/fast", Some("has a disk default already"));
        check(
            "fast",
            "/var/lib/lariat/disks/default/",
            Some("the same place"),
        );
        check(
            "fast",
            "/var/lib/lariat/disks/default/inner",
            Some("inside each other"),
        );
        check("fast", "/var/lib/lariat", Some("inside each other"));
        check("fast", "/var/lib/lariat/disks/default2", None);
    }

    #[test]
    fn what_keeps_a_disk_is_said_with_what_to_do() {
        let replicas = |count: usize| -> BTreeSet<String> {
            (1..=count)
                .map(|number| format!("pvc-1-r-{number}"))
                .collect()
        };
        let inventory = sample::cluster();
        let mut lines = Vec::new();
        for (disk, path) in [
            ("a b", "/srv/fast"),
            ("fast", "srv/fast"),
            ("default", "/srv/fast"),
            ("fast", "/var/lib/lariat"),
        ] {
            let refusal = not_added(&inventory.nodes[0], disk, path);
            lines.push(exit::told(&refusal.expect("a refusal")));
        }
        let mut broken = inventory.nodes[0].clone();
        let status = broken.status.as_mut().expect("a status");
        let disk = status.disk_status.get_mut("default").expect("a disk");
        condition::set(
            &mut disk.conditions,
            disk_condition::READY,
            ConditionStatus::False,
            "",
            "/srv/fast is not mounted",
            "",
        );
        let refused = judged(&broken, "default").expect("a look at it");
        lines.push(exit::told(&refused.expect_err("not ready")));
        // One that nobody has looked at is waited for.
        assert!(judged(&inventory.nodes[0], "fast").is_none());
        lines.push(exit::told(&not_looked_at(
            "node-1",
            "fast",
            Duration::from_secs(20),
        )));
        let ready = judged(&inventory.nodes[0], "default").expect("a look at it");
        for count in [1, 5] {
            let left = replicas(count);
            lines.push(leaving(&left));
            let node = &inventory.nodes[0];
            let refusal = keeps(&inventory, node, "default", &left, false);
            lines.push(refusal.expect("a refusal").to_string());
            let patience = Duration::from_secs(600);
            lines.push(not_empty("node-1", "default", &left, patience).to_string());
        }
        lines.extend([
            added("node-1", "fast", "/srv/fast"),
            ready.expect("it is ready").to_owned(),
            asked_to_leave("node-1", "fast"),
            kept("node-1", "fast"),
            emptied("node-1", "fast"),
            removed("node-1", "fast"),
            given_up("node-1", "fast", &replicas(2), &["volume pvc-1".to_owned()]),
        ]);
        golden::check("disk-messages", &(lines.join("\n") + "\n"));
    }

    #[test]
    fn replicas_on_a_disk_are_those_of_the_objects_and_of_the_report() {
        let inventory = sample::cluster();
        let on = |index: usize| named(&replicas_on(&inventory, &inventory.nodes[index], "default"));
        assert_eq!(on(0), "pvc-11111111-r-00000001");
        assert_eq!(
            on(1),
            "pvc-11111111-r-00000001, pvc-11111111-r-00000002, pvc-22222222-r-00000001, …"
        );
        let error = with_disk(&inventory, "node-1", "defualt")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "there is no disk of node node-1 \"defualt\"; did you mean \"default\"?"
        );
    }
}
