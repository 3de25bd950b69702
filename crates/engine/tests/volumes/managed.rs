//! Engines that somebody else records in-sync sets for: stalls, commits and fences.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use engine::control::client::ControlClient;
use engine::control::{Command, ControlPush, EngineState, EngineStatus, ReplicaAt, Verdict};
use engine::frontend::FrontendKind;
use engine::run::{RunMode, RunOptions, control_path, prepare};
use engine::shell::Ended;
use replica::{KeyPolicy, ReplicaServer, ServerConfig};

use crate::PATIENCE;
use crate::processes::await_that;

const SECRET: &[u8] = b"managed";

/// An engine on a thread of this process.
struct Managed {
    control: std::path::PathBuf,
    thread: JoinHandle<Result<Ended>>,
}

impl Managed {
    fn start(folder: &Path, epoch: u64, servers: &[&ReplicaServer], create: bool) -> Result<Self> {
        Self::start_as(folder, epoch, servers, create, false)
    }

    /// The engine that another one's volume will be handed over to.
    fn start_standby(folder: &Path, epoch: u64, servers: &[&ReplicaServer]) -> Result<Self> {
        Self::start_as(folder, epoch, servers, false, true)
    }

    fn start_as(
        folder: &Path,
        epoch: u64,
        servers: &[&ReplicaServer],
        create: bool,
        standby: bool,
    ) -> Result<Self> {
        let mut options = RunOptions::by_hand("managed");
        options.size_bytes = Some(16 << 20);
        options.secret = SECRET.to_vec();
        options.runtime_dir = folder.join(format!("run{epoch}"));
        options.device_dir = folder.join("dev");
        options.frontend = FrontendKind::Nbd;
        options.job_deadline = Duration::from_millis(800);
        let names: Vec<String> = (0..servers.len()).map(|at| format!("r{at}")).collect();
        options.replicas = servers
            .iter()
            .zip(&names)
            .map(|(server, name)| format!("{name}={}", server.local_addr()))
            .collect();
        options.mode = RunMode::Managed {
            epoch,
            generation: 1,
            in_sync: names,
            written_off: Vec::new(),
            standby,
            create,
        };
        let control = control_path(&options.runtime_dir, "managed");
        let shell = prepare(&options)?;
        let thread = std::thread::spawn(move || Ok(shell.run()?));
        Ok(Self { control, thread })
    }

    fn client(&self) -> Result<ControlClient> {
        let client = ControlClient::connect(&self.control)?;
        client.set_timeout(Some(PATIENCE))?;
        Ok(client)
    }

    fn await_status(
        &self,
        what: &str,
        wanted: impl Fn(&EngineStatus) -> bool,
    ) -> Result<EngineStatus> {
        let mut found = None;
        await_that(what, || {
            let status = self.client()?.status()?;
            let holds = wanted(&status);
            found = Some(status);
            Ok(holds)
        })
        .with_context(|| format!("the last status: {found:?}"))?;
        found.context("there was one")
    }
}

fn server(folder: &Path) -> Result<ReplicaServer> {
    let mut config = ServerConfig::new(folder.to_owned());
    config.keys = KeyPolicy::Derived {
        secret: SECRET.to_vec(),
        clients_may_create: true,
    };
    Ok(ReplicaServer::bind(config)?)
}

