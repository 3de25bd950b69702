//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::attacher::AttacherArguments;
use crate::bench::attach::BenchAttachArguments;
use crate::bench::failover::BenchFailoverArguments;
use crate::bench::scale::{BenchDoctorArguments, BenchMemoryArguments, BenchRebuildArguments};
use crate::demo::DemoArguments;
use crate::disk::DiskCommand;
use crate::doctor::DoctorArguments;
use crate::engine::EngineCommand;
use crate::manager::ManagerArguments;
use crate::manual::ManualArguments;
use crate::node::NodeCommand;
use crate::output::AnswerArgument;
use crate::replica::ReplicaCommand;
use crate::setting::SettingCommand;
use crate::support_bundle::SupportBundleArguments;
use crate::ticket::TicketCommand;
use crate::top::TopArguments;
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
    /// Volumes: see, make, attach, detach and delete them, and read what happened to them
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Tickets: who asks for a volume, who waits for what, and which of them nobody needs
    #[command(subcommand)]
    Ticket(TicketCommand),
    /// Nodes: see them, keep work off them, empty them; and run this machine as one
    #[command(subcommand)]
    Node(NodeCommand),
    /// Disks: see, add, empty and remove them, and tell the devices of this machine apart
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Settings: what holds for all volumes
    #[command(subcommand)]
    Setting(SettingCommand),
    /// The cluster at a glance, live, until `q`
    Top(TopArguments),
    /// Run the controllers of a cluster; `lariat up` does it for the one on this machine
    Manager(ManagerArguments),
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
    /// it is on its way, with 4 if it is stuck, with 7 if part of the cluster could not be read.
    Why(WhyArguments),
    /// Look for troubles in the whole cluster, and repair them with --fix
    ///
    /// Compares pods, claims, volumes, attachments, tickets, engines, replicas and nodes with one another. Exits with 0 if
    /// nothing is wrong, with 3 if there are warnings, with 4 if there are errors, with 7 if there are none but part of the
    /// cluster could not be read.
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
    /// Print a script that completes commands and the cluster's names in your shell
    Completions { shell: Shell },
    /// Write a man page for every command
    Manual(ManualArguments),
    /// What the numbers mean that commands end with
    #[command(name = "exit-codes", after_help = crate::exit::PAGE)]
    ExitCodes,
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
        value_name = "ADDR:PORT",
        value_parser = address
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

/// An address with a port, as listeners need it.
fn address(text: &str) -> Result<SocketAddr, String> {
    let parsed = text.parse();
    parsed.map_err(|_| "an address with a port is needed, such as 127.0.0.1:7443".to_owned())
}

/// Where a cluster on this machine lives.
#[derive(Args)]
pub(crate) struct DataDirArgument {
    /// Folder that holds everything: objects, keys, the kubeconfig
    #[arg(long = "data-dir", env = DATA_DIR_VARIABLE, default_value_os_t = default_data_dir(), value_name = "DIR")]
    pub path: PathBuf,
}

/// The folder's name for all commands of a shell.
const DATA_DIR_VARIABLE: &str = "LARIAT_DATA_DIR";

/// The folder for commands without `--data-dir`.
pub(crate) fn data_dir() -> PathBuf {
    let named = std::env::var_os(DATA_DIR_VARIABLE);
    let named = named.filter(|name| !name.is_empty());
    named.map_or_else(default_data_dir, PathBuf::from)
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

    #[command(flatten)]
    pub output: AnswerArgument,
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Creates, lists, watches and start-up of an API server: a new one, or the one of a kubeconfig
    Api(BenchApiArguments),
    /// From a pod to its mounted volume and back, on a cluster that runs
    Attach(BenchAttachArguments),
    /// How long a volume is away when its node dies, on a cluster that `lariat up` runs here; kills nodes
    Failover(BenchFailoverArguments),
    /// How long `lariat doctor` takes with many volumes, on an API server of its own
    Doctor(BenchDoctorArguments),
    /// How long a manager takes to know who has what, and how much memory, on an API server of its own
    Rebuild(BenchRebuildArguments),
    /// How much memory a manager needs for its volumes
    Memory(BenchMemoryArguments),
}

