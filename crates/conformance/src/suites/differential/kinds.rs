//! The kinds that requests are made about, with bodies that are right and bodies that are wrong.

use serde_json::{Value, json};

use super::dice::Dice;
use super::exchange::{OWN_TIME, OWN_UID};

/// One kind.
pub struct Kind {
    /// As in discovery, with the group for ours: `volumes.longhorn.io`.
    pub name: &'static str,
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub root: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub has_status: bool,
    /// Strategic merge patches exist for built-in kinds alone.
    pub built_in: bool,
    /// The parts of a valid object beside its metadata.
    pub content: fn(&mut Dice) -> Value,
    /// A merge patch that may be valid.
    pub change: fn(&mut Dice) -> Value,
    /// A value for the status.
    pub status: fn(&mut Dice) -> Value,
    /// Field selectors to try.
    pub fields: &'static [&'static str],
}

impl Kind {
    pub fn api_version(&self) -> &'static str {
        self.root
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/")
    }

    pub fn collection(&self, namespace: &str) -> String {
        if self.namespaced {
            format!("{}/namespaces/{namespace}/{}", self.root, self.plural)
        } else {
            format!("{}/{}", self.root, self.plural)
        }
    }
}

const fn core(name: &'static str, kind: &'static str, namespaced: bool) -> Kind {
    Kind {
        name,
        root: "/api/v1",
        plural: name,
        kind,
        namespaced,
        has_status: false,
        built_in: true,
        content: |_| json!({}),
        change: |_| json!({}),
        status: |_| json!({}),
        fields: &["metadata.name=o1", "metadata.namespace!=x"],
    }
}

fn text(dice: &mut Dice) -> String {
    dice.pick(&["a", "b", "", "long-ish value", "1"])
        .to_string()
}

