//! Whether an applied object is of its kind's types: apply must know what every field is.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path::PathElement;
use super::set::path_text;
use super::shape::{Node, Shape};

/// Enough to see what is wrong; a body of the wrong kind would list every field it has.
const COMPLAINTS_MAX: usize = 20;

/// Every way in which the object does not fit, in the real server's words, or nothing.
pub(super) fn check(value: &Value, node: Node<'_>) -> Result<(), String> {
    let mut checking = Checking {
        path: Vec::new(),
        complaints: Vec::new(),
    };
    checking.check(value, node);
    match checking.complaints.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

struct Checking {
    path: Vec<PathElement>,
    complaints: Vec<String>,
}

impl Checking {
    fn complain(&mut self, what: &str) {
        if self.complaints.len() < COMPLAINTS_MAX {
            let path = path_text(&self.path);
            self.complaints.push(if path.is_empty() {
                what.to_owned()
            } else {
                format!("{path}: {what}")
            });
        }
    }

    fn check(&mut self, value: &Value, node: Node<'_>) {
        if let Some(expected) = mismatch(value, node.expected_type()) {
            let got = match value {
                Value::String(text) => format!("{text:?}"),
                other => crate::patch::values::go_text(other),
            };
            self.complain(&format!(
                "expected {expected}, got &value.valueUnstructured{{Value:{got}}}"
            ));
            return;
        }
        match value {
            Value::Object(fields) if node.shape(value) == Shape::Map => {
                for (name, field) in fields {
                    self.path.push(PathElement::field(name));
                    if node.allows(name) {
                        self.check(field, node.field(name));
                    } else {
                        self.complain("field not declared in schema");
                    }
                    self.path.pop();
                }
            }
            Value::Array(items) if node.has_elements() => self.check_elements(items, node),
            _ => {}
        }
    }

    fn check_elements(&mut self, items: &[Value], node: Node<'_>) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            match node.element(item) {
                Err(what) => self.complain(&format!("element {index}: {what}")),
                Ok(element) => {
                    if !seen.insert(element.clone()) {
                        self.complain(&format!("duplicate entries for key {element}"));
                    }
                    self.path.push(element);
                    self.check(item, node.items());
                    self.path.pop();
                }
            }
        }
    }
}

/// What was expected, if a value is something else. Null stands for "nothing" everywhere.
fn mismatch(value: &Value, expected: Option<&str>) -> Option<&'static str> {
    match (expected?, value) {
        (_, Value::Null)
        | ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_))
        | ("integer" | "number", Value::Number(_)) => None,
        ("object", _) => Some("map"),
        ("array", _) => Some("list"),
        ("string", _) => Some("string"),
        ("boolean", _) => Some("boolean"),
        ("integer" | "number", _) => Some("numeric (int or float)"),
        _ => None,
    }
}