/// A write that a failed replica lacks is not acknowledged before the smaller set is recorded.
#[test]
fn writes_wait_until_the_smaller_set_is_recorded() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (first, second) = (
        server(&folder.path().join("a"))?,
        server(&folder.path().join("b"))?,
    );
    let engine = Managed::start(folder.path(), 1, &[&first, &second], true)?;
    let endpoint = engine
        .await_status("ready", |status| status.endpoint.is_some())?
        .endpoint
        .context("it is ready")?;
    second.shutdown();
    engine.await_status("a proposal", |status| status.proposal.is_some())?;
    let writer = std::thread::spawn(move || {
        let path = endpoint
            .split("socket=")
            .nth(1)
            .map(str::to_owned)
            .unwrap_or_default();
        crate::programs::run(
            "qemu-io",
            &[
                "--image-opts",
                &format!(
                    "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={path}"
                ),
                "-c",
                "write -P 7 0 4096",
            ],
        )
    });
    let status = engine.await_status("a stalled write", |status| {
        status.statistics.open_requests > 0
    })?;
    ensure!(
        status.statistics.write.count == 0,
        "nothing is acknowledged: {status:?}"
    );
    ensure!(
        status
            .stalled
            .as_deref()
            .is_some_and(|why| why.contains("nobody who records")),
        "{status:?}"
    );
    ensure!(!writer.is_finished());

    // Whoever attaches is told of the proposal, also when it was made before.
    let mut committer = engine.client()?;
    committer.command(Command::AttachCommitter)?;
    let ControlPush::Propose(proposal) = committer.next_push()? else {
        bail!("no proposal")
    };
    ensure!(
        proposal.in_sync == ["r0"] && proposal.replaces == ["r0", "r1"] && proposal.generation == 2
    );
    committer.commit(proposal.generation, Verdict::NotNow { why: "busy".into() })?;
    let ControlPush::Propose(again) = committer.next_push()? else {
        bail!("no proposal")
    };
    ensure!(
        again == proposal && !writer.is_finished(),
        "it is proposed again, and nothing moves meanwhile"
    );
    committer.commit(again.generation, Verdict::Recorded)?;
    writer
        .join()
        .expect("no panic")
        .context("the write goes through")?;
    ensure!(
        engine
            .await_status("settled", |status| status.stalled.is_none())?
            .in_sync
            == ["r0"]
    );
    engine.client()?.command(Command::Shutdown)?;
    ensure!(engine.thread.join().expect("no panic")?.clean);
    Ok(())
}

/// An engine that was replaced finds out, and answers nothing that looks like success.
#[test]
fn a_replaced_engine_is_fenced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (first, second) = (
        server(&folder.path().join("a"))?,
        server(&folder.path().join("b"))?,
    );
    let old = Managed::start(folder.path(), 1, &[&first, &second], true)?;
    let endpoint = old
        .await_status("ready", |status| status.endpoint.is_some())?
        .endpoint
        .context("ready")?;
    let new = Managed::start(folder.path(), 2, &[&first, &second], false)?;
    new.await_status("ready", |status| status.endpoint.is_some())?;
    let path = endpoint.split("socket=").nth(1).context("a socket")?;
    let written = crate::programs::run(
        "qemu-io",
        &[
            "--image-opts",
            &format!("driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={path}"),
            "-c",
            "write -P 7 0 4096",
            "-c",
            "flush",
        ],
    );
    // qemu-io may report the failure in its output only.
    ensure!(
        written.is_err() || written.is_ok_and(|text| text.contains("failed")),
        "the write fails"
    );
    old.await_status("fenced", |status| {
        matches!(status.state, EngineState::Fenced { .. })
    })?;
    old.client()?.command(Command::Shutdown)?;
    ensure!(!old.thread.join().expect("no panic")?.clean);
    new.client()?.command(Command::Shutdown)?;
    ensure!(new.thread.join().expect("no panic")?.clean);
    Ok(())
}

/// The control socket is its owner's alone, and refuses what it does not speak.
#[test]
fn the_control_socket_is_private_and_versioned() -> Result<()> {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir()?;
    let only = server(&folder.path().join("a"))?;
    let engine = Managed::start(folder.path(), 1, &[&only], true)?;
    engine.await_status("ready", |status| status.endpoint.is_some())?;
    ensure!(std::fs::metadata(&engine.control)?.permissions().mode() & 0o777 == 0o600);
    let mut socket = std::os::unix::net::UnixStream::connect(&engine.control)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(socket.try_clone()?);
    for (line, expected) in [
        (
            "{\"version\":9,\"id\":1,\"command\":\"status\"}",
            "version 1",
        ),
        (
            "{\"version\":1,\"id\":2,\"command\":\"dance\"}",
            "not a command",
        ),
        ("hello", "not JSON"),
        (
            "{\"version\":1,\"id\":3,\"command\":{\"commit\":{\"generation\":2,\"verdict\":\"recorded\"}}}",
            "attached committer",
        ),
        (
            "{\"version\":1,\"id\":4,\"command\":\"status\"}",
            "\"volume\":\"managed\"",
        ),
    ] {
        socket.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        reader.read_line(&mut answer)?;
        ensure!(answer.contains(expected), "{line} gives {answer}");
    }
    engine.client()?.command(Command::Shutdown)?;
    ensure!(engine.thread.join().expect("no panic")?.clean);
    Ok(())
}

