//! `lariat volume attach` and `detach`: a manual ticket with an owner and a deadline, and the way of the volume to its node.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use api_types::{Volume, VolumeAttachment};
use attach_core::lease::{Lease, Owner};
use attach_core::{AttacherKind, Frontend, Ticket, TicketId, wire};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::{preview, progress};
use crate::client::ApiArguments;
use crate::exit::Failure;
use crate::inventory::{Inventory, api_error, inside};
use crate::output::human::parse_lasting;
use crate::output::tell;
use crate::{complete, person};

/// The kind of a ticket's owner that is a person: there is no such object, so nobody looks for one.
pub(crate) const PERSON: &str = "User";
/// Somebody else may file a ticket between our look and our write; that often is enough to give up.
const CONFLICTS_MAX: usize = 5;

#[derive(Args)]
pub(crate) struct AttachArguments {
    #[arg(add = complete::volumes())]
    pub volume: String,

    /// The node to attach it to
    #[arg(long, add = complete::nodes())]
    pub node: String,

    /// Attach without a block device: for maintenance of the volume itself
    #[arg(long)]
    pub disable_frontend: bool,

    /// How long you need it; after that the volume is let go by itself. Attach again to extend it
    #[arg(long = "for", value_name = "TIME", default_value = "8h", value_parser = parse_lasting)]
    pub lasting: Duration,

    /// Do it although something would be interrupted or would have to wait
    #[arg(long)]
    pub yes: bool,

    /// Do not wait until it is attached
    #[arg(long)]
    pub no_wait: bool,

    /// How long to wait for it
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_lasting)]
    pub timeout: Duration,

    #[command(flatten)]
    pub api: ApiArguments,
}

#[derive(Args)]
pub(crate) struct DetachArguments {
    #[arg(add = complete::volumes())]
    pub volume: String,

    /// Only the manual attachment to this node
    #[arg(long, add = complete::nodes())]
    pub node: Option<String>,

    /// Also what somebody else attached
    #[arg(long)]
    pub yes: bool,

    /// Do not wait until it is detached
    #[arg(long)]
    pub no_wait: bool,

    /// How long to wait for it
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_lasting)]
    pub timeout: Duration,

    #[command(flatten)]
    pub api: ApiArguments,
}

pub(crate) async fn attach(arguments: AttachArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let name = &arguments.volume;
    let mut attempts = 0;
    let ticket = loop {
        let inventory = Inventory::of_volume(&client, name).await?;
        inventory.node(&arguments.node)?;
        let volume = inventory.volume(name).context("the volume was just read")?;
        if let Some(refusal) = ending(volume) {
            return Err(refusal);
        }
        let now = Timestamp::now();
        let view = inventory.view(volume, now)?;
        let mut ticket = manual_ticket(&arguments, &person::name(), now)?;
        let (previous, status) = (view.tickets.get(&ticket.id), view.statuses.get(&ticket.id));
        ticket.generation = Ticket::generation_after(&ticket, previous, status);
        let preview = preview::attach(&view, &ticket);
        eprint!("{}", preview.text());
        if !preview.consequences.is_empty() && !arguments.yes {
            return Err(not_attached(name, &arguments.node));
        }
        let attachment = ensure_attachment(&client, &inventory, name).await?;
        let value = serde_json::to_value(wire::ticket_to_wire(&ticket))?;
        let tickets = json!({(ticket.id.as_str()): value});
        match patch_tickets(&client, &attachment, tickets, None).await {
            Ok(()) => break ticket,
            Err(kube::Error::Api(status)) if status.code == 409 && attempts < CONFLICTS_MAX => {
                attempts += 1;
            }
            Err(error) => {
                return Err(api_error(error, "file a ticket for volume", name));
            }
        }
    };
    tell!("{}", filed(name, &ticket));
    if arguments.no_wait {
        return Ok(());
    }
    let target = progress::Target::Attached {
        ticket: ticket.id.clone(),
        node: ticket.node.clone(),
    };
    progress::follow(&client, name, &target, arguments.timeout).await
}

/// Why it cannot be attached at all, if it cannot.
fn ending(volume: &Volume) -> Option<anyhow::Error> {
    volume.metadata.deletion_timestamp.as_ref()?;
    let name = volume.name_any();
    Some(anyhow!(
        "volume {name} is being deleted and is attached to nothing any more; `lariat volume show {name}` says what is \
         left of it"
    ))
}

