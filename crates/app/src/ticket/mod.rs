//! `lariat ticket`: who asks for a volume, and what becomes of it.

mod in_use;
pub(crate) mod list;
pub(crate) mod remove;

use anyhow::Result;
use clap::{Args, Subcommand};
use futures::stream;
use jiff::Timestamp;

use crate::client::ApiArguments;
use crate::complete;
use crate::inventory::{Inventory, inside};
use crate::output::{self, Format, Listing, OutputArgument, Terminal, watch};
use crate::runtime;

#[derive(Subcommand)]
pub(crate) enum TicketCommand {
    /// Show the tickets of a volume, or of all
    List(ListArguments),
    /// Show one ticket, what it waits for and what to do about it
    Show(ShowArguments),
    /// Remove a ticket that nobody needs any more; one that may be needed only by force, and on the record
    Remove(remove::RemoveArguments),
}

#[derive(Args)]
pub(crate) struct ListArguments {
    /// Only this volume's
    #[arg(add = complete::volumes())]
    pub volume: Option<String>,
    #[command(flatten)]
    pub listing: Listing,
}

#[derive(Args)]
pub(crate) struct ShowArguments {
    #[arg(add = complete::volumes())]
    pub volume: String,
    #[arg(add = complete::tickets())]
    pub ticket: String,
    #[command(flatten)]
    pub api: ApiArguments,
    #[command(flatten)]
    pub output: OutputArgument,
}

pub(crate) fn run(command: TicketCommand) -> Result<()> {
    runtime::block_on(async {
        match command {
            TicketCommand::List(arguments) => list_tickets(arguments).await,
            TicketCommand::Show(arguments) => show(arguments).await,
            TicketCommand::Remove(arguments) => remove::remove(arguments).await,
        }
    })
}

async fn list_tickets(arguments: ListArguments) -> Result<()> {
    let client = arguments.listing.api.open().await?;
    let volume = arguments.volume.as_deref();
    let fetch = async || {
        let inventory = match volume {
            Some(name) => Inventory::of_volume(&client, name).await?,
            None => Inventory::of_volumes(&client).await?,
        };
        Ok(list::rows(&inventory, volume, Timestamp::now()))
    };
    let changes = || {
        stream::select_all([
            watch::pokes::<api_types::VolumeAttachment>(inside(&client)),
            watch::pokes::<api_types::Volume>(inside(&client)),
        ])
    };
    arguments.listing.show(fetch, changes).await
}

async fn show(arguments: ShowArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let inventory = Inventory::of_volume(&client, &arguments.volume).await?;
    let now = Timestamp::now();
    let rows = list::of_volume(&inventory, &arguments.volume, now)?;
    let row = list::find(&rows, &arguments.volume, &arguments.ticket)?;
    match arguments.output.output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            output::say(&output::document(&row, format)?)
        }
        Some(format @ (Format::Wide | Format::Name)) => output::show(&[row], Some(format)),
        None => output::say(&list::render(&row, Terminal::of_stdout().screen, now)),
    }
}
