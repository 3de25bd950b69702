//! `lariat bench doctor` and `lariat bench rebuild`: what takes its time with the size of a cluster.

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

    /// Waits until the attach-detach controller says that it has rebuilt its state.
    fn until_rebuilt(mut self, count: usize) -> Result<Rebuilt> {
        let log = self.child.stderr.take().context("a log")?;
        for line in BufReader::new(log).lines() {
            let line = line?;
            if line.contains("the attach-detach controller starts") {
                let took = self.started.elapsed();
                ensure!(
                    line.contains(&format!("attachments={count} ")),
                    "it does not know all of them: {line}"
                );
                let memory = resident_mebibytes(self.child.id())?;
                return Ok(Rebuilt { took, memory });
            }
        }
        anyhow::bail!("the manager ended before it began")
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