fn filed(volume: &str, ticket: &Ticket) -> String {
    let until = ticket
        .lease
        .deadline
        .map(|at| at.strftime("%Y-%m-%d %H:%M UTC").to_string());
    format!(
        "ticket {} asks for volume {volume} on node {}, until {}",
        ticket.id,
        ticket.node,
        until.unwrap_or_default(),
    )
}

/// Said below what speaks against it.
fn not_attached(volume: &str, node: &str) -> anyhow::Error {
    Failure::refused(format!(
        "volume {volume} is not attached to node {node}: see above; to do it all the same, add --yes"
    ))
}

fn not_detached(volume: &str) -> anyhow::Error {
    Failure::refused(format!(
        "volume {volume} is not detached: see above; to do it all the same, add --yes"
    ))
}

fn manual_ticket(arguments: &AttachArguments, person: &str, now: Timestamp) -> Result<Ticket> {
    let id = format!("{}-{}", person::short_name(person), arguments.node);
    let lasting = SignedDuration::try_from(arguments.lasting);
    let deadline = lasting
        .ok()
        .and_then(|lasting| now.checked_add(lasting).ok());
    let deadline = deadline.with_context(|| {
        format!(
            "volume {} is not attached: --for is longer than calendars reach; give a shorter time",
            arguments.volume
        )
    })?;
    Ok(Ticket {
        frontend: if arguments.disable_frontend {
            Frontend::Disabled
        } else {
            Frontend::Enabled
        },
        last_attached_by: person.into(),
        lease: Lease {
            owner: Some(Owner {
                kind: PERSON.into(),
                name: person.into(),
                uid: None,
            }),
            deadline: Some(deadline),
            heartbeat: None,
        },
        ..Ticket::new(
            AttacherKind::Manual,
            Ticket::id_for(AttacherKind::Manual, &id),
            arguments.node.as_str(),
        )
    })
}

/// The object that tickets are filed in; made if it is missing.
pub(crate) async fn ensure_attachment(
    client: &Client,
    inventory: &Inventory,
    name: &str,
) -> Result<VolumeAttachment> {
    if let Some(found) = inventory.attachment(name) {
        return Ok(found.clone());
    }
    let volume = inventory.volume(name).context("the volume was just read")?;
    let object = VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([api_types::names::label::volume(name)].into()),
            owner_references: volume.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: api_types::VolumeAttachmentSpec {
            volume: name.to_owned(),
            ..api_types::VolumeAttachmentSpec::default()
        },
        status: None,
    };
    let api: Api<VolumeAttachment> = inside(client);
    let made = api.create(&PostParams::default(), &object).await;
    made.map_err(|error| api_error(error, "make the ticket list of volume", name))
}

/// Writes these tickets, or takes them out (`null`), if nobody has changed the object since it was looked at.
pub(crate) async fn patch_tickets(
    client: &Client,
    attachment: &VolumeAttachment,
    tickets: Value,
    annotations: Option<Value>,
) -> kube::Result<()> {
    let api: Api<VolumeAttachment> = inside(client);
    let mut patch = json!({
        "metadata": {"resourceVersion": attachment.metadata.resource_version},
        "spec": {"attachmentTickets": tickets},
    });
    if let Some(annotations) = annotations {
        patch["metadata"]["annotations"] = annotations;
    }
    let name = attachment.name_any();
    api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
}

pub(crate) async fn detach(arguments: DetachArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let name = &arguments.volume;
    let me = person::name();
    let mut attempts = 0;
    let nodes = loop {
        let inventory = Inventory::of_volume(&client, name).await?;
        if let Some(node) = &arguments.node {
            inventory.node(node)?;
        }
        let volume = inventory.volume(name).context("the volume was just read")?;
        let view = inventory.view(volume, Timestamp::now())?;
        let manual: Vec<&Ticket> = view
            .tickets
            .values()
            .filter(|ticket| ticket.is(AttacherKind::Manual))
            .filter(|ticket| {
                arguments
                    .node
                    .as_deref()
                    .is_none_or(|node| ticket.node.as_str() == node)
            })
            .collect();
        if manual.is_empty() {
            tell!("{}", nothing_to_detach(name, &view)?);
            return Ok(());
        }
        let ids: Vec<&TicketId> = manual.iter().map(|ticket| &ticket.id).collect();
        let mut preview = preview::detach(&view, &ids);
        for ticket in &manual {
            preview.consequences.extend(not_yours(ticket, &me));
        }
        eprint!("{}", preview.text());
        if !preview.consequences.is_empty() && !arguments.yes {
            return Err(not_detached(name));
        }
        let attachment = inventory
            .attachment(name)
            .context("tickets have an object")?;
        let gone = ids.iter().map(|id| (id.as_str().to_owned(), Value::Null));
        let gone = Value::Object(gone.collect());
        match patch_tickets(&client, attachment, gone, None).await {
            Ok(()) => {
                break manual
                    .iter()
                    .map(|ticket| ticket.node.clone())
                    .collect::<Vec<_>>();
            }
            Err(kube::Error::Api(status)) if status.code == 409 && attempts < CONFLICTS_MAX => {
                attempts += 1;
            }
            Err(error) => return Err(api_error(error, "withdraw a ticket of volume", name)),
        }
    };
    tell!("{}", withdrawn(name, nodes.len()));
    if arguments.no_wait {
        return Ok(());
    }
    progress::follow(
        &client,
        name,
        &progress::Target::Released { nodes },
        arguments.timeout,
    )
    .await
}

