//! `lariat engine`: a volume by hand. `run` is the volume's engine; `salvage` and `verify` ask its replicas; the rest speaks to
//! a running one.

mod verify;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use apiserver::builtin::rules::quantity::Quantity;
use block_core::ReplicaName;
use block_core::salvage::{Identical, Verdict};
use clap::{Args, Subcommand};
use engine::control::client::ControlClient;
use engine::control::{Answer, Command};
use engine::frontend::FrontendKind;
use engine::frontend::keeper::Keeper;
use engine::inspect::{Comparing, Inspection};
use engine::run::{RUNTIME_DIR, RunOptions, control_path, parse_replica, prepare};
use engine::shell::Stopper;
use node_agent::launch::LaunchSpec;

use crate::client::root_cause;
use crate::output::tell;
use crate::secret::SecretArgument;
use crate::up::until_signalled;

#[derive(Subcommand)]
pub(crate) enum EngineCommand {
    /// Run a volume's engine in the foreground: connect its replicas and open its block device
    Run(RunArguments),
    /// What the engine and its replicas are doing, as JSON
    Status(Target),
    /// Take a snapshot of all replicas at one point of the write order
    Snapshot {
        #[command(flatten)]
        target: Target,
        name: String,
    },
    /// List snapshots, as JSON
    Snapshots(Target),
    /// Mark a snapshot as removed; `purge` then merges it away
    Delete {
        #[command(flatten)]
        target: Target,
        name: String,
    },
    /// Make the volume what a snapshot shows; needs `--frontend none`
    Revert {
        #[command(flatten)]
        target: Target,
        name: String,
    },
    /// Merge removed snapshots away
    Purge(Target),
    /// Make the volume larger, while it is used
    Expand {
        #[command(flatten)]
        target: Target,
        #[arg(value_parser = parse_size)]
        size: u64,
    },
    /// Add a replica, or bring one back: copy what it lacks, compare, and let it join
    Rebuild {
        #[command(flatten)]
        target: Target,
        #[arg(value_name = "NAME=HOST:PORT")]
        replica: String,
    },
    /// Bound how fast rebuilds copy, so that users feel them less
    RebuildRate {
        #[command(flatten)]
        target: Target,
        /// Bytes a second, such as 50Mi; 0: no limit
        #[arg(value_parser = parse_size)]
        rate: u64,
    },
    /// Leave a replica behind, in order
    Remove {
        #[command(flatten)]
        target: Target,
        #[arg(value_name = "NAME")]
        replica: String,
    },
    /// Say which replicas have every acknowledged write, from what they know of themselves; changes nothing
    Salvage(SalvageArguments),
    /// Have replicas read their snapshots anew, and name those that a disk has changed; also while an engine runs
    Verify(verify::VerifyArguments),
    /// Close the device, flush, and end the engine
    Shutdown(Target),
    /// What a node's agent starts: reads a launch specification from standard input
    #[command(hide = true)]
    Managed(ManagedArguments),
    /// Hold devices open while their engine restarts, so that their users notice only a pause
    Keeper {
        #[arg(default_value = "/run/lariat/keeper")]
        socket: PathBuf,
    },
}

/// Which running engine is meant.
#[derive(Args)]
pub(crate) struct Target {
    volume: String,
    #[arg(long, env = "LARIAT_RUNTIME_DIR", default_value = RUNTIME_DIR, value_name = "DIR")]
    runtime_dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct RunArguments {
    #[arg(long)]
    volume: String,

    /// Size of a new volume, such as 10Gi; a volume that exists keeps its own
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,

    /// A replica's server, as NAME=HOST:PORT; give it once for each replica
    #[arg(long = "replica", value_name = "NAME=HOST:PORT")]
    replicas: Vec<String>,

    /// How the volume is shown: fuse (a block device), nbd (a socket) or none
    #[arg(long, default_value = "fuse", value_parser = |text: &str| text.parse::<FrontendKind>())]
    frontend: FrontendKind,

    /// Sector size of the device in bytes: 4096 or 512
    #[arg(long, default_value_t = 4096)]
    sector: u32,

    #[arg(long, env = "LARIAT_RUNTIME_DIR", default_value = RUNTIME_DIR, value_name = "DIR")]
    runtime_dir: PathBuf,

    /// File that records the volume's epoch and in-sync set
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Socket of a `lariat engine keeper`
    #[arg(long, value_name = "SOCKET")]
    keeper: Option<PathBuf>,

    #[command(flatten)]
    line: LineArguments,

    /// Look for blocks of zeroes in what is written: they take no space on replicas
    #[arg(long)]
    detect_zeroes: bool,
}

/// These only tell people and agents whose process this is; what counts comes on standard input.
#[derive(Args)]
pub(crate) struct ManagedArguments {
    #[arg(long, value_name = "DIR")]
    runtime_dir: PathBuf,
    #[arg(long)]
    volume: String,
}

#[derive(Args)]
pub(crate) struct SalvageArguments {
    volume: String,
    #[arg(required = true, value_name = "NAME=HOST:PORT")]
    replicas: Vec<String>,
    /// Have them read all that they hold, to say whether they are identical; stop the engine first: one that only writes is not noticed
    #[arg(long)]
    compare: bool,
    #[command(flatten)]
    line: LineArguments,
}

/// How replicas are spoken to.
#[derive(Args)]
struct LineArguments {
    #[command(flatten)]
    secret: SecretArgument,

