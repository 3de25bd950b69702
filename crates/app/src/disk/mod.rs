//! `lariat disk`: where replicas live.

pub(crate) mod change;
pub(crate) mod identify;
pub(crate) mod list;
mod remove;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::complete;
use crate::inventory::{Inventory, inside};
use crate::output::{Listing, watch};
use crate::runtime;

#[derive(Subcommand)]
pub(crate) enum DiskCommand {
    /// Show the disks of a node, or of all
    List(ListArguments),
    /// Let a node put replicas into another folder
    Add(change::AddArguments),
    /// Take an empty disk, or a dead one, from a node; what is in its folder stays
    Remove(remove::RemoveArguments),
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
    #[command(flatten)]
    pub listing: Listing,
}

pub(crate) fn run(command: DiskCommand) -> Result<()> {
    match command {
        DiskCommand::List(arguments) => runtime::block_on(list_disks(arguments)),
        DiskCommand::Add(arguments) => runtime::block_on(change::add(arguments)),
        DiskCommand::Remove(arguments) => runtime::block_on(remove::remove(arguments)),
        DiskCommand::Evict(arguments) => runtime::block_on(change::evict(arguments)),
        DiskCommand::Identify(arguments) => identify::run(&arguments),
    }
}

async fn list_disks(arguments: ListArguments) -> Result<()> {
    let client = arguments.listing.api.open().await?;
    let node = arguments.node.as_deref();
    let fetch = async || {
        let inventory = Inventory::of_volumes(&client).await?;
        if let Some(name) = node {
            inventory.node(name)?;
        }
        Ok(list::rows(&inventory, node))
    };
    let changes = || watch::pokes::<api_types::Node>(inside(&client));
    arguments.listing.show(fetch, changes).await
}
