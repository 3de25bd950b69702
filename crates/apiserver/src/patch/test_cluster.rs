//! One object, the managers that change it, and a clock that ticks at every change.

use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::apply::{self, ApplyError, ApplyRequest};
use super::managed::track_update;
use crate::schema::Schema;

/// What of pods, deployments and config maps apply cares about.
pub(super) fn schema() -> Arc<Schema> {
    static SCHEMA: OnceLock<Arc<Schema>> = OnceLock::new();
    Arc::clone(SCHEMA.get_or_init(|| Arc::new(build_schema())))
}

fn build_schema() -> Schema {
    let text = json!({"type": "string"});
    let keyed = |key: &str, items: Value| {
        json!({
            "type": "array", "items": items,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key],
        })
    };
    let env = keyed(
        "name",
        json!({"type": "object", "properties": {"name": text, "value": text}}),
    );
    let ports = json!({
        "type": "array",
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
        "items": {"type": "object", "properties": {
            "containerPort": {"type": "integer"}, "name": text,
            "protocol": {"type": "string", "default": "TCP"},
        }},
    });
    let containers = keyed(
        "name",
        json!({"type": "object", "properties": {
            "name": text, "image": text, "env": env, "ports": ports,
            "args": {"type": "array", "items": text},
        }}),
    );
    serde_json::from_value(json!({"type": "object", "properties": {
        "apiVersion": text, "kind": text,
        "metadata": {"type": "object", "default": {}},
        "data": {"type": "object", "additionalProperties": text},
        "spec": {"type": "object", "default": {}, "properties": {
            "replicas": {"type": "integer"},
            "containers": containers,
            "selector": {
                "type": "object", "x-kubernetes-map-type": "atomic",
                "additionalProperties": {"type": "string"},
            },
            "strategy": {"type": "object", "properties": {"type": text, "surge": {"type": "integer"}}},
            "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "default": {}, "properties": {
            "conditions": keyed("type", json!({"type": "object", "properties": {
                "type": text, "status": text,
            }})),
        }},
    }}))
    .expect("a schema")
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) object: Option<Value>,
    pub(super) schema: Arc<Schema>,
    seconds: u32,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            object: None,
            schema: schema(),
            seconds: 0,
        }
    }

    pub(super) fn now(&self) -> String {
        format!(
            "2026-01-01T{:02}:{:02}:{:02}Z",
            self.seconds / 3600,
            self.seconds / 60 % 60,
            self.seconds % 60
        )
    }

    pub(super) fn live(&self) -> &Value {
        self.object.as_ref().unwrap_or(&Value::Null)
    }

    pub(super) fn try_apply(
        &mut self,
        manager: &str,
        fields: &Value,
        force: bool,
    ) -> Result<(), ApplyError> {
        self.seconds += 1;
        let result = apply::apply(ApplyRequest {
            live: self.object.as_ref(),
            applied: &named(fields),
            manager,
            force,
            subresource: None,
            now: &self.now(),
            schema: &self.schema,
        })?;
        self.object = Some(result);
        Ok(())
    }

    #[track_caller]
    pub(super) fn apply(&mut self, manager: &str, fields: impl Into<Value>) {
        if let Err(error) = self.try_apply(manager, &fields.into(), false) {
            panic!("{error}");
        }
    }

    /// Creates or updates the object as a whole, keeping its managedFields.
    pub(super) fn update(&mut self, manager: &str, fields: &Value) {
        self.update_at(manager, fields, None);
    }

    pub(super) fn update_at(&mut self, manager: &str, fields: &Value, subresource: Option<&str>) {
        self.seconds += 1;
        let mut after = named(fields);
        track_update(
            self.object.as_ref(),
            &mut after,
            manager,
            "v1",
            subresource,
            &self.now(),
            &self.schema,
        );
        self.object = Some(after);
    }

    /// The fields without names and managers.
    pub(super) fn content(&self) -> Value {
        let mut content = self.live().clone();
        if let Value::Object(fields) = &mut content {
            fields.remove("apiVersion");
            fields.remove("kind");
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata.remove("name");
                metadata.remove("managedFields");
                if metadata.is_empty() {
                    fields.remove("metadata");
                }
            }
        }
        content
    }

    /// `manager operation → fieldsV1`, without the times.
    pub(super) fn owners(&self) -> Value {
        let entries = self.live()["metadata"]["managedFields"].as_array();
        entries
            .into_iter()
            .flatten()
            .map(|entry| {
                let text = |name: &str| entry[name].as_str().unwrap_or_default();
                let mut name = format!("{} {}", text("manager"), text("operation"));
                if entry.get("subresource").is_some() {
                    name = format!("{name} {}", text("subresource"));
                }
                (name, entry["fieldsV1"].clone())
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}

/// The object with the names every object has.
pub(super) fn named(fields: &Value) -> Value {
    let mut object = fields.clone();
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("Thing");
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"]["name"] = json!("x");
    object
}
