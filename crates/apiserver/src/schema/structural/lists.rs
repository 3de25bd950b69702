//! What makes a list mergeable: its type, and the keys of its items.

use super::super::{ListType, Schema};
use super::Path;
use crate::field_error::FieldError;

const SCALARS: [&str; 4] = ["boolean", "integer", "number", "string"];

pub(super) fn lists(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let keys_path = path.field("x-kubernetes-list-map-keys");
    let not_map = match schema.list_type {
        Some(ListType::Map) => None,
        Some(ListType::Set) => Some("set"),
        Some(ListType::Atomic) => Some("atomic"),
        None => Some(""),
    };
    if let Some(list_type) = not_map
        && !schema.list_map_keys.is_empty()
    {
        let problem = "must be map if x-kubernetes-list-map-keys is non-empty";
        required_or_invalid(
            path.field("x-kubernetes-list-type"),
            list_type,
            problem,
            errors,
        );
    }
    let Some(list_type) = schema.list_type else {
        return;
    };
    let type_name = schema.type_name.as_deref().unwrap_or_default();
    if type_name != "array" {
        let problem = "must be array if x-kubernetes-list-type is specified";
        required_or_invalid(path.field("type"), type_name, problem, errors);
    }
    let Some(items) = schema.items.as_deref() else {
        return;
    };
    let items_path = path.field("items");
    let item_type = items.type_name.as_deref().unwrap_or_default();
    match list_type {
        ListType::Atomic => {}
        ListType::Set => {
            if items.nullable {
                let problem = "must be false if x-kubernetes-list-type is set";
                errors.push(FieldError::forbidden(items_path.field("nullable"), problem));
            }
            if item_type == "object" && items.map_type.is_none() {
                let problem = "must be atomic as item of a list with x-kubernetes-list-type=set";
                let path = items_path.field("x-kubernetes-map-type");
                errors.push(FieldError::invalid(path, "".into(), problem));
            }
        }
        ListType::Map => {
            if schema.list_map_keys.is_empty() {
                let problem = "must not be empty if x-kubernetes-list-type is map";
                errors.push(FieldError::required(keys_path, problem));
            }
            if item_type != "object" {
                let problem = "must be object if parent array's x-kubernetes-list-type is map";
                let path = items_path.field("type");
                errors.push(FieldError::invalid(path, item_type.into(), problem));
                return;
            }
            for (index, key) in schema.list_map_keys.iter().enumerate() {
                if schema.list_map_keys[..index].contains(key) {
                    errors.push(FieldError::invalid(
                        keys_path,
                        schema.list_map_keys.clone().into(),
                        "must not contain duplicate entries",
                    ));
                }
                map_key(schema, items, key, path, errors);
            }
        }
    }
}

fn map_key(
    schema: &Schema,
    items: &Schema,
    key: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let Some(property) = items.properties.get(key) else {
        errors.push(FieldError::invalid(
            path.field("x-kubernetes-list-map-keys"),
            schema.list_map_keys.clone().into(),
            "entries must all be names of item properties",
        ));
        return;
    };
    let items_path = path.field("items");
    let properties = items_path.field("properties");
    let path = properties.key(key);
    let type_name = property.type_name.as_deref().unwrap_or_default();
    if !SCALARS.contains(&type_name) && !property.int_or_string {
        errors.push(FieldError::invalid(
            path.field("type"),
            type_name.into(),
            "must be a scalar type if parent array's x-kubernetes-list-type is map",
        ));
    }
    if property.default.is_none() && !items.required.iter().any(|name| name == key) {
        errors.push(FieldError::required(
            path.field("default"),
            "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
             required property",
        ));
    }
}

/// Something is missing, or is there and wrong.
pub(super) fn required_or_invalid(
    path: Path<'_>,
    found: &str,
    problem: &str,
    errors: &mut Vec<FieldError>,
) {
    errors.push(if found.is_empty() {
        FieldError::required(path, problem)
    } else {
        FieldError::invalid(path, found.into(), problem)
    });
}
