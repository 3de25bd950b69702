//! One request to one server, and its answer with everything taken out that must differ between two servers.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use http::Method;
use kube::Client;
use regex::Regex;
use serde_json::Value;

/// A request in words that hold for both servers. `${rv}`, `${old}`, `${uid}` and `${continue}` stand for what the server
/// itself said about the object `about` before.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its kind, for the list of refusals that may differ.
    pub what: &'static str,
    /// For the reader of a difference.
    pub label: String,
    /// The resource, for the list of allowed differences.
    pub resource: &'static str,
    pub method: Method,
    pub path: String,
    pub content_type: Option<&'static str>,
    pub accept: Option<&'static str>,
    pub body: Option<String>,
    pub about: String,
    /// Answers to these are not remembered: nothing was stored.
    pub dry_run: bool,
}

/// What one server said, comparable.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub warnings: Vec<String>,
    pub body: Value,
}

impl Answer {
    /// Code and reason of a refusal, such as `422 Invalid`. None for what was done.
    pub fn refusal(&self) -> Option<String> {
        if self.status < 400 {
            return None;
        }
        let reason = match &self.body {
            Value::Object(status) => {
                let reason = status.get("reason").and_then(Value::as_str);
                reason.unwrap_or("(no reason)")
            }
            _ => "(no Status)",
        };
        Some(format!("{} {reason}", self.status))
    }
}

/// What a server said of an object.
#[derive(Debug, Clone, Default)]
struct Known {
    first: String,
    last: String,
    uid: String,
    token: String,
}

/// One of the two.
pub struct Server {
    client: Client,
    /// By what the request is about.
    known: BTreeMap<String, Known>,
    /// The last version of each object, by its uid.
    versions: BTreeMap<String, String>,
    uuid: Regex,
    time: Regex,
}

/// Stands for a value that the server does not know.
const UNKNOWN: &str = "7";
/// Uids that the requests themselves bring begin so, and times with this year.
pub const OWN_UID: &str = "11111111-1111-4111-8111-111111111111";
pub const OWN_TIME: &str = "2001-02-03T04:05:06Z";

impl Server {
    pub fn new(client: Client) -> Self {
        let uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
        let time = r"20[2-9]\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z";
        Self {
            client,
            known: BTreeMap::new(),
            versions: BTreeMap::new(),
            uuid: Regex::new(uuid).expect("a pattern"),
            time: Regex::new(time).expect("a pattern"),
        }
    }

    /// # Errors
    /// If the server does not answer at all.
    pub async fn ask(&mut self, request: &Request) -> Result<Answer> {
        let known = self.known.get(&request.about).cloned().unwrap_or_default();
        let filled = |text: &str| fill(text, &known);
        let mut built = http::Request::builder()
            .method(request.method.clone())
            .uri(filled(&request.path));
        if let Some(accept) = request.accept {
            built = built.header("Accept", accept);
        }
        if let Some(content_type) = request.content_type {
            built = built.header("Content-Type", content_type);
        }
        let body = request.body.as_deref().map(filled).unwrap_or_default();
        let answer = self
            .client
            .send(built.body(kube::client::Body::from(body.into_bytes()))?)
            .await
            .with_context(|| format!("no answer to {}", request.label))?;
        let (head, body) = answer.into_parts();
        let bytes = body
            .collect_bytes()
            .await
            .with_context(|| format!("half an answer to {}", request.label))?;
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let content_type = header("content-type").unwrap_or_default().to_owned();
        let warnings = head.headers.get_all("warning").iter();
        let warnings = warnings
            .filter_map(|value| Some(value.to_str().ok()?.to_owned()))
            .collect();
        let text = String::from_utf8_lossy(&bytes);
        let mut body = read(&text);
        if head.status.is_success() && !request.dry_run {
            self.remember(&request.about, &body);
        }
        self.normalise(&mut body);
        Ok(Answer {
            status: head.status.as_u16(),
            content_type,
            warnings,
            body,
        })
    }