fn withdrawn(volume: &str, tickets: usize) -> String {
    format!(
        "{} withdrawn from volume {volume}",
        count(tickets, "ticket")
    )
}

fn not_yours(ticket: &Ticket, me: &str) -> Option<String> {
    let other = other_owner(ticket, me)?;
    Some(format!("{ticket} was filed by {other}, not by you ({me})"))
}

/// Whoever filed it, if that was not me. A ticket that names nobody may be anybody's.
fn other_owner(ticket: &Ticket, me: &str) -> Option<String> {
    let owner = ticket
        .lease
        .owner
        .as_ref()
        .map(|owner| owner.name.to_string());
    let by = owner.unwrap_or_else(|| ticket.last_attached_by.to_string());
    match by.as_str() {
        "" => Some("somebody who did not leave a name".to_owned()),
        by if by == me => None,
        by => Some(by.to_owned()),
    }
}

fn nothing_to_detach(name: &str, view: &attach_core::View) -> Result<String> {
    let others: Vec<String> = view
        .tickets
        .values()
        .map(|ticket| format!("{ticket} on node {}", ticket.node))
        .collect();
    if others.is_empty() {
        return Ok(format!(
            "nobody asks for volume {name}; there is nothing to detach"
        ));
    }
    let elsewhere = view.tickets.values();
    let mut elsewhere = elsewhere.filter(|ticket| ticket.is(AttacherKind::Manual));
    if let Some(ticket) = elsewhere.next() {
        bail!(
            "volume {name} was attached by hand, but to node {0}; detach it from there with: lariat volume detach {name} \
             --node {0}",
            ticket.node
        );
    }
    bail!(
        "volume {name} was not attached by hand: it is wanted by {}; stop what uses it, or look at `lariat ticket list \
         {name}`",
        others.join(" and by ")
    )
}

pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::exit;
    use crate::inventory::sample;
    use crate::output::golden;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        attach: AttachArguments,
    }

    fn ticket(words: &str) -> Result<Ticket> {
        let line = Line::try_parse_from(words.split(' '));
        manual_ticket(&line.expect(words).attach, "alice@desk", sample::now())
    }

    #[test]
    fn what_attach_and_detach_say() {
        let inventory = sample::cluster();
        let nothing = |name: &str| {
            let volume = inventory.volume(name).expect("a volume");
            let view = inventory.view(volume, sample::now()).expect("a view");
            nothing_to_detach(name, &view).unwrap_or_else(|error| exit::told(&error))
        };
        let mine = ticket("x data --node node-2").expect("a ticket");
        let nameless = Ticket {
            lease: Lease::default(),
            last_attached_by: "".into(),
            ..mine.clone()
        };
        let mut deleted = inventory.volume("scratch").expect("a volume").clone();
        assert!(ending(&deleted).is_none());
        deleted.metadata.deletion_timestamp = Some(Time(sample::now()));
        let for_ever = ticket("x data --node node-2 --for 99999999d");
        let lines = [
            exit::told(&ending(&deleted).expect("a refusal")),
            exit::told(&for_ever.expect_err("no such day")),
            filed("data", &mine),
            filed(
                "data",
                &ticket("x data --node node-2 --for 90m").expect("a ticket"),
            ),
            exit::told(&not_attached("data", "node-2")),
            exit::told(&not_detached("data")),
            nothing("pvc-11111111"),
            nothing("pvc-22222222"),
            nothing("scratch"),
            withdrawn("data", 1),
            withdrawn("data", 2),
            not_yours(&mine, "bob@desk").expect("somebody else's"),
            not_yours(&nameless, "bob@desk").expect("perhaps somebody else's"),
        ];
        assert_eq!(not_yours(&mine, "alice@desk"), None);
        golden::check("attach-messages", &(lines.join("\n") + "\n"));
    }
}
