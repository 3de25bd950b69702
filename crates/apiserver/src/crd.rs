//! What becomes of a CRD when it is written: its names are accepted or not, and its kind is served.

use serde_json::{Value, json};

use crate::catalog::{Catalog, custom};
use crate::object;

/// Whether the definition's kinds are served.
pub fn is_established(definition: &Value) -> bool {
    condition_is_true(definition, "Established")
}

/// Fills in the status: accepted names, stored versions, and whether the kind is established.
///
/// The real server does this a moment later in a controller; here it is part of the write, so that a
/// client never sees a CRD that is not served yet.
pub(crate) fn accept(definition: &mut Value, catalog: &Catalog, now: &str) {
    let names = custom::accepted_names(definition);
    if definition["spec"]["names"].is_object() {
        definition["spec"]["names"] = names.clone();
    }
    if definition["spec"]["conversion"].is_null() && definition["spec"].is_object() {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
    if !definition["status"].is_object() {
        definition["status"] = json!({});
    }
    match clash(definition, catalog) {
        None => {
            definition["status"]["acceptedNames"] = names;
            set_condition(
                definition,
                "NamesAccepted",
                true,
                "NoConflicts",
                "no conflicts found",
                now,
            );
            set_condition(
                definition,
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted",
                now,
            );
        }
        Some(message) => {
            if definition["status"]["acceptedNames"].is_null() {
                definition["status"]["acceptedNames"] = json!({"plural": "", "kind": ""});
            }
            set_condition(
                definition,
                "NamesAccepted",
                false,
                "NamesConflict",
                &message,
                now,
            );
            if !is_established(definition) {
                set_condition(
                    definition,
                    "Established",
                    false,
                    "NotAccepted",
                    "not all names are accepted",
                    now,
                );
            }
        }
    }
    store_version(definition);
}

/// A version that objects may be stored in stays listed, even when another becomes the storage version.
fn store_version(definition: &mut Value) {
    let storage = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|version| version["storage"] == true)
        .map(|version| version["name"].clone());
    let mut stored = definition["status"]["storedVersions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    if let Some(storage) = storage
        && !stored.contains(&storage)
    {
        stored.push(storage);
    }
    definition["status"]["storedVersions"] = Value::Array(stored);
}

/// The first name of this CRD that another resource of its group already has.
fn clash(definition: &Value, catalog: &Catalog) -> Option<String> {
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    let names = custom::accepted_names(definition);
    let plural = names["plural"].as_str().unwrap_or_default();
    let others = catalog
        .iter()
        .filter(|other| other.group == group && other.plural != plural);
    let mut wanted: Vec<&str> = [&names["plural"], &names["singular"]]
        .into_iter()
        .filter_map(Value::as_str)
        .collect();
    wanted.extend(
        names["shortNames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str),
    );
    for other in others {
        let taken = |name: &str| {
            other.plural == name
                || other.singular == name
                || other.short_names.iter().any(|short| short == name)
        };
        if let Some(name) = wanted.iter().find(|name| taken(name)) {
            return Some(format!("{name:?} is already in use"));
        }
        if Some(other.kind.as_str()) == names["kind"].as_str() {
            return Some(format!("{:?} is already in use", other.kind));
        }
    }
    None
}

pub(crate) fn set_condition(
    definition: &mut Value,
    kind: &str,
    holds: bool,
    reason: &str,
    message: &str,
    now: &str,
) {
    let status = if holds { "True" } else { "False" };
    let conditions = &mut definition["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let list = conditions.as_array_mut().expect("made a list just now");
    let at = list.iter().position(|condition| condition["type"] == kind);
    let unchanged = at.is_some_and(|at| list[at]["status"] == status);
    let since = match at {
        Some(at) if unchanged => list[at]["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    match at {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}

fn condition_is_true(object: &Value, kind: &str) -> bool {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// The CRD still holds objects back: its cleanup has not been done.
pub(crate) fn awaits_cleanup(definition: &Value) -> bool {
    object::is_deleting(definition)
        && object::finalizers(definition).contains(&object::CRD_CLEANUP_FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str, short: &str) -> Value {
        json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind, "shortNames": [short]},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        })
    }

    #[test]
    fn a_new_definition_is_established_at_once() {
        let mut crd = definition("widgets", "Widget", "w");
        accept(&mut crd, &Catalog::new([]), "2026-01-01T00:00:00Z");
        assert!(is_established(&crd));
        assert_eq!(crd["status"]["acceptedNames"]["singular"], "widget");
        assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
    }

    #[test]
    fn a_taken_name_is_not_accepted() {
        let mut first = definition("widgets", "Widget", "w");
        accept(&mut first, &Catalog::new([]), "t");
        let catalog = Catalog::new([&first]);
        let mut second = definition("wheels", "Wheel", "w");
        accept(&mut second, &catalog, "t");
        assert!(!is_established(&second));
        let message = second["status"]["conditions"][0]["message"]
            .as_str()
            .unwrap();
        assert_eq!(message, "\"w\" is already in use");
    }
}
