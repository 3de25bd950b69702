//! `lariat volume`: one volume, as people ask about it.

pub(crate) mod timeline;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

use crate::client::ApiArguments;
use crate::runtime;

#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// Show how long each hop of the volume's attachments took
    Timeline(TimelineArguments),
}

#[derive(Args)]
pub(crate) struct TimelineArguments {
    /// The volume's name, which is its PersistentVolume's
    pub volume: String,

    #[command(flatten)]
    pub api: ApiArguments,

    #[arg(short, long, value_enum, default_value_t = TimelineOutput::Text)]
    pub output: TimelineOutput,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum TimelineOutput {
    Text,
    Json,
}

pub(crate) fn run(command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Timeline(arguments) => runtime::block_on(show_timeline(arguments)),
    }
}

async fn show_timeline(arguments: TimelineArguments) -> Result<()> {
    let client = arguments.api.connect().await?;
    let passages = timeline::passages(&client, &arguments.volume).await?;
    match arguments.output {
        TimelineOutput::Json => println!("{}", serde_json::to_string_pretty(&passages)?),
        TimelineOutput::Text if passages.is_empty() => println!(
            "no attachment of {} was seen from its beginning to its end yet",
            arguments.volume
        ),
        TimelineOutput::Text => {
            for passage in &passages {
                println!("{}", timeline::render(&arguments.volume, passage));
            }
        }
    }
    Ok(())
}
