//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::attacher::AttacherArguments;
use crate::bench::attach::BenchAttachArguments;
use crate::bench::failover::BenchFailoverArguments;
use crate::demo::DemoArguments;
use crate::doctor::DoctorArguments;
use crate::engine::EngineCommand;
use crate::manager::ManagerArguments;
use crate::node::NodeArguments;
use crate::replica::ReplicaCommand;
use crate::support_bundle::SupportBundleArguments;
use crate::volume::VolumeCommand;
use crate::why::WhyArguments;

/// Volumes that attach where they are needed, and nowhere else.
///
/// `lariat up` starts a cluster on this machine, with nothing else installed: a Kubernetes-compatible API, a manager and
/// nodes with replicated volumes. On a real cluster, `lariat manager` and `lariat node` are all there is.
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
    /// Show it all in a moment: a claim, a pod, a file that moves with it from node to node
    Demo(DemoArguments),
    /// Ask about volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Run the controllers of a cluster; `lariat up` does it for the one on this machine
    Manager(ManagerArguments),
    /// Run this machine's agent: its replicas, its engines, and the node's own objects
    Node(NodeArguments),
    /// Attach and detach the volumes of any CSI driver, in place of the external-attacher
    Attacher(AttacherArguments),
    /// Print the CustomResourceDefinitions, ready for `kubectl apply -f -`
    Crds(CrdsArguments),
    /// Tell from a dump of objects who holds each volume, who waits for what, and what happens next
    ///
    /// Reads what `kubectl get … -o yaml` wrote (longhorn.io Volumes and VolumeAttachments, and whatever else is
    /// there to see), decides as the controller would, and writes nothing. Exits with 2 if part of the input could
    /// not be used; the rest is still explained.
    Explain(ExplainArguments),
    /// Tell why a volume, claim or pod is where it is, or what it waits for
    ///
    /// One chain of causes from the pod down to the replica, the most specific last, each with its evidence; then what
    /// happens by itself, and what a person can do. Exits with 0 if the volume is attached or nobody wants it, with 3 if
    /// it is on its way, with 4 if it is stuck.
    Why(WhyArguments),
    /// Look for troubles in the whole cluster, and repair them with --fix
    ///
    /// Compares pods, claims, volumes, attachments, tickets, engines, replicas and nodes with one another. Exits with 0 if
    /// nothing is wrong, with 3 if there are warnings, with 4 if there are errors.
    Doctor(DoctorArguments),
    /// Write one archive with everything that helps to find a trouble, secrets removed
    SupportBundle(SupportBundleArguments),
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

    /// How many nodes the cluster on this machine has; 0 for an API alone
    #[arg(long, env = "LARIAT_NODES", default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
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
pub(crate) fn default_data_dir() -> PathBuf {
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
    #[arg(
        short,
        long = "file",
        required_unless_present = "bundle",
        value_name = "FILE"
    )]
    pub files: Vec<PathBuf>,

    /// Archive that `lariat support-bundle` wrote
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,

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
    /// From a pod to its mounted volume and back, on a cluster that runs
    Attach(BenchAttachArguments),
    /// How long a volume is away when its node dies, on a cluster that `lariat up` runs here; kills nodes
    Failover(BenchFailoverArguments),
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
