//! What every cluster has before anybody asks: namespaces, our CRDs, and those of snapshots.

use anyhow::{Context as _, Result};
use apiserver::service::ApiService;
use serde_json::{Value, json};

const NAMESPACES: [&str; 3] = ["default", "kube-system", "longhorn-system"];

/// The name under which these fields are owned.
const MANAGER: &str = "lariat-up";

/// Applies everything; what is there already and right is left alone.
pub(super) async fn ensure(service: &ApiService) -> Result<()> {
    for name in NAMESPACES {
        // The label is set in any case. Asking for it gives us a field to own: who owns nothing of an
        // object is a newcomer at every start, and each would write it anew.
        let labels = json!({"kubernetes.io/metadata.name": name});
        let metadata = json!({"name": name, "labels": labels});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        apply(service, namespace).await?;
    }
    let definitions = api_types::all_crds().into_iter();
    for definition in definitions.chain(api_types::snapshot_crds()) {
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
