//! The rules by which a Kubernetes API server accepts a CRD's schema, checked on every node of ours.
//!
//! The server reports only the first few violations, at install time, on a cluster. This walks the
//! same rules (structural schemas, and the checks that `apiextensions.k8s.io/v1` adds) here.

use serde_json::{Map, Value, json};

use crate::kinds::{every_crd, schema_of};

/// All keys that a schema of `apiextensions.k8s.io/v1` may have and that we mean to use. Known to the
/// server but refused by it: `$ref`, `definitions`, `dependencies`, `patternProperties`, `uniqueItems`.
const ALLOWED_KEYS: &[&str] = &[
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "nullable",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

/// The formats that the server knows and we use. It ignores others, so one here would be a mistake.
const FORMATS: &[&str] = &["date-time", "int32", "int64"];

/// Every violation in a schema, with where it is.
fn violations(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let root = Node {
        path: String::new(),
        fields: schema.as_object().expect("a schema is an object"),
    };
    if root.get("type") != &json!("object") {
        found.push("the root is not an object".to_owned());
    }
    if root.get("nullable") == &json!(true) {
        found.push("the root is nullable".to_owned());
    }
    if root
        .get("properties")
        .get("metadata")
        .is_some_and(|metadata| metadata.get("properties").is_some())
    {
        found.push("the root describes metadata, which is the server's".to_owned());
    }
    walk(&root, &mut found);
    found
}

struct Node<'a> {
    path: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Node<'a> {
    fn get(&self, key: &str) -> &'a Value {
        self.fields.get(key).unwrap_or(&Value::Null)
    }

    fn is(&self, key: &str) -> bool {
        self.get(key) == &Value::Bool(true)
    }

    fn type_name(&self) -> &'a str {
        self.get("type").as_str().unwrap_or_default()
    }

    fn child(&self, step: &str, schema: &'a Value, found: &mut Vec<String>) -> Option<Self> {
        let path = format!("{}.{step}", self.path);
        let Some(fields) = schema.as_object() else {
            found.push(format!("{path}: the schema is {schema}, not an object"));
            return None;
        };
        Some(Node { path, fields })
    }
}

