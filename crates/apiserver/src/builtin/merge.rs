//! How the lists and maps of the built-in kinds merge: what the published OpenAPI of Kubernetes says
//! in `x-kubernetes-*` extensions and `k8s-openapi` leaves out.
//!
//! The tables name types by their definitions; a type without a package is in `core/v1`.

use crate::schema::{ListType, MapType, Schema};

/// How one list merges, for server-side apply and for strategic merge patches.
struct Merge {
    definition: &'static str,
    field: &'static str,
    list_type: ListType,
    keys: &'static [&'static str],
    /// Strategic merge: the key and the strategy. They predate list types and differ in places.
    patch: Option<(Option<&'static str>, &'static str)>,
}

/// Keyed lists and sets: everything else in [`ATOMIC_LISTS`].
static MERGES: &[Merge] = &[
    map("PodSpec", "containers", &["name"]),
    map("PodSpec", "initContainers", &["name"]),
    map("PodSpec", "ephemeralContainers", &["name"]),
    map("PodSpec", "imagePullSecrets", &["name"]),
    map("PodSpec", "hostAliases", &["ip"]),
    map("PodSpec", "schedulingGates", &["name"]),
    map(
        "PodSpec",
        "topologySpreadConstraints",
        &["topologyKey", "whenUnsatisfiable"],
    ),
    retaining("PodSpec", "volumes", &["name"]),
    retaining("PodSpec", "resourceClaims", &["name"]),
    map("PodStatus", "conditions", &["type"]),
    map("PodStatus", "podIPs", &["ip"]),
    retaining("PodStatus", "resourceClaimStatuses", &["name"]),
    Merge {
        patch: Some((Some("ip"), "merge")),
        ..atomic("PodStatus", "hostIPs")
    },
    map("Container", "env", &["name"]),
    map("Container", "ports", &["containerPort", "protocol"]),
    map("Container", "volumeMounts", &["mountPath"]),
    map("Container", "volumeDevices", &["devicePath"]),
    map("EphemeralContainer", "env", &["name"]),
    map(
        "EphemeralContainer",
        "ports",
        &["containerPort", "protocol"],
    ),
    map("EphemeralContainer", "volumeMounts", &["mountPath"]),
    map("EphemeralContainer", "volumeDevices", &["devicePath"]),
    map("ContainerStatus", "volumeMounts", &["mountPath"]),
    map("ContainerStatus", "allocatedResourcesStatus", &["name"]),
    Merge {
        patch: None,
        ..map("ResourceRequirements", "claims", &["name"])
    },
    Merge {
        patch: None,
        ..map("ResourceStatus", "resources", &["resourceID"])
    },
    map("NodeStatus", "conditions", &["type"]),
    map("NodeStatus", "addresses", &["type"]),
    set("NodeSpec", "podCIDRs"),
    map("NamespaceStatus", "conditions", &["type"]),
    map("PersistentVolumeClaimStatus", "conditions", &["type"]),
    map("ServiceAccount", "secrets", &["name"]),
    map("apps.v1.StatefulSetStatus", "conditions", &["type"]),
    map("storage.v1.CSINodeSpec", "drivers", &["name"]),
    Merge {
        patch: None,
        ..set("storage.v1.CSIDriverSpec", "volumeLifecycleModes")
    },
    map("meta.v1.ObjectMeta", "ownerReferences", &["uid"]),
    set("meta.v1.ObjectMeta", "finalizers"),
    Merge {
        patch: None,
        ..map(
            "apiextensions.v1.CustomResourceDefinitionStatus",
            "conditions",
            &["type"],
        )
    },
    map(
        "apiextensions.v1.JSONSchemaProps",
        "x-kubernetes-validations",
        &["rule"],
    ),
];

