//! Secrets and ConfigMaps: maps of keys to data.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{KindRules, default_field, immutable, names, object, same, text, too_long};
use crate::field_error::FieldError;
use crate::schema::path::Path;

/// What one Secret or ConfigMap may hold.
const DATA_BYTES_MAX: usize = 1 << 20;
const FROZEN: &str = "field is immutable when `immutable` is set";

pub(super) static RULES: [KindRules; 2] = [
    KindRules {
        default: default_secret,
        object: secret,
        change: |old, new, errors| {
            immutable(old, new, "/type", "type", errors);
            frozen(old, new, &["data"], errors);
        },
        ..KindRules::new("", "Secret")
    },
    KindRules {
        object: config_map,
        change: |old, new, errors| frozen(old, new, &["data", "binaryData"], errors),
        ..KindRules::new("", "ConfigMap")
    },
];

fn default_secret(secret: &mut Value) {
    default_field(secret, "type", "Opaque");
    // Written as text, kept as base64, never read back.
    let text_fields = secret
        .as_object_mut()
        .and_then(|fields| fields.remove("stringData"));
    let Some(Value::Object(text_fields)) = text_fields else {
        return;
    };
    if let Some(Value::Object(data)) = super::child_object(secret, "data") {
        for (key, value) in text_fields {
            let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
        }
    }
}

fn secret(secret: &Value, errors: &mut Vec<FieldError>) {
    let empty = Map::new();
    let data = object(secret, "/data").unwrap_or(&empty);
    let mut bytes = 0;
    for (key, value) in data {
        config_key("data", key, errors);
        bytes += decoded_bytes(value);
    }
    if bytes > DATA_BYTES_MAX {
        errors.push(too_long("data", DATA_BYTES_MAX));
    }
    let required: &[&str] = match text(secret, "/type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/basic-auth" => {
            if !data.contains_key("username") && !data.contains_key("password") {
                errors.push(FieldError::required("data[username]", ""));
                errors.push(FieldError::required("data[password]", ""));
            }
            &[]
        }
        "kubernetes.io/service-account-token" => {
            let account = "/metadata/annotations/kubernetes.io~1service-account.name";
            if text(secret, account).is_empty() {
                let path = "metadata.annotations[kubernetes.io/service-account.name]";
                errors.push(FieldError::required(path, ""));
            }
            &[]
        }
        _ => &[],
    };
    for key in required.iter().filter(|key| !data.contains_key(**key)) {
        errors.push(FieldError::required(format!("data[{key}]"), ""));
    }
}

fn config_map(config_map: &Value, errors: &mut Vec<FieldError>) {
    let empty = Map::new();
    let data = object(config_map, "/data").unwrap_or(&empty);
    let binary = object(config_map, "/binaryData").unwrap_or(&empty);
    let mut bytes = 0;
    for (key, value) in data {
        config_key("data", key, errors);
        if binary.contains_key(key) {
            let path = format!("data[{key}]");
            let problem = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(path, key.as_str().into(), problem));
        }
        bytes += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary {
        config_key("binaryData", key, errors);
        bytes += decoded_bytes(value);
    }
    if bytes > DATA_BYTES_MAX {
        // The whole object is at fault, so there is no field to name.
        errors.push(too_long("", DATA_BYTES_MAX));
    }
}

fn config_key(field: &str, key: &str, errors: &mut Vec<FieldError>) {
    let root = Path::ROOT;
    let field = root.field(field);
    super::all_invalid(names::config_key(key), &field.key(key), key, errors);
}

/// The size of base64 text once decoded, near enough for a limit.
fn decoded_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, |text| {
        let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
        (text.len() / 4 * 3).saturating_sub(padding)
    })
}

fn frozen(old: &Value, new: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    let is_frozen = |value: &Value| value.get("immutable") == Some(&Value::Bool(true));
    if !is_frozen(old) {
        return;
    }
    if !is_frozen(new) {
        errors.push(FieldError::forbidden("immutable", FROZEN));
    }
    for field in fields {
        if !same(old.get(field), new.get(field)) {
            errors.push(FieldError::forbidden(*field, FROZEN));
        }
    }
}