    /// Encrypt the lines to replicas
    #[arg(long)]
    tls: bool,
}

impl LineArguments {
    /// For a look at these replicas of a volume, which may have no engine.
    fn inspection(&self, volume: &str, replicas: &[String]) -> Result<Inspection> {
        let secret = self.secret.read_or_make()?;
        Ok(Inspection::new(volume, &secret, self.tls, replicas)?)
    }
}

/// How long a keeper holds a device whose engine does not come back.
const KEEPER_GRACE: Duration = Duration::from_secs(60);

pub(crate) fn run(command: EngineCommand) -> Result<ExitCode> {
    let done = match command {
        EngineCommand::Verify(arguments) => return verify::run(&arguments),
        EngineCommand::Run(arguments) => run_engine(arguments),
        EngineCommand::Managed(arguments) => run_managed(&arguments),
        EngineCommand::Status(target) => send(&target, Command::Status),
        EngineCommand::Snapshot { target, name } => {
            let created_unix_ms = SystemTime::now()
                .duration_since(UNIX_EPOCH)?
                .as_millis()
                .try_into()?;
            send(
                &target,
                Command::Snapshot {
                    name,
                    created_unix_ms,
                },
            )
        }
        EngineCommand::Snapshots(target) => send(&target, Command::ListSnapshots),
        EngineCommand::Delete { target, name } => send(&target, Command::DeleteSnapshot { name }),
        EngineCommand::Revert { target, name } => send(&target, Command::Revert { name }),
        EngineCommand::Purge(target) => send(&target, Command::Purge),
        EngineCommand::Expand { target, size } => {
            send(&target, Command::Expand { size_bytes: size })
        }
        EngineCommand::Rebuild { target, replica } => {
            let replica = parse_replica(&replica)?;
            send(
                &target,
                Command::Rebuild {
                    name: replica.name.to_string(),
                    address: replica.address,
                },
            )
        }
        EngineCommand::RebuildRate { target, rate } => send(
            &target,
            Command::SetRebuildRate {
                bytes_per_second_max: rate,
            },
        ),
        EngineCommand::Remove { target, replica } => {
            send(&target, Command::RemoveReplica { name: replica })
        }
        EngineCommand::Salvage(arguments) => salvage(&arguments),
        EngineCommand::Shutdown(target) => send(&target, Command::Shutdown),
        EngineCommand::Keeper { socket } => keep(&socket),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn run_engine(arguments: RunArguments) -> Result<()> {
    let mut options = RunOptions::by_hand(&arguments.volume);
    options.size_bytes = arguments.size;
    options.replicas = arguments.replicas;
    options.frontend = arguments.frontend;
    options.sector_bytes = arguments.sector;
    options.runtime_dir = arguments.runtime_dir;
    options.keeper = arguments.keeper;
    options.secret = arguments.line.secret.read_or_make()?;
    options.tls = arguments.line.tls;
    options.detect_zeroes = arguments.detect_zeroes;
    if let Some(record) = arguments.record {
        options.mode = engine::run::RunMode::ByHand { record };
    }
    serve(&options)
}

/// An engine that an agent looks after: it has a session of its own, so that what ends the agent does not end it.
fn run_managed(arguments: &ManagedArguments) -> Result<()> {
    // It fails only for a process that leads a group already, which is apart enough.
    let _ = rustix::process::setsid();
    let spec = LaunchSpec::read(std::io::stdin().lock())?;
    if spec.volume != arguments.volume || spec.runtime_dir != arguments.runtime_dir {
        bail!("the launch specification is of another volume or folder than the arguments");
    }
    serve(&spec.run_options()?)
}

fn serve(options: &RunOptions) -> Result<()> {
    let volume = &options.volume;
    let shell =
        prepare(options).with_context(|| format!("cannot start the engine of volume {volume}"))?;
    stop_on_signals(shell.stopper())?;
    let ended = shell
        .run()
        .with_context(|| format!("the engine of volume {volume} failed"))?;
    if !ended.clean {
        bail!("the engine of volume {volume} ended without having flushed every replica");
    }
    Ok(())
}

/// SIGINT and SIGTERM end the engine in order: device closed, replicas flushed.
fn stop_on_signals(stopper: Stopper) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signalled = runtime.block_on(async { until_signalled() })?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(signalled);
            stopper.stop();
        })?;
    Ok(())
}

