//! The published descriptions of the API: OpenAPI v2, as JSON and as protobuf, and OpenAPI v3.
//!
//! `kubectl explain`, `kubectl apply` and client-side validation read them. Every kind and every
//! type of Kubernetes' own has one definition; what is in custom resources is written out in place.

mod definitions;
mod gnostic;
mod paths;
mod proto;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::builtin;
use crate::schema::Schema;

/// The media types under which clients ask for the protobuf form. The second is no valid media type,
/// but it is the one that kubectl sends; answers have the first.
pub const PROTOBUF_MEDIA_TYPES: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];

/// One kind that the server serves.
#[derive(Clone, Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub namespaced: bool,
    /// Of `status` and `scale`, those it has.
    pub subresources: Vec<String>,
    pub schema: Arc<Schema>,
}

/// All documents for one set of kinds. Each is made when it is first asked for; when a CRD changes,
/// make a new set.
pub struct Documents {
    resources: Vec<Resource>,
    server_version: String,
    v2: OnceLock<Value>,
    v2_json: OnceLock<Vec<u8>>,
    v2_protobuf: OnceLock<Vec<u8>>,
    v3_index: OnceLock<Vec<u8>>,
    /// By the path below `/openapi/v3/`: `api/v1`, `apis/storage.k8s.io/v1`.
    v3: BTreeMap<String, OnceLock<Vec<u8>>>,
}

/// Which of the two formats is written.
#[derive(Clone, Copy, PartialEq)]
enum Dialect {
    V2,
    V3,
}

impl Documents {
    pub fn new(resources: Vec<Resource>, server_version: impl Into<String>) -> Self {
        let v3 = resources
            .iter()
            .map(|resource| (resource.group_version_path(), OnceLock::new()))
            .collect();
        Self {
            resources,
            server_version: server_version.into(),
            v2: OnceLock::new(),
            v2_json: OnceLock::new(),
            v2_protobuf: OnceLock::new(),
            v3_index: OnceLock::new(),
            v3,
        }
    }

    /// `/openapi/v2` as JSON.
    pub fn v2_json(&self) -> &[u8] {
        self.v2_json
            .get_or_init(|| self.v2().to_string().into_bytes())
    }

    /// `/openapi/v2` as protobuf (see [`PROTOBUF_MEDIA_TYPES`]).
    pub fn v2_protobuf(&self) -> &[u8] {
        self.v2_protobuf.get_or_init(|| gnostic::encode(self.v2()))
    }

    /// `/openapi/v3`: where each group version's document is. The hash in each address changes with
    /// the document, so that clients may keep it for ever.
    pub fn v3_index(&self) -> &[u8] {
        self.v3_index.get_or_init(|| {
            let paths: Map<String, Value> = self
                .v3
                .keys()
                .filter_map(|path| {
                    let hash = hash_of(self.v3(path)?);
                    let address = format!("/openapi/v3/{path}?hash={hash}");
                    Some((path.clone(), json!({ "serverRelativeURL": address })))
                })
                .collect();
            json!({ "paths": paths }).to_string().into_bytes()
        })
    }

    /// One group version's document, by its path below `/openapi/v3/`: `apis/longhorn.io/v1beta2`.
    pub fn v3(&self, path: &str) -> Option<&[u8]> {
        let document = self.v3.get(path)?;
        Some(document.get_or_init(|| {
            let resources: Vec<&Resource> = self
                .resources
                .iter()
                .filter(|resource| resource.group_version_path() == path)
                .collect();
            let schemas = definitions::all(&resources, Dialect::V3);
            let document = json!({
                "openapi": "3.0.0",
                "info": self.info(),
                "paths": paths::all(&resources, Dialect::V3),
                "components": { "schemas": schemas },
            });
            document.to_string().into_bytes()
        }))
    }

    fn v2(&self) -> &Value {
        self.v2.get_or_init(|| {
            let resources: Vec<&Resource> = self.resources.iter().collect();
            json!({
                "swagger": "2.0",
                "info": self.info(),
                "paths": paths::all(&resources, Dialect::V2),
                "definitions": definitions::all(&resources, Dialect::V2),
            })
        })
    }

    fn info(&self) -> Value {
        json!({ "title": "Kubernetes", "version": self.server_version })
    }
}

/// What a document is to caches: also good as an `ETag`.
pub fn hash_of(document: &[u8]) -> String {
    let digest = Sha256::digest(document);
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

impl Resource {
    /// `api/v1` or `apis/GROUP/VERSION`.
    fn group_version_path(&self) -> String {
        if self.group.is_empty() {
            format!("api/{}", self.version)
        } else {
            format!("apis/{}/{}", self.group, self.version)
        }
    }

    fn builtin(&self) -> Option<&'static builtin::Builtin> {
        builtin::kind(&self.group, &self.version, &self.kind)
    }

    /// Built-in kinds have the names of their Go types, others their group's domain turned round.
    fn definition_name(&self) -> String {
        match self.builtin() {
            Some(builtin) => builtin.definition_name(),
            None => {
                let domain: Vec<&str> = self.group.rsplit('.').collect();
                format!("{}.{}.{}", domain.join("."), self.version, self.kind)
            }
        }
    }

    fn group_version_kind(&self, suffix: &str) -> Value {
        json!({
            "group": self.group,
            "version": self.version,
            "kind": format!("{}{suffix}", self.kind),
        })
    }
}

impl Dialect {
    fn reference(self, definition: &str) -> Value {
        let place = match self {
            Dialect::V2 => "definitions",
            Dialect::V3 => "components/schemas",
        };
        json!({ "$ref": format!("#/{place}/{definition}") })
    }

    /// A reference with a description of its own, for which v3 needs a wrapper.
    fn described_reference(self, definition: &str, description: Option<&str>) -> Value {
        let mut reference = self.reference(definition);
        let Some(description) = description else {
            return reference;
        };
        match self {
            Dialect::V2 => {
                reference["description"] = description.into();
                reference
            }
            Dialect::V3 => json!({ "description": description, "allOf": [reference] }),
        }
    }
}

#[cfg(test)]
mod tests;
