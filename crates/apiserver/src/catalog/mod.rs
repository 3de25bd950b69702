//! Which resources are served: the built-in ones, and those that CRDs add.

mod built_in;
pub mod custom;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::discovery;
use crate::openapi::{self, Documents};
use crate::schema::Schema;
use crate::status::Subject;

/// Everything the generic code must know of one served resource.
#[derive(Clone, Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub schema: Arc<Schema>,
    pub subresources: Subresources,
    /// Fields that a field selector may name, beyond none.
    pub selectable_fields: Vec<String>,
    pub columns: Columns,
    pub traits: Traits,
    /// `plural` of the resource whose objects are stored, for the two that share storage (Events).
    pub storage_group: String,
    /// The version objects are stored in; others differ by `apiVersion` only.
    pub storage_version: String,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    BuiltIn,
    Custom,
}

#[derive(Clone, Debug, Default)]
pub struct Subresources {
    pub status: bool,
    /// Where replica counts live, for `/scale`.
    pub scale: Option<ScalePaths>,
    pub binding: bool,
    pub eviction: bool,
    pub finalize: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub label_selector: Option<Vec<String>>,
}

/// Small differences between kinds that clients can see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// The server counts `metadata.generation` for this kind.
    pub counts_generation: bool,
    /// A delete answers with the object instead of a `Status`.
    pub returns_deleted_object: bool,
    /// A create keeps the status that came with it (only Node does).
    pub keeps_status_on_create: bool,
    /// Deleted gracefully: stays, marked, until its node confirms (only Pod is).
    pub graceful_deletion: bool,
    /// An update without a resourceVersion is refused.
    pub update_needs_version: bool,
    /// An update of an object that is not there creates it.
    pub update_may_create: bool,
    /// A write to `/status` may also change labels, annotations and finalizers (nodes and pods do).
    pub status_may_change_metadata: bool,
}

/// How `kubectl get` shows objects of a resource.
#[derive(Clone, Debug)]
pub enum Columns {
    /// Computed by `table::built_in`, by kind.
    BuiltIn,
    Custom(Vec<CustomColumn>),
}

#[derive(Clone, Debug)]
pub struct CustomColumn {
    pub name: String,
    pub type_name: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    pub json_path: String,
}

impl Resource {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub fn storage_api_version(&self) -> String {
        if self.storage_group.is_empty() {
            self.storage_version.clone()
        } else {
            format!("{}/{}", self.storage_group, self.storage_version)
        }
    }

    /// `plural.group`, the way users name a resource.
    pub fn qualified_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    pub fn subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject {
            group: &self.group,
            plural: &self.plural,
            kind: &self.kind,
            name,
        }
    }

    /// All objects of the resource lie under this prefix.
    pub fn key_prefix(&self) -> String {
        let group = if self.storage_group.is_empty() {
            "core"
        } else {
            &self.storage_group
        };
        format!("/registry/{group}/{}/", self.plural)
    }

    /// The prefix of one namespace's objects, or of all when there is none.
    pub fn key_prefix_in(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) if self.namespaced => format!("{}{namespace}/", self.key_prefix()),
            _ => self.key_prefix(),
        }
    }

    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        format!("{}{name}", self.key_prefix_in(namespace))
    }

    pub fn verbs(&self) -> &'static [&'static str] {
        &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ]
    }

    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }
}

/// All served resources at one moment. Rebuilt when a CRD changes, and swapped as a whole.
pub struct Catalog {
    by_path: BTreeMap<(String, String, String), Arc<Resource>>,
    documents: Documents,
}

