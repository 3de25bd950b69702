//! `lariat volume create` and `delete`.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use api_types::names::{FINALIZER, label};
use api_types::{
    AccessMode, ByteSize, DataLocality, Volume, VolumeFrontend, VolumeSpec, VolumeState,
};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use tokio::time::timeout;

use super::attach::{count, ensure_attachment};
use super::list;
use crate::client::ApiArguments;
use crate::complete;
use crate::exit::{Failure, Outcome};
use crate::inventory::{Inventory, api_error, inside};
use crate::output::human::{parse_lasting, parse_size, size};
use crate::output::tell;

/// Sizes are multiples of this, so that every file system and page size divides them.
const GRANULE_BYTES: i64 = 1 << 20;
const SIZE_BYTES_MAX: i64 = 64 << 40;
/// The name is a label's value on all its parts.
const NAME_BYTES_MAX: usize = 63;

#[derive(Args)]
pub(crate) struct CreateArguments {
    /// The new volume's name
    pub name: String,

    /// How large it is, such as 10Gi
    #[arg(long, value_parser = parse_size)]
    pub size: i64,

    /// How many copies of the data there are [default: the setting default-replica-count]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=20))]
    pub replicas: Option<i64>,

    /// How many nodes may use it: one (rwo), one pod (rwop), or many (rwx)
    #[arg(long, value_enum, default_value_t = Access::Rwo)]
    pub access: Access,

    /// Whether a copy should be on the node that uses it
    #[arg(long, value_enum, default_value_t = Locality::Disabled)]
    pub locality: Locality,

    /// Only disks with all these tags
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub disk_tags: Vec<String>,

    /// Only nodes with all these tags
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub node_tags: Vec<String>,

    /// Do not wait until it can be attached
    #[arg(long)]
    pub no_wait: bool,

    /// How long to wait for it
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_lasting)]
    pub timeout: Duration,

    #[command(flatten)]
    pub api: ApiArguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Access {
    Rwo,
    Rwop,
    Rwx,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Locality {
    Disabled,
    BestEffort,
    StrictLocal,
}

#[derive(Args)]
pub(crate) struct DeleteArguments {
    #[arg(add = complete::volumes())]
    pub volume: String,

    /// Delete it with all its data
    #[arg(long)]
    pub yes: bool,

    /// Do not wait until it is gone
    #[arg(long)]
    pub no_wait: bool,

    /// How long to wait for it
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_lasting)]
    pub timeout: Duration,

    #[command(flatten)]
    pub api: ApiArguments,
}

/// The object that is made; an error in a person's words if it could not work.
fn object(arguments: &CreateArguments) -> Result<Volume> {
    let name = &arguments.name;
    let fits =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let ends_well = !name.starts_with('-') && !name.ends_with('-');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(fits) || !ends_well {
        bail!(
            "{name:?} cannot be a volume's name: use at most {NAME_BYTES_MAX} small letters, digits and dashes, with a \
             letter or digit at both ends"
        );
    }
    if !(GRANULE_BYTES..=SIZE_BYTES_MAX).contains(&arguments.size) {
        bail!(
            "a volume of {} cannot be made: choose a --size from {} to {}",
            size(arguments.size),
            size(GRANULE_BYTES),
            size(SIZE_BYTES_MAX)
        );
    }
    let bytes = (arguments.size + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    Ok(Volume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some([label::volume(name)].into()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: VolumeSpec {
            size: ByteSize(bytes),
            number_of_replicas: arguments.replicas.unwrap_or(0),
            frontend: VolumeFrontend::BlockDevice,
            access_mode: match arguments.access {
                Access::Rwo => AccessMode::ReadWriteOnce,
                Access::Rwop => AccessMode::ReadWriteOncePod,
                Access::Rwx => AccessMode::ReadWriteMany,
            },
            data_locality: match arguments.locality {
                Locality::Disabled => DataLocality::Disabled,
                Locality::BestEffort => DataLocality::BestEffort,
                Locality::StrictLocal => DataLocality::StrictLocal,
            },
            disk_selector: arguments.disk_tags.clone(),
            node_selector: arguments.node_tags.clone(),
            ..VolumeSpec::default()
        },
        status: None,
    })
}

pub(crate) async fn create(arguments: CreateArguments) -> Result<()> {
    let object = object(&arguments)?;
    let client = arguments.api.open().await?;
    let (name, volumes): (_, Api<Volume>) = (&arguments.name, inside(&client));
    match volumes.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(error) => return Err(not_created(error, name)),
    }
    let inventory = Inventory::of_volume(&client, name).await?;
    if inventory.attachment(name).is_none() {
        ensure_attachment(&client, &inventory, name).await?;
    }
    tell!("{}", made(name, object.spec.size));
    if arguments.no_wait {
        return Ok(());
    }
    let is_ready = |volume: Option<&Volume>| {
        let status = volume.and_then(|volume| volume.status.as_ref());
        status.is_some_and(|status| status.state != VolumeState::Creating)
    };
    let ready = await_condition(volumes, name, is_ready);
    if timeout(arguments.timeout, ready).await.is_err() {
        return Err(still_made(name, arguments.timeout));
    }
    tell!("{}", attach_next(name));
    Ok(())
}