/// Lists that are replaced whole.
static ATOMIC_LISTS: &[(&str, &[&str])] = &[
    ("PodSpec", &["tolerations", "readinessGates"]),
    ("apps.v1.StatefulSetSpec", &["volumeClaimTemplates"]),
    (
        "PodStatus",
        &[
            "containerStatuses",
            "initContainerStatuses",
            "ephemeralContainerStatuses",
        ],
    ),
    ("PodSecurityContext", &["supplementalGroups", "sysctls"]),
    ("PodDNSConfig", &["nameservers", "searches", "options"]),
    (
        "Container",
        &[
            "args",
            "command",
            "envFrom",
            "resizePolicy",
            "restartPolicyRules",
        ],
    ),
    (
        "EphemeralContainer",
        &[
            "args",
            "command",
            "envFrom",
            "resizePolicy",
            "restartPolicyRules",
        ],
    ),
    ("Capabilities", &["add", "drop"]),
    ("ExecAction", &["command"]),
    ("HTTPGetAction", &["httpHeaders"]),
    ("HostAlias", &["hostnames"]),
    ("TopologySpreadConstraint", &["matchLabelKeys"]),
    (
        "NodeAffinity",
        &["preferredDuringSchedulingIgnoredDuringExecution"],
    ),
    (
        "PodAffinity",
        &[
            "preferredDuringSchedulingIgnoredDuringExecution",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    ),
    (
        "PodAntiAffinity",
        &[
            "preferredDuringSchedulingIgnoredDuringExecution",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    ),
    (
        "PodAffinityTerm",
        &["matchLabelKeys", "mismatchLabelKeys", "namespaces"],
    ),
    ("NodeSelector", &["nodeSelectorTerms"]),
    ("NodeSelectorTerm", &["matchExpressions", "matchFields"]),
    ("NodeSelectorRequirement", &["values"]),
    ("TopologySelectorTerm", &["matchLabelExpressions"]),
    ("TopologySelectorLabelRequirement", &["values"]),
    ("SecretVolumeSource", &["items"]),
    ("SecretProjection", &["items"]),
    ("ConfigMapVolumeSource", &["items"]),
    ("ConfigMapProjection", &["items"]),
    ("DownwardAPIVolumeSource", &["items"]),
    ("DownwardAPIProjection", &["items"]),
    ("ProjectedVolumeSource", &["sources"]),
    ("CephFSVolumeSource", &["monitors"]),
    ("CephFSPersistentVolumeSource", &["monitors"]),
    ("RBDVolumeSource", &["monitors"]),
    ("RBDPersistentVolumeSource", &["monitors"]),
    ("FCVolumeSource", &["targetWWNs", "wwids"]),
    ("ISCSIVolumeSource", &["portals"]),
    ("ISCSIPersistentVolumeSource", &["portals"]),
    ("PersistentVolumeSpec", &["accessModes", "mountOptions"]),
    ("PersistentVolumeClaimSpec", &["accessModes"]),
    ("PersistentVolumeClaimStatus", &["accessModes"]),
    ("NodeSpec", &["taints"]),
    (
        "NodeStatus",
        &[
            "images",
            "runtimeHandlers",
            "volumesAttached",
            "volumesInUse",
            "declaredFeatures",
        ],
    ),
    ("ContainerImage", &["names"]),
    ("NamespaceSpec", &["finalizers"]),
    ("ServiceAccount", &["imagePullSecrets"]),
    (
        "storage.v1.StorageClass",
        &["allowedTopologies", "mountOptions"],
    ),
    ("storage.v1.CSIDriverSpec", &["tokenRequests"]),
    ("storage.v1.CSINodeDriver", &["topologyKeys"]),
    ("meta.v1.ObjectMeta", &["managedFields"]),
    ("meta.v1.LabelSelector", &["matchExpressions"]),
    ("meta.v1.LabelSelectorRequirement", &["values"]),
    ("meta.v1.DeleteOptions", &["dryRun"]),
    ("meta.v1.StatusDetails", &["causes"]),
    (
        "apiextensions.v1.CustomResourceDefinitionSpec",
        &["versions"],
    ),
    (
        "apiextensions.v1.CustomResourceDefinitionNames",
        &["categories", "shortNames"],
    ),
    (
        "apiextensions.v1.CustomResourceDefinitionStatus",
        &["storedVersions"],
    ),
    (
        "apiextensions.v1.CustomResourceDefinitionVersion",
        &["additionalPrinterColumns", "selectableFields"],
    ),
    (
        "apiextensions.v1.JSONSchemaProps",
        &[
            "allOf",
            "anyOf",
            "enum",
            "oneOf",
            "required",
            "x-kubernetes-list-map-keys",
        ],
    ),
    (
        "apiextensions.v1.WebhookConversion",
        &["conversionReviewVersions"],
    ),
];

/// Structs that are replaced whole: half of a reference refers to nothing.
static ATOMIC_STRUCTS: &[&str] = &[
    "ConfigMapKeySelector",
    "FileKeySelector",
    "LocalObjectReference",
    "NodeSelector",
    "NodeSelectorTerm",
    "ObjectFieldSelector",
    "ObjectReference",
    "ResourceFieldSelector",
    "SecretKeySelector",
    "SecretReference",
    "TopologySelectorTerm",
    "TypedLocalObjectReference",
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
];

/// Maps that are replaced whole.
static ATOMIC_MAPS: &[(&str, &str)] = &[("PodSpec", "nodeSelector")];

/// Adds to the schema of one definition what Kubernetes says of how its fields merge.
pub(super) fn annotate(definition: &str, schema: &mut Schema) {
    let name = short_name(definition);
    for merge in MERGES.iter().filter(|merge| merge.definition == name) {
        if let Some(field) = schema.properties.get_mut(merge.field) {
            field.list_type = Some(merge.list_type);
            field.list_map_keys = merge.keys.iter().map(|key| (*key).to_owned()).collect();
            if let Some((key, strategy)) = merge.patch {
                field.patch_merge_key = key.map(str::to_owned);
                field.patch_strategy = Some(strategy.to_owned());
            }
        }
    }
    let atomic_lists = ATOMIC_LISTS.iter().filter(|(owner, _)| *owner == name);
    for field in atomic_lists.flat_map(|(_, fields)| *fields) {
        if let Some(field) = schema.properties.get_mut(*field) {
            field.list_type = Some(ListType::Atomic);
        }
    }
    for (_, field) in ATOMIC_MAPS.iter().filter(|(owner, _)| *owner == name) {
        if let Some(field) = schema.properties.get_mut(*field) {
            field.map_type = Some(MapType::Atomic);
        }
    }
    if ATOMIC_STRUCTS.contains(&name) {
        schema.map_type = Some(MapType::Atomic);
    }
    for (_, fields) in BY_VALUE.iter().filter(|(owner, _)| *owner == name) {
        for field in *fields {
            if let Some(field) = schema.properties.get_mut(*field) {
                field.default = Some(serde_json::json!({}));
            }
        }
    }
    // A reference is one value elsewhere; here the binder and others write parts of it.
    if name == "PersistentVolumeSpec"
        && let Some(claim) = schema.properties.get_mut("claimRef")
    {
        claim.map_type = Some(MapType::Granular);
    }
    // It is part of the key of a list, so an absent one must mean the same as a written one.
    if name == "ContainerPort"
        && let Some(protocol) = schema.properties.get_mut("protocol")
    {
        protocol.default = Some("TCP".into());
    }
}

/// Structs that the real server holds by value: they are in every object, and belong to nobody.
static BY_VALUE: &[(&str, &[&str])] = &[
    ("Namespace", &["spec", "status"]),
    ("Node", &["spec", "status"]),
    ("NodeStatus", &["daemonEndpoints", "nodeInfo"]),
    ("NodeDaemonEndpoints", &["kubeletEndpoint"]),
    ("Pod", &["spec", "status"]),
    ("Container", &["resources"]),
    ("PodTemplateSpec", &["spec"]),
    ("PersistentVolume", &["spec", "status"]),
    ("PersistentVolumeClaim", &["spec", "status"]),
    ("PersistentVolumeClaimSpec", &["resources"]),
    ("Event", &["involvedObject", "source"]),
    ("storage.v1.VolumeAttachment", &["spec", "status"]),
    ("storage.v1.VolumeAttachmentSpec", &["source"]),
    ("storage.v1.CSINode", &["spec"]),
    ("storage.v1.CSIDriver", &["spec"]),
    ("apps.v1.StatefulSet", &["spec", "status"]),
    ("apps.v1.StatefulSetSpec", &["template", "updateStrategy"]),
    ("coordination.v1.Lease", &["spec"]),
];

/// `io.k8s.api.core.v1.PodSpec` is `PodSpec` here; other packages keep their last two names.
fn short_name(definition: &str) -> &str {
    if let Some(name) = definition.strip_prefix("io.k8s.api.core.v1.") {
        return name;
    }
    let third_dot = definition.rmatch_indices('.').nth(2);
    third_dot.map_or(definition, |(index, _)| &definition[index + 1..])
}

const fn map(
    definition: &'static str,
    field: &'static str,
    keys: &'static [&'static str],
) -> Merge {
    Merge {
        definition,
        field,
        list_type: ListType::Map,
        keys,
        patch: Some((Some(keys[0]), "merge")),
    }
}

const fn retaining(
    definition: &'static str,
    field: &'static str,
    keys: &'static [&'static str],
) -> Merge {
    Merge {
        patch: Some((Some(keys[0]), "merge,retainKeys")),
        ..map(definition, field, keys)
    }
}