impl Catalog {
    /// The built-in resources and those of the given CRD objects. A CRD that makes no sense adds
    /// nothing: it was refused when it was written, so this can only be one from an older version.
    pub fn new<'a>(custom_resource_definitions: impl IntoIterator<Item = &'a Value>) -> Self {
        let built_in = built_in::resources();
        let custom = custom_resource_definitions
            .into_iter()
            .flat_map(custom::resources);
        let by_path: BTreeMap<_, _> = built_in
            .into_iter()
            .chain(custom)
            .map(|resource| {
                let path = (
                    resource.group.clone(),
                    resource.version.clone(),
                    resource.plural.clone(),
                );
                (path, Arc::new(resource))
            })
            .collect();
        let documented = by_path
            .values()
            .map(|resource| documented(resource))
            .collect();
        let documents = Documents::new(documented, discovery::server_version());
        Self { by_path, documents }
    }

    /// The OpenAPI documents of what is served. Each is made when it is first asked for.
    pub fn documents(&self) -> &Documents {
        &self.documents
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.by_path
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
            .cloned()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_path.values()
    }

    /// One resource for each kind of object in the store: further versions and second names of the
    /// same objects are left out.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.iter().filter(|resource| {
            resource.group == resource.storage_group && resource.version == resource.storage_version
        })
    }

    /// The resource that objects of this `apiVersion` and `kind` belong to.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.iter()
            .find(|resource| resource.kind == kind && resource.api_version() == api_version)
            .cloned()
    }

    /// Groups in the order of preference, each with its versions in theirs.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for resource in self.iter() {
            let versions = groups.entry(resource.group.clone()).or_default();
            if !versions.contains(&resource.version) {
                versions.push(resource.version.clone());
            }
        }
        for versions in groups.values_mut() {
            versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(group, _)| group_rank(group));
        groups
    }
}

/// Where a client looks for a name that several groups have: `kubectl get volumeattachments` means
/// Kubernetes' own. The order among the built-in ones is the real server's; custom ones follow.
fn group_rank(group: &str) -> usize {
    const BUILT_IN: [&str; 5] = [
        "",
        "events.k8s.io",
        "storage.k8s.io",
        "apiextensions.k8s.io",
        "coordination.k8s.io",
    ];
    let position = BUILT_IN.iter().position(|built_in| *built_in == group);
    position.unwrap_or(BUILT_IN.len())
}

fn documented(resource: &Resource) -> openapi::Resource {
    let mut subresources = Vec::new();
    if resource.subresources.status {
        subresources.push("status".to_owned());
    }
    if resource.subresources.scale.is_some() {
        subresources.push("scale".to_owned());
    }
    openapi::Resource {
        group: resource.group.clone(),
        version: resource.version.clone(),
        kind: resource.kind.clone(),
        plural: resource.plural.clone(),
        namespaced: resource.namespaced,
        subresources,
        schema: Arc::clone(&resource.schema),
    }
}

/// Kubernetes' order of versions: stable before beta before alpha, larger before smaller, and
/// whatever does not look like a version last.
fn version_rank(version: &str) -> (u8, u64, u64) {
    let Some(rest) = version.strip_prefix('v') else {
        return (0, 0, 0);
    };
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (major, stage) = rest.split_at(digits);
    let Ok(major) = major.parse::<u64>() else {
        return (0, 0, 0);
    };
    let minor = |text: &str| text.parse::<u64>().ok();
    if stage.is_empty() {
        (3, major, 0)
    } else if let Some(minor) = stage.strip_prefix("beta").and_then(minor) {
        (2, major, minor)
    } else if let Some(minor) = stage.strip_prefix("alpha").and_then(minor) {
        (1, major, minor)
    } else {
        (0, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_preferred_as_kubernetes_does() {
        let mut versions = vec!["v1alpha1", "foo", "v2", "v1beta2", "v1beta10", "v10", "v1"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "foo"]
        );
    }

    #[test]
    fn keys_separate_namespaces_and_groups() {
        let catalog = Catalog::new([]);
        let pods = catalog.find("", "v1", "pods").unwrap();
        assert_eq!(
            pods.key(Some("default"), "a"),
            "/registry/core/pods/default/a"
        );
        let attachments = catalog
            .find("storage.k8s.io", "v1", "volumeattachments")
            .unwrap();
        assert_eq!(
            attachments.key(None, "csi-1"),
            "/registry/storage.k8s.io/volumeattachments/csi-1"
        );
    }
}