fn not_created(error: kube::Error, name: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.is_already_exists() => anyhow!(
            "there is a volume {name} already: choose another name, or look at it with `lariat volume show {name}`"
        ),
        error => api_error(error, "create volume", name),
    }
}

fn still_made(name: &str, patience: Duration) -> anyhow::Error {
    let message = format!(
        "volume {name} is still being made after {} s; is a manager running? look at `lariat volume show {name}`",
        patience.as_secs()
    );
    Failure::new(Outcome::Unfinished, message).into()
}

fn made(name: &str, bytes: ByteSize) -> String {
    format!("volume {name} of {} is made", size(bytes.bytes()))
}

fn attach_next(name: &str) -> String {
    format!("attach it with: lariat volume attach {name} --node NODE")
}

/// What stands against deleting a volume: reasons to refuse, and what would be lost.
fn objections(
    inventory: &Inventory,
    name: &str,
    persistent: Option<&PersistentVolume>,
) -> (Vec<String>, Vec<String>) {
    let mut refusals = Vec::new();
    let mut losses = Vec::new();
    if let Some(attachment) = inventory.attachment(name) {
        let tickets = attachment.spec.attachment_tickets.values();
        refusals.extend(tickets.map(|ticket| {
            format!(
                "{} ticket {:?} asks for it on node {}",
                ticket.attacher_type, ticket.id, ticket.node_id
            )
        }));
    }
    if let Some(volume) = inventory.volume(name) {
        let row = list::row(inventory, volume);
        losses.push(format!(
            "{} of data ({} used) in {}",
            size(row.size_bytes),
            size(row.actual_bytes),
            count(inventory.replicas_of(name).count(), "replica"),
        ));
    }
    if let Some(persistent) = persistent {
        let claim = persistent
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref());
        let claim = claim.map(|claim| {
            let part = |text: &Option<String>| text.clone().unwrap_or_default();
            format!(" of claim {}/{}", part(&claim.namespace), part(&claim.name))
        });
        losses.push(format!(
            "the volume behind PersistentVolume {name}{}: delete the claim instead, and the volume follows",
            claim.unwrap_or_default()
        ));
    }
    (refusals, losses)
}

/// Why it is not deleted, if it is not.
fn keeps(
    inventory: &Inventory,
    name: &str,
    persistent: Option<&PersistentVolume>,
    is_meant: bool,
) -> Option<anyhow::Error> {
    let (refusals, losses) = objections(inventory, name, persistent);
    let refusal = if !refusals.is_empty() {
        format!(
            "volume {name} is in use and is not deleted: {}; detach it first",
            refusals.join(", ")
        )
    } else if !is_meant {
        format!(
            "volume {name} is not deleted: this would destroy {}; to do it, add --yes",
            losses.join(", and ")
        )
    } else {
        return None;
    };
    Some(Failure::refused(refusal))
}

pub(crate) async fn delete(arguments: DeleteArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let name = &arguments.volume;
    let inventory = Inventory::of_volume(&client, name).await?;
    let persistent: Api<PersistentVolume> = Api::all(client.clone());
    let persistent = persistent.get_opt(name).await;
    let persistent = persistent.map_err(|error| api_error(error, "read PersistentVolume", name))?;
    if let Some(refusal) = keeps(&inventory, name, persistent.as_ref(), arguments.yes) {
        return Err(refusal);
    }
    remove(&client, &inventory, &arguments).await
}

async fn remove(client: &Client, inventory: &Inventory, arguments: &DeleteArguments) -> Result<()> {
    let name = &arguments.volume;
    let volumes: Api<Volume> = inside(client);
    let uid = inventory.volume(name).and_then(ResourceExt::uid);
    match volumes.delete(name, &DeleteParams::background()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        Err(error) => return Err(api_error(error, "delete volume", name)),
    }
    if arguments.no_wait {
        tell!("{}", deleted(name, false));
        return Ok(());
    }
    let is_gone = |volume: Option<&Volume>| volume.is_none_or(|volume| volume.uid() != uid);
    match timeout(arguments.timeout, await_condition(volumes, name, is_gone)).await {
        Ok(gone) => {
            gone.with_context(|| format!("cannot watch volume {name}"))?;
            tell!("{}", deleted(name, true));
            Ok(())
        }
        Err(_) => Err(parts_left(name, arguments.timeout)),
    }
}

