//! The operations on each kind, as paths of a document.

use serde_json::{Map, Value, json};

use super::definitions::{DELETE_OPTIONS, PATCH, STATUS};
use super::{Dialect, Resource};

const JSON_TYPES: [&str; 2] = ["application/json", "application/yaml"];
const PATCH_TYPES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];
/// Only built-in kinds have it; kubectl looks here to find out.
const STRATEGIC_PATCH_TYPE: &str = "application/strategic-merge-patch+json";

/// A query parameter: name, type, description.
type Query = (&'static str, &'static str, &'static str);

const PRETTY: Query = (
    "pretty",
    "string",
    "If 'true', then the output is pretty printed.",
);
const DRY_RUN: Query = (
    "dryRun",
    "string",
    "When present, indicates that modifications should not be persisted. Valid values are: All: all dry run stages will be processed.",
);
const FIELD_MANAGER: Query = (
    "fieldManager",
    "string",
    "fieldManager is a name associated with the actor or entity that is making these changes.",
);
const FIELD_VALIDATION: Query = (
    "fieldValidation",
    "string",
    "fieldValidation instructs the server on how to handle objects in the request (POST/PUT/PATCH) containing unknown or duplicate fields. Valid values are Ignore, Warn and Strict.",
);
const FORCE: Query = (
    "force",
    "boolean",
    "Force is going to \"force\" Apply requests. It means user will re-acquire conflicting fields owned by other people.",
);
const GRACE: Query = (
    "gracePeriodSeconds",
    "integer",
    "The duration in seconds before the object should be deleted.",
);
const PROPAGATION: Query = (
    "propagationPolicy",
    "string",
    "Whether and how garbage collection will be performed: Orphan, Background or Foreground.",
);
const RESOURCE_VERSION: Query = (
    "resourceVersion",
    "string",
    "resourceVersion sets a constraint on what resource versions a request may be served from.",
);
const LIST: [Query; 8] = [
    (
        "allowWatchBookmarks",
        "boolean",
        "allowWatchBookmarks requests watch events with type \"BOOKMARK\".",
    ),
    (
        "continue",
        "string",
        "The continue option should be set when retrieving more results from the server.",
    ),
    (
        "fieldSelector",
        "string",
        "A selector to restrict the list of returned objects by their fields.",
    ),
    (
        "labelSelector",
        "string",
        "A selector to restrict the list of returned objects by their labels.",
    ),
    (
        "limit",
        "integer",
        "limit is a maximum number of responses to return for a list call.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Whether a watch starts with the current state as synthetic events.",
    ),
    (
        "timeoutSeconds",
        "integer",
        "Timeout for the list/watch call.",
    ),
    (
        "watch",
        "boolean",
        "Watch for changes to the described resources.",
    ),
];

/// One operation, before it is written in a dialect.
struct Operation {
    method: &'static str,
    /// `x-kubernetes-action`, which for lists is not the method.
    action: &'static str,
    body: Option<String>,
    answer: String,
    query: Vec<Query>,
}

/// One path: its template, what its operations act on, and they.
struct Endpoint {
    path: String,
    /// What operation identifiers end in.
    name: String,
    parameters: Vec<&'static str>,
    operations: Vec<Operation>,
}

pub(super) fn all(resources: &[&Resource], dialect: Dialect) -> Value {
    let mut paths = Map::new();
    for resource in resources {
        for endpoint in endpoints(resource) {
            let path = endpoint.path.clone();
            paths.insert(path, written(&endpoint, resource, dialect));
        }
    }
    Value::Object(paths)
}

fn endpoints(resource: &Resource) -> Vec<Endpoint> {
    let definition = resource.definition_name();
    let root = format!("/{}", resource.group_version_path());
    let (plural, kind) = (&resource.plural, &resource.kind);
    let (scoped, scope, parameters) = if resource.namespaced {
        let scoped = format!("{root}/namespaces/{{namespace}}/{plural}");
        (scoped, "Namespaced", vec!["namespace"])
    } else {
        (format!("{root}/{plural}"), "", vec![])
    };
    let mut item_parameters = parameters.clone();
    item_parameters.push("name");
    let mut endpoints = vec![
        Endpoint {
            path: scoped.clone(),
            name: format!("{scope}{kind}"),
            parameters,
            operations: vec![list(&definition), create(&definition), delete_collection()],
        },
        Endpoint {
            path: format!("{scoped}/{{name}}"),
            name: format!("{scope}{kind}"),
            parameters: item_parameters.clone(),
            operations: vec![
                read(&definition),
                replace(&definition),
                patch(&definition),
                delete(),
            ],
        },
    ];
    if resource.namespaced {
        endpoints.push(Endpoint {
            path: format!("{root}/{plural}"),
            name: format!("{kind}ForAllNamespaces"),
            parameters: vec![],
            operations: vec![list(&definition)],
        });
    }
    if resource.subresources.iter().any(|name| name == "status") {
        endpoints.push(Endpoint {
            path: format!("{scoped}/{{name}}/status"),
            name: format!("{scope}{kind}Status"),
            parameters: item_parameters,
            operations: vec![read(&definition), replace(&definition), patch(&definition)],
        });
    }
    endpoints
}

fn list(definition: &str) -> Operation {
    let mut query = LIST.to_vec();
    query.push(RESOURCE_VERSION);
    Operation {
        method: "get",
        action: "list",
        body: None,
        answer: format!("{definition}List"),
        query,
    }
}

fn read(definition: &str) -> Operation {
    Operation {
        method: "get",
        action: "get",
        body: None,
        answer: definition.to_owned(),
        query: vec![PRETTY],
    }
}

fn create(definition: &str) -> Operation {
    Operation {
        method: "post",
        action: "post",
        body: Some(definition.to_owned()),
        answer: definition.to_owned(),
        query: vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION],
    }
}

