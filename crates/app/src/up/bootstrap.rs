//! What every cluster has before anybody asks: namespaces and our CRDs.

use anyhow::{Context as _, Result};
use apiserver::service::ApiService;
use serde_json::{Value, json};

const NAMESPACES: [&str; 3] = ["default", "kube-system", "longhorn-system"];

/// The name under which these fields are owned.
const MANAGER: &str = "lariat-up";

/// Applies everything; what is there already and right is left alone.
pub(super) async fn ensure(service: &ApiService) -> Result<()> {
    for name in NAMESPACES {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        apply(service, namespace).await?;
    }
    for definition in api_types::all_crds() {
        apply(service, serde_json::to_value(definition)?).await?;
    }
    Ok(())
}

async fn apply(service: &ApiService, object: Value) -> Result<()> {
    let what = format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    service
        .apply(&object, MANAGER)
        .await
        .with_context(|| format!("cannot apply {what}"))?;
    Ok(())
}
