//! Objects as the server handles them, and the form in which the store keeps them.
//!
//! Stored bytes are the object's JSON without `apiVersion` and `kind` (the key tells both, and a
//! CRD's versions differ in nothing else), starting with [`STORED_PREFIX`]. The resource version is
//! the store's revision and is spliced in when an object is read: a list or a watch event then
//! costs a copy, not a parse.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// Every stored object begins so; its version belongs right behind.
const STORED_PREFIX: &[u8] = br#"{"metadata":{"resourceVersion":""#;

/// How deep an object may be. The parser that reads it back stops at 128 levels.
pub const DEPTH_MAX: usize = 100;

/// Whether an object is no deeper than what can be read back.
pub fn is_shallow(value: &Value) -> bool {
    fn fits(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left > 0 && items.iter().all(|item| fits(item, left - 1)),
            Value::Object(fields) => left > 0 && fields.values().all(|field| fits(field, left - 1)),
            _ => true,
        }
    }
    fits(value, DEPTH_MAX)
}

/// Finalizer of a delete that waits for dependents.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// Finalizer of a delete that first frees dependents from their owner.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Finalizer of a CRD whose objects must go first.
pub const CRD_CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// What a namespace carries in `spec.finalizers` until it is empty.
pub const NAMESPACE_FINALIZER: &str = "kubernetes";

/// `apiVersion` and `kind` as they stand in objects.
#[derive(Clone, Copy, Debug)]
pub struct TypeMeta<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
}

/// The stored form of an object.
pub fn encode(object: &Value) -> Bytes {
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    let mut bytes = Vec::with_capacity(512);
    bytes.extend_from_slice(STORED_PREFIX);
    bytes.push(b'"');
    for (name, value) in object["metadata"].as_object().unwrap_or(&empty) {
        if name != "resourceVersion" {
            write_field(&mut bytes, name, value);
        }
    }
    bytes.push(b'}');
    for (name, value) in fields {
        if !matches!(name.as_str(), "metadata" | "apiVersion" | "kind") {
            write_field(&mut bytes, name, value);
        }
    }
    bytes.push(b'}');
    bytes.into()
}

fn write_field(bytes: &mut Vec<u8>, name: &str, value: &Value) {
    bytes.push(b',');
    serde_json::to_writer(&mut *bytes, name).expect("a string is always JSON");
    bytes.push(b':');
    serde_json::to_writer(&mut *bytes, value).expect("a JSON value is always JSON");
}

/// Appends the object as clients see it: with its version, and with its type unless the list says it.
pub fn splice(stored: &[u8], revision: u64, type_meta: Option<TypeMeta<'_>>, out: &mut Vec<u8>) {
    debug_assert!(
        stored.starts_with(STORED_PREFIX),
        "not the stored form of an object"
    );
    out.push(b'{');
    if let Some(TypeMeta { api_version, kind }) = type_meta {
        out.extend_from_slice(br#""kind":""#);
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(br#"","apiVersion":""#);
        out.extend_from_slice(api_version.as_bytes());
        out.extend_from_slice(br#"","#);
    }
    out.extend_from_slice(&STORED_PREFIX[1..]);
    out.extend_from_slice(revision.to_string().as_bytes());
    out.extend_from_slice(&stored[STORED_PREFIX.len()..]);
}

/// A stored object as a value, with its version and type.
pub fn decode(stored: &[u8], revision: u64, type_meta: TypeMeta<'_>) -> Value {
    let mut object: Value =
        serde_json::from_slice(stored).expect("the store returns what this module encoded");
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    object["apiVersion"] = type_meta.api_version.into();
    object["kind"] = type_meta.kind.into();
    object
}

/// The time as Kubernetes writes it: whole seconds, UTC.
pub fn timestamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub fn namespace(object: &Value) -> Option<&str> {
    object["metadata"]["namespace"]
        .as_str()
        .filter(|namespace| !namespace.is_empty())
}

pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

pub fn resource_version(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"]
        .as_str()
        .filter(|version| !version.is_empty())
}

pub fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Adds a finalizer unless it is there.
pub fn add_finalizer(object: &mut Value, finalizer: &str) {
    if finalizers(object).contains(&finalizer) {
        return;
    }
    let metadata = metadata_mut(object);
    match metadata.get_mut("finalizers") {
        Some(Value::Array(list)) => list.push(finalizer.into()),
        _ => {
            metadata.insert(
                "finalizers".to_owned(),
                Value::Array(vec![finalizer.into()]),
            );
        }
    }
}

/// Removes a finalizer; an empty list goes altogether, as it does in the real server's JSON.
pub fn remove_finalizer(object: &mut Value, finalizer: &str) {
    let metadata = metadata_mut(object);
    if let Some(Value::Array(list)) = metadata.get_mut("finalizers") {
        list.retain(|entry| entry.as_str() != Some(finalizer));
        if list.is_empty() {
            metadata.remove("finalizers");
        }
    }
}

/// The metadata of an object whose shape was checked to be an object.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    object["metadata"]
        .as_object_mut()
        .expect("made an object just now")
}

/// Sets a top-level or metadata field to what another object has there, absence included.
pub fn copy_field(from: &Value, to: &mut Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => {
            to.insert(field.to_owned(), value.clone());
        }
        None => {
            to.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const TYPE: TypeMeta<'static> = TypeMeta {
        api_version: "longhorn.io/v1beta2",
        kind: "Volume",
    };

    #[test]
    fn splicing_and_decoding_agree() {
        let object = json!({
            "apiVersion": "longhorn.io/v1beta2", "kind": "Volume",
            "metadata": {"name": "v \" 1", "uid": "u", "resourceVersion": "old"},
            "spec": {"size": "1"}, "status": {"a\n": [1, null]},
        });
        let stored = encode(&object);
        let mut bytes = Vec::new();
        splice(&stored, 42, Some(TYPE), &mut bytes);
        let spliced: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(spliced, decode(&stored, 42, TYPE));
        assert_eq!(spliced["metadata"]["resourceVersion"], "42");
        assert_eq!(spliced["spec"], object["spec"]);

        bytes.clear();
        splice(&stored, 42, None, &mut bytes);
        let bare: Value = serde_json::from_slice(&bytes).unwrap();
        assert!(bare.get("kind").is_none() && bare.get("apiVersion").is_none());
    }

    proptest! {
        #[test]
        fn any_object_survives_the_store(name in ".*", field in ".*", text in ".*", number in any::<i64>()) {
            let object = json!({
                "apiVersion": TYPE.api_version, "kind": TYPE.kind,
                "metadata": {"name": name, "resourceVersion": "7"},
                "data": {field: text, "n": number},
            });
            prop_assert_eq!(decode(&encode(&object), 7, TYPE), object);
        }
    }

    #[test]
    fn what_is_shallow_can_be_read_back() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
        assert!(is_shallow(&nested(DEPTH_MAX)));
        assert!(!is_shallow(&nested(DEPTH_MAX + 1)));
        let mut deepest = nested(DEPTH_MAX);
        deepest["metadata"] = json!({"name": "a"});
        decode(&encode(&deepest), 1, TYPE);
    }

    #[test]
    fn finalizers_come_and_go() {
        let mut object = json!({"metadata": {"name": "a"}});
        add_finalizer(&mut object, "x/y");
        add_finalizer(&mut object, "x/y");
        assert_eq!(finalizers(&object), ["x/y"]);
        remove_finalizer(&mut object, "x/y");
        assert_eq!(object, json!({"metadata": {"name": "a"}}));
    }
}
