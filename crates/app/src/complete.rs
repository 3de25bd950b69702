//! Names from the cluster, for the shell's completion.
//!
//! A completer is asked at every press of a key, and sees nothing of the rest of the command line: it uses the cluster
//! that a command without `--kubeconfig` would use, gives it a moment, and offers nothing if it does not answer.

use std::ffi::OsStr;
use std::time::Duration;

use api_types::settings::ALL;
use api_types::{Node, Volume, VolumeAttachment};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use diagnose::Code;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt as _};

use crate::client::ApiArguments;
use crate::inventory::{inside, list};

const PATIENCE: Duration = Duration::from_secs(2);
/// More than a screen of names helps nobody.
const NAMES_MAX: usize = 200;

pub(crate) fn volumes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(current, async |client: Client| {
            let volumes = list::<Volume>(inside(&client), "volumes", None).await;
            let volumes = volumes.unwrap_or_default();
            let described = volumes.iter().map(|volume| {
                let status = volume.status.clone().unwrap_or_default();
                let about = match status.kubernetes_status.pvc_name.as_str() {
                    "" => status.state.as_str().to_owned(),
                    claim => format!("{}, claim {claim}", status.state.as_str()),
                };
                (volume.name_any(), about)
            });
            described.collect()
        })
    })
}

/// Whatever `why` and `doctor` can be asked about, as it is named without a doubt.
pub(crate) fn subjects() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(current, async |client: Client| {
            let volumes = async {
                let all = list::<Volume>(inside(&client), "volumes", None).await;
                all.unwrap_or_default()
            };
            let claims = async {
                let api: Api<PersistentVolumeClaim> = Api::all(client.clone());
                list(api, "claims", None).await.unwrap_or_default()
            };
            let pods = async {
                let api: Api<Pod> = Api::all(client.clone());
                list(api, "pods", None).await.unwrap_or_default()
            };
            let (volumes, claims, pods) = futures::join!(volumes, claims, pods);
            let exact = |kind: &str, namespace: Option<String>, name: String| {
                let name = format!("{kind}/{}/{name}", namespace.unwrap_or_default());
                (name, String::new())
            };
            let volumes = volumes
                .iter()
                .map(|volume| (volume.name_any(), "volume".to_owned()));
            let claims = claims
                .iter()
                .map(|claim| exact("pvc", claim.namespace(), claim.name_any()));
            let pods = pods
                .iter()
                .map(|pod| exact("pod", pod.namespace(), pod.name_any()));
            volumes.chain(claims).chain(pods).collect()
        })
    })
}

pub(crate) fn codes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let known = Code::ALL
            .iter()
            .map(|code| (code.to_string(), code.title().to_owned()));
        fitting(current, known.collect())
    })
}

pub(crate) fn nodes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(current, async |client: Client| {
            let nodes = list::<Node>(inside(&client), "nodes", None).await;
            let nodes = nodes.unwrap_or_default();
            nodes
                .iter()
                .map(|node| (node.name_any(), String::new()))
                .collect()
        })
    })
}

pub(crate) fn tickets() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(current, async |client: Client| {
            let api: Api<VolumeAttachment> = inside(&client);
            let attachments = list(api, "tickets", None).await.unwrap_or_default();
            let tickets = attachments.iter().flat_map(|attachment| {
                let volume = attachment.name_any();
                let ids = attachment.spec.attachment_tickets.keys();
                ids.map(move |id| (id.clone(), format!("of volume {volume}")))
            });
            tickets.collect()
        })
    })
}

pub(crate) fn disks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        candidates(current, async |client: Client| {
            let nodes = list::<Node>(inside(&client), "nodes", None).await;
            let nodes = nodes.unwrap_or_default();
            let disks = nodes.iter().flat_map(|node| {
                let name = node.name_any();
                let disks = node.spec.disks.keys();
                disks.map(move |disk| (disk.clone(), format!("of node {name}")))
            });
            disks.collect()
        })
    })
}

pub(crate) fn settings() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let known = ALL.iter().map(|definition| {
            (
                definition.name.to_owned(),
                definition.description.to_owned(),
            )
        });
        fitting(current, known.collect())
    })
}

fn candidates(
    current: &OsStr,
    ask: impl AsyncFnOnce(Client) -> Vec<(String, String)>,
) -> Vec<CompletionCandidate> {
    let arguments = ApiArguments {
        kubeconfig: std::env::var_os("KUBECONFIG").map(Into::into),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    let asked = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, async {
            match arguments.connect().await {
                Ok(client) => ask(client).await,
                Err(_) => Vec::new(),
            }
        })
        .await
    });
    fitting(current, asked.unwrap_or_default())
}

fn fitting(current: &OsStr, names: Vec<(String, String)>) -> Vec<CompletionCandidate> {
    let typed = current.to_string_lossy();
    let fitting = names
        .into_iter()
        .filter(|(name, _)| name.starts_with(typed.as_ref()));
    fitting
        .take(NAMES_MAX)
        .map(|(name, about)| {
            let about = (!about.is_empty()).then_some(about);
            CompletionCandidate::new(name).help(about.map(Into::into))
        })
        .collect()
}