const fn set(definition: &'static str, field: &'static str) -> Merge {
    Merge {
        definition,
        field,
        list_type: ListType::Set,
        keys: &[],
        patch: Some((None, "merge")),
    }
}

const fn atomic(definition: &'static str, field: &'static str) -> Merge {
    Merge {
        definition,
        field,
        list_type: ListType::Atomic,
        keys: &[],
        patch: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_to_what_the_tables_use() {
        let rows = [
            ("io.k8s.api.core.v1.PodSpec", "PodSpec"),
            (
                "io.k8s.api.storage.v1.CSINodeSpec",
                "storage.v1.CSINodeSpec",
            ),
            (
                "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
                "meta.v1.ObjectMeta",
            ),
        ];
        for (definition, expected) in rows {
            assert_eq!(short_name(definition), expected);
        }
    }

    #[test]
    fn every_row_names_a_field_that_exists() {
        let mut names = Vec::new();
        let definitions = super::super::expand::definition_fields();
        for merge in MERGES {
            names.push((merge.definition, merge.field));
        }
        for (definition, fields) in ATOMIC_LISTS {
            names.extend(fields.iter().map(|field| (*definition, *field)));
        }
        names.extend(ATOMIC_MAPS);
        for (definition, field) in names {
            let known = definitions.iter().any(|(name, fields)| {
                short_name(name) == definition && fields.iter().any(|known| known == field)
            });
            assert!(known, "{definition}.{field}");
        }
        for definition in ATOMIC_STRUCTS {
            let known = definitions
                .iter()
                .any(|(name, _)| short_name(name) == *definition);
            assert!(known, "{definition}");
        }
    }
}