#[derive(Args)]
pub(crate) struct BenchApiArguments {
    /// Measure this cluster instead of a server of our own
    #[arg(long, env = "LARIAT_BENCH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// A script that asks this program at every completion, so that names come from the cluster.
pub(crate) fn print_completions(shell: Shell) -> anyhow::Result<()> {
    let shells = clap_complete::env::Shells::builtins();
    let name = shell.to_string();
    let known = shells.completer(&name);
    let completer = known.ok_or_else(|| anyhow::anyhow!("no completions for {name}"))?;
    let script = &mut std::io::stdout();
    Ok(completer.write_registration("COMPLETE", "lariat", "lariat", "lariat", script)?)
}

/// `lariat node --name N` ran the agent before `node` had commands; scripts and units still say so.
pub(crate) fn with_compatibility(mut words: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let is_node = words.get(1).is_some_and(|word| word == "node");
    let is_option = |word: &std::ffi::OsString| word.as_encoded_bytes().starts_with(b"--");
    let names_a_node = words
        .iter()
        .skip(2)
        .any(|word| word == "--name" || word.as_encoded_bytes().starts_with(b"--name="));
    if is_node && names_a_node && words.get(2).is_some_and(is_option) {
        words.insert(2, "run".into());
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::output::golden;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_makes_no_sense_is_said_with_an_example() {
        let mut page = String::new();
        for words in [
            "volume create data --size much",
            "volume create data --size 10Gigs",
            "volume create data --size 9999999999999Ti",
            "volume create data --size 10Gi --replicas 0",
            "volume create data",
            "volume attach data --node node-1 --for 2",
            "volume attach data --node node-1 --for forever",
            "volume attach data --node node-1 --timeout 0s",
            "volume lst",
            "engine run --volume data --size ten",
            "engine run --volume data --frontend iscsi",
            "disk add node-1 fast /srv/fast --reserve=-1",
            "why data -o wide",
        ] {
            let words: Vec<&str> = std::iter::once("lariat").chain(words.split(' ')).collect();
            let Err(error) = Cli::try_parse_from(&words) else {
                panic!("{words:?} makes sense");
            };
            assert_eq!(error.exit_code(), 2);
            page += &format!("# {}\n{error}", words.join(" "));
        }
        golden::check("errors-arguments", &page);
    }

    /// Every command that has `-o`, with the values that it takes.
    fn offering<'a>(command: &'a clap::Command, found: &mut Vec<(&'a str, Vec<String>)>) {
        let output = command
            .get_arguments()
            .find(|argument| argument.get_short() == Some('o'));
        if let Some(output) = output {
            let values = output.get_possible_values();
            let values = values.iter().map(|value| value.get_name().to_owned());
            found.push((command.get_name(), values.collect()));
        }
        for inner in command.get_subcommands() {
            offering(inner, found);
        }
    }

    #[test]
    fn what_can_be_had_as_json_can_be_had_as_yaml() {
        let command = Cli::command();
        let mut found = Vec::new();
        offering(&command, &mut found);
        for (name, values) in &found {
            let has = |value: &str| values.iter().any(|one| one == value);
            assert_eq!(has("json"), has("yaml"), "{name}: {values:?}");
        }
        for name in ["why", "doctor", "timeline", "explain", "list", "history"] {
            let known = found.iter().any(|(command, _)| *command == name);
            assert!(known, "{name} has no -o: {found:?}");
        }
    }

    #[test]
    fn the_agent_is_still_run_as_it_used_to_be() {
        let check = |words: &str, expected: &str| {
            let words = words.split(' ').map(Into::into).collect();
            let words = with_compatibility(words);
            let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
            assert_eq!(words.join(" "), expected);
        };
        check(
            "lariat node --name n1 --keeper",
            "lariat node run --name n1 --keeper",
        );
        check(
            "lariat node --embedded --name=n1",
            "lariat node run --embedded --name=n1",
        );
        check("lariat node run --name n1", "lariat node run --name n1");
        check(
            "lariat node --kubeconfig f list",
            "lariat node --kubeconfig f list",
        );
        check("lariat node --help", "lariat node --help");
        check("lariat volume list", "lariat volume list");
    }
}
