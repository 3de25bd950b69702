//! `lariat disk`: where replicas live.

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
    runtime::block_on(async {
        match command {
            DiskCommand::List(arguments) => list_disks(arguments).await,
        }
    })
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
