//! The part of JSONPath that printer columns use: fields, quoted fields, indices, wildcards, and
//! filters that compare one field with a constant.

use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Every,
    Filter {
        path: Vec<String>,
        equal: bool,
        value: Value,
    },
}

/// What a path finds, in order. A path that makes no sense finds nothing.
pub fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let Some(steps) = parse(path) else {
        return vec![];
    };
    steps.iter().fold(vec![object], |found, step| {
        found
            .into_iter()
            .flat_map(|value| take(value, step))
            .collect()
    })
}

fn take<'a>(value: &'a Value, step: &Step) -> Vec<&'a Value> {
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(index) => {
            let list = value.as_array().map_or(&[][..], Vec::as_slice);
            let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
            let at = if *index < 0 { length + index } else { *index };
            usize::try_from(at)
                .ok()
                .and_then(|at| list.get(at))
                .into_iter()
                .collect()
        }
        Step::Every => match value {
            Value::Array(list) => list.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            _ => vec![],
        },
        Step::Filter {
            path,
            equal,
            value: wanted,
        } => value
            .as_array()
            .into_iter()
            .flatten()
            .filter(|item| {
                let found = path
                    .iter()
                    .fold(*item, |value, field| &value[field.as_str()]);
                (found == wanted) == *equal
            })
            .collect(),
    }
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}');
    let mut steps = Vec::new();
    rest = rest.strip_prefix('$').unwrap_or(rest);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (inside, behind) = split_bracket(after)?;
            steps.push(bracket(inside)?);
            rest = behind;
        } else {
            let after = rest.strip_prefix('.').unwrap_or(rest);
            let (name, behind) = split_field(after);
            match name.as_str() {
                "" => return None,
                "*" => steps.push(Step::Every),
                _ => steps.push(Step::Field(name)),
            }
            rest = behind;
        }
    }
    Some(steps)
}

/// Up to the closing bracket, not counting those inside quotes or nested brackets.
fn split_bracket(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut quote) = (1, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth -= 1;
                if depth == 0 {
                    return Some((&text[..at], &text[at + 1..]));
                }
            }
            (None, _) => {}
        }
    }
    None
}

/// A field name up to the next step; a backslash takes the next character literally.
fn split_field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(characters.next().map(|(_, literal)| literal)),
            other => name.push(other),
        }
    }
    (name, "")
}

fn bracket(inside: &str) -> Option<Step> {
    let inside = inside.trim();
    if inside == "*" {
        return Some(Step::Every);
    }
    if let Some(name) = unquoted(inside) {
        return Some(Step::Field(name.to_owned()));
    }
    if let Some(condition) = inside
        .strip_prefix("?(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        return filter(condition);
    }
    inside.parse().ok().map(Step::Index)
}

fn filter(condition: &str) -> Option<Step> {
    let (left, right, equal) = match condition.split_once("==") {
        Some((left, right)) => (left, right, true),
        None => {
            let (left, right) = condition.split_once("!=")?;
            (left, right, false)
        }
    };
    let path = left
        .trim()
        .strip_prefix("@.")?
        .split('.')
        .map(str::to_owned)
        .collect();
    let right = right.trim();
    let value = match unquoted(right) {
        Some(text) => Value::String(text.to_owned()),
        None => serde_json::from_str(right).ok()?,
    };
    Some(Step::Filter { path, equal, value })
}

fn unquoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text.strip_prefix(quote)?.strip_suffix(quote)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_that_printer_columns_use() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "dotted"}},
            "spec": {"size": "10", "tags": ["x", "y"]},
            "status": {"conditions": [
                {"type": "Scheduled", "status": "True"}, {"type": "Ready", "status": "False"},
            ]},
        });
        let check = |path: &str, expected: &[Value]| {
            let found: Vec<Value> = find(&object, path).into_iter().cloned().collect();
            assert_eq!(found, expected, "{path}");
        };
        check(".spec.size", &[json!("10")]);
        check("$.spec.size", &[json!("10")]);
        check("{.spec.size}", &[json!("10")]);
        check(".spec.tags[1]", &[json!("y")]);
        check(".spec.tags[-1]", &[json!("y")]);
        check(".spec.tags[*]", &[json!("x"), json!("y")]);
        check(".metadata.labels['a.b/c']", &[json!("dotted")]);
        check(r".metadata.labels.a\.b/c", &[json!("dotted")]);
        check(
            ".status.conditions[?(@.type==\"Ready\")].status",
            &[json!("False")],
        );
        check(
            ".status.conditions[?(@.type=='Scheduled')]['status']",
            &[json!("True")],
        );
        check(
            ".status.conditions[?(@.type!='Ready')].type",
            &[json!("Scheduled")],
        );
        check(".missing.field", &[]);
        check(".spec..size", &[]);
        check(".spec[", &[]);
        check("", std::slice::from_ref(&object));
    }
}
