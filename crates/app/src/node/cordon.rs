//! `lariat node cordon` and `uncordon`: on the Kubernetes node, as kubectl does; replicas follow it.

use anyhow::Result;
use clap::Args;
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::client::ApiArguments;
use crate::inventory::{api_error, list};
use crate::output::tell;
use crate::{complete, suggest};

#[derive(Args)]
pub(crate) struct CordonArguments {
    #[arg(add = complete::nodes())]
    pub node: String,
    #[command(flatten)]
    pub api: ApiArguments,
}

pub(crate) async fn set(arguments: &CordonArguments, cordoned: bool) -> Result<()> {
    let client = arguments.api.open().await?;
    let name = &arguments.node;
    let nodes: Api<KubernetesNode> = Api::all(client.clone());
    let found = nodes.get_opt(name).await;
    let Some(found) = found.map_err(|error| api_error(error, "read node", name))? else {
        let known: Vec<KubernetesNode> = list(nodes, "Kubernetes nodes", None).await?;
        let known: Vec<String> = known.iter().map(ResourceExt::name_any).collect();
        let known = known.iter().map(String::as_str);
        return Err(suggest::unknown("node", name, known, "lariat node list"));
    };
    let was = found.spec.and_then(|spec| spec.unschedulable) == Some(true);
    if was == cordoned {
        tell!("{}", outcome(name, was, cordoned));
        return Ok(());
    }
    // kubectl leaves the field out of nodes that are open, and so do we.
    let value = if cordoned { json!(true) } else { json!(null) };
    let patch = Patch::Merge(json!({"spec": {"unschedulable": value}}));
    let patched = nodes.patch(name, &PatchParams::default(), &patch).await;
    patched.map_err(|error| {
        api_error(
            error,
            if cordoned {
                "cordon node"
            } else {
                "uncordon node"
            },
            name,
        )
    })?;
    tell!("{}", outcome(name, was, cordoned));
    Ok(())
}

/// How the node is now, and what to look at next.
fn outcome(name: &str, was_cordoned: bool, cordoned: bool) -> String {
    match (was_cordoned, cordoned) {
        (true, true) => format!("node {name} is cordoned already"),
        (false, false) => format!("node {name} is open already"),
        (false, true) => format!(
            "node {name} is cordoned: nothing new comes to it; see what is on it with: lariat node drain-plan {name}"
        ),
        (true, false) => format!(
            "node {name} is open: pods and replicas may come to it again; see it with: lariat node show {name}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::golden;

    #[test]
    fn the_outcome_is_said_with_what_to_look_at() {
        let lines = [(false, true), (true, true), (true, false), (false, false)]
            .map(|(was, is)| outcome("node-1", was, is) + "\n");
        golden::check("node-cordon", &lines.concat());
    }
}