    fn remember(&mut self, about: &str, body: &Value) {
        let metadata = &body["metadata"];
        let text = |name: &str| metadata[name].as_str().filter(|text| !text.is_empty());
        let known = self.known.entry(about.to_owned()).or_default();
        if let Some(token) = text("continue") {
            token.clone_into(&mut known.token);
        }
        if let Some(uid) = text("uid").filter(|uid| *uid != known.uid) {
            uid.clone_into(&mut known.uid);
            known.first.clear();
        }
        if let Some(version) = text("resourceVersion") {
            if known.first.is_empty() {
                version.clone_into(&mut known.first);
            }
            version.clone_into(&mut known.last);
        }
    }

    /// Replaces what must differ by a word for its kind; versions by whether they are those last seen of the same object.
    fn normalise(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                if let Some(metadata) = fields.get_mut("metadata") {
                    self.normalise_version(metadata);
                }
                if fields.get("kind").and_then(Value::as_str) == Some("Table") {
                    hide_ages(fields);
                }
                fields.values_mut().for_each(|value| self.normalise(value));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.normalise(item)),
            Value::String(text) if !text.starts_with("<rv") => {
                let hidden = self.uuid.replace_all(text, |found: &regex::Captures<'_>| {
                    let own = &found[0] == OWN_UID;
                    if own { OWN_UID } else { "<uid>" }.to_owned()
                });
                *text = self.time.replace_all(&hidden, "<time>").into_owned();
            }
            _ => {}
        }
    }

    fn normalise_version(&mut self, metadata: &mut Value) {
        let Some(fields) = metadata.as_object_mut() else {
            return;
        };
        let uid = fields.get("uid").and_then(Value::as_str).map(str::to_owned);
        if let Some(Value::String(version)) = fields.get_mut("resourceVersion") {
            let word = match uid {
                None => "<rv of a list>",
                Some(uid) => match self.versions.insert(uid, version.clone()) {
                    Some(before) if before == *version => "<rv as before>",
                    Some(_) => "<rv changed>",
                    None => "<rv first seen>",
                },
            };
            word.clone_into(version);
        }
        // They are ordered by time, to the second: two servers may see one change on two sides of a second's end.
        if let Some(Value::Array(entries)) = fields.get_mut("managedFields") {
            entries.sort_by_cached_key(|entry| {
                ["manager", "operation", "subresource", "apiVersion"]
                    .map(|part| entry[part].to_string())
            });
        }
        if let Some(Value::String(token)) = fields.get_mut("continue").filter(|token| *token != "")
        {
            "<rv continue>".clone_into(token);
        }
    }
}

/// JSON, lines of JSON (a watch), or text.
fn read(text: &str) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    lines.map_or_else(|_| Value::String(text.to_owned()), Value::Array)
}

fn fill(text: &str, known: &Known) -> String {
    let or_unknown = |value: &str| if value.is_empty() { UNKNOWN } else { value }.to_owned();
    text.replace("${rv}", &or_unknown(&known.last))
        .replace("${old}", &or_unknown(&known.first))
        .replace(
            "${uid}",
            if known.uid.is_empty() {
                OWN_UID
            } else {
                &known.uid
            },
        )
        .replace("${continue}", &known.token)
}

/// Ages depend on when one asks.
fn hide_ages(table: &mut serde_json::Map<String, Value>) {
    let columns = table.get("columnDefinitions").and_then(Value::as_array);
    let ages: Vec<usize> = columns
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, column)| {
            column["name"] == "Age"
                || column["name"] == "Last Seen"
                || column["name"] == "First Seen"
        })
        .map(|(index, _)| index)
        .collect();
    let rows = table.get_mut("rows").and_then(Value::as_array_mut);
    for row in rows.into_iter().flatten() {
        for index in &ages {
            if let Some(cell) = row["cells"].get_mut(*index) {
                *cell = "<age>".into();
            }
        }
    }
}
