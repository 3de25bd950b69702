//! `lariat volume`: volumes, as people ask about them and change them.

pub(crate) mod attach;
pub(crate) mod create;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod preview;
pub(crate) mod progress;
pub(crate) mod show;
pub(crate) mod timeline;

use anyhow::Result;
use clap::{Args, Subcommand};
use futures::stream;
use jiff::Timestamp;

use crate::client::ApiArguments;
use crate::complete;
use crate::inventory::{Inventory, inside};
use crate::output::{self, AnswerArgument, Format, Listing, OutputArgument, Terminal, watch};
use crate::runtime;

#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// Show all volumes: where they are and how they fare
    List(Listing),
    /// Show one volume with its tickets, engines and replicas
    Show(ShowArguments),
    /// Make a volume
    Create(create::CreateArguments),
    /// Attach a volume to a node by hand, for a while
    Attach(attach::AttachArguments),
    /// Let go of a volume that was attached by hand
    Detach(attach::DetachArguments),
    /// Delete a volume with all its data
    Delete(create::DeleteArguments),
    /// Show what happened to a volume: who decided what, why, and how long it took
    History(history::HistoryArguments),
    /// Show how long each hop of the volume's attachments took
    Timeline(TimelineArguments),
}

#[derive(Args)]
pub(crate) struct ShowArguments {
    /// The volume's name, which is its PersistentVolume's
    #[arg(add = complete::volumes())]
    pub volume: String,
    #[command(flatten)]
    pub api: ApiArguments,
    #[command(flatten)]
    pub output: OutputArgument,
}

#[derive(Args)]
pub(crate) struct TimelineArguments {
    /// The volume's name, which is its PersistentVolume's
    #[arg(add = complete::volumes())]
    pub volume: String,

    #[command(flatten)]
    pub api: ApiArguments,

    #[command(flatten)]
    pub output: AnswerArgument,
}

pub(crate) fn run(command: VolumeCommand) -> Result<()> {
    runtime::block_on(async {
        match command {
            VolumeCommand::List(arguments) => list_volumes(arguments).await,
            VolumeCommand::Show(arguments) => show_volume(arguments).await,
            VolumeCommand::Create(arguments) => create::create(arguments).await,
            VolumeCommand::Attach(arguments) => attach::attach(arguments).await,
            VolumeCommand::Detach(arguments) => attach::detach(arguments).await,
            VolumeCommand::Delete(arguments) => create::delete(arguments).await,
            VolumeCommand::History(arguments) => history::show(arguments).await,
            VolumeCommand::Timeline(arguments) => show_timeline(arguments).await,
        }
    })
}

async fn list_volumes(listing: Listing) -> Result<()> {
    let client = listing.api.open().await?;
    let fetch = async || Ok(list::rows(&Inventory::of_volumes(&client).await?));
    let changes = || {
        stream::select_all([
            watch::pokes::<api_types::Volume>(inside(&client)),
            watch::pokes::<api_types::VolumeAttachment>(inside(&client)),
        ])
    };
    listing.show(fetch, changes).await
}

async fn show_volume(arguments: ShowArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let inventory = Inventory::of_volume(&client, &arguments.volume).await?;
    let now = Timestamp::now();
    let detail = show::detail(&inventory, &arguments.volume, now)?;
    match arguments.output.output {
        Some(format @ (Format::Json | Format::Yaml)) => {
            output::say(&output::document(&detail, format)?)
        }
        Some(Format::Name) => output::show(&[detail.row], Some(Format::Name)),
        format @ (None | Some(Format::Wide)) => {
            let mut screen = Terminal::of_stdout().screen;
            screen.wide = format.is_some();
            output::say(&show::render(&detail, screen, now))
        }
    }
}

async fn show_timeline(arguments: TimelineArguments) -> Result<()> {
    let client = arguments.api.open().await?;
    let passages = timeline::passages(&client, &arguments.volume).await?;
    let text = || timeline::shown(&arguments.volume, &passages);
    output::say(&output::answer(&passages, arguments.output.output, text)?)
}
