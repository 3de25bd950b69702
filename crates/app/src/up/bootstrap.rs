//! What every cluster has before anybody asks: namespaces, our CRDs and those of snapshots, the CSI driver with its
//! StorageClasses, and the key of its replicas.

use anyhow::{Context as _, Result};
use api_types::names::{DRIVER, NAMESPACE};
use api_types::{Setting, SettingValue};
use apiserver::service::ApiService;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::replica_key;

const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-system", NAMESPACE];

/// A StorageClass of ours.
struct Class {
    name: &'static str,
    is_default: bool,
    parameters: &'static [(&'static str, &'static str)],
}

const CLASSES: [Class; 3] = [
    Class {
        name: "longhorn",
        is_default: true,
        parameters: &[("numberOfReplicas", "3"), ("fsType", "ext4")],
    },
    Class {
        name: "longhorn-xfs",
        is_default: false,
        parameters: &[("numberOfReplicas", "3"), ("fsType", "xfs")],
    },
    Class {
        name: "longhorn-migratable",
        is_default: false,
        parameters: &[("numberOfReplicas", "3"), ("migratable", "true")],
    },
];

/// The name under which these fields are owned.
const MANAGER: &str = "lariat-up";

/// Applies everything; what is there already and right is left alone.
pub(super) async fn ensure(service: &ApiService, has_nodes: bool) -> Result<()> {
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
    // An API alone has nobody who would serve a volume.
    if has_nodes {
        ensure_volumes(service).await?;
    }
    replica_key::ensure(&Client::new(service.clone(), "default")).await
}

/// What claims and pods need in order to get volumes.
async fn ensure_volumes(service: &ApiService) -> Result<()> {
    apply(service, csi_driver()).await?;
    for class in &CLASSES {
        apply(service, storage_class(class)).await?;
    }
    let client = Client::new(service.clone(), "default");
    ensure_setting(&client, "storage-minimal-available-percentage", "5").await
}

/// All nodes share this machine's disk with whatever else is on it: a quarter of it left free would be a lot to ask. Only
/// made, never changed: it is the user's then.
async fn ensure_setting(client: &Client, name: &str, value: &str) -> Result<()> {
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    if settings.get_opt(name).await?.is_none() {
        let value = SettingValue {
            value: value.to_owned(),
            ..SettingValue::default()
        };
        let setting = Setting::new(name, value);
        settings
            .create(&PostParams::default(), &setting)
            .await
            .with_context(|| format!("cannot create setting {name}"))?;
    }
    Ok(())
}

fn csi_driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {"attachRequired": true, "podInfoOnMount": true, "fsGroupPolicy": "ReadWriteOnceWithFSType"},
    })
}

fn storage_class(class: &Class) -> Value {
    let parameters: serde_json::Map<String, Value> = class
        .parameters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let is_default = class.is_default.to_string();
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": is_default});
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": class.name, "annotations": annotations},
        "provisioner": DRIVER,
        "parameters": parameters,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": false,
    })
}

async fn apply(service: &ApiService, object: Value) -> Result<()> {
    let what = format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    service
        .apply(&object, MANAGER)
        .await
        .with_context(|| format!("cannot apply {what}"))?;
    Ok(())
}
