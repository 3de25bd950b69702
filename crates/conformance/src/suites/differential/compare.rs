//! Where two answers differ.

use serde_json::Value;

use super::exchange::Answer;
use super::refusals;

/// One place in two answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Such as `.items[*].metadata.labels.a`.
    pub path: String,
    /// What the real one says there.
    pub real: String,
    pub ours: String,
}

pub fn differences(real: &Answer, ours: &Answer) -> Vec<Difference> {
    // Two refusals for two reasons have nothing else in common.
    if let (Some(real), Some(ours)) = (real.refusal(), ours.refusal())
        && real != ours
    {
        let path = refusals::PATH.to_owned();
        return vec![Difference { path, real, ours }];
    }
    let mut found = Vec::new();
    let mut note = |path: &str, real: String, ours: String| {
        if real != ours {
            found.push(Difference {
                path: path.to_owned(),
                real,
                ours,
            });
        }
    };
    note("status", real.status.to_string(), ours.status.to_string());
    note(
        "content-type",
        real.content_type.clone(),
        ours.content_type.clone(),
    );
    note(
        "warnings",
        format!("{:?}", real.warnings),
        format!("{:?}", ours.warnings),
    );
    // Two different outcomes have nothing in common that were worth a comparison.
    if (real.status < 300) == (ours.status < 300) {
        walk(&real.body, &ours.body, "", &mut found);
    } else {
        let text = |answer: &Answer| shortened(&answer.body.to_string());
        found.push(Difference {
            path: "outcome".to_owned(),
            real: text(real),
            ours: text(ours),
        });
    }
    found
}

fn walk(real: &Value, ours: &Value, path: &str, found: &mut Vec<Difference>) {
    match (real, ours) {
        (Value::Object(left), Value::Object(right)) => {
            for (name, value) in left {
                let path = format!("{path}.{name}");
                match right.get(name) {
                    Some(other) => walk(value, other, &path, found),
                    None => note(found, path, &value.to_string(), "(absent)"),
                }
            }
            for (name, value) in right.iter().filter(|(name, _)| !left.contains_key(*name)) {
                note(
                    found,
                    format!("{path}.{name}"),
                    "(absent)",
                    &value.to_string(),
                );
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (value, other) in left.iter().zip(right) {
                walk(value, other, &format!("{path}[*]"), found);
            }
        }
        (Value::Array(left), Value::Array(right)) => {
            note(found, path.to_owned(), &outline(left), &outline(right));
        }
        (left, right) if left != right => {
            note(
                found,
                path.to_owned(),
                &left.to_string(),
                &right.to_string(),
            );
        }
        _ => {}
    }
}

/// A list in short: the names of its objects, and what happened to them if it is a watch.
fn outline(list: &[Value]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |item: &Value| match &item["object"] {
        Value::Object(_) => format!(
            "{} {} {}",
            text(&item["type"]),
            text(&item["object"]["metadata"]["name"]),
            text(&item["object"]["metadata"]["deletionTimestamp"])
        ),
        _ if item["metadata"].is_object() => text(&item["metadata"]["name"]),
        _ => item.to_string(),
    };
    let names: Vec<String> = list.iter().map(name).collect();
    format!("{}: [{}]", list.len(), names.join(", "))
}

fn note(found: &mut Vec<Difference>, path: String, real: &str, ours: &str) {
    let (real, ours) = (shortened(real), shortened(ours));
    found.push(Difference { path, real, ours });
}

pub fn shortened(text: &str) -> String {
    const LENGTH_MAX: usize = 400;
    let mut short: String = text.chars().take(LENGTH_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(status: u16, body: Value) -> Answer {
        Answer {
            status,
            content_type: "application/json".to_owned(),
            warnings: Vec::new(),
            body,
        }
    }

    #[test]
    fn refusals_are_compared_by_code_and_reason_first() {
        let check = |real: &Answer, ours: &Answer, expected: &[(&str, &str, &str)]| {
            let found = differences(real, ours);
            let found: Vec<(&str, &str, &str)> = found
                .iter()
                .map(|one| (one.path.as_str(), one.real.as_str(), one.ours.as_str()))
                .collect();
            assert_eq!(found, expected);
        };
        let refused = |status: u16, reason: &str, name: &str| {
            let details = json!({"name": name});
            answer(
                status,
                json!({"code": status, "reason": reason, "details": details}),
            )
        };
        let invalid = refused(422, "Invalid", "o1");
        check(&invalid, &refused(422, "Invalid", "o1"), &[]);
        check(
            &invalid,
            &refused(422, "Invalid", "o2"),
            &[(".details.name", "\"o1\"", "\"o2\"")],
        );
        check(
            &invalid,
            &refused(400, "BadRequest", "o2"),
            &[("refusal", "422 Invalid", "400 BadRequest")],
        );
        check(
            &refused(409, "Conflict", "o1"),
            &refused(409, "AlreadyExists", "o1"),
            &[("refusal", "409 Conflict", "409 AlreadyExists")],
        );
        let unclassified = answer(500, json!({"code": 500}));
        let page = answer(404, json!("404 page not found"));
        check(
            &unclassified,
            &page,
            &[("refusal", "500 (no reason)", "404 (no Status)")],
        );
    }

    #[test]
    fn a_refusal_of_what_the_other_did_is_seen() {
        let done = answer(200, json!({"kind": "ConfigMap"}));
        let refused = answer(422, json!({"reason": "Invalid"}));
        let found = differences(&done, &refused);
        let paths: Vec<&str> = found.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["status", "outcome"]);
    }
}
