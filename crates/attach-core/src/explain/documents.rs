//! From text to documents: YAML and JSON streams, and the lists in them.

use serde_json::Value;

use super::{Input, Problem};

/// No file may be larger. A dump of ten thousand volumes is a tenth of this.
pub const INPUT_BYTES_MAX: usize = 1 << 30;
/// Lists in lists in lists: no tool writes more than two.
const LIST_DEPTH_MAX: usize = 4;

/// One object and where it was found.
#[derive(Debug)]
pub(super) struct Document {
    pub name: String,
    pub value: Value,
}

/// All objects in the input, lists taken apart.
pub(super) fn read(inputs: &[Input<'_>], problems: &mut Vec<Problem>) -> Vec<Document> {
    let mut found = Vec::new();
    for input in inputs {
        if input.text.len() > INPUT_BYTES_MAX {
            let message = format!(
                "the input is larger than {INPUT_BYTES_MAX} bytes; split it into several files"
            );
            problems.push(Problem {
                document: input.name.to_owned(),
                field: String::new(),
                message,
            });
        } else if input.text.trim_start().starts_with(['{', '[']) {
            json_stream(input, &mut found, problems);
        } else {
            yaml_stream(input, &mut found, problems);
        }
    }
    found
}

fn json_stream(input: &Input<'_>, found: &mut Vec<Document>, problems: &mut Vec<Problem>) {
    let stream = serde_json::Deserializer::from_str(input.text).into_iter::<Value>();
    for (at, document) in stream.enumerate() {
        let name = format!("{}, document {}", input.name, at + 1);
        match document {
            Ok(value) => take_apart(name, value, None, 0, found, problems),
            Err(error) => {
                // Where the next object begins is anybody's guess.
                let message = format!("not valid JSON, and nothing after it was read: {error}");
                problems.push(Problem {
                    document: name,
                    field: String::new(),
                    message,
                });
                return;
            }
        }
    }
}

fn yaml_stream(input: &Input<'_>, found: &mut Vec<Document>, problems: &mut Vec<Problem>) {
    for (at, text) in split_yaml(input.text).enumerate() {
        if text
            .lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
        {
            continue;
        }
        let name = format!("{}, document {}", input.name, at + 1);
        match parse_yaml(text) {
            Ok(value) => take_apart(name, value, None, 0, found, problems),
            Err(message) => problems.push(Problem {
                document: name,
                field: String::new(),
                message,
            }),
        }
    }
}

/// The documents of a YAML stream, each on its own, so that a broken one spoils no other. A line that
/// begins with `---` is a document marker wherever it stands: no scalar can hold one.
fn split_yaml(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let bare = line.trim_end();
            if bare == "---" || bare.starts_with("--- ") {
                // What follows the marker on its line belongs to the document.
                rest = Some(&text[at + 3..]);
                return Some(&text[..at]);
            }
            at += line.len();
        }
        rest = None;
        Some(text)
    })
    // Before the first marker is usually nothing, which is no document.
    .skip_while(|document| document.trim().is_empty())
}

fn parse_yaml(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        // Generous in size, because dumps are large; still strict in depth and aliases.
        budget: serde_saphyr::budget! {
            max_nodes: 100_000_000,
            max_events: 200_000_000,
            max_total_scalar_bytes: INPUT_BYTES_MAX,
        },
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        format!("not valid YAML: {first}")
    })
}

/// Adds the object, or each object of the list. Items of a typed list inherit what only the list says.
fn take_apart(
    name: String,
    mut value: Value,
    inherited: Option<(&str, &str)>,
    depth: usize,
    found: &mut Vec<Document>,
    problems: &mut Vec<Problem>,
) {
    if value.is_null() {
        return;
    }
    if let (Some((api_version, kind)), Some(object)) = (inherited, value.as_object_mut()) {
        object
            .entry("apiVersion")
            .or_insert_with(|| api_version.into());
        object.entry("kind").or_insert_with(|| kind.into());
    }
    let items = match &mut value {
        Value::Array(items) => Some((std::mem::take(items), None)),
        Value::Object(object) => {
            let text = |key: &str| {
                object
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let (api_version, kind) = (text("apiVersion"), text("kind"));
            let item_kind = kind.strip_suffix("List").map(str::to_owned);
            match (item_kind, object.get_mut("items")) {
                (Some(item_kind), Some(Value::Array(items))) => {
                    let inherited = (!item_kind.is_empty()).then_some((api_version, item_kind));
                    Some((std::mem::take(items), inherited))
                }
                _ => None,
            }
        }
        _ => None,
    };
    let Some((items, inherited)) = items else {
        found.push(Document { name, value });
        return;
    };
    if depth == LIST_DEPTH_MAX {
        let message = format!("lists are nested more than {LIST_DEPTH_MAX} deep");
        problems.push(Problem {
            document: name,
            field: "items".to_owned(),
            message,
        });
        return;
    }
    for (at, item) in items.into_iter().enumerate() {
        let inherited = inherited
            .as_ref()
            .map(|(api_version, kind)| (api_version.as_str(), kind.as_str()));
        take_apart(
            format!("{name}, items[{at}]"),
            item,
            inherited,
            depth + 1,
            found,
            problems,
        );
    }
}
