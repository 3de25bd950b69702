//! `lariat ticket remove`: takes a ticket out whose owner is provably gone; any other only by force, and on the record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use attach_core::reaper::{Policy, Suspicions, World, reap};
use attach_core::{AttacherKind, NodeName, Ticket, TicketId, View, VolumeName, wire};
use clap::Args;
use controllers::history::{NOTES, with_note};
use jiff::{SignedDuration, Timestamp};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::{in_use, list};
use crate::client::ApiArguments;
use crate::exit::Failure;
use crate::inventory::{Inventory, api_error, unknown_volume};
use crate::output::tell;
use crate::volume::{attach, preview};
use crate::{complete, person};

#[derive(Args)]
pub(crate) struct RemoveArguments {
    #[arg(add = complete::volumes())]
    pub volume: String,
    #[arg(add = complete::tickets())]
    pub ticket: String,

    /// Remove it although its owner may need it; needs --reason
    #[arg(long, requires = "reason")]
    pub force: bool,

    /// Why; kept in the volume's history with your name
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    #[command(flatten)]
    pub api: ApiArguments,
}

/// What is known about whoever filed a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody needs the ticket any more, and this is the proof.
    Gone { proof: String },
    /// It may be needed; this is what speaks for it, and what a person can do but insist.
    Alive {
        evidence: Vec<String>,
        instead: String,
    },
}

pub(crate) async fn remove(arguments: RemoveArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let (name, now) = (&arguments.volume, Timestamp::now());
    let inventory = Inventory::of_everything(&client).await?;
    let Some(volume) = inventory.volume(name) else {
        return Err(unknown_volume(&client, name).await);
    };
    let view = inventory.view(volume, now)?;
    let rows = list::rows(&inventory, Some(name), now);
    let row = list::find(&rows, name, &arguments.ticket)?;
    let id: TicketId = row.id.as_str().into();
    let ticket = view
        .tickets
        .get(&id)
        .context("the ticket was just listed")?;
    let word = in_use::ask(&client, ticket).await;
    let owner = owner(&inventory, &view, ticket, &word, now);
    let preview = preview::detach(&view, &[&id]);
    let note = match (&owner, arguments.force) {
        (Owner::Gone { proof }, _) => {
            eprint!("  {proof}\n{}", preview.text());
            let why = arguments.reason.as_ref();
            let why = why.map_or_else(|| proof.clone(), |why| format!("{why} ({proof})"));
            person::note(&format!("removed ticket {:?}", id.as_str()), &why, now)
        }
        (Owner::Alive { evidence, .. }, true) => {
            eprint!("{}{}", bullets(evidence), preview.text());
            let why = arguments.reason.as_deref().unwrap_or_default();
            if why.trim().is_empty() {
                bail!("--reason is empty: say why ticket {id} of volume {name} has to go");
            }
            person::note(
                &format!("removed ticket {:?} by force", id.as_str()),
                why,
                now,
            )
        }
        (Owner::Alive { evidence, instead }, false) => {
            let told = refusal(name, ticket, evidence, instead, &preview);
            return Err(Failure::refused(told));
        }
    };
    let attachment = inventory
        .attachment(name)
        .context("tickets have an object")?;
    let annotations = json!({(NOTES): with_note(attachment, note)});
    let gone = json!({(id.as_str()): null});
    let removed = attach::patch_tickets(&client, attachment, gone, Some(annotations));
    removed
        .await
        .map_err(|error| api_error(error, "remove a ticket of volume", name))?;
    tell!("{}", removed_from(name, &id));
    Ok(())
}

fn removed_from(volume: &str, ticket: &TicketId) -> String {
    format!("ticket {ticket} of volume {volume} is removed; see `lariat volume history {volume}`")
}

fn bullets(texts: &[String]) -> String {
    texts.iter().map(|text| format!("! {text}\n")).collect()
}

fn refusal(
    volume: &str,
    ticket: &Ticket,
    evidence: &[String],
    instead: &str,
    preview: &preview::Preview,
) -> String {
    format!(
        "{ticket} of volume {volume} is not removed, since its owner may need it:\n{}what would happen:\n{}instead: \
         {instead}\nto insist, add: --force --reason TEXT",
        bullets(evidence),
        preview.text()
    )
}

