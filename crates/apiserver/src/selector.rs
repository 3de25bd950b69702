//! Label and field selectors: parsed once per request, then matched against objects.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::status::ApiError;

/// A parsed `labelSelector`: all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelSelector {
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let invalid = |why: &str| {
            ApiError::bad_request(format!("unable to parse requirement: {why}, in {text:?}"))
        };
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                if text.trim().is_empty() {
                    continue;
                }
                return Err(invalid("found '', expected: identifier"));
            }
            let requirement = parse_requirement(part).map_err(|why| invalid(&why))?;
            check_key(&requirement.key).map_err(|why| invalid(&why))?;
            if let Operator::In(values) | Operator::NotIn(values) = &requirement.operator {
                for value in values {
                    check_value(value).map_err(|why| invalid(&why))?;
                }
            }
            requirements.push(requirement);
        }
        Ok(Self { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Of an object's text only the labels are taken: most objects that a selector looks at are not selected.
    pub fn matches(&self, text: &[u8]) -> bool {
        if self.is_empty() {
            return true;
        }
        let labels = serde_json::from_slice::<Labelled>(text)
            .ok()
            .and_then(|object| object.metadata.labels)
            .unwrap_or_default();
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key).map(String::as_str);
            match &requirement.operator {
                Operator::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
                Operator::NotIn(values) => !value.is_some_and(|v| values.iter().any(|x| x == v)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
                Operator::GreaterThan(bound) => value
                    .and_then(|v| v.parse::<i64>().ok())
                    .is_some_and(|v| v > *bound),
                Operator::LessThan(bound) => value
                    .and_then(|v| v.parse::<i64>().ok())
                    .is_some_and(|v| v < *bound),
            }
        })
    }
}

#[derive(Deserialize)]
struct Labelled {
    metadata: LabelledMetadata,
}

#[derive(Deserialize)]
struct LabelledMetadata {
    labels: Option<HashMap<String, String>>,
}

fn parse_requirement(part: &str) -> Result<Requirement, String> {
    let requirement = |key: &str, operator| Requirement {
        key: key.trim().to_owned(),
        operator,
    };
    if let Some(key) = part.strip_prefix('!') {
        return Ok(requirement(key, Operator::DoesNotExist));
    }
    if let Some((head, rest)) = part.split_once('(') {
        let values = rest
            .strip_suffix(')')
            .ok_or("found '', expected: ',', or ')'")?;
        let values = values
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => Ok(requirement(key, Operator::In(values))),
            (Some(key), Some("notin"), None) => Ok(requirement(key, Operator::NotIn(values))),
            _ => Err(format!("found '{}', expected: in, notin", head.trim())),
        };
    }
    for (symbol, make) in OPERATORS {
        if let Some((key, value)) = part.split_once(symbol) {
            return Ok(requirement(key, make(value.trim())?));
        }
    }
    if part.split_whitespace().count() > 1 {
        return Err(format!("found '{part}', expected: identifier"));
    }
    Ok(requirement(part, Operator::Exists))
}

type MakeOperator = fn(&str) -> Result<Operator, String>;

/// In this order: `!=` and `==` contain `=`.
const OPERATORS: [(&str, MakeOperator); 5] = [
    ("!=", |value| Ok(Operator::NotIn(vec![value.to_owned()]))),
    ("==", |value| Ok(Operator::In(vec![value.to_owned()]))),
    ("=", |value| Ok(Operator::In(vec![value.to_owned()]))),
    (">", |value| Ok(Operator::GreaterThan(bound(value)?))),
    ("<", |value| Ok(Operator::LessThan(bound(value)?))),
];

fn bound(value: &str) -> Result<i64, String> {
    value.parse().map_err(|_| {
        format!("for 'Gt', 'Lt' operators, the value must be an integer, found {value:?}")
    })
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = key
        .rsplit_once('/')
        .map_or((None, key), |(p, n)| (Some(p), n));
    let prefix_fits = prefix.is_none_or(|p| {
        !p.is_empty()
            && p.len() <= 253
            && p.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.')
    });
    if prefix_fits && !name.is_empty() && name.len() <= 63 && is_label_text(name) {
        Ok(())
    } else {
        Err(format!("invalid label key {key:?}"))
    }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || (value.len() <= 63 && is_label_text(value)) {
        Ok(())
    } else {
        Err(format!("invalid label value {value:?}"))
    }
}

