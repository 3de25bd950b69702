//! What makes a schema structural.

use serde_json::Value;

use super::super::prune::prune_part;
use super::super::validate::validate_shape;
use super::super::{DEPTH_MAX, Schema, SchemaOrBool, cel, pattern};
use super::lists::{lists, required_or_invalid};
use super::{Path, supported};
use crate::field_error::FieldError;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];
const UNSUPPORTED: [&str; 6] = [
    "$ref",
    "additionalItems",
    "definitions",
    "dependencies",
    "id",
    "patternProperties",
];

/// Where a schema stands, which decides whether it must have a type.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Root,
    Field,
    Item,
    /// Inside `allOf`, `anyOf`, `oneOf` or `not`, where only value rules may stand.
    Junctor,
}

/// Keywords that [`Schema`] would silently not read.
pub(super) fn unsupported_keywords(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    keywords(value, path, 0, errors);
}

pub(super) fn root(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(type_name) = schema.type_name.as_deref()
        && type_name != "object"
    {
        let problem = "must be object at the root";
        errors.push(FieldError::invalid(
            path.field("type"),
            type_name.into(),
            problem,
        ));
    }
    if let Some(metadata) = schema.properties.get("metadata") {
        let restricts_more = metadata
            .properties
            .keys()
            .any(|name| !matches!(name.as_str(), "name" | "generateName"))
            || metadata.additional_properties.is_some()
            || !metadata.required.is_empty();
        if restricts_more {
            let properties = path.field("properties");
            errors.push(FieldError::forbidden(
                properties.key("metadata"),
                "must not specify anything other than name and generateName, but metadata is \
                 implicitly specified",
            ));
        }
    }
    node(schema, path, Place::Root, 0, errors);
}

fn keywords(value: &Value, path: &Path<'_>, depth: usize, errors: &mut Vec<FieldError>) {
    let Value::Object(schema) = value else { return };
    if depth > DEPTH_MAX {
        return;
    }
    for keyword in UNSUPPORTED {
        if schema.contains_key(keyword) {
            let problem = format!("{keyword} is not supported");
            errors.push(FieldError::forbidden(path.field(keyword), problem));
        }
    }
    for (keyword, child) in schema {
        let path = path.field(keyword);
        match (keyword.as_str(), child) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    keywords(property, &path.key(name), depth + 1, errors);
                }
            }
            ("items" | "additionalProperties" | "not", child) => {
                keywords(child, &path, depth + 1, errors);
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(children)) => {
                for (index, child) in children.iter().enumerate() {
                    keywords(child, &path.index(index), depth + 1, errors);
                }
            }
            _ => {}
        }
    }
}