fn send(target: &Target, command: Command) -> Result<()> {
    let path = control_path(&target.runtime_dir, &target.volume);
    let mut client = ControlClient::connect(&path).map_err(|error| {
        anyhow!(
            "no engine of volume {} answers at {}: {}; is it running there? start it, or name its folder with \
             --runtime-dir DIR",
            target.volume,
            path.display(),
            root_cause(&error)
        )
    })?;
    let answer = client.command(command);
    match answer.with_context(|| format!("volume {}", target.volume))? {
        Answer::Done => tell!("done"),
        Answer::Status(status) => tell!("{}", serde_json::to_string_pretty(&status)?),
        Answer::Snapshots(snapshots) => tell!("{}", serde_json::to_string_pretty(&snapshots)?),
    }
    Ok(())
}

fn salvage(arguments: &SalvageArguments) -> Result<()> {
    let line = &arguments.line;
    let inspection = line.inspection(&arguments.volume, &arguments.replicas)?;
    let verdict = if arguments.compare {
        inspection.salvage_comparing(|step| eprintln!("{}", progress(step)))?
    } else {
        inspection.salvage()?
    };
    tell!("{}", salvaged(&verdict));
    Ok(())
}

fn salvaged(verdict: &Verdict) -> String {
    let (what, warning) = if verdict.all_restarted {
        (
            "flushed",
            "\nthe machines of all of them were restarted: writes that were acknowledged and not flushed may be missing on all of them",
        )
    } else {
        ("acknowledged", "")
    };
    format!(
        "have every {what} write: {}\nmust be rebuilt: {}\nknown from epoch {}, in-sync set {}{warning}\n{}",
        names(&verdict.newest),
        names(&verdict.outdated),
        verdict.epoch,
        verdict.generation,
        advice(verdict)
    )
}

fn names(replicas: &BTreeSet<ReplicaName>) -> String {
    let names: Vec<&str> = replicas.iter().map(ReplicaName::as_str).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

fn progress(step: Comparing<'_>) -> String {
    match step {
        Comparing::Begun(of) => format!("reading all that these hold: {}", names(of)),
        Comparing::Read { replica, left: 0 } => format!("read {replica}"),
        Comparing::Read { replica, left } => format!("read {replica}; {left} to go"),
    }
}

fn advice(verdict: &Verdict) -> &'static str {
    match verdict.identical {
        Identical::Yes => "they are identical: start with all of them",
        Identical::No if verdict.all_restarted => {
            "they differ in writes that were never flushed: start from one, rebuild the others"
        }
        Identical::No => {
            "they differ in writes that were never acknowledged: start from one, rebuild the others"
        }
        Identical::Unknown => {
            "nothing proves that they are identical: ask again with --compare, or start from one and rebuild the others"
        }
    }
}

fn keep(socket: &Path) -> Result<()> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(|error| {
            let folder = folder.display();
            anyhow!("cannot make the folder {folder} for the keeper's socket: {error}; name another place for it")
        })?;
    }
    let _keeper = Keeper::start(socket, KEEPER_GRACE)
        .with_context(|| format!("cannot listen at {}", socket.display()))?;
    loop {
        std::thread::park();
    }
}

