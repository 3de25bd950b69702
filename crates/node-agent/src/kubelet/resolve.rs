//! What a pod asks to have mounted, found from its claims and their volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

/// One volume of a pod, with everything that is needed to mount it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVolume {
    /// Its name in the pod.
    pub name: String,
    pub pv: String,
    pub driver: String,
    pub handle: String,
    pub block: bool,
    pub fs_type: String,
    pub mount_flags: Vec<String>,
    pub access: Access,
    pub read_only: bool,
    pub attributes: BTreeMap<String, String>,
}

/// The strongest use that the PersistentVolume allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    OnePod,
    OneNode,
    ManyNodes,
    ManyNodesReadOnly,
}

/// Why a volume cannot be mounted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// Something has to happen first, which a watch will tell.
    Waiting(String),
    /// It is of another driver, which this node does not have.
    Foreign(String),
}

/// Finds the volumes of a pod that come from claims; others need no mounting where no containers run.
pub fn resolve(
    pod: &Pod,
    claim_of: impl Fn(&str, &str) -> Option<PersistentVolumeClaim>,
    volume_of: impl Fn(&str) -> Option<PersistentVolume>,
) -> Result<Vec<PodVolume>, Unresolved> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone());
    let mut found = Vec::new();
    for volume in volumes.unwrap_or_default() {
        let (claim_name, read_only) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(source), _) => (
                source.claim_name.clone(),
                source.read_only.unwrap_or_default(),
            ),
            // The claim of an ephemeral volume is named after the pod and the volume.
            (None, Some(_)) => (format!("{}-{}", pod.name_any(), volume.name), false),
            (None, None) => continue,
        };
        let waiting = |why: String| Unresolved::Waiting(why);
        let claim = claim_of(&namespace, &claim_name).ok_or_else(|| {
            waiting(format!(
                "persistentvolumeclaim \"{claim_name}\" is not there"
            ))
        })?;
        let pv_name = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.clone())
            .filter(|name| !name.is_empty())
            .ok_or_else(|| {
                waiting(format!(
                    "persistentvolumeclaim \"{claim_name}\" is not bound"
                ))
            })?;
        let pv = volume_of(&pv_name)
            .ok_or_else(|| waiting(format!("persistentvolume \"{pv_name}\" is not there")))?;
        found.push(read(&volume.name, read_only, &pv)?);
    }
    Ok(found)
}

fn read(name: &str, read_only: bool, pv: &PersistentVolume) -> Result<PodVolume, Unresolved> {
    let pv_name = pv.name_any();
    let spec = pv.spec.clone().unwrap_or_default();
    let Some(csi) = spec.csi else {
        return Err(Unresolved::Foreign(format!(
            "persistentvolume \"{pv_name}\" is not of a CSI driver"
        )));
    };
    Ok(PodVolume {
        name: name.to_owned(),
        pv: pv_name,
        driver: csi.driver,
        handle: csi.volume_handle,
        block: spec.volume_mode.as_deref() == Some("Block"),
        fs_type: csi.fs_type.unwrap_or_default(),
        mount_flags: spec.mount_options.unwrap_or_default(),
        access: strongest(&spec.access_modes.unwrap_or_default()),
        read_only: read_only || csi.read_only.unwrap_or_default(),
        attributes: csi.volume_attributes.unwrap_or_default(),
    })
}

fn strongest(modes: &[String]) -> Access {
    let has = |mode: &str| modes.iter().any(|found| found == mode);
    if has("ReadWriteMany") {
        Access::ManyNodes
    } else if has("ReadWriteOnce") {
        Access::OneNode
    } else if has("ReadWriteOncePod") {
        Access::OnePod
    } else {
        Access::ManyNodesReadOnly
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("an object")
    }

    fn pod() -> Pod {
        object(json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [], "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "scratch", "ephemeral": {}},
                {"name": "none", "emptyDir": {}},
            ]},
        }))
    }

    fn claim(volume: &str) -> PersistentVolumeClaim {
        object(json!({"metadata": {"name": "c"}, "spec": {"volumeName": volume}}))
    }

    fn volume(name: &str) -> PersistentVolume {
        object(json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "d", "volumeHandle": format!("h-{name}"), "fsType": "ext4"},
            },
        }))
    }

    #[test]
    fn claims_lead_to_volumes() {
        let found = resolve(
            &pod(),
            |namespace, name| {
                assert_eq!(namespace, "ns");
                Some(claim(&format!("pv-{name}")))
            },
            |name| Some(volume(name)),
        )
        .expect("volumes");
        let shown: Vec<(&str, &str, Access)> = found
            .iter()
            .map(|volume| (volume.name.as_str(), volume.handle.as_str(), volume.access))
            .collect();
        assert_eq!(
            shown,
            [
                ("data", "h-pv-c", Access::OneNode),
                ("scratch", "h-pv-p-scratch", Access::OneNode)
            ]
        );
    }

    #[test]
    fn the_strongest_mode_counts() {
        for (modes, expected) in [
            ("ReadWriteOncePod", Access::OnePod),
            ("ReadWriteOnce", Access::OneNode),
            ("ReadOnlyMany", Access::ManyNodesReadOnly),
            ("ReadOnlyMany+ReadWriteOnce", Access::OneNode),
            ("ReadWriteOnce+ReadWriteMany", Access::ManyNodes),
        ] {
            let listed: Vec<String> = modes.split('+').map(str::to_owned).collect();
            assert_eq!(strongest(&listed), expected, "{modes}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let check =
            |claim: Option<PersistentVolumeClaim>, volume: Option<PersistentVolume>, text: &str| {
                let result = resolve(&pod(), |_, _| claim.clone(), |_| volume.clone());
                match result {
                    Err(Unresolved::Waiting(why) | Unresolved::Foreign(why)) => {
                        assert!(why.contains(text), "{why}");
                    }
                    Ok(found) => panic!("{found:?}"),
                }
            };
        check(None, None, "\"c\" is not there");
        check(Some(claim("")), None, "not bound");
        check(Some(claim("pv")), None, "\"pv\" is not there");
        let local = object(json!({"metadata": {"name": "pv"}, "spec": {}}));
        check(Some(claim("pv")), Some(local), "not of a CSI driver");
    }
}