fn is_label_text(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().all(inner)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// What a field selector can tell from a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByName {
    Selected,
    NotSelected,
    /// Other fields decide.
    Unknown,
}

/// A parsed `fieldSelector`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq)]
struct FieldTerm {
    path: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    /// Only the fields that the kind's resource supports may be named: a selector that the server
    /// silently ignored would return everything.
    pub fn parse(text: &str, supported: &[&str]) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (path, value, true)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid selector: '{text}'; can't understand '{part}'"
                )));
            };
            let path = path.trim();
            if !supported.contains(&path) {
                return Err(ApiError::bad_request(format!(
                    "{path:?} is not a known field selector: only {}",
                    supported
                        .iter()
                        .map(|s| format!("{s:?}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
            terms.push(FieldTerm {
                path: path.to_owned(),
                value: value.trim().to_owned(),
                equal,
            });
        }
        Ok(Self { terms })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// What can be said of an object by its name alone.
    pub fn by_name(&self, name: &str) -> ByName {
        let mut verdict = ByName::Selected;
        for term in &self.terms {
            if term.path != "metadata.name" {
                verdict = ByName::Unknown;
            } else if (term.value == name) != term.equal {
                return ByName::NotSelected;
            }
        }
        verdict
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let found = term
                .path
                .split('.')
                .fold(object, |value, field| &value[field]);
            let text = match found {
                Value::String(text) => text.clone(),
                Value::Null => default_text(&term.path).to_owned(),
                other => other.to_string(),
            };
            (text == term.value) == term.equal
        })
    }
}

/// How an absent field compares: booleans are false, everything else is the empty string.
fn default_text(path: &str) -> &'static str {
    match path {
        "spec.unschedulable" | "spec.hostNetwork" => "false",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selectors() {
        let object = json!({"metadata": {"labels": {"app": "db", "tier": "7", "x/y": ""}}});
        let check = |text: &str, expected: bool| {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(
                selector.matches(object.to_string().as_bytes()),
                expected,
                "{text}"
            );
        };
        check("", true);
        check("app=db", true);
        check("app==db,tier=7", true);
        check("app!=db", false);
        check("missing!=x", true);
        check("app in (web, db)", true);
        check("app notin (web,db)", false);
        check("missing notin (web)", true);
        check("app,!missing", true);
        check("!app", false);
        check("tier>6,tier<8", true);
        check("x/y=", true);
        for bad in [
            "app=db,,",
            "app in db",
            "app in (db",
            "-x=1",
            "a=-b",
            "a b",
            "tier>x",
        ] {
            assert_eq!(LabelSelector::parse(bad).unwrap_err().code, 400, "{bad}");
        }
    }

    #[test]
    fn a_name_often_decides() {
        let supported = ["metadata.name", "status.phase"];
        for (text, expected) in [
            ("", ByName::Selected),
            ("metadata.name=a", ByName::Selected),
            ("metadata.name=b", ByName::NotSelected),
            ("metadata.name!=a", ByName::NotSelected),
            ("metadata.name!=b", ByName::Selected),
            ("status.phase=Running", ByName::Unknown),
            ("metadata.name=a,status.phase=Running", ByName::Unknown),
            ("status.phase=Running,metadata.name=b", ByName::NotSelected),
        ] {
            let selector = FieldSelector::parse(text, &supported).unwrap();
            assert_eq!(selector.by_name("a"), expected, "{text}");
        }
    }

    #[test]
    fn field_selectors() {
        let supported = ["metadata.name", "spec.nodeName", "spec.unschedulable"];
        let object = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}});
        let check = |text: &str, expected: bool| {
            let selector = FieldSelector::parse(text, &supported).unwrap();
            assert_eq!(selector.matches(&object), expected, "{text}");
        };
        check("metadata.name=a", true);
        check("metadata.name==b", false);
        check("spec.nodeName!=n2,metadata.name=a", true);
        check("spec.unschedulable=false", true);
        let error = FieldSelector::parse("status.phase=Running", &supported).unwrap_err();
        assert!(
            error.message.contains("is not a known field selector"),
            "{error}"
        );
        assert_eq!(error.code, 400);
    }
}
