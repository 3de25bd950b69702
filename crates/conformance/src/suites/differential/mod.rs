//! The same requests to the real kube-apiserver and to ours, and everything in which the answers differ.
//!
//! `LARIAT_SEED` and `LARIAT_REQUESTS` choose other requests than those of CI. What may differ, and why, is in `allowed.rs`, and for
//! requests that both refuse in `refusals.rs`.

mod allowed;
mod compare;
mod dice;
mod exchange;
mod generate;
mod kinds;
mod refusals;

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use kube::Client;
use serde_json::Value;

use self::compare::{Difference, differences};
use self::exchange::{Request, Server};
use self::generate::{Generator, TABLE};
use self::kinds::KINDS;
use self::refusals::Refusals;
use super::Outcome;
use crate::control_plane::{ControlPlane, Options};
use crate::embedded::Embedded;
use crate::programs;

const SEED: u64 = 20_261_116;
const REQUESTS: u64 = 3_000;
/// Admission plugins write into objects for controllers that run beside the real server; ours has none.
const PLUGINS: [&str; 5] = [
    "DefaultTolerationSeconds",
    "PersistentVolumeClaimResize",
    "Priority",
    "StorageObjectInUseProtection",
    "TaintNodesByCondition",
];
/// In so many namespaces, so that lists stay short and objects are made anew.
const ROUNDS: u64 = 5;

pub(super) async fn run() -> Result<Outcome> {
    let lariat = programs::lariat()?;
    let options = Options {
        arguments: vec![format!("--disable-admission-plugins={}", PLUGINS.join(","))],
        ..Options::default()
    };
    let real = ControlPlane::start(&options).await?;
    let ours = Embedded::start(&lariat, 0).await?;
    let seed = number("LARIAT_SEED", SEED)?;
    let requests = number("LARIAT_REQUESTS", REQUESTS)?;
    println!("seed {seed}, {requests} requests in {ROUNDS} namespaces");
    let real_client = real.client().await?;
    install_definitions(&lariat, &real_client).await?;
    let mut pair = Pair {
        real: Server::new(real_client),
        ours: Server::new(ours.client().await?),
        found: BTreeMap::new(),
        refusals: Refusals::default(),
        same: 0,
    };
    for round in 0..ROUNDS {
        let namespace = format!("round-{round}");
        pair.begin(&namespace).await?;
        let mut generator = Generator::new(seed.wrapping_add(round), &namespace);
        for _ in 0..requests / ROUNDS {
            pair.compare(&generator.next()).await?;
        }
        // A watch of all that was listed, or of a part of it: objects then come into it and leave it.
        let selector = if round % 2 == 0 { "a%3D1,b" } else { "b" };
        pair.end(&namespace, selector).await?;
    }
    Ok(pair.outcome())
}

/// Both servers, and what was found.
struct Pair {
    real: Server,
    ours: Server,
    /// Differences of one kind, with an example and how often each was seen.
    found: BTreeMap<(String, String), (usize, String)>,
    refusals: Refusals,
    same: usize,
}

impl Pair {
    async fn compare(&mut self, request: &Request) -> Result<()> {
        // At once, so that a watch's second is waited for once.
        let (real, ours) = futures::join!(self.real.ask(request), self.ours.ask(request));
        let (real, ours) = (real.context("kube-apiserver")?, ours.context("lariat")?);
        let mut equal = true;
        for difference in differences(&real, &ours) {
            if difference.path == refusals::PATH {
                equal &= self.refusals.note(request, &difference);
            } else if allowed::reason(request.resource, &difference).is_none() {
                equal = false;
                self.note(request, &difference);
            }
        }
        self.same += usize::from(equal);
        Ok(())
    }

    fn note(&mut self, request: &Request, difference: &Difference) {
        let Difference { path, real, ours } = difference;
        let key = (request.resource.to_owned(), path.clone());
        let example = format!("{}\n    real: {real}\n    ours: {ours}", request.label);
        let entry = self.found.entry(key).or_insert((0, example));
        entry.0 += 1;
    }

