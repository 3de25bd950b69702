//! `lariat bench api`: a Kubernetes API server under load, this one or any other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use kube::Client;
use serde_json::json;

use super::report::{Line, shown};
use super::server::{Server, client, send, with_folder};
use crate::cli::BenchApiArguments;

const CREATES_PER_RUN: usize = 4_000;
const LISTED: usize = 10_000;
const WATCHERS: usize = 1_000;
const FAN_OUTS: usize = 20;
const STORED: usize = 100_000;
const NAMESPACE: &str = "lariat-bench";

pub(crate) async fn run(arguments: BenchApiArguments) -> Result<()> {
    if let Some(kubeconfig) = &arguments.kubeconfig {
        let client = client(kubeconfig).await?;
        prepare(&client).await?;
        return load(&client).await;
    }
    with_folder(own_server).await
}

async fn own_server(folder: PathBuf) -> Result<()> {
    let (mut server, took) = Server::start(&folder)?;
    Line::value("start on an empty folder", shown(took)).print();
    let client = client(&folder.join("kubeconfig")).await?;
    prepare(&client).await?;
    load(&client).await?;

    let filled = STORED.saturating_sub(LISTED);
    create_many(&client, "stored", filled, 64).await?;
    server.stop()?;
    let (server, took) = Server::start(&folder)?;
    Line::value(format!("start with {STORED} objects of 1 KiB"), shown(took)).print();
    Line::value(
        "resident memory then",
        format!("{} MiB", server.resident_mebibytes()?),
    )
    .print();
    Ok(())
}

/// What any server can be asked to do.
async fn load(client: &Client) -> Result<()> {
    for clients in [1, 16, 64] {
        let count = if clients == 1 {
            CREATES_PER_RUN / 8
        } else {
            CREATES_PER_RUN
        };
        let started = Instant::now();
        let mut latencies = create_many(client, &format!("c{clients}"), count, clients).await?;
        Line::rate(
            format!("durable creates of 1 KiB, {clients} clients"),
            started.elapsed(),
            &mut latencies,
        )
        .print();
    }
    create_many(client, "listed", LISTED, 64).await?;
    let mut latencies = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        let listed = send(
            client,
            "GET",
            &format!("{}?labelSelector=bench%3Dlisted", path()),
            None,
        )
        .await?;
        latencies.push(started.elapsed());
        ensure!(
            listed["items"].as_array().map(Vec::len) == Some(LISTED),
            "the list is not whole"
        );
    }
    Line::latency(format!("list {LISTED} objects by label"), &mut latencies).print();
    let mut latencies = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        let request = Request::get(format!("{}?resourceVersion=0", path()))
            .body(kube::client::Body::empty())?;
        let bytes = client
            .send(request)
            .await?
            .into_body()
            .collect_bytes()
            .await?;
        latencies.push(started.elapsed());
        ensure!(bytes.len() > LISTED * 1024, "the list is not whole");
    }
    Line::latency("list everything, about 19,000 objects", &mut latencies).print();
    fan_out(client).await
}

/// One change, seen by a thousand watchers.
async fn fan_out(client: &Client) -> Result<()> {
    let listed = send(client, "GET", &format!("{}?limit=1", path()), None).await?;
    let version = listed["metadata"]["resourceVersion"]
        .as_str()
        .context("a list has a version")?
        .to_owned();
    let (seen, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let mut watchers = tokio::task::JoinSet::new();
    for _ in 0..WATCHERS {
        let uri = format!(
            "{}?watch=true&resourceVersion={version}&timeoutSeconds=600",
            path()
        );
        let request = Request::get(uri).body(vec![])?;
        let lines = client.request_stream(request).await?.lines();
        let seen = seen.clone();
        watchers.spawn(async move {
            let mut lines = std::pin::pin!(lines);
            while let Some(Ok(_)) = lines.next().await {
                if seen.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
    }
    let mut latencies = Vec::new();
    for number in 0..FAN_OUTS {
        let started = Instant::now();
        create(client, "fan", number).await?;
        let mut last = started;
        for _ in 0..WATCHERS {
            last = reports.recv().await.context("a watcher ended")?;
        }
        latencies.push(last.duration_since(started));
    }
    watchers.abort_all();
    Line::latency(
        format!("one create until {WATCHERS} watchers have it"),
        &mut latencies,
    )
    .print();
    Ok(())
}

async fn create_many(
    client: &Client,
    label: &str,
    count: usize,
    clients: usize,
) -> Result<Vec<Duration>> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..clients {
        let (client, label) = (client.clone(), label.to_owned());
        let share = (number..count).step_by(clients);
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            for index in share {
                let started = Instant::now();
                create(&client, &label, index).await?;
                latencies.push(started.elapsed());
            }
            anyhow::Ok(latencies)
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(latencies) = tasks.join_next().await {
        all.extend(latencies??);
    }
    Ok(all)
}

async fn create(client: &Client, label: &str, index: usize) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("{label}-{index}"), "labels": {"bench": label}},
        "data": {"payload": "x".repeat(600)},
    });
    send(client, "POST", &path(), Some(&object))
        .await
        .map(|_| ())
}

fn path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps")
}

async fn prepare(client: &Client) -> Result<()> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    send(client, "POST", "/api/v1/namespaces", Some(&namespace))
        .await
        .context("cannot make the namespace; delete it if an earlier run was interrupted")?;
    Ok(())
}