/// Runs commands of qemu-io at an engine's socket.
fn qemu_io(endpoint: &str, commands: &[&str]) -> Result<String> {
    let path = endpoint.split("socket=").nth(1).context("a socket")?;
    let image = format!("driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={path}");
    let mut arguments = vec!["--image-opts", image.as_str()];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    let text = crate::programs::run("qemu-io", &arguments)?;
    // It may report a failure in its output only.
    ensure!(
        !text.contains("failed") && !text.contains("error"),
        "{text}"
    );
    Ok(text)
}

/// A live migration as the engines see it: the standby reads what the writer writes, its first write waits for the hand-over,
/// and nobody sees an error.
#[test]
fn a_standby_reads_and_takes_over() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (first, second) = (
        server(&folder.path().join("a"))?,
        server(&folder.path().join("b"))?,
    );
    let servers = [&first, &second];
    let ready = |status: &EngineStatus| status.endpoint.is_some();
    let endpoint = |engine: &Managed| -> Result<String> {
        let status = engine.await_status("ready", ready)?;
        status.endpoint.context("it is ready")
    };
    let source = Managed::start(folder.path(), 1, &servers, true)?;
    let at_source = endpoint(&source)?;
    qemu_io(&at_source, &["write -P 1 0 64k"])?;
    let target = Managed::start_standby(folder.path(), 2, &servers)?;
    let at_target = endpoint(&target)?;
    qemu_io(&at_target, &["read -P 1 0 64k", "flush"])?;
    // Reading disturbs the writer no more than it disturbs the reader.
    qemu_io(&at_source, &["write -P 2 4k 4k"])?;
    qemu_io(&at_target, &["read -P 2 4k 4k", "read -P 1 8k 4k"])?;
    let status = target.client()?.status()?;
    ensure!(
        matches!(
            status.state,
            EngineState::Standby {
                wants_take_over: false,
                ..
            }
        ),
        "{status:?}"
    );

    let writing = std::thread::spawn(move || {
        qemu_io(
            &at_target,
            &[
                "write -P 3 8k 4k",
                "flush",
                "read -P 2 4k 4k",
                "read -P 3 8k 4k",
            ],
        )
    });
    target.await_status("the wish to take over", |status| {
        matches!(
            status.state,
            EngineState::Standby {
                wants_take_over: true,
                ..
            }
        )
    })?;
    ensure!(!writing.is_finished(), "nothing is written before");
    qemu_io(&at_source, &["read -P 1 8k 4k", "write -P 4 12k 4k"])?;
    let in_sync = ["r0", "r1"].iter().zip(servers);
    let in_sync = in_sync.map(|(name, server)| ReplicaAt {
        name: (*name).to_owned(),
        address: server.local_addr().to_string(),
    });
    target.client()?.command(Command::Promote {
        generation: 1,
        in_sync: in_sync.collect(),
    })?;
    writing.join().expect("no panic")?;
    let status = target.await_status("the writer", |status| {
        status.state == EngineState::Serving && status.endpoint.is_some()
    })?;
    let endpoint = status.endpoint.context("it is ready")?;
    qemu_io(&endpoint, &["read -P 4 12k 4k", "write -P 5 16k 4k"])?;
    source.await_status("the fence", |status| {
        matches!(status.state, EngineState::Fenced { .. })
    })?;
    source.client()?.command(Command::Shutdown)?;
    ensure!(!source.thread.join().expect("no panic")?.clean);
    target.await_status("the comparison's end", |status| status.tasks.is_empty())?;
    target.client()?.command(Command::Shutdown)?;
    ensure!(target.thread.join().expect("no panic")?.clean);
    Ok(())
}
