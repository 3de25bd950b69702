//! `lariat bench`: measurements that anybody can repeat.

mod api;
pub(crate) mod attach;
mod crowd;
pub(crate) mod failover;
mod report;
pub(crate) mod scale;
mod server;

use anyhow::Result;

use crate::cli::BenchCommand;
use crate::runtime;

pub(crate) fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Api(arguments) => runtime::block_on(api::run(arguments)),
        BenchCommand::Attach(arguments) => runtime::block_on(attach::run(arguments)),
        BenchCommand::Doctor(arguments) => runtime::block_on(scale::doctor(arguments)),
        BenchCommand::Rebuild(arguments) => runtime::block_on(scale::rebuild(arguments)),
        BenchCommand::Memory(arguments) => runtime::block_on(scale::memory(arguments)),
        BenchCommand::Failover(arguments) => runtime::block_on(failover::run(arguments)),
    }
}
