//! All objects of a cluster at once: from its API, or from a support bundle.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use diagnose::{ClusterDump, KINDS, Kind, Unread};
use futures::future::join_all;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::Client;

use crate::client::ApiArguments;
use crate::support_bundle;

/// Objects in one answer; larger lists come in pages.
const PAGE: usize = 5000;
/// More pages than any cluster has: a server that never ends its list is not believed.
const PAGES_MAX: usize = 1000;

/// Where to look: a cluster, or what was saved of one.
#[derive(clap::Args, Clone)]
pub(crate) struct Source {
    #[command(flatten)]
    pub api: ApiArguments,

    /// Look into an archive that `lariat support-bundle` wrote, instead of a cluster
    #[arg(long, value_name = "FILE", global = true)]
    pub bundle: Option<PathBuf>,
}

/// What was seen, and when, by the API server's clock.
pub(crate) struct Look {
    pub dump: ClusterDump,
    pub at: Timestamp,
}

impl Source {
    pub(crate) async fn look(&self) -> Result<Look> {
        match &self.bundle {
            Some(path) => {
                let files = support_bundle::read(path)?;
                let read = diagnose::read_objects(&files);
                let (dump, at) = read
                    .map_err(|why| anyhow::anyhow!("{} cannot be used: {why}", path.display()))?;
                Ok(Look { dump, at })
            }
            None => {
                let (client, told) = self.api.connect_told().await?;
                look(&client, &told).await
            }
        }
    }
}

/// Lists everything, in parallel. `told` says which API is meant, for whoever has to find out why it does not answer.
pub(crate) async fn look(client: &Client, told: &str) -> Result<Look> {
    let answers = join_all(KINDS.iter().map(|kind| list(client, kind))).await;
    let mut dump = ClusterDump::default();
    let mut at = None;
    for (kind, answer) in KINDS.iter().zip(answers) {
        match answer {
            Ok(pages) => {
                for page in &pages.bodies {
                    let read = (kind.read)(&mut dump, page);
                    read.with_context(|| {
                        format!(
                            "{told} did not answer the list of {} with JSON",
                            kind.resource
                        )
                    })?;
                }
                at = at.max(pages.at);
            }
            Err(Refusal::Status { code, message }) => {
                if code == 401 {
                    bail!("{told} does not know us: {message}");
                }
                dump.unread.push(Unread {
                    what: kind.resource.to_owned(),
                    why: message,
                    whole: true,
                });
            }
            Err(Refusal::Unreachable(error)) => {
                let hint = "see whether it runs (`lariat up` starts the one on this machine), or name another with --kubeconfig";
                return Err(error).with_context(|| format!("cannot reach {told}; {hint}"));
            }
        }
    }
    for unread in dump.unread.iter().filter(|unread| !is_optional(unread)) {
        eprintln!(
            "lariat: {} could not be read and is left out: {}",
            unread.what, unread.why
        );
    }
    Ok(Look {
        dump,
        at: at.unwrap_or_else(Timestamp::now),
    })
}

/// Adds these kinds to a dump. Returns when, by the API server's clock.
pub(crate) async fn complete(
    client: &Client,
    dump: &mut ClusterDump,
    resources: &[&str],
) -> Result<Option<Timestamp>> {
    let mut at = None;
    for kind in KINDS
        .iter()
        .filter(|kind| resources.contains(&kind.resource))
    {
        match list(client, kind).await {
            Ok(pages) => {
                for page in &pages.bodies {
                    (kind.read)(dump, page)
                        .with_context(|| format!("the list of {} is no JSON", kind.resource))?;
                }
                at = at.max(pages.at);
            }
            Err(Refusal::Status { message, .. }) => dump.unread.push(Unread {
                what: kind.resource.to_owned(),
                why: message,
                whole: true,
            }),
            Err(Refusal::Unreachable(error)) => return Err(error),
        }
    }
    Ok(at)
}

fn is_optional(unread: &Unread) -> bool {
    KINDS
        .iter()
        .any(|kind| kind.resource == unread.what && kind.optional)
}

struct Pages {
    bodies: Vec<Vec<u8>>,
    at: Option<Timestamp>,
}

enum Refusal {
    /// It answered, and said no.
    Status {
        code: u16,
        message: String,
    },
    Unreachable(anyhow::Error),
}

async fn list(client: &Client, kind: &Kind) -> Result<Pages, Refusal> {
    let mut pages = Pages {
        bodies: Vec::new(),
        at: None,
    };
    let mut more: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut query = format!("limit={PAGE}");
        if !kind.query.is_empty() {
            query = format!("{query}&{}", kind.query);
        }
        if let Some(token) = &more {
            query = format!("{query}&continue={token}");
        }
        let (body, at) = get(client, &format!("{}?{query}", kind.path)).await?;
        pages.at = pages.at.max(at);
        more = continuation(&body);
        pages.bodies.push(body);
        if more.is_none() {
            return Ok(pages);
        }
    }
    Err(Refusal::Unreachable(anyhow::anyhow!(
        "the list of {} does not end",
        kind.resource
    )))
}

async fn get(client: &Client, path: &str) -> Result<(Vec<u8>, Option<Timestamp>), Refusal> {
    let unreachable = |error: anyhow::Error| Refusal::Unreachable(error);
    let request = http::Request::get(path).body(kube::client::Body::empty());
    let request = request.map_err(|error| unreachable(error.into()))?;
    let answer = client.send(request).await;
    let answer = answer.map_err(|error| unreachable(error.into()))?;
    let status = answer.status();
    let at = answer.headers().get("date").and_then(|date| {
        let text = date.to_str().ok()?;
        let time = jiff::fmt::rfc2822::parse(text).ok()?;
        Some(time.timestamp())
    });
    let body = answer.into_body().collect().await;
    let body = body.map_err(|error| unreachable(error.into()))?.to_bytes();
    if status.is_success() {
        return Ok((body.to_vec(), at));
    }
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let message = told["message"]
        .as_str()
        .map_or_else(|| status.to_string(), str::to_owned);
    Err(Refusal::Status {
        code: status.as_u16(),
        message,
    })
}

/// `metadata.continue`, ready for the next query.
fn continuation(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct List {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, serde::Deserialize)]
    struct Metadata {
        #[serde(rename = "continue", default)]
        more: Option<String>,
    }
    let list: List = serde_json::from_slice(body).ok()?;
    let token = list.metadata.more.filter(|token| !token.is_empty())?;
    // Tokens are opaque: every byte that could mean something in a query is written as a number.
    let quoted = token.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    Some(quoted.collect())
}
