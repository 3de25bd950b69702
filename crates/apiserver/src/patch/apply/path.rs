//! One step of the path to a field, in the notation of managedFields and in that of messages.

use std::cmp::Ordering;
use std::fmt;

use serde_json::Value;

use crate::patch::values;

/// A step from an object or list to one of its parts.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A member of an object: `f:name`.
    Field(String),
    /// The element of a keyed list with these key values, sorted by name: `k:{"name":"x"}`.
    Key(Vec<(String, Value)>),
    /// The element of a set: `v:"x"`.
    Value(Value),
    /// An element by position: `i:0`. Nothing here makes one, but entries may hold them.
    Index(i64),
}

impl PathElement {
    pub(in crate::patch) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// Reads the managedFields notation. `Ok(None)` is a kind of step that a later version may know.
    pub(in crate::patch) fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((kind, content)) = text.split_once(':') else {
            return Err(format!("missing colon: {text}"));
        };
        let broken = |error: serde_json::Error| format!("{text}: {error}");
        match kind {
            "f" => Ok(Some(Self::Field(content.to_owned()))),
            "v" => Ok(Some(Self::Value(
                serde_json::from_str(content).map_err(broken)?,
            ))),
            "k" => {
                let fields: serde_json::Map<String, Value> =
                    serde_json::from_str(content).map_err(broken)?;
                let mut key: Vec<_> = fields.into_iter().collect();
                key.sort_by(|(left, _), (right, _)| left.cmp(right));
                Ok(Some(Self::Key(key)))
            }
            "i" => match content.parse() {
                Ok(index) => Ok(Some(Self::Index(index))),
                Err(_) => Err(format!("{text}: not an index")),
            },
            kind if kind.chars().count() == 1 => Ok(None),
            _ => Err(format!("missing colon: {text}")),
        }
    }

    /// Writes the managedFields notation.
    pub(in crate::patch) fn notation(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(key) => {
                let fields: Vec<String> = key
                    .iter()
                    .map(|(name, value)| {
                        let name = Value::from(name.as_str());
                        format!("{}:{}", go_json(&name), go_json(value))
                    })
                    .collect();
                format!("k:{{{}}}", fields.join(","))
            }
            Self::Value(value) => format!("v:{}", go_json(value)),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// JSON as Go writes it: what HTML gives a meaning is escaped.
fn go_json(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(left), Self::Field(right)) => left.cmp(right),
            (Self::Key(left), Self::Key(right)) => compare_keys(left, right),
            (Self::Value(left), Self::Value(right)) => values::compare(left, right),
            (Self::Index(left), Self::Index(right)) => left.cmp(right),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

fn compare_keys(left: &[(String, Value)], right: &[(String, Value)]) -> Ordering {
    left.iter()
        .zip(right)
        .map(|((left_name, left), (right_name, right))| {
            left_name
                .cmp(right_name)
                .then_with(|| values::compare(left, right))
        })
        .find(|order| order.is_ne())
        .unwrap_or_else(|| left.len().cmp(&right.len()))
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// As it appears in messages: `.spec`, `[name="x"]`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(key) => {
                f.write_str("[")?;
                for (index, (name, value)) in key.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={value}")?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}
