//! All objects of a cluster at once: from its API, or from a support bundle.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use diagnose::{ClusterDump, Index, KINDS, Kind, Subject, SubjectError, Unread};
use futures::future::join_all;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::Client;

use crate::client::{ApiArguments, Server, root_cause, unreachable};
use crate::exit::{Failure, Outcome};
use crate::support_bundle;

/// Objects in one answer; larger lists come in pages.
const PAGE: usize = 5000;
/// More pages than any cluster has: a server that never ends its list is not believed.
const PAGES_MAX: usize = 1000;
/// A page takes a second from a busy server; one that takes this long does not come any more.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

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
            None => look(&self.api.reach().await?).await,
        }
    }
}

/// The volume, claim or pod that a person means.
pub(crate) fn resolve(index: &Index<'_>, text: &str) -> Result<Subject> {
    let error = match Subject::resolve(index, text) {
        Ok(subject) => return Ok(subject),
        Err(error) => error,
    };
    let unread: Vec<String> = index.dump.missed().map(ToString::to_string).collect();
    let failure = match &error {
        SubjectError::Ambiguous { .. } => return Err(error.into()),
        SubjectError::Unknown { .. } if unread.is_empty() => {
            Failure::new(Outcome::NotFound, error.to_string())
        }
        SubjectError::Unknown { .. } => Failure::new(
            Outcome::Incomplete,
            format!(
                "{text:?} is not among what could be read; not read: {}; ask again with an account that may read that \
                 (--kubeconfig FILE), or look into a bundle that has it (--bundle FILE)",
                unread.join("; ")
            ),
        ),
    };
    Err(failure.into())
}

/// Lists everything, in parallel.
pub(crate) async fn look(server: &Server) -> Result<Look> {
    let mut dump = ClusterDump::default();
    let at = read(&server.client, &server.told, KINDS, &mut dump).await?;
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
    let kinds = KINDS.iter().copied();
    let kinds: Vec<Kind> = kinds
        .filter(|kind| resources.contains(&kind.resource))
        .collect();
    read(client, "the API", &kinds, dump).await
}

/// Lists these kinds; one that is refused is noted in the dump. `told` says which API is meant, for whoever has to find out
/// why it does not answer.
async fn read(
    client: &Client,
    told: &str,
    kinds: &[Kind],
    dump: &mut ClusterDump,
) -> Result<Option<Timestamp>> {
    let answers = join_all(kinds.iter().map(|kind| list(client, kind))).await;
    let mut at = None;
    for (kind, answer) in kinds.iter().zip(answers) {
        match answer {
            Ok(pages) => {
                for page in &pages.bodies {
                    let read = (kind.read)(dump, page);
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
                    bail!(
                        "{told} does not know this account ({message}); use another one with --kubeconfig FILE"
                    );
                }
                dump.unread.push(Unread {
                    what: kind.resource.to_owned(),
                    why: message,
                    whole: true,
                });
            }
            Err(Refusal::Unreachable(why)) => return Err(unreachable(told, &why)),
        }
    }
    Ok(at)
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
    Unreachable(String),
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
    Err(Refusal::Unreachable(format!(
        "the list of {} does not end",
        kind.resource
    )))
}

async fn get(client: &Client, path: &str) -> Result<(Vec<u8>, Option<Timestamp>), Refusal> {
    let asked = tokio::time::timeout(PAGE_TIMEOUT, ask(client, path)).await;
    let seconds = PAGE_TIMEOUT.as_secs();
    let late = || Refusal::Unreachable(format!("no answer to GET {path} within {seconds} s"));
    asked.map_err(|_| late())?
}

async fn ask(client: &Client, path: &str) -> Result<(Vec<u8>, Option<Timestamp>), Refusal> {
    let unreachable = |error: &dyn std::error::Error| Refusal::Unreachable(root_cause(error));
    let request = http::Request::get(path).body(kube::client::Body::empty());
    let request = request.map_err(|error| unreachable(&error))?;
    let answer = client.send(request).await;
    let answer = answer.map_err(|error| unreachable(&error))?;
    let status = answer.status();
    let at = answer.headers().get("date").and_then(|date| {
        let text = date.to_str().ok()?;
        let time = jiff::fmt::rfc2822::parse(text).ok()?;
        Some(time.timestamp())
    });
    let body = answer.into_body().collect().await;
    let body = body.map_err(|error| unreachable(&error))?.to_bytes();
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exit;
    use crate::output::golden;

    #[test]
    fn a_name_that_means_nothing_or_too_much_is_asked_back() {
        let mut dump = ClusterDump::default();
        let mut add = |version: &str, kind: &str, namespace: &str, name: &str| {
            let object = json!({
                "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": {},
            });
            assert!(dump.add(&object), "{object}");
        };
        for namespace in ["shop", "test"] {
            add("v1", "PersistentVolumeClaim", namespace, "data");
        }
        add("v1", "Pod", "default", "database-0");
        add("longhorn.io/v1beta2", "Volume", "longhorn-system", "pvc-1");
        let asked = |dump: &ClusterDump, text: &str| {
            let index = Index::new(dump, Timestamp::UNIX_EPOCH);
            let error = resolve(&index, text).expect_err("nothing that one could mean");
            exit::told(&error) + "\n"
        };
        let mut page: String = ["data", "databse-0", "pod/database", "pvc/x", "nothing"]
            .map(|text| asked(&dump, text))
            .concat();
        dump.unread.push(Unread {
            what: "pods".to_owned(),
            why: "pods is forbidden".to_owned(),
            whole: true,
        });
        page += &asked(&dump, "pod/app");
        golden::check("errors-subject", &page);
    }
}
