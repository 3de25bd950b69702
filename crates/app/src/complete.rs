//! Names from the cluster, for the shell's completion.
//!
//! A completer is asked at every press of a key, and sees nothing of the rest of the command line: it uses the cluster
//! that a command without `--kubeconfig` would use, gives it a moment, and offers nothing if it does not answer.

use std::ffi::OsStr;
use std::time::Duration;

use api_types::settings::ALL;
use api_types::{Node, Volume, VolumeAttachment};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
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