fn node(
    schema: &Schema,
    path: &Path<'_>,
    place: Place,
    depth: usize,
    errors: &mut Vec<FieldError>,
) {
    if depth > DEPTH_MAX {
        let problem = format!("must not be nested deeper than {DEPTH_MAX} levels");
        errors.push(FieldError::invalid(path, "".into(), problem));
        return;
    }
    if place == Place::Junctor {
        junctor_only(schema, path, errors);
    } else {
        typed(schema, path, place, errors);
        lists(schema, path, errors);
        default(schema, path, errors);
    }
    if schema.unique_items {
        errors.push(FieldError::forbidden(
            path.field("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    if let Some(text) = &schema.pattern
        && let Err(error) = pattern::compile(text)
    {
        errors.push(FieldError::invalid(
            path.field("pattern"),
            text.as_str().into(),
            format!("must be a valid regular expression, but isn't: {error}"),
        ));
    }
    celled(schema, path, errors);
    children(schema, path, place, depth, errors);
}

fn children(
    schema: &Schema,
    path: &Path<'_>,
    place: Place,
    depth: usize,
    errors: &mut Vec<FieldError>,
) {
    let inner = |outside: Place| match place {
        Place::Junctor => Place::Junctor,
        Place::Root | Place::Field | Place::Item => outside,
    };
    let properties = path.field("properties");
    for (name, property) in &schema.properties {
        // The root's metadata is everyone's; it needs no type.
        let path = properties.key(name);
        node(property, &path, inner(Place::Field), depth + 1, errors);
    }
    if let Some(items) = schema.items.as_deref() {
        node(
            items,
            &path.field("items"),
            inner(Place::Item),
            depth + 1,
            errors,
        );
    }
    if let Some(SchemaOrBool::Schema(additional)) = schema.additional_properties.as_deref() {
        let path = path.field("additionalProperties");
        node(additional, &path, inner(Place::Field), depth + 1, errors);
    }
    for (keyword, alternatives) in [
        ("allOf", &schema.all_of),
        ("anyOf", &schema.any_of),
        ("oneOf", &schema.one_of),
    ] {
        let list_path = path.field(keyword);
        for (index, alternative) in alternatives.iter().enumerate() {
            let path = list_path.index(index);
            if place != Place::Junctor {
                known_outside(
                    schema,
                    alternative,
                    &format!("{keyword}[{index}]"),
                    &path,
                    errors,
                );
            }
            if !(schema.int_or_string && only_says_int_or_string(alternative)) {
                node(alternative, &path, Place::Junctor, depth + 1, errors);
            }
        }
    }
    if let Some(not) = schema.not.as_deref() {
        node(not, &path.field("not"), Place::Junctor, depth + 1, errors);
    }
}

fn typed(schema: &Schema, path: &Path<'_>, place: Place, errors: &mut Vec<FieldError>) {
    let type_path = path.field("type");
    match schema.type_name.as_deref() {
        Some(type_name) if schema.int_or_string => {
            let problem = "must be empty if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(type_path, type_name.into(), problem));
        }
        Some(type_name) => supported(type_name, &TYPES, type_path, errors),
        None if schema.int_or_string => {}
        None if schema.preserve_unknown_fields || schema.embedded_resource => {}
        None => {
            let problem = match place {
                Place::Root => "must not be empty at the root",
                Place::Item => "must not be empty for specified array items",
                Place::Field | Place::Junctor => "must not be empty for specified object fields",
            };
            errors.push(FieldError::required(type_path, problem));
        }
    }
    let is = |name: &str| schema.type_name.as_deref() == Some(name);
    match schema.additional_properties.as_deref() {
        Some(SchemaOrBool::Bool(false)) => errors.push(FieldError::forbidden(
            path.field("additionalProperties"),
            "additionalProperties cannot be set to false",
        )),
        Some(SchemaOrBool::Schema(_)) if !schema.properties.is_empty() => {
            errors.push(FieldError::forbidden(
                path.field("additionalProperties"),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        Some(_) | None => {}
    }
    if place == Place::Root && schema.additional_properties.is_some() {
        let problem = "must not be used at the root";
        errors.push(FieldError::forbidden(
            path.field("additionalProperties"),
            problem,
        ));
    }
    if schema.int_or_string && schema.preserve_unknown_fields {
        errors.push(FieldError::invalid(
            path.field("x-kubernetes-preserve-unknown-fields"),
            true.into(),
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    if is("array") && schema.items.is_none() {
        errors.push(FieldError::required(
            path.field("items"),
            "must be specified",
        ));
    }
    let type_name = schema.type_name.as_deref().unwrap_or_default();
    if schema.map_type.is_some() && !is("object") {
        let problem = "must be object if x-kubernetes-map-type is specified";
        required_or_invalid(path.field("type"), type_name, problem, errors);
    }
    if schema.embedded_resource {
        if !is("object") {
            let problem = "must be object if x-kubernetes-embedded-resource is true";
            required_or_invalid(path.field("type"), type_name, problem, errors);
        }
        if schema.properties.is_empty() && !schema.preserve_unknown_fields {
            errors.push(FieldError::required(
                path.field("properties"),
                "must not be empty if x-kubernetes-embedded-resource is true without \
                 x-kubernetes-preserve-unknown-fields",
            ));
        }
    }
}

/// A default must be what the schema it stands in would accept and keep.
fn default(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(default) = &schema.default else {
        return;
    };
    let path = path.field("default");
    if default.is_null() && !schema.nullable {
        let problem = "must not be null unless the schema is nullable";
        errors.push(FieldError::invalid(path, Value::Null, problem));
        return;
    }
    let mut pruned = default.clone();
    if let Some(unknown) = prune_part(schema, &mut pruned).first() {
        errors.push(FieldError::invalid(
            path,
            default.clone(),
            format!("must not have unknown fields, but has {unknown:?}"),
        ));
    }
    errors.extend(validate_shape(schema, default, &path));
}

fn celled(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let rules_path = path.field("x-kubernetes-validations");
    for (index, rule) in schema.validations.iter().enumerate() {
        told(rule, &rules_path.index(index), errors);
    }
    for (index, problem) in cel::problems(schema) {
        let path = rules_path.index(*index);
        let rule = schema.validations[*index]["rule"].clone();
        if problem == "rule is not specified" {
            errors.push(FieldError::required(path.field("rule"), problem.as_str()));
        } else {
            errors.push(FieldError::invalid(
                path.field("rule"),
                rule,
                problem.as_str(),
            ));
        }
    }
}

/// What a rule says when it fails.
fn told(rule: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let text = |name: &str| rule[name].as_str().map(str::trim);
    let has_breaks = |text: &str| text.contains(['\n', '\r']);
    let message_path = path.field("message");
    match text("message") {
        Some("") => errors.push(FieldError::invalid(
            message_path,
            rule["message"].clone(),
            "message must be non-empty if specified",
        )),
        Some(message) if has_breaks(message) => errors.push(FieldError::invalid(
            message_path,
            rule["message"].clone(),
            "message must not contain line breaks",
        )),
        None if text("rule").is_some_and(has_breaks) => {
            let problem = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(message_path, problem));
        }
        Some(_) | None => {}
    }
    if let Some(reason) = text("reason") {
        supported(reason, &REASONS, path.field("reason"), errors);
    }
}

/// Alternatives may only restrict what is described outside of them.
fn junctor_only(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let forbidden = [
        (
            "type",
            schema.type_name.is_some(),
            "must be empty to be structural",
        ),
        (
            "default",
            schema.default.is_some(),
            "must be undefined to be structural",
        ),
        (
            "additionalProperties",
            schema.additional_properties.is_some(),
            "must be undefined to be structural",
        ),
        (
            "description",
            schema.description.is_some(),
            "must be empty to be structural",
        ),
        (
            "title",
            schema.title.is_some(),
            "must be empty to be structural",
        ),
        (
            "nullable",
            schema.nullable,
            "must be false to be structural",
        ),
        (
            "x-kubernetes-preserve-unknown-fields",
            schema.preserve_unknown_fields,
            "must be false to be structural",
        ),
        (
            "x-kubernetes-embedded-resource",
            schema.embedded_resource,
            "must be false to be structural",
        ),
        (
            "x-kubernetes-int-or-string",
            schema.int_or_string,
            "must be false to be structural",
        ),
        (
            "x-kubernetes-list-type",
            schema.list_type.is_some(),
            "must be undefined to be structural",
        ),
        (
            "x-kubernetes-map-type",
            schema.map_type.is_some(),
            "must be undefined to be structural",
        ),
        (
            "x-kubernetes-validations",
            !schema.validations.is_empty(),
            "must be empty to be structural",
        ),
    ];
    for (keyword, present, problem) in forbidden {
        if present {
            errors.push(FieldError::forbidden(path.field(keyword), problem));
        }
    }
    if schema.properties.contains_key("metadata") {
        let properties = path.field("properties");
        let problem = "must not be specified in a nested context";
        errors.push(FieldError::forbidden(properties.key("metadata"), problem));
    }
}

fn known_outside(
    outside: &Schema,
    alternative: &Schema,
    place: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for name in alternative.properties.keys() {
        let any = outside.properties.contains_key(name)
            || outside.additional_properties.is_some()
            || outside.preserve_unknown_fields;
        if !any {
            let properties = path.field("properties");
            let problem = format!("because it is defined in {place}.properties[{name}]");
            errors.push(FieldError::required(properties.key(name), problem));
        }
    }
}

/// `anyOf: [{type: integer}, {type: string}]` may stand beside `x-kubernetes-int-or-string`, by itself
/// or inside an `allOf`.
fn only_says_int_or_string(alternative: &Schema) -> bool {
    let is_branch =
        |schema: &Schema| matches!(schema.type_name.as_deref(), Some("integer" | "string"));
    is_branch(alternative)
        || (!alternative.any_of.is_empty() && alternative.any_of.iter().all(is_branch))
}