/// Looks for a ticket's owner. The rules are the reaper's, asked without its grace; where those prove nothing, the
/// owner counts as alive. So it does while something on the node uses the volume, or may: the engine would stop below it.
pub(crate) fn owner(
    inventory: &Inventory,
    view: &View,
    ticket: &Ticket,
    word: &in_use::Word,
    now: Timestamp,
) -> Owner {
    let volume = &view.volume.name;
    let policy = Policy {
        grace: SignedDuration::ZERO,
        // That nobody answers for a ticket does not prove that nobody uses it.
        unclaimed_grace: SignedDuration::MAX,
        ..Policy::default()
    };
    let world = world(inventory);
    let reaping = reap(
        [(volume, &view.tickets)],
        &world,
        &Suspicions::default(),
        &policy,
        now,
    );
    let removal = reaping
        .removals
        .into_iter()
        .find(|removal| removal.ticket == ticket.id);
    let used = in_use::evidence(inventory, volume.as_str(), ticket, word);
    let node = &ticket.node;
    match (removal, word) {
        (None, _) => {
            let mut evidence = evidence(inventory, ticket, now);
            evidence.extend(used);
            Owner::Alive {
                evidence,
                instead: instead(volume, ticket),
            }
        }
        (Some(removal), _) if !used.is_empty() => Owner::Alive {
            evidence: used,
            instead: format!(
                "stop what uses volume {volume} on node {node} (`kubectl get pods -A --field-selector spec.nodeName={node}`), and \
                 remove the ticket then: {}",
                removal.cause
            ),
        },
        (Some(removal), in_use::Word::Unread(why)) => Owner::Alive {
            evidence: vec![format!(
                "{}, but whether node {node} still has the volume mounted is not known: {why}",
                removal.cause
            )],
            instead: format!(
                "let somebody remove it who may read node {node}, so that no writes are lost there"
            ),
        },
        (Some(removal), in_use::Word::Unconcerned | in_use::Word::Uses(_)) => Owner::Gone {
            proof: format!("{ticket} is not needed: {}", removal.cause),
        },
    }
}

fn instead(volume: &VolumeName, ticket: &Ticket) -> String {
    let node = &ticket.node;
    match ticket.attacher.kind() {
        Some(AttacherKind::Csi) => {
            format!(
                "stop the pod that uses volume {volume} on node {node}; its ticket goes with it"
            )
        }
        Some(AttacherKind::Manual) => {
            format!("detach it with `lariat volume detach {volume} --node {node}`")
        }
        Some(AttacherKind::Snapshot | AttacherKind::Backup) => {
            "wait for it, or delete that object".to_owned()
        }
        Some(_) => format!(
            "wait: its controller withdraws it; `lariat volume show {volume}` says how far it is"
        ),
        None => "upgrade to a version that knows its type".to_owned(),
    }
}

fn evidence(inventory: &Inventory, ticket: &Ticket, now: Timestamp) -> Vec<String> {
    let mut evidence = Vec::new();
    if let Some(deadline) = ticket.lease.deadline.filter(|deadline| *deadline > now) {
        let owner = ticket.lease.owner.as_ref();
        let by = owner.map(|owner| format!(" of {}", owner.name));
        evidence.push(format!(
            "the lease{} lasts until {deadline}",
            by.unwrap_or_default()
        ));
    }
    match ticket.attacher.kind() {
        Some(AttacherKind::Csi) => {
            let mut attachments = inventory.kubernetes_attachments.iter();
            if let Some(found) = attachments.find(|object| object.name_any() == ticket.id.as_str()) {
                let attached = found.status.as_ref().is_some_and(|status| status.attached);
                evidence.push(format!(
                    "Kubernetes VolumeAttachment {} exists for node {} (attached: {attached})",
                    ticket.id, found.spec.node_name
                ));
            }
        }
        Some(AttacherKind::Manual) if ticket.lease.is_empty() => evidence.push(
            "it was filed by hand without a lease: nobody can tell whether that person still needs it".to_owned(),
        ),
        Some(AttacherKind::Manual) => {}
        Some(AttacherKind::Snapshot | AttacherKind::Backup) => {
            let object = ticket.object().map_or("an object", |object| object.start);
            evidence.push(format!("what it was filed for, {object}, exists and is not done"));
        }
        Some(kind) => evidence.push(format!(
            "{} follows the state of the volume itself, and withdraws the ticket when it is done",
            kind.wire()
        )),
        None => evidence.push(format!(
            "{} is not known here: nobody can tell what it needs",
            ticket.attacher
        )),
    }
    evidence
}

