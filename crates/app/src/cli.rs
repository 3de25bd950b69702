//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::engine::EngineCommand;
use crate::node::NodeArguments;
use crate::replica::ReplicaCommand;

/// Volumes that attach where they are needed, and nowhere else.
///
/// `lariat up` starts a Kubernetes-compatible API on this machine, with nothing else installed.
#[derive(Parser)]
#[command(
    name = "lariat",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start the embedded default on this machine, and stay in the foreground
    Up(UpArguments),
    /// Stop what `lariat up` started
    Down(DownArguments),
    /// Print the CustomResourceDefinitions, ready for `kubectl apply -f -`
    Crds(CrdsArguments),
    /// Tell from a dump of objects who holds each volume, who waits for what, and what happens next
    ///
    /// Reads what `kubectl get … -o yaml` wrote (longhorn.io Volumes and VolumeAttachments, and whatever else is
    /// there to see), decides as the controller would, and writes nothing. Exits with 2 if part of the input could
    /// not be used; the rest is still explained.
    Explain(ExplainArguments),
    /// Run this machine's agent: its replicas, its engines, and the node's own objects
    Node(NodeArguments),
    /// Serve replicas
    #[command(subcommand)]
    Replica(ReplicaCommand),
    /// Run a volume by hand, and speak to its engine
    #[command(subcommand)]
    Engine(EngineCommand),
    /// Measure, on this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print a completion script for your shell
    Completions { shell: Shell },
}

#[derive(Args)]
pub(crate) struct UpArguments {
    #[command(flatten)]
    pub data_dir: DataDirArgument,

    /// Address to serve the API on; port 0 picks a free one
    #[arg(
        long,
        env = "LARIAT_LISTEN",
        default_value = "127.0.0.1:7443",
        value_name = "ADDR:PORT"
    )]
    pub listen: SocketAddr,

    /// How many nodes the cluster on this machine has
    ///
    /// This version serves the API only: node agents are not started yet, and the output says so.
    #[arg(long, env = "LARIAT_NODES", default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
}

#[derive(Args)]
pub(crate) struct DownArguments {
    #[command(flatten)]
    pub data_dir: DataDirArgument,
}

/// Where a cluster on this machine lives.
#[derive(Args)]
pub(crate) struct DataDirArgument {
    /// Folder that holds everything: objects, keys, the kubeconfig
    #[arg(long = "data-dir", env = "LARIAT_DATA_DIR", default_value_os_t = default_data_dir(), value_name = "DIR")]
    pub path: PathBuf,
}

/// The system's place for state when run as root, the user's own otherwise.
fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/lariat");
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    home.join(".local/share/lariat")
}

#[derive(Args)]
pub(crate) struct CrdsArguments {
    #[arg(short, long, value_enum, default_value_t = CrdsOutput::Yaml)]
    pub output: CrdsOutput,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum CrdsOutput {
    Yaml,
    Json,
}

#[derive(Args)]
pub(crate) struct ExplainArguments {
    /// YAML or JSON file, stream or List; - is standard input. May be given several times
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    #[arg(short, long, value_enum, default_value_t = ExplainOutput::Text)]
    pub output: ExplainOutput,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ExplainOutput {
    Text,
    Json,
    Yaml,
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Creates, lists, watches and start-up of an API server: a new one, or the one of a kubeconfig
    Api(BenchApiArguments),
}

#[derive(Args)]
pub(crate) struct BenchApiArguments {
    /// Measure this cluster instead of a server of our own
    #[arg(long, env = "LARIAT_BENCH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

pub(crate) fn print_completions(shell: Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "lariat", &mut std::io::stdout());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