    /// A namespace, and what the watches of this round begin with.
    async fn begin(&mut self, namespace: &str) -> Result<()> {
        let body = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let path = "/api/v1/namespaces".to_owned();
        let mut request = plain("create", "namespaces", Method::POST, path);
        request.content_type = Some("application/json");
        request.body = Some(body.to_string());
        self.compare(&request).await?;
        for kind in KINDS {
            let path = kind.collection(namespace);
            let query = format!("{path}?labelSelector=b");
            let mut request = plain("list", kind.name, Method::GET, query);
            request.about = format!("watch {path}");
            self.compare(&request).await?;
        }
        Ok(())
    }

    /// What watchers saw of the round, what is left, as a table too, and the end of it all.
    async fn end(&mut self, namespace: &str, selector: &str) -> Result<()> {
        for kind in KINDS {
            let path = kind.collection(namespace);
            let query = format!(
                "watch=true&timeoutSeconds=1&resourceVersion=${{rv}}&labelSelector={selector}"
            );
            let query = format!("{path}?{query}");
            let mut request = plain("watch", kind.name, Method::GET, query);
            request.about = format!("watch {path}");
            request.dry_run = true;
            self.compare(&request).await?;
            let query = format!("{path}?labelSelector=b");
            let mut table = plain("list", kind.name, Method::GET, query);
            table.accept = Some(TABLE);
            self.compare(&table).await?;
            for name in ["o0", "o1", "o2", "o3", "other"] {
                let object = format!("{path}/{name}");
                let mut free = plain("merge patch", kind.name, Method::PATCH, object.clone());
                free.content_type = Some("application/merge-patch+json");
                free.body = Some(r#"{"metadata":{"finalizers":null}}"#.to_owned());
                self.compare(&free).await?;
                let query = format!("{object}?gracePeriodSeconds=0");
                let delete = plain("delete", kind.name, Method::DELETE, query);
                self.compare(&delete).await?;
                self.compare(&free).await?;
            }
        }
        Ok(())
    }

    fn outcome(self) -> Outcome {
        let mut outcome = Outcome {
            passed: self.same,
            failures: self.refusals.failures(),
        };
        print!("{}", self.refusals.report());
        for ((resource, path), (count, example)) in self.found {
            outcome.fail(format!(
                "{resource} {path}: {count} times, such as\n  {example}"
            ));
        }
        outcome
    }
}

fn plain(what: &'static str, resource: &'static str, method: Method, path: String) -> Request {
    Request {
        what,
        label: format!("{what}: {method} {path}"),
        resource,
        method,
        about: path.clone(),
        path,
        content_type: None,
        accept: None,
        body: None,
        dry_run: false,
    }
}

fn number(name: &str, default: u64) -> Result<u64> {
    let Ok(text) = std::env::var(name) else {
        return Ok(default);
    };
    text.parse()
        .with_context(|| format!("{name} is {text:?}, not a number"))
}

/// Our resources, which `lariat up` has from the start.
async fn install_definitions(lariat: &std::path::Path, real: &Client) -> Result<()> {
    let output = Command::new(lariat)
        .args(["crds", "--output", "json"])
        .output()
        .context("cannot run lariat crds")?;
    ensure!(
        output.status.success(),
        "lariat crds ended with {}",
        output.status
    );
    let list: Value =
        serde_json::from_slice(&output.stdout).context("lariat crds printed no JSON")?;
    for definition in list["items"]
        .as_array()
        .context("lariat crds printed no list")?
    {
        let request =
            http::Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
                .header("Content-Type", "application/json")
                .body(definition.to_string().into_bytes())?;
        real.request_text(request)
            .await
            .with_context(|| format!("{} was refused", definition["metadata"]["name"]))?;
    }
    // Discovery and the handlers follow the definitions a moment later.
    for kind in KINDS.iter().filter(|kind| !kind.built_in) {
        let path = kind.collection("default");
        let served = async || {
            let request = http::Request::get(&path)
                .body(Vec::new())
                .expect("a request");
            real.request_text(request).await.is_ok()
        };
        for _ in 0..300 {
            if served().await {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        ensure!(
            served().await,
            "kube-apiserver does not serve {path} 30 s after its definition was made"
        );
    }
    Ok(())
}
