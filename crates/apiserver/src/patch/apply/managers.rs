//! The managers of an object's fields: `metadata.managedFields`, read and written.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::compare::Comparison;
use super::fields_v1;
use super::path::PathElement;
use super::set::FieldSet;

/// How a manager came to own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn text(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// What makes two entries one manager's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    pub manager: String,
    pub operation: Operation,
    /// Empty for appliers: one that moves to another version of the API stays the same manager.
    pub api_version: String,
    /// Empty for the object itself.
    pub subresource: String,
}

impl ManagerId {
    pub(in crate::patch) fn applier(manager: &str, subresource: Option<&str>) -> Self {
        Self {
            manager: manager.to_owned(),
            operation: Operation::Apply,
            api_version: String::new(),
            subresource: subresource.unwrap_or_default().to_owned(),
        }
    }

    pub(in crate::patch) fn updater(
        manager: &str,
        api_version: &str,
        subresource: Option<&str>,
    ) -> Self {
        let manager = if manager.is_empty() {
            "unknown"
        } else {
            manager
        };
        Self {
            manager: manager.to_owned(),
            operation: Operation::Update,
            api_version: api_version.to_owned(),
            subresource: subresource.unwrap_or_default().to_owned(),
        }
    }

    /// As conflicts name it: `"kubectl-edit" using v1`, `"operator" with subresource "status"`.
    pub fn description(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }
}

/// One manager's share.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::patch) struct Share {
    pub(in crate::patch) fields: FieldSet,
    pub(in crate::patch) api_version: String,
    pub(in crate::patch) time: Option<String>,
}

/// Everyone's shares in one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::patch) struct Managers(pub(in crate::patch) BTreeMap<ManagerId, Share>);

impl Managers {
    /// Reads an object's managedFields; none are an empty list.
    pub(in crate::patch) fn of(object: &Value) -> Result<Self, String> {
        let entries = match &object["metadata"]["managedFields"] {
            Value::Null => return Ok(Self::default()),
            Value::Array(entries) => entries,
            _ => return Err("managedFields must be a list".to_owned()),
        };
        let mut managers = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let (id, share) =
                parse_entry(entry).map_err(|what| format!("managedFields[{index}]: {what}"))?;
            managers.insert(id, share);
        }
        Ok(Self(managers))
    }

    pub(in crate::patch) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the managedFields into an object, ordered as the real server orders them.
    pub(in crate::patch) fn write_to(&self, object: &mut Value) {
        remove_from(object);
        if self.0.is_empty() {
            return;
        }
        let mut entries: Vec<(&ManagerId, &Share)> = self.0.iter().collect();
        entries.sort_by(|(left_id, left), (right_id, right)| {
            let operation = left_id.operation.cmp(&right_id.operation);
            let time = || left.time.cmp(&right.time);
            let rest = || {
                let key = |id: &ManagerId, share: &Share| {
                    (
                        id.manager.clone(),
                        share.api_version.clone(),
                        id.subresource.clone(),
                    )
                };
                key(left_id, left).cmp(&key(right_id, right))
            };
            operation.then_with(time).then_with(rest)
        });
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|(id, share)| entry(id, share))
            .collect();
        let Value::Object(fields) = object else {
            return;
        };
        let metadata = fields
            .entry("metadata")
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = metadata {
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }

    /// Takes from everyone what changed hands or vanished.
    pub(in crate::patch) fn take_changed(&mut self, change: &Comparison) {
        let lost = change.set().union(&change.removed);
        if !lost.is_empty() {
            for share in self.0.values_mut() {
                share.fields = share.fields.difference(&lost);
            }
        }
        self.0.retain(|_, share| !share.fields.is_empty());
    }

    /// Merges the oldest updaters of each API version into one until there are at most `count`.
    pub(in crate::patch) fn cap_updaters(&mut self, count: usize) {
        let mut updaters: Vec<(Option<String>, ManagerId)> = self
            .0
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, share)| (share.time.clone(), id.clone()))
            .collect();
        updaters.sort();
        let mut excess = updaters.len().saturating_sub(count);
        let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
        for (_, id) in updaters {
            if excess == 0 {
                break;
            }
            let Some(first) = first_of_version.get(&id.api_version) else {
                first_of_version.insert(id.api_version.clone(), id);
                continue;
            };
            let bucket = ManagerId::updater("ancient-changes", &id.api_version, None);
            if bucket == id {
                continue;
            }
            if !self.0.contains_key(&bucket)
                && let Some(share) = self.0.remove(first)
            {
                self.0.insert(bucket.clone(), share);
            }
            if let Some(merged) = self.0.remove(&id)
                && let Some(share) = self.0.get_mut(&bucket)
            {
                share.fields = share.fields.union(&merged.fields);
                share.time = merged.time;
                excess -= 1;
            }
        }
    }
}