fn walk(node: &Node<'_>, found: &mut Vec<String>) {
    let mut say = |rule: &str| found.push(format!("{}: {rule}", node.path));
    check_keys(node, &mut say);
    check_type(node, &mut say);
    check_values(node, &mut say);
    check_lists(node, &mut say);
    check_rules(node, &mut say);

    for (name, property) in node.get("properties").as_object().into_iter().flatten() {
        if let Some(child) = node.child(name, property, found) {
            walk(&child, found);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(schema) = node.fields.get(key)
            && let Some(child) = node.child(key, schema, found)
        {
            walk(&child, found);
        }
    }
}

fn check_keys(node: &Node<'_>, say: &mut impl FnMut(&str)) {
    for key in node
        .fields
        .keys()
        .filter(|key| !ALLOWED_KEYS.contains(&key.as_str()))
    {
        say(&format!("{key} is forbidden"));
    }
    for key in [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
    ] {
        if node.fields.contains_key(key) && !node.is(key) {
            say(&format!("{key} must be true or absent"));
        }
    }
    if node.fields.contains_key("additionalProperties") && node.fields.contains_key("properties") {
        say("additionalProperties beside properties");
    }
    // A server that fills in a default changes objects of other tools; wire::open_object says why we have none.
    if node.fields.contains_key("default") {
        say("has a default");
    }
}

fn check_type(node: &Node<'_>, say: &mut impl FnMut(&str)) {
    let type_name = node.type_name();
    let open =
        node.is("x-kubernetes-int-or-string") || node.is("x-kubernetes-preserve-unknown-fields");
    if !TYPES.contains(&type_name) && (node.fields.contains_key("type") || !open) {
        say(&format!("type is {}", node.get("type")));
    }
    if node.is("x-kubernetes-int-or-string") && node.fields.contains_key("type") {
        say("int-or-string beside a type");
    }
    let typed = node.fields.contains_key("type") || node.is("x-kubernetes-int-or-string");
    if node.fields.contains_key("nullable") && !typed {
        say("nullable without a type");
    }
    if type_name == "array" && !node.get("items").is_object() {
        say("an array without items");
    }
    if type_name == "object" {
        let described = node.fields.contains_key("properties")
            || node.fields.contains_key("additionalProperties");
        if !described && !open {
            say("an object whose every field would be dropped");
        }
    }
    let belongs = |keys: &[&str], owner: &str, say: &mut dyn FnMut(&str)| {
        for key in keys
            .iter()
            .filter(|key| node.fields.contains_key(**key) && type_name != owner)
        {
            say(&format!("{key} on {type_name:?}"));
        }
    };
    belongs(
        &["properties", "additionalProperties", "required"],
        "object",
        say,
    );
    belongs(
        &["items", "minItems", "maxItems", "x-kubernetes-list-type"],
        "array",
        say,
    );
    belongs(&["pattern", "minLength", "maxLength"], "string", say);
}

fn check_values(node: &Node<'_>, say: &mut impl FnMut(&str)) {
    if let Some(values) = node
        .fields
        .get("enum")
        .map(|values| values.as_array().cloned().unwrap_or_default())
    {
        if values.is_empty() {
            say("an enum without values");
        }
        for (index, value) in values.iter().enumerate() {
            if values[..index].contains(value) {
                say(&format!("enum lists {value} twice"));
            }
            if node.type_name() == "string" && !value.is_string() {
                say(&format!("enum of strings lists {value}"));
            }
        }
    }
    if let Some(format) = node.fields.get("format")
        && !FORMATS.iter().any(|known| format == known)
    {
        say(&format!("format {format} is not known"));
    }
    for required in node.get("required").as_array().into_iter().flatten() {
        let name = required.as_str().unwrap_or_default();
        if node.get("properties").get(name).is_none() {
            say(&format!("required {name:?} is not described"));
        }
    }
    if let (Some(min), Some(max)) = (node.get("minimum").as_f64(), node.get("maximum").as_f64())
        && min > max
    {
        say("minimum above maximum");
    }
}

fn check_lists(node: &Node<'_>, say: &mut impl FnMut(&str)) {
    let keys = node.get("x-kubernetes-list-map-keys").as_array();
    match node
        .fields
        .get("x-kubernetes-list-type")
        .map(|kind| kind.as_str().unwrap_or_default())
    {
        None if keys.is_some() => say("list-map-keys without list-type map"),
        None | Some("atomic") => {}
        Some("set") => {
            let item_type = node.get("items").get("type").and_then(Value::as_str);
            if matches!(item_type, Some("array" | "object") | None) {
                say("a set of items that are not scalars");
            }
        }
        Some("map") => {
            let items = node.get("items");
            if keys.is_none_or(Vec::is_empty) {
                say("a list-type map without keys");
            }
            for key in keys.into_iter().flatten().filter_map(Value::as_str) {
                let is_required = items["required"]
                    .as_array()
                    .is_some_and(|names| names.iter().any(|name| name == key));
                if !is_required && items["properties"][key].get("default").is_none() {
                    say(&format!(
                        "list-map-key {key} is neither required nor has it a default"
                    ));
                }
            }
        }
        Some(other) => say(&format!("list-type {other:?}")),
    }
}

fn check_rules(node: &Node<'_>, say: &mut impl FnMut(&str)) {
    let Some(rules) = node.fields.get("x-kubernetes-validations") else {
        return;
    };
    for rule in rules.as_array().into_iter().flatten() {
        if rule["rule"].as_str().is_none_or(str::is_empty)
            || rule["message"].as_str().is_none_or(str::is_empty)
        {
            say("a validation without a rule or a message");
        }
    }
    // A rule about the past cannot be followed through lists that have no keys.
    if rules.to_string().contains("oldSelf")
        && (node.path.contains(".items") || node.path.contains(".additionalProperties"))
    {
        say("a transition rule inside a list or map");
    }
}

#[test]
fn every_schema_is_structural() {
    for crd in every_crd() {
        assert_eq!(
            violations(&schema_of(&crd)),
            Vec::<String>::new(),
            "{}",
            crd.spec.names.kind
        );
    }
}

#[test]
fn every_struct_keeps_unknown_fields_in_the_store_too() {
    fn closed_objects(path: &str, schema: &Value, found: &mut Vec<String>) {
        if let Some(properties) = schema["properties"].as_object() {
            if schema["x-kubernetes-preserve-unknown-fields"] != true {
                found.push(path.to_owned());
            }
            for (name, property) in properties {
                closed_objects(&format!("{path}.{name}"), property, found);
            }
        }
        for key in ["items", "additionalProperties"] {
            if schema[key].is_object() {
                closed_objects(&format!("{path}.{key}"), &schema[key], found);
            }
        }
    }
    let mut found = Vec::new();
    for crd in every_crd() {
        for (name, property) in schema_of(&crd)["properties"].as_object().unwrap() {
            closed_objects(
                &format!("{}.{name}", crd.spec.names.kind),
                property,
                &mut found,
            );
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// Puts a node into an otherwise good schema and expects one complaint about it.
#[track_caller]
fn check_refused(node: &Value, complaint: &str) {
    let schema = json!({ "type": "object", "properties": { "bad": node } });
    let found = violations(&schema);
    assert!(
        found.iter().any(|violation| violation.contains(complaint)),
        "{complaint:?} not in {found:?}"
    );
}

#[test]
fn the_walker_sees_every_kind_of_violation() {
    check_refused(&json!(true), "not an object");
    check_refused(&json!({}), "type is null");
    check_refused(&json!({ "type": ["string", "null"] }), "type is");
    check_refused(&json!({ "$ref": "#/definitions/X" }), "$ref is forbidden");
    check_refused(
        &json!({ "type": "string", "oneOf": [] }),
        "oneOf is forbidden",
    );
    check_refused(
        &json!({ "type": "string", "const": "x" }),
        "const is forbidden",
    );
    check_refused(
        &json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true }),
        "uniqueItems is forbidden",
    );
    check_refused(
        &json!({ "type": "string", "default": "x" }),
        "has a default",
    );
    check_refused(&json!({ "type": "array" }), "an array without items");
    check_refused(
        &json!({ "type": "array", "items": { "type": "thing" } }),
        "bad.items: type is",
    );
    check_refused(&json!({ "type": "object" }), "every field would be dropped");
    let both = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "additionalProperties": { "type": "string" } });
    check_refused(&both, "additionalProperties beside properties");
    check_refused(
        &json!({ "x-kubernetes-preserve-unknown-fields": true, "nullable": true }),
        "nullable without a type",
    );
    check_refused(
        &json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": false }),
        "must be true or absent",
    );
    check_refused(
        &json!({ "type": "string", "x-kubernetes-int-or-string": true }),
        "int-or-string beside a type",
    );
    check_refused(
        &json!({ "type": "integer", "pattern": "x" }),
        "pattern on \"integer\"",
    );
    check_refused(&json!({ "type": "string", "enum": ["a", "a"] }), "twice");
    check_refused(
        &json!({ "type": "string", "enum": [null] }),
        "enum of strings lists null",
    );
    check_refused(
        &json!({ "type": "string", "format": "uint8" }),
        "is not known",
    );
    check_refused(
        &json!({ "type": "integer", "minimum": 2, "maximum": 1 }),
        "minimum above maximum",
    );
    let undescribed =
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["b"] });
    check_refused(&undescribed, "required \"b\" is not described");
    let list = |extra: Value| {
        let mut list = json!({ "type": "array", "items": { "type": "object", "properties": { "k": { "type": "string" } } } });
        list.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        list
    };
    check_refused(
        &list(json!({ "x-kubernetes-list-type": "map" })),
        "without keys",
    );
    let keyed = json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"] });
    check_refused(&list(keyed), "neither required nor has it a default");
    check_refused(
        &list(json!({ "x-kubernetes-list-type": "set" })),
        "not scalars",
    );
    check_refused(
        &list(json!({ "x-kubernetes-list-map-keys": ["k"] })),
        "without list-type map",
    );
    let rule = json!([{ "rule": "self == oldSelf", "message": "fixed" }]);
    check_refused(
        &json!({ "type": "array", "items": { "type": "string", "x-kubernetes-validations": rule } }),
        "transition rule",
    );
    check_refused(
        &json!({ "type": "string", "x-kubernetes-validations": [{ "message": "?" }] }),
        "without a rule",
    );
    assert_eq!(
        violations(&json!({ "type": "array", "items": { "type": "string" } })),
        ["the root is not an object"]
    );
}