pub const KINDS: &[Kind] = &[
    Kind {
        content: |dice| json!({"data": {"k": text(dice), "l": text(dice)}}),
        change: |dice| {
            dice.one(&[
                &|dice| json!({"data": {"k": text(dice)}}),
                &|_| json!({"data": {"k": null}}),
                &|_| json!({"data": {"k": 5}}),
                &|_| json!({"data": {"bad key!": "x"}}),
                &|_| json!({"immutable": true}),
                &|_| json!({"data": null, "binaryData": {"b": "AAEC"}}),
                &|_| json!({"binaryData": {"b": "no base64"}}),
            ])
        },
        ..core("configmaps", "ConfigMap", true)
    },
    Kind {
        content: |dice| json!({"stringData": {"k": text(dice)}, "type": dice.pick(&["Opaque", "Opaque", "kubernetes.io/basic-auth"])}),
        change: |dice| {
            dice.one(&[
                &|_| json!({"data": {"k": "YQ=="}}),
                &|_| json!({"data": {"k": "not base64!"}}),
                &|_| json!({"stringData": {"k": "new"}}),
                &|_| json!({"type": "other"}),
            ])
        },
        fields: &["type=Opaque", "metadata.name!=o1", "data=x"],
        ..core("secrets", "Secret", true)
    },
    Kind {
        has_status: true,
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}),
            &|_| json!({"spec": {"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}),
            &|_| json!({"spec": {"containers": [{"name": "c", "image": "i:1", "env": [{"name": "A", "value": "1"}], "ports": [{"containerPort": 80}]}],
                "nodeName": "n1", "restartPolicy": "Never"}}),
            &|_| json!({"spec": {"containers": []}}),
            &|_| json!({"spec": {"containers": [{"name": "Bad_Name", "image": ""}], "restartPolicy": "Sometimes"}}),
            &|_| json!({"spec": {"containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "gone", "mountPath": "/v"}]}]}}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}),
                &|_| json!({"spec": {"nodeName": "n2"}}),
                &|_| json!({"spec": {"activeDeadlineSeconds": 5}}),
                &|_| json!({"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}}),
                &|_| json!({"spec": {"restartPolicy": "Always"}}),
            ])
        },
        status: |dice| json!({"phase": dice.pick(&["Running", "Pending", "Failed"]), "conditions": [{"type": "Ready", "status": "True"}]}),
        fields: &[
            "spec.nodeName=n1",
            "status.phase!=Running",
            "spec.containers=x",
        ],
        ..core("pods", "Pod", true)
    },
    Kind {
        has_status: true,
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s"}}),
            &|_| json!({"spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block", "resources": {"requests": {"storage": "1.5Gi"}}, "volumeName": "o1"}}),
            &|_| json!({"spec": {"accessModes": [], "resources": {}}}),
            &|_| json!({"spec": {"accessModes": ["Sometimes"], "resources": {"requests": {"storage": "-1"}}}}),
            &|_| json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "many"}}}}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
                &|_| json!({"spec": {"volumeName": "pv"}}),
                &|_| json!({"spec": {"storageClassName": "t"}}),
                &|_| json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
            ])
        },
        status: |dice| json!({"phase": dice.pick(&["Bound", "Pending", "Lost"]), "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}),
        ..core("persistentvolumeclaims", "PersistentVolumeClaim", true)
    },
    Kind {
        has_status: true,
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h"}}}),
            &|_| json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h", "fsType": "ext4"},
                "claimRef": {"namespace": "x", "name": "c", "uid": OWN_UID}, "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "s"}}),
            &|_| json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
            &|_| json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["Never"], "csi": {"driver": "", "volumeHandle": ""}}}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"capacity": {"storage": "2Gi"}}}),
                &|_| json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}),
                &|_| json!({"spec": {"csi": {"volumeHandle": "other"}}}),
                &|_| json!({"spec": {"persistentVolumeReclaimPolicy": "Burn"}}),
            ])
        },
        status: |dice| json!({"phase": dice.pick(&["Bound", "Released", "Available"]), "message": "m"}),
        ..core("persistentvolumes", "PersistentVolume", false)
    },
    Kind {
        has_status: true,
        content: |dice| {
            dice.one(&[
            &|_| json!({}),
            &|_| json!({"spec": {"unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]}}),
            &|_| json!({"spec": {"taints": [{"key": "k", "effect": "Sometimes"}]}}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"unschedulable": true}}),
                &|_| json!({"spec": {"unschedulable": null}}),
                &|_| json!({"spec": {"podCIDR": "10.1.0.0/24"}}),
                &|_| json!({"spec": {"providerID": "p"}}),
            ])
        },
        status: |dice| {
            json!({"conditions": [{"type": "Ready", "status": dice.pick(&["True", "False"]), "lastHeartbeatTime": OWN_TIME, "lastTransitionTime": OWN_TIME}],
            "capacity": {"cpu": "2", "memory": "4Gi"}, "volumesInUse": ["a"], "volumesAttached": [{"name": "a", "devicePath": ""}]})
        },
        fields: &["spec.unschedulable=true", "metadata.name=o0"],
        ..core("nodes", "Node", false)
    },
    Kind {
        content: |dice| {
            json!({"involvedObject": {"kind": "Pod", "namespace": "${ns}", "name": "p"}, "reason": text(dice), "message": "m", "type": "Normal",
            "firstTimestamp": OWN_TIME, "lastTimestamp": OWN_TIME, "count": 1, "source": {"component": "c"}})
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"count": 2}),
                &|_| json!({"type": "Warning"}),
                &|_| json!({"involvedObject": {"kind": "Node"}}),
            ])
        },
        fields: &["involvedObject.kind=Pod", "reason=a", "type!=Normal"],
        ..core("events", "Event", true)
    },
    Kind {
        change: |_| json!({"automountServiceAccountToken": false}),
        ..core("serviceaccounts", "ServiceAccount", true)
    },
    Kind {
        root: "/apis/storage.k8s.io/v1",
        plural: "volumeattachments",
        has_status: true,
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"attacher": "d.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv"}}}),
            &|_| json!({"spec": {"attacher": "Bad Name!", "nodeName": "", "source": {}}}),
            &|_| json!({"spec": {"attacher": "d", "nodeName": "n"}, "status": {"attached": true}}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"nodeName": "n2"}}),
                &|_| json!({"status": {"attached": true}}),
            ])
        },
        status: |dice| json!({"attached": dice.chance(50), "attachError": {"message": "m", "time": OWN_TIME}}),
        ..core(
            "volumeattachments.storage.k8s.io",
            "VolumeAttachment",
            false,
        )
    },
    Kind {
        root: "/apis/storage.k8s.io/v1",
        plural: "storageclasses",
        content: |dice| {
            dice.one(&[
            &|_| json!({"provisioner": "d.example.com", "parameters": {"a": "b"}}),
            &|_| json!({"provisioner": "d.example.com", "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Retain", "allowVolumeExpansion": true}),
            &|_| json!({"provisioner": "", "reclaimPolicy": "Burn", "volumeBindingMode": "Never"}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"parameters": {"a": "c"}}),
                &|_| json!({"allowVolumeExpansion": true}),
                &|_| json!({"provisioner": "x"}),
            ])
        },
        ..core("storageclasses.storage.k8s.io", "StorageClass", false)
    },
    Kind {
        root: "/apis/coordination.k8s.io/v1",
        plural: "leases",
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, "acquireTime": "2001-02-03T04:05:06.000000Z", "renewTime": "2001-02-03T04:05:06.123456Z"}}),
            &|_| json!({}),
            &|_| json!({"spec": {"leaseDurationSeconds": -1, "leaseTransitions": -2}}),
            &|_| json!({"spec": {"renewTime": "yesterday"}}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"holderIdentity": "i"}}),
                &|_| json!({"spec": {"leaseDurationSeconds": 0}}),
            ])
        },
        ..core("leases.coordination.k8s.io", "Lease", true)
    },
    Kind {
        root: "/apis/longhorn.io/v1beta2",
        plural: "volumes",
        has_status: true,
        built_in: false,
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"size": "1073741824", "numberOfReplicas": 3, "frontend": "blockdev"}}),
            &|_| json!({"spec": {"size": "1073741824", "numberOfReplicas": 3, "unheardOf": {"a": 1}}, "more": 1}),
            &|_| json!({"spec": {"numberOfReplicas": "three"}}),
            &|_| json!({"spec": {"frontend": "telepathy"}}),
            &|_| json!({}),
        ])
        },
        change: |dice| {
            dice.one(&[
                &|_| json!({"spec": {"nodeID": "n1"}}),
                &|_| json!({"spec": {"numberOfReplicas": 2}}),
                &|_| json!({"spec": {"numberOfReplicas": []}}),
                &|_| json!({"status": {"state": "attached"}}),
            ])
        },
        status: |dice| json!({"state": dice.pick(&["attached", "detached", "nonsense"])}),
        ..core("volumes.longhorn.io", "Volume", true)
    },
    Kind {
        root: "/apis/longhorn.io/v1beta2",
        plural: "volumeattachments",
        has_status: true,
        built_in: false,
        content: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"volume": "v", "attachmentTickets": {"t": {"id": "t", "type": "csi-attacher", "nodeID": "n1", "generation": 1, "parameters": {"disableFrontend": "false"}}}}}),
            &|_| json!({"spec": {"attachmentTickets": {"t": {"id": 5}}}}),
            &|_| json!({"spec": {"volume": "v"}}),
        ])
        },
        change: |dice| {
            dice.one(&[
            &|_| json!({"spec": {"attachmentTickets": {"u": {"id": "u", "type": "snapshot-controller", "nodeID": "n2"}}}}),
            &|_| json!({"spec": {"attachmentTickets": {"t": null}}}),
        ])
        },
        status: |_| json!({"attachmentTicketStatuses": {"t": {"id": "t", "satisfied": true, "generation": 1, "conditions": []}}}),
        ..core("volumeattachments.longhorn.io", "VolumeAttachment", true)
    },
    Kind {
        root: "/apis/longhorn.io/v1beta2",
        plural: "settings",
        built_in: false,
        content: |dice| json!({"value": text(dice)}),
        change: |dice| json!({"value": text(dice)}),
        ..core("settings.longhorn.io", "Setting", true)
    },
];
