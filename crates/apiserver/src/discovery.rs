//! What is served, told to clients: legacy lists, and the aggregated form that kubectl prefers.

use serde_json::{Value, json};

use crate::catalog::{Catalog, Resource};

/// The version of Kubernetes whose behaviour this server follows.
const KUBERNETES_MAJOR: &str = "1";
const KUBERNETES_MINOR: &str = "37";

/// The version as clients compare it, with our own behind the plus.
pub fn server_version() -> String {
    format!(
        "v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.0+lariat-{}",
        env!("CARGO_PKG_VERSION")
    )
}

/// `/version`
pub fn version() -> Value {
    json!({
        "major": KUBERNETES_MAJOR,
        "minor": KUBERNETES_MINOR,
        "gitVersion": server_version(),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// `/api`
pub fn legacy_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`
pub fn groups(catalog: &Catalog) -> Value {
    let groups: Vec<Value> = catalog
        .groups()
        .iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| group_entry(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`
pub fn group(catalog: &Catalog, name: &str) -> Option<Value> {
    let groups = catalog.groups();
    let (group, versions) = groups.iter().find(|(group, _)| group == name)?;
    let mut entry = group_entry(group, versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

fn group_entry(group: &str, versions: &[String]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "preferredVersion": versions[0], "versions": versions})
}

/// `/api/v1`, `/apis/GROUP/VERSION`
pub fn resources(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let served: Vec<_> = in_version(catalog, group, version).collect();
    let first = served.first()?;
    let list: Vec<Value> = served
        .iter()
        .flat_map(|resource| resource_entries(resource))
        .collect();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": first.api_version(),
        "resources": list,
    }))
}

fn in_version<'a>(
    catalog: &'a Catalog,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    catalog
        .iter()
        .map(AsRef::as_ref)
        .filter(move |resource| resource.group == group && resource.version == version)
}

fn resource_entries(resource: &Resource) -> Vec<Value> {
    let mut main = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs(),
        "storageVersionHash": storage_version_hash(resource),
    });
    if !resource.short_names.is_empty() {
        main["shortNames"] = resource.short_names.clone().into();
    }
    if !resource.categories.is_empty() {
        main["categories"] = resource.categories.clone().into();
    }
    let mut entries = vec![main];
    for (name, kind, verbs) in subresources(resource) {
        let mut entry = json!({
            "name": format!("{}/{name}", resource.plural),
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind.2,
            "verbs": verbs,
        });
        if (kind.0, kind.1) != (resource.group.as_str(), resource.version.as_str()) {
            entry["group"] = kind.0.into();
            entry["version"] = kind.1.into();
        }
        entries.push(entry);
    }
    entries
}

type GroupVersionKind<'a> = (&'a str, &'a str, &'a str);

/// Name, kind of its objects, verbs.
fn subresources(
    resource: &Resource,
) -> Vec<(&'static str, GroupVersionKind<'_>, &'static [&'static str])> {
    let own = (
        resource.group.as_str(),
        resource.version.as_str(),
        resource.kind.as_str(),
    );
    let have = &resource.subresources;
    let mut list: Vec<(&str, GroupVersionKind<'_>, &[&str])> = Vec::new();
    if have.binding {
        list.push(("binding", ("", "v1", "Binding"), &["create"]));
    }
    if have.eviction {
        list.push(("eviction", ("policy", "v1", "Eviction"), &["create"]));
    }
    if have.finalize {
        list.push(("finalize", own, &["update"]));
    }
    if have.scale.is_some() {
        list.push((
            "scale",
            ("autoscaling", "v1", "Scale"),
            &["get", "patch", "update"],
        ));
    }
    if have.status {
        list.push(("status", own, &["get", "patch", "update"]));
    }
    list
}

/// Tells clients when the stored form of a kind changes; here it changes with the version alone.
fn storage_version_hash(resource: &Resource) -> String {
    use base64::Engine as _;
    let identity = format!(
        "{}/{}/{}",
        resource.storage_group, resource.storage_version, resource.kind
    );
    let hash = fnv_1a(identity.as_bytes()).to_be_bytes();
    base64::engine::general_purpose::STANDARD.encode(hash)
}

/// Any stable hash does, since nobody but an equality test looks at it.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The aggregated document of `/api` (the group without a name) or `/apis` (all the others).
pub fn aggregated(catalog: &Catalog, legacy: bool) -> Value {
    let items: Vec<Value> = catalog
        .groups()
        .iter()
        .filter(|(group, _)| group.is_empty() == legacy)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = in_version(catalog, group, version)
                        .map(aggregated_resource)
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.is_empty() {
                metadata["name"] = group.as_str().into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = |(group, version, kind): GroupVersionKind<'_>| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind((&resource.group, &resource.version, &resource.kind)),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = resource.short_names.clone().into();
    }
    if !resource.categories.is_empty() {
        entry["categories"] = resource.categories.clone().into();
    }
    let list: Vec<Value> = subresources(resource)
        .into_iter()
        .map(|(name, response, verbs)| json!({"subresource": name, "responseKind": kind(response), "verbs": verbs}))
        .collect();
    if !list.is_empty() {
        entry["subresources"] = list.into();
    }
    entry
}

/// `/`: where a curious person can go from here.
pub fn paths(catalog: &Catalog) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
    for (group, versions) in catalog
        .groups()
        .iter()
        .filter(|(group, _)| !group.is_empty())
    {
        paths.push(format!("/apis/{group}"));
        paths.extend(
            versions
                .iter()
                .map(|version| format!("/apis/{group}/{version}")),
        );
    }
    for path in [
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ] {
        paths.push(path.to_owned());
    }
    json!({"paths": paths})
}