pub(in crate::patch) fn remove_from(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

pub(in crate::patch) fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    remove_from(&mut object);
    object
}

/// What of the metadata the server itself sets.
const SYSTEM_METADATA: [&str; 11] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// What the server itself sets, which nobody can own.
pub(in crate::patch) fn unowned() -> FieldSet {
    let field = PathElement::field;
    let top = ["apiVersion", "kind", "metadata"].map(|name| vec![field(name)]);
    let nested = SYSTEM_METADATA.map(|name| vec![field("metadata"), field(name)]);
    top.into_iter().chain(nested).collect()
}

/// Takes out of an applied object the nulls that tools print for what the server sets, such as
/// `creationTimestamp: null`: they mean nothing, not "remove".
pub(super) fn remove_null_system_metadata(applied: &mut Value) {
    if let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata
            .retain(|name, value| !value.is_null() || !SYSTEM_METADATA.contains(&name.as_str()));
    }
}

fn parse_entry(entry: &Value) -> Result<(ManagerId, Share), String> {
    let Value::Object(entry) = entry else {
        return Err("must be an object".to_owned());
    };
    let text = |name: &str| match entry.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!("{name} must be a string")),
    };
    let operation = match text("operation")? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_owned()),
    };
    let api_version = text("apiVersion")?;
    if api_version.is_empty() {
        return Err("apiVersion must not be empty".to_owned());
    }
    match text("fieldsType")? {
        "FieldsV1" => {}
        "" => return Err("missing fieldsType".to_owned()),
        other => return Err(format!("invalid fieldsType {other:?}")),
    }
    let time = match text("time")? {
        "" => None,
        time if is_timestamp(time) => Some(time.to_owned()),
        other => return Err(format!("time {other:?} is not RFC 3339")),
    };
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => FieldSet::default(),
        Some(fields) => fields_v1::parse(fields)?,
    };
    let id = ManagerId {
        manager: text("manager")?.to_owned(),
        operation,
        api_version: match operation {
            Operation::Apply => String::new(),
            Operation::Update => api_version.to_owned(),
        },
        subresource: text("subresource")?.to_owned(),
    };
    let share = Share {
        fields,
        api_version: api_version.to_owned(),
        time,
    };
    Ok((id, share))
}

/// `2026-01-02T03:04:05Z`, with or without a fraction and an offset.
fn is_timestamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shape = b"dddd-dd-ddTdd:dd:dd";
    bytes.len() > shape.len()
        && bytes.len() <= 40
        && shape.iter().zip(bytes).all(|(shape, byte)| match shape {
            b'd' => byte.is_ascii_digit(),
            other => other == byte,
        })
        && bytes[shape.len()..]
            .iter()
            .all(|byte| byte.is_ascii_digit() || b".:+-Z".contains(byte))
}

fn entry(id: &ManagerId, share: &Share) -> Value {
    let mut entry = json!({
        "manager": id.manager,
        "operation": id.operation.text(),
        "apiVersion": share.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields_v1::serialize(&share.fields),
    });
    if let Some(time) = &share.time {
        entry["time"] = Value::from(time.as_str());
    }
    if !id.subresource.is_empty() {
        entry["subresource"] = Value::from(id.subresource.as_str());
    }
    entry
}
