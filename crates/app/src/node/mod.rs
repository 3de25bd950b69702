//! `lariat node`: the machines of a cluster, and the agent that makes a machine one.

pub(crate) mod cordon;
pub(crate) mod drain;
pub(crate) mod list;
pub(crate) mod run;

use anyhow::Result;
use clap::{Args, Subcommand};
use futures::stream;
use jiff::Timestamp;

use self::run::RunArguments;
use crate::client::ApiArguments;
use crate::complete;
use crate::inventory::{Inventory, inside};
use crate::output::{self, Format, Listing, OutputArgument, Terminal, watch};
use crate::runtime;

#[derive(Subcommand)]
pub(crate) enum NodeCommand {
    /// Show all nodes: whether they are ready, and what is on them
    List(Listing),
    /// Show one node with its disks and volumes
    Show(ShowArguments),
    /// Let nothing new come to a node
    Cordon(cordon::CordonArguments),
    /// Let pods and replicas come to a node again
    Uncordon(cordon::CordonArguments),
    /// Show what would block a drain of a node, and in which order to resolve it
    ///
    /// Ends with 3 if something blocks.
    DrainPlan(ShowArguments),
    /// Run this machine's agent: its replicas, its engines, and the node's own objects
    Run(RunArguments),
}

#[derive(Args)]
pub(crate) struct ShowArguments {
    #[arg(add = complete::nodes())]
    pub node: String,
    #[command(flatten)]
    pub api: ApiArguments,
    #[command(flatten)]
    pub output: OutputArgument,
}

pub(crate) fn run(command: NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Run(arguments) => run::run(arguments),
        NodeCommand::Cordon(arguments) => runtime::block_on(cordon::set(&arguments, true)),
        NodeCommand::Uncordon(arguments) => runtime::block_on(cordon::set(&arguments, false)),
        NodeCommand::DrainPlan(arguments) => runtime::block_on(drain_plan(arguments)),
        NodeCommand::List(arguments) => runtime::block_on(list_nodes(arguments)),
        NodeCommand::Show(arguments) => runtime::block_on(show(arguments)),
    }
}

async fn list_nodes(listing: Listing) -> Result<()> {
    let client = listing.api.open().await?;
    let fetch = async || Ok(list::rows(&Inventory::of_volumes(&client).await?));
    let changes = || {
        stream::select_all([
            watch::pokes::<api_types::Node>(inside(&client)),
            watch::pokes::<api_types::Volume>(inside(&client)),
        ])
    };
    listing.show(fetch, changes).await
}

async fn show(arguments: ShowArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let inventory = Inventory::of_volumes(&client).await?;
    let detail = list::detail(&inventory, inventory.node(&arguments.node)?);
    match arguments.output.output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            output::say(&output::document(&detail, format)?)
        }
        Some(Format::Name) => output::show(&[detail.row], Some(Format::Name)),
        format @ (None | Some(Format::Wide)) => {
            let mut screen = Terminal::of_stdout().screen;
            screen.wide = format.is_some();
            output::say(&list::render(&detail, screen, Timestamp::now()))
        }
    }
}

async fn drain_plan(arguments: ShowArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let inventory = Inventory::of_everything(&client).await?;
    inventory.node(&arguments.node)?;
    let steps = drain::plan(&inventory, &arguments.node, Timestamp::now());
    output::show(&steps, arguments.output.output)?;
    drain::blocked(&arguments.node, &steps).map_or(Ok(()), Err)
}
