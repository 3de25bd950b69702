//! `lariat bench`: measurements that anybody can repeat.

mod api;
mod report;

use anyhow::Result;

use crate::cli::BenchCommand;

pub(crate) fn run(command: BenchCommand) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match command {
        BenchCommand::Api(arguments) => runtime.block_on(api::run(arguments)),
    }
}