fn parts_left(name: &str, patience: Duration) -> anyhow::Error {
    let message = format!(
        "volume {name} is being deleted, but parts of it are left after {} s; look at `lariat volume show {name}`: \
         a replica on a node that is down goes when the node is back",
        patience.as_secs()
    );
    Failure::new(Outcome::Unfinished, message).into()
}

fn deleted(name: &str, is_gone: bool) -> String {
    let how_far = if is_gone { "deleted" } else { "being deleted" };
    format!("volume {name} is {how_far}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::exit;
    use crate::inventory::sample;
    use crate::output::golden;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        create: CreateArguments,
    }

    fn asked(words: &str) -> Result<Volume> {
        let line = Line::try_parse_from(words.split(' '));
        object(&line.map_err(anyhow::Error::from)?.create)
    }

    #[test]
    fn volumes_are_made_as_asked_or_refused_with_a_reason() {
        let volume =
            asked("x data --size 1.5Gi --replicas 2 --access rwx --disk-tags ssd,fast").unwrap();
        assert_eq!(volume.spec.size, ByteSize(3 << 29));
        assert_eq!(volume.spec.number_of_replicas, 2);
        assert_eq!(volume.spec.disk_selector, ["ssd", "fast"]);
        assert_eq!(
            asked("x data --size 1048577").unwrap().spec.size,
            ByteSize(2 << 20)
        );
        for (words, part) in [
            ("x Data --size 1Gi", "cannot be a volume's name"),
            ("x data- --size 1Gi", "cannot be a volume's name"),
            ("x data --size 1Ki", "choose a --size from 1Mi to 64Ti"),
            ("x data --size 65Ti", "choose a --size"),
            ("x data --size much", "is not a size"),
            ("x data --size 1Gi --replicas 0", "0 is not in 1..=20"),
        ] {
            let error = asked(words).unwrap_err().to_string();
            assert!(error.contains(part), "{words}: {error}");
        }
    }

    #[test]
    fn what_was_done_is_said() {
        let lines = [
            made("data", ByteSize(3 << 29)),
            attach_next("data"),
            deleted("data", false),
            deleted("data", true),
        ];
        golden::check("volume-messages", &(lines.join("\n") + "\n"));
    }

    #[test]
    fn what_is_not_made_is_said_with_the_reason() {
        let patience = Duration::from_secs(60);
        let refused = |reason: &str, code: u16| {
            let status = kube::core::Status::failure("volumes \"data\": no", reason);
            kube::Error::Api(Box::new(status.with_code(code)))
        };
        let mut lines: Vec<String> = [
            "x Data --size 1Gi",
            "x data- --size 1Gi",
            "x data --size 1Ki",
            "x data --size 65Ti",
        ]
        .iter()
        .map(|words| exit::told(&asked(words).expect_err(words)))
        .collect();
        lines.extend([
            exit::told(&not_created(refused("AlreadyExists", 409), "data")),
            exit::told(&not_created(refused("Forbidden", 403), "data")),
            exit::told(&still_made("data", patience)),
        ]);
        golden::check("volume-create-refused", &(lines.join("\n") + "\n"));
    }

    #[test]
    fn what_would_be_destroyed_is_said() {
        let inventory = sample::cluster();
        let persistent: PersistentVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "scratch"}, "spec": {"claimRef": {"namespace": "default", "name": "notes"}},
        }))
        .unwrap();
        let mut lines = Vec::new();
        for (name, persistent) in [
            ("pvc-22222222", None),
            ("scratch", None),
            ("scratch", Some(&persistent)),
        ] {
            let refusal = keeps(&inventory, name, persistent, false);
            lines.push(exit::told(&refusal.expect("a refusal")));
        }
        // To say that the loss is meant is enough only if nobody uses it.
        assert!(keeps(&inventory, "pvc-22222222", None, true).is_some());
        assert!(keeps(&inventory, "scratch", Some(&persistent), true).is_none());
        lines.push(exit::told(&parts_left("scratch", Duration::from_secs(120))));
        golden::check("volume-delete-refused", &(lines.join("\n") + "\n"));
    }
}