/// `10Gi`, `500M` or plain bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a size; write bytes, or a number with Ki, Mi, Gi or Ti");
    let quantity: Quantity = text.parse().map_err(|_| wrong())?;
    u64::try_from(quantity.units_rounded_up()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};

    use block_core::Epoch;
    use block_core::salvage::SalvageRefusal;
    use engine::control::{CommandError, ControlReply, FromEngine};
    use engine::inspect::InspectError;

    use super::*;
    use crate::exit;
    use crate::output::golden;

    fn replica(name: &str) -> ReplicaName {
        ReplicaName::new(name).unwrap()
    }

    fn replicas(names: &[&str]) -> BTreeSet<ReplicaName> {
        names.iter().map(|name| replica(name)).collect()
    }

    #[test]
    fn salvage_says_which_to_start_from() {
        let mut page = String::new();
        let cases: [(&[&str], Identical, &[&str], bool); 5] = [
            (&["r0", "r1", "r2"], Identical::Yes, &[], false),
            (&["r0", "r2"], Identical::No, &["r1"], false),
            (&["r0", "r1"], Identical::Unknown, &["r2", "r3"], false),
            (&["r0"], Identical::Yes, &["r1", "r2"], true),
            (&["r0", "r1"], Identical::No, &["r2"], true),
        ];
        for (newest, identical, outdated, all_restarted) in cases {
            let verdict = Verdict {
                epoch: Epoch(7),
                generation: 3,
                newest: replicas(newest),
                identical,
                outdated: replicas(outdated),
                all_restarted,
            };
            let restarted = if all_restarted { ", all restarted" } else { "" };
            page += &format!("# {identical:?}{restarted}\n{}\n", salvaged(&verdict));
        }
        let (both, one) = (replicas(&["r0", "r1"]), replica("r0"));
        page += "# progress\n";
        for step in [
            Comparing::Begun(&both),
            Comparing::Read {
                replica: &one,
                left: 1,
            },
            Comparing::Read {
                replica: &one,
                left: 0,
            },
        ] {
            page += &format!("{}\n", progress(step));
        }
        golden::check("engine-salvage", &page);
    }

    #[test]
    fn salvage_says_why_it_does_not_choose() {
        let refusals = [
            SalvageRefusal::NoReplicas,
            SalvageRefusal::GivenTwice {
                replica: replica("r0"),
            },
            SalvageRefusal::NoRecord,
            SalvageRefusal::NameMismatch {
                replica: replica("r0"),
                recorded: replica("r1"),
            },
            SalvageRefusal::Contradiction {
                one: replica("r0"),
                other: replica("r1"),
                epoch: Epoch(7),
                generation: 3,
            },
            SalvageRefusal::MissingMembers {
                generation: 3,
                missing: replicas(&["r1", "r2"]),
            },
            SalvageRefusal::NoneUsable { generation: 3 },
        ];
        let refused = refusals.map(InspectError::Refused);
        let taken = InspectError::Taken {
            name: replica("r0"),
        };
        let lines = refused
            .into_iter()
            .chain([taken])
            .map(|error| exit::told(&error.into()) + "\n");
        golden::check("engine-salvage-refused", &lines.collect::<String>());
    }

    #[test]
    fn an_engine_that_does_not_answer_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = Target {
            volume: "data".to_owned(),
            runtime_dir: folder.path().to_owned(),
        };
        let mut lines = vec![exit::told(
            &send(&target, Command::Status).expect_err("no engine"),
        )];
        // An engine that was killed leaves its socket behind.
        let path = control_path(&target.runtime_dir, &target.volume);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
        lines.push(exit::told(
            &send(&target, Command::Purge).expect_err("no engine"),
        ));
        std::fs::remove_file(&path).expect("the socket");
        // One that refuses, and one that ends before it has answered.
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let engine = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut line = String::new();
            let mut asked = BufReader::new(client.try_clone().expect("a socket"));
            asked.read_line(&mut line).expect("a command");
            let refused = ControlReply {
                id: 1,
                result: Err(CommandError::new("there is no snapshot \"daily\"")),
            };
            let line = serde_json::to_string(&FromEngine::Reply(refused)).expect("JSON") + "\n";
            client.write_all(line.as_bytes()).expect("an answer");
            let (client, _) = listener.accept().expect("a client");
            BufReader::new(client)
                .read_line(&mut String::new())
                .expect("a command");
        });
        for _ in 0..2 {
            let command = Command::DeleteSnapshot {
                name: "daily".to_owned(),
            };
            let error = send(&target, command).expect_err("no answer");
            lines.push(exit::told(&error));
        }
        engine.join().expect("no panic");
        std::fs::write(folder.path().join("file"), "").expect("a file");
        let elsewhere = folder.path().join("file/keeper");
        lines.push(exit::told(&keep(&elsewhere).expect_err("no folder")));
        let page = lines.join("\n") + "\n";
        golden::check(
            "engine-silent",
            &page.replace(&folder.path().display().to_string(), "FOLDER"),
        );
    }

    #[test]
    fn sizes_as_people_write_them() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(parse_size(text).ok(), expected, "{text}");
        };
        check("4096", Some(4096));
        check("10Gi", Some(10 << 30));
        check("1M", Some(1_000_000));
        check("-1", None);
        check("ten", None);
    }
}