fn replace(definition: &str) -> Operation {
    Operation {
        method: "put",
        action: "put",
        ..create(definition)
    }
}

fn patch(definition: &str) -> Operation {
    Operation {
        method: "patch",
        action: "patch",
        body: Some(PATCH.to_owned()),
        answer: definition.to_owned(),
        query: vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE],
    }
}

fn delete() -> Operation {
    Operation {
        method: "delete",
        action: "delete",
        body: Some(DELETE_OPTIONS.to_owned()),
        answer: STATUS.to_owned(),
        query: vec![DRY_RUN, GRACE, PROPAGATION],
    }
}

fn delete_collection() -> Operation {
    let mut query = LIST.to_vec();
    query.extend([DRY_RUN, GRACE, PROPAGATION]);
    Operation {
        action: "deletecollection",
        query,
        ..delete()
    }
}

fn written(endpoint: &Endpoint, resource: &Resource, dialect: Dialect) -> Value {
    let mut item = Map::new();
    for operation in &endpoint.operations {
        let value = written_operation(operation, endpoint, resource, dialect);
        item.insert(operation.method.to_owned(), value);
    }
    let parameters = endpoint.parameters.iter().map(|name| {
        let description = match *name {
            "namespace" => "object name and auth scope, such as for teams and projects".to_owned(),
            _ => format!("name of the {}", resource.kind),
        };
        parameter(name, "path", "string", &description, dialect)
    });
    item.insert("parameters".to_owned(), parameters.collect());
    Value::Object(item)
}