fn world(inventory: &Inventory) -> World {
    let names: BTreeSet<String> = inventory
        .snapshots
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    World {
        kubernetes_attachments: Some(
            inventory
                .kubernetes_attachments
                .iter()
                .map(|object| object.name_any().into())
                .collect(),
        ),
        snapshots: Some(
            inventory
                .snapshots
                .iter()
                .map(|object| (object.name_any().into(), wire::snapshot_fate(object)))
                .collect(),
        ),
        backups: Some(
            inventory
                .backups
                .iter()
                .map(|object| {
                    let exists = names.contains(&object.spec.snapshot_name);
                    (object.name_any().into(), wire::backup_fate(object, exists))
                })
                .collect(),
        ),
        nodes: Some(
            inventory
                .nodes
                .iter()
                .map(|object| NodeName::from(object.name_any().as_str()))
                .collect(),
        ),
        owners: BTreeMap::from([
            ("Snapshot.longhorn.io".into(), uids(&inventory.snapshots)),
            ("Backup.longhorn.io".into(), uids(&inventory.backups)),
        ]),
        // The node itself is asked, below.
        in_use: BTreeSet::new(),
    }
}

fn uids<K: Resource<DynamicType = ()>>(objects: &[K]) -> BTreeMap<Arc<str>, Arc<str>> {
    let entry = |object: &K| {
        let name: Arc<str> = object.name_any().into();
        (name, object.uid().unwrap_or_default().into())
    };
    objects.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use api_types::names::DRIVER;
    use cluster_core::UniqueVolumeName;
    use serde_json::Value;

    use super::*;
    use crate::inventory::sample;
    use crate::output::golden;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("a sound object")
    }

    /// What a node says of itself that has these volumes in use.
    fn uses(volumes: &[&str]) -> in_use::Word {
        let unique = |volume: &&str| UniqueVolumeName {
            driver: DRIVER.into(),
            handle: (*volume).into(),
        };
        in_use::Word::Uses(volumes.iter().map(unique).collect())
    }

    /// What is said about removing a ticket of a volume.
    fn verdict(inventory: &Inventory, volume: &str, id: &str, word: &in_use::Word) -> String {
        let object = inventory.volume(volume).unwrap();
        let view = inventory.view(object, sample::now()).unwrap();
        let ticket = &view.tickets[&TicketId::from(id)];
        match owner(inventory, &view, ticket, word, sample::now()) {
            Owner::Gone { proof } => format!("gone: {proof}\n"),
            Owner::Alive { evidence, instead } => {
                let preview = preview::detach(&view, &[&ticket.id]);
                refusal(volume, ticket, &evidence, &instead, &preview) + "\n"
            }
        }
    }

    #[test]
    fn a_ticket_is_removed_only_when_its_owner_is_gone() {
        let mut inventory = sample::cluster();
        let attachment =
            |volume: &str, tickets: &[Value]| read(sample::attachment(volume, tickets, &[]));
        let ticket = |id: &str, kind: &str, node: &str| sample::ticket(id, kind, node, &json!({}));
        inventory.attachments = vec![
            attachment(
                "pvc-11111111",
                &[
                    ticket(sample::CSI, "csi-attacher", "node-1"),
                    ticket("csi-orphan", "csi-attacher", "node-2"),
                    ticket("csi-elsewhere", "csi-attacher", "node-9"),
                    ticket("snapshot-controller-daily", "snapshot-controller", "node-1"),
                    ticket("snapshot-controller-gone", "snapshot-controller", "node-1"),
                    ticket("backup-controller-stuck", "backup-controller", "node-1"),
                    ticket(
                        "volume-expansion-controller-pvc-11111111",
                        "volume-expansion-controller",
                        "node-1",
                    ),
                ],
            ),
            attachment(
                "pvc-22222222",
                &[
                    ticket("longhorn-ui", "longhorn-api", "node-2"),
                    sample::ticket(
                        "longhorn-api-alice-node-2",
                        "longhorn-api",
                        "node-2",
                        &json!({
                    "lariat.io/owner": "User/alice@desk", "lariat.io/deadline": "2026-03-01T14:00:00Z"}),
                    ),
                    sample::ticket(
                        "longhorn-api-bob-node-2",
                        "longhorn-api",
                        "node-2",
                        &json!({
                    "lariat.io/owner": "User/bob@desk", "lariat.io/deadline": "2026-03-01T11:00:00Z"}),
                    ),
                    ticket("teleport-1", "volume-teleport-controller", "node-2"),
                ],
            ),
        ];
        inventory.kubernetes_attachments = vec![read(json!({
            "metadata": {"name": sample::CSI},
            "spec": {"attacher": "driver.longhorn.io", "nodeName": "node-1", "source": {"persistentVolumeName": "pvc-11111111"}},
            "status": {"attached": true},
        }))];
        inventory.persistent_volumes = vec![read(json!({
            "metadata": {"name": "pvc-11111111"}, "spec": {"claimRef": {"namespace": "default", "name": "database"}},
        }))];
        inventory.pods = vec![read(json!({
            "metadata": {"name": "database-0", "namespace": "default"},
            "spec": {"nodeName": "node-1", "containers": [], "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "database"}}]},
        }))];
        inventory.snapshots = vec![read(json!({
            "metadata": {"name": "daily"}, "spec": {"volume": "pvc-11111111", "createSnapshot": true},
        }))];
        inventory.backups = vec![read(json!({
            "metadata": {"name": "stuck"}, "spec": {"snapshotName": "never-taken"}, "status": {"state": "Pending"},
        }))];
        let mut page = String::new();
        for volume in ["pvc-11111111", "pvc-22222222"] {
            let object = inventory.volume(volume).unwrap();
            let view = inventory.view(object, sample::now()).unwrap();
            let word = |ticket: &Ticket| match (ticket.attacher.is_workload(), ticket.node.as_str())
            {
                (false, _) => in_use::Word::Unconcerned,
                (true, "node-1") => uses(&["pvc-11111111"]),
                (true, _) => uses(&[]),
            };
            for ticket in view.tickets.values() {
                page += &format!("# {volume} {}\n", ticket.id);
                page += &verdict(&inventory, volume, ticket.id.as_str(), &word(ticket));
            }
        }
        page += "# done\n";
        page += &(removed_from("pvc-22222222", &"longhorn-api-bob-node-2".into()) + "\n");
        golden::check("ticket-remove", &page);
    }

    /// Its Kubernetes VolumeAttachment is gone in each of these.
    #[test]
    fn a_pods_ticket_stays_while_its_node_has_the_volume_mounted() {
        let mut inventory = sample::cluster();
        let ticket = |id: &str, node: &str| sample::ticket(id, "csi-attacher", node, &json!({}));
        let tickets = [ticket("csi-a", "node-1"), ticket("csi-b", "node-9")];
        inventory.attachments = vec![read(sample::attachment("pvc-11111111", &tickets, &[]))];
        let forbidden = in_use::Word::Unread(
            "not allowed to read Kubernetes node node-1: nodes \"node-1\" is forbidden; ask for a role that allows it, or use \
             another account with --kubeconfig"
                .to_owned(),
        );
        let mut page = String::new();
        let mut row = |title: &str, inventory: &Inventory, id: &str, word: &in_use::Word| {
            page += &format!(
                "# {title}\n{}",
                verdict(inventory, "pvc-11111111", id, word)
            );
        };
        row("unused", &inventory, "csi-a", &uses(&["pvc-22222222"]));
        row("in use", &inventory, "csi-a", &uses(&["pvc-11111111"]));
        row("may not look", &inventory, "csi-a", &forbidden);
        // A PersistentVolume that a person made, and a pod whose claim is its own.
        let pod = |name: &str, node: &str, phase: &str, volume: Value| {
            read(json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": node, "containers": [], "volumes": [volume]},
                "status": {"phase": phase},
            }))
        };
        let own = json!({"name": "data", "ephemeral": {}});
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "job-data"}});
        let persistent = |driver: &str| {
            read(json!({
                "metadata": {"name": "by-hand"},
                "spec": {
                    "claimRef": {"namespace": "default", "name": "job-data"},
                    "csi": {"driver": driver, "volumeHandle": "pvc-11111111"},
                },
            }))
        };
        inventory.persistent_volumes = vec![persistent(DRIVER)];
        inventory.pods = vec![
            pod("job", "node-1", "Running", own),
            pod("elsewhere", "node-2", "Running", claim.clone()),
            pod("over", "node-1", "Succeeded", claim.clone()),
        ];
        row("a pod", &inventory, "csi-a", &uses(&[]));
        row("both", &inventory, "csi-a", &uses(&["pvc-11111111"]));
        row("a pod, and may not look", &inventory, "csi-a", &forbidden);
        row("no such node", &inventory, "csi-b", &uses(&[]));
        inventory.pods[0] = pod("late", "node-9", "Unknown", claim);
        row("a pod on no such node", &inventory, "csi-b", &uses(&[]));
        row("its pod is over", &inventory, "csi-a", &uses(&[]));
        inventory.persistent_volumes = vec![persistent("other.example.com")];
        row("another driver's", &inventory, "csi-b", &uses(&[]));
        golden::check("ticket-remove-in-use", &page);
    }
}
