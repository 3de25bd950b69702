//! `lariat disk`: where replicas live.

pub(crate) mod change;
pub(crate) mod identify;
pub(crate) mod list;

use anyhow::Result;
use clap::{Args, Subcommand};
use futures::stream;

use crate::client::ApiArguments;
use crate::complete;
use crate::inventory::{Inventory, inside};
use crate::output::{self, OutputArgument, watch};
use crate::runtime;

#[derive(Subcommand)]
pub(crate) enum DiskCommand {
    /// Show the disks of a node, or of all
    List(ListArguments),
    /// Let a node put replicas into another folder
    Add(change::AddArguments),
    /// Take an empty disk from a node; what is in its folder stays
    Remove(change::RemoveArguments),
    /// Ask all replicas to leave a disk, and let no new ones come
    Evict(change::EvictArguments),
    /// Show the block devices of this machine, by what each is known again, and which of them can be used
    Identify(identify::IdentifyArguments),
}

#[derive(Args)]
pub(crate) struct ListArguments {
    /// Only this node's
    #[arg(add = complete::nodes())]
    pub node: Option<String>,
    /// Show changes until interrupted
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub api: ApiArguments,
    #[command(flatten)]
    pub output: OutputArgument,
}

pub(crate) fn run(command: DiskCommand) -> Result<()> {
    match command {
        DiskCommand::List(arguments) => runtime::block_on(list_disks(arguments)),
        DiskCommand::Add(arguments) => runtime::block_on(change::add(arguments)),
        DiskCommand::Remove(arguments) => runtime::block_on(change::remove(arguments)),
        DiskCommand::Evict(arguments) => runtime::block_on(change::evict(arguments)),
        DiskCommand::Identify(arguments) => identify::run(&arguments),
    }
}

async fn list_disks(arguments: ListArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let node = arguments.node.as_deref();
    let fetch = async || {
        let inventory = Inventory::of_volumes(&client).await?;
        if let Some(name) = node {
            inventory.node(name)?;
        }
        Ok(list::rows(&inventory, node))
    };
    if !arguments.watch {
        return output::show(&fetch().await?, arguments.output.output);
    }
    let changes = stream::select_all([watch::pokes::<api_types::Node>(inside(&client))]);
    watch::follow(changes, fetch, arguments.output.output).await
}