fn written_operation(
    operation: &Operation,
    endpoint: &Endpoint,
    resource: &Resource,
    dialect: Dialect,
) -> Value {
    let mut parameters: Vec<Value> = operation
        .query
        .iter()
        .map(|(name, type_name, description)| {
            parameter(name, "query", type_name, description, dialect)
        })
        .collect();
    let answer = dialect.reference(&operation.answer);
    let mut value = json!({
        "description": describe(operation, resource),
        "operationId": operation_id(operation, endpoint, resource),
        "tags": [tag(resource)],
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": resource.group_version_kind(""),
    });
    let consumed = consumed_types(operation, resource);
    let ok = match dialect {
        Dialect::V2 => {
            if let Some(body) = &operation.body {
                let required = operation.method != "delete";
                let schema = dialect.reference(body);
                parameters.push(
                    json!({"name": "body", "in": "body", "required": required, "schema": schema}),
                );
            }
            value["consumes"] = json!(consumed);
            value["produces"] = json!(JSON_TYPES);
            value["schemes"] = json!(["https"]);
            json!({"description": "OK", "schema": answer})
        }
        Dialect::V3 => {
            if let Some(body) = &operation.body {
                let content: Map<String, Value> = consumed
                    .iter()
                    .map(|media| {
                        (
                            (*media).to_owned(),
                            json!({"schema": dialect.reference(body)}),
                        )
                    })
                    .collect();
                value["requestBody"] = json!({ "content": content });
            }
            let content: Map<String, Value> = JSON_TYPES
                .iter()
                .map(|media| ((*media).to_owned(), json!({ "schema": answer })))
                .collect();
            json!({"description": "OK", "content": content})
        }
    };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), ok.clone());
    if operation.method == "post" {
        responses.insert("201".to_owned(), with_description(ok, "Created"));
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    value["parameters"] = Value::Array(parameters);
    value["responses"] = Value::Object(responses);
    value
}

fn with_description(mut response: Value, description: &str) -> Value {
    response["description"] = description.into();
    response
}

fn consumed_types(operation: &Operation, resource: &Resource) -> Vec<&'static str> {
    if operation.method != "patch" {
        return JSON_TYPES.to_vec();
    }
    let mut types = PATCH_TYPES.to_vec();
    if resource.builtin().is_some() {
        types.push(STRATEGIC_PATCH_TYPE);
    }
    types
}

fn parameter(
    name: &str,
    place: &str,
    type_name: &str,
    description: &str,
    dialect: Dialect,
) -> Value {
    let mut value = json!({"name": name, "in": place, "description": description});
    if place == "path" {
        value["required"] = true.into();
    }
    match dialect {
        Dialect::V2 => value["type"] = type_name.into(),
        Dialect::V3 => value["schema"] = json!({"type": type_name, "uniqueItems": true}),
    }
    if dialect == Dialect::V2 {
        value["uniqueItems"] = true.into();
    }
    value
}

fn describe(operation: &Operation, resource: &Resource) -> String {
    let kind = &resource.kind;
    match operation.action {
        "list" => format!("list or watch objects of kind {kind}"),
        "get" => format!("read the specified {kind}"),
        "post" => format!("create a {kind}"),
        "put" => format!("replace the specified {kind}"),
        "patch" => format!("partially update the specified {kind}"),
        "delete" => format!("delete a {kind}"),
        _ => format!("delete collection of {kind}"),
    }
}

/// `createStorageV1StorageClass`: verb, group, version, what.
fn operation_id(operation: &Operation, endpoint: &Endpoint, resource: &Resource) -> String {
    let verb = match operation.action {
        "list" => "list",
        "get" => "read",
        "post" => "create",
        "put" => "replace",
        "patch" => "patch",
        "delete" => "delete",
        _ => "deleteCollection",
    };
    let (group, version) = (group_label(resource), capitalised(&resource.version));
    format!("{verb}{}{version}{}", capitalised(group), endpoint.name)
}

fn tag(resource: &Resource) -> String {
    format!("{}_{}", group_label(resource), resource.version)
}

fn group_label(resource: &Resource) -> &str {
    match resource.group.split('.').next() {
        None | Some("") => "core",
        Some(label) => label,
    }
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_ascii_uppercase().to_string() + characters.as_str()
    })
}
