//! The `lariat` binary: arguments, wiring, and what a person sees.

mod attacher;
mod bench;
mod cli;
mod client;
mod complete;
mod crds;
mod data_dir;
mod demo;
mod disk;
mod doctor;
mod down;
mod engine;
mod exit;
mod explain;
mod findings;
mod gather;
mod inventory;
mod kubeconfig;
mod log;
mod manager;
mod manual;
mod metrics;
mod node;
mod output;
mod person;
mod privileges;
mod replica;
mod replica_key;
mod runtime;
mod secret;
mod setting;
mod suggest;
mod support_bundle;
mod ticket;
mod top;
mod up;
mod volume;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use cli::{Cli, Command};

fn main() -> ExitCode {
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let cli = Cli::parse_from(cli::with_compatibility(std::env::args_os().collect()));
    log::start();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lariat: {}", exit::told(&error));
            exit::code(&error)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(arguments) => up::run(arguments)?,
        Command::Down(arguments) => down::run(&arguments)?,
        Command::Demo(arguments) => demo::run(arguments)?,
        Command::Volume(command) => volume::run(command)?,
        Command::Ticket(command) => ticket::run(command)?,
        Command::Node(command) => node::run(command)?,
        Command::Disk(command) => disk::run(command)?,
        Command::Setting(command) => setting::run(command)?,
        Command::Top(arguments) => top::run(&arguments)?,
        Command::Manager(arguments) => manager::run(arguments)?,
        Command::Attacher(arguments) => attacher::run(&arguments)?,
        Command::Crds(arguments) => crds::print(&arguments)?,
        Command::Explain(arguments) => return explain::run(&arguments),
        Command::Why(arguments) => return why::run(&arguments),
        Command::Doctor(arguments) => return doctor::run(&arguments),
        Command::SupportBundle(arguments) => support_bundle::run(&arguments)?,
        Command::Replica(command) => replica::run(command)?,
        Command::Engine(command) => return engine::run(command),
        Command::Bench(command) => bench::run(command)?,
        Command::Completions { shell } => cli::print_completions(shell)?,
        Command::Manual(arguments) => manual::run(&arguments)?,
        Command::ExitCodes => output::tell!("{}", exit::PAGE),
    }
    Ok(ExitCode::SUCCESS)
}
