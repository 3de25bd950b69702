//! `lariat bench doctor`, `rebuild` and `memory`: what takes its time with the size of a cluster.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use diagnose::{Code, Index, Scope, examine};
use kube::Client;

use super::crowd;
use super::report::{Line, shown};
use super::server::{Server, client, resident_mebibytes, with_folder};
use crate::gather;

/// How long a manager is left alone before it is measured: its first round over all volumes is over by then.
const SETTLING: Duration = Duration::from_secs(10);
/// How often each look is repeated.
const LOOKS: usize = 3;

#[derive(Args)]
pub(crate) struct BenchDoctorArguments {
    /// How many attached volumes, each with its claim, pod, attachments, engine and three replicas
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub volumes: usize,
}

pub(super) async fn doctor(arguments: BenchDoctorArguments) -> Result<()> {
    let count = arguments.volumes;
    with_folder(|folder| async move {
        let (_server, client) = filled(&folder, crowd::volumes(count), count).await?;
        let told = "the benchmark's server".to_owned();
        let api = crate::client::Server { client, told };
        let (mut listed, mut examined, mut together) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..LOOKS {
            let started = Instant::now();
            let look = gather::look(&api).await?;
            listed.push(started.elapsed());
            let findings = examine(&Index::new(&look.dump, look.at), &Scope::Everything);
            together.push(started.elapsed());
            examined.push(started.elapsed() - listed[listed.len() - 1]);
            // Or else it measured how fast something is overlooked.
            let orphans = findings
                .iter()
                .filter(|found| found.code == Code::OrphanCsiTicket);
            ensure!(
                orphans.count() == count / 1000,
                "not every orphan was found; {} findings, the first: {:?}",
                findings.len(),
                findings.first().map(|found| &found.sentence)
            );
        }
        Line::latency("listed through the API and read", &mut listed).print();
        Line::latency("examined", &mut examined).print();
        Line::latency("together", &mut together).print();
        Ok(())
    })
    .await
}

#[derive(Args)]
pub(crate) struct BenchRebuildArguments {
    /// How many VolumeAttachments, each with its PersistentVolume
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    pub attachments: usize,
}

pub(super) async fn rebuild(arguments: BenchRebuildArguments) -> Result<()> {
    let count = arguments.attachments;
    with_folder(|folder| async move {
        let (server, _client) = filled(&folder, Vec::new(), 0).await?;
        let empty = Manager::start(&folder)?.until_rebuilt(0)?;
        drop(server);
        std::fs::remove_dir_all(&folder)?;

        let (_server, _client) = filled(&folder, crowd::attachments(count), count).await?;
        let full = Manager::start(&folder)?.until_rebuilt(count)?;
        let what = format!("manager started to {count} attachments known");
        Line::value(what, shown(full.took)).print();
        Line::value("the same with none", shown(empty.took)).print();
        let mebibytes = |memory: u64| format!("{memory} MiB");
        Line::value(
            "resident memory of the manager then",
            mebibytes(full.memory),
        )
        .print();
        Line::value("the same with none", mebibytes(empty.memory)).print();
        Ok(())
    })
    .await
}

#[derive(Args)]
pub(crate) struct BenchMemoryArguments {
    /// How many attached volumes, each with its claim, pod, attachments, engine and three replicas
    #[arg(long, default_value_t = 1_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub volumes: u32,
}

pub(super) async fn memory(arguments: BenchMemoryArguments) -> Result<()> {
    let count = usize::try_from(arguments.volumes)?;
    with_folder(|folder| async move {
        let (server, _client) = filled(&folder, Vec::new(), 0).await?;
        let empty = Manager::start(&folder)?.memory_at_rest(0)?;
        drop(server);
        std::fs::remove_dir_all(&folder)?;

        let (_server, _client) = filled(&folder, crowd::volumes(count), count).await?;
        // One in a thousand has no attachment, for `doctor` to find.
        let attached = count - count / 1000;
        let full = Manager::start(&folder)?.memory_at_rest(attached)?;
        let mebibytes = |memory: u64| format!("{memory} MiB");
        let what = format!("resident memory of a manager of {count} volumes");
        Line::value(what, mebibytes(full)).print();
        Line::value("the same with none", mebibytes(empty)).print();
        let each = full.saturating_sub(empty) * 1000 / u64::from(arguments.volumes);
        Line::value("so for each 1,000 volumes", mebibytes(each)).print();
        Ok(())
    })
    .await
}

async fn filled(folder: &Path, crowd: Vec<crowd::Made>, count: usize) -> Result<(Server, Client)> {
    let (server, _) = Server::start(folder)?;
    let client = client(&folder.join("kubeconfig")).await?;
    let started = Instant::now();
    if count > 0 {
        eprintln!("making {} objects for {count} volumes", crowd.len());
    }
    crowd::load(&client, crowd).await?;
    if count > 0 {
        eprintln!("made in {} s", started.elapsed().as_secs());
    }
    Ok((server, client))
}

/// A manager of the embedded mode, as `lariat up` starts it.
struct Manager {
    child: Child,
    started: Instant,
}

struct Rebuilt {
    took: Duration,
    memory: u64,
}

impl Manager {
    fn start(folder: &Path) -> Result<Self> {
        let path = |name: &str| -> PathBuf { folder.join(name) };
        let child = Command::new(std::env::current_exe()?)
            .args(["manager", "--embedded", "--findings-every", "3600"])
            .arg("--kubeconfig")
            .arg(path("kubeconfig"))
            .arg("--csi-socket")
            .arg(path("csi.sock"))
            .arg("--sole-lock")
            .arg(path("manager.lock"))
            .env("LARIAT_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start lariat manager")?;
        let started = Instant::now();
        Ok(Self { child, started })
    }

    /// Waits until the manager says that it knows all attachments, and who has what.
    fn until_rebuilt(&mut self, count: usize) -> Result<Rebuilt> {
        let log = self.child.stderr.take().context("a log")?;
        let mut lines = BufReader::new(log).lines();
        // In whatever order.
        let mut awaited = vec![
            ("the attach-detach controller starts", "attachments"),
            ("who has what has been rebuilt", "volumes"),
        ];
        while !awaited.is_empty() {
            let line = lines
                .next()
                .context("the manager ended before it began")??;
            let Some(at) = awaited.iter().position(|(told, _)| line.contains(told)) else {
                continue;
            };
            let (_, field) = awaited.remove(at);
            ensure!(
                format!("{line} ").contains(&format!("{field}={count} ")),
                "it does not know all of them: {line}"
            );
        }
        // A full pipe would hold up the manager's log, and with it the manager.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Rebuilt {
            took: self.started.elapsed(),
            memory: resident_mebibytes(self.child.id())?,
        })
    }

    /// What it needs once it has looked at everything and written what it had to.
    fn memory_at_rest(&mut self, count: usize) -> Result<u64> {
        self.until_rebuilt(count)?;
        std::thread::sleep(SETTLING);
        resident_mebibytes(self.child.id())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
