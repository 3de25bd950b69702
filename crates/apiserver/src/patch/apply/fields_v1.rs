//! The wire form of a field set: the `fieldsV1` of a managedFields entry.

use serde_json::{Map, Value};

use super::path::PathElement;
use super::set::FieldSet;
use crate::patch::bounds::DEPTH_MAX;

/// Reads `fieldsV1`. Steps of a kind we do not know are left out, as the real server does; anything
/// else that is not in the notation is an error.
pub fn parse(fields: &Value) -> Result<FieldSet, String> {
    let (set, _) = parse_level(fields, 0)?;
    Ok(set)
}

/// Writes `fieldsV1` in its canonical form.
pub fn serialize(set: &FieldSet) -> Value {
    Value::Object(serialize_level(set))
}

/// What is below a step, and whether the step itself is in the set.
fn parse_level(fields: &Value, depth: usize) -> Result<(FieldSet, bool), String> {
    let Value::Object(fields) = fields else {
        return Err("fieldsV1 must consist of objects".to_owned());
    };
    if depth > DEPTH_MAX {
        return Err(format!(
            "fieldsV1 is nested more than {DEPTH_MAX} levels deep"
        ));
    }
    let mut set = FieldSet::default();
    let mut is_member = false;
    for (key, below) in fields {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(element) = PathElement::parse(key)? else {
            continue;
        };
        let (below, below_is_member) = parse_level(below, depth + 1)?;
        if below_is_member {
            set.insert_member(element.clone());
        }
        set.insert_below(element, below);
    }
    // Without anything below, a step can only be there for itself.
    let is_member = is_member || set.is_empty();
    Ok((set, is_member))
}

fn serialize_level(set: &FieldSet) -> Map<String, Value> {
    let mut fields = Map::new();
    for member in set.members() {
        if set.child(member).is_none() {
            fields.insert(member.notation(), Value::Object(Map::new()));
        }
    }
    for (element, child) in set.children() {
        let mut below = serialize_level(child);
        if set.has_member(element) {
            below.insert(".".to_owned(), Value::Object(Map::new()));
        }
        fields.insert(element.notation(), Value::Object(below));
    }
    fields
}
