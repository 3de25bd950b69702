//! How a Kubernetes API behaves, as data: requests, and the shape of their answers.
//!
//! The files in `behaviours/` speak of no particular server. They run against a fresh `lariat up`, or
//! against any cluster: `LARIAT_SUITE_KUBECONFIG=… cargo test -p app --test api_behaviours`. Each
//! behaviour gets a namespace of its own, and leaves nothing behind but that.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http::{Method, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::{Value, json};

/// One named behaviour: requests in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Behaviour {
    name: String,
    #[serde(rename = "do")]
    steps: Vec<Step>,
}

/// A request and what its answer must look like.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Step {
    #[serde(rename = "GET")]
    get: Option<String>,
    #[serde(rename = "POST")]
    post: Option<String>,
    #[serde(rename = "PUT")]
    put: Option<String>,
    #[serde(rename = "PATCH")]
    patch: Option<String>,
    #[serde(rename = "DELETE")]
    delete: Option<String>,
    body: Option<Value>,
    /// Sent as it stands, for bodies that are no JSON.
    text: Option<String>,
    /// A body of this many bytes.
    padding: Option<usize>,
    #[serde(rename = "type")]
    content_type: Option<String>,
    accept: Option<String>,
    expect: Statuses,
    /// Every field here must be in the answer.
    #[serde(rename = "match")]
    matches: Option<Value>,
    /// These paths must not be in the answer.
    absent: Vec<String>,
    /// Answer fields to be used later as `${name}`.
    capture: BTreeMap<String, String>,
    /// The lines of a watch, in order; more may follow.
    events: Option<Vec<Value>>,
    /// Header and a part of its value.
    headers: BTreeMap<String, String>,
    /// Asked again until the answer fits, for what the server does by itself.
    eventually: bool,
}

/// The status of an answer; several where the real server's own is not worth copying (`docs/api-differences.md`).
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Statuses {
    One(u16),
    Any(Vec<u16>),
}

impl Default for Statuses {
    fn default() -> Self {
        Self::Any(Vec::new())
    }
}

impl Statuses {
    fn has(&self, status: u16) -> bool {
        match self {
            Self::One(one) => *one == status,
            Self::Any(several) => several.contains(&status),
        }
    }
}

const FILES: &[(&str, &str)] = &[
    ("discovery", include_str!("behaviours/discovery.yaml")),
    ("create", include_str!("behaviours/create.yaml")),
    ("read", include_str!("behaviours/read.yaml")),
    ("watch", include_str!("behaviours/watch.yaml")),
    ("update", include_str!("behaviours/update.yaml")),
    ("patch", include_str!("behaviours/patch.yaml")),
    ("apply", include_str!("behaviours/apply.yaml")),
    ("delete", include_str!("behaviours/delete.yaml")),
    ("custom", include_str!("behaviours/custom.yaml")),
    ("storage", include_str!("behaviours/storage.yaml")),
    ("core", include_str!("behaviours/core.yaml")),
];

/// Few enough would mean that a file was lost.
const BEHAVIOURS_MIN: usize = 150;
const EVENTUALLY_TRIES: usize = 300;
const EVENTUALLY_PAUSE: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn the_api_behaves_like_kubernetes() {
    let own = std::env::var_os("LARIAT_SUITE_KUBECONFIG")
        .is_none()
        .then(support::Cluster::start);
    let path = own.as_ref().map_or_else(
        || {
            std::env::var_os("LARIAT_SUITE_KUBECONFIG")
                .expect("looked at before")
                .into()
        },
        support::Cluster::kubeconfig,
    );
    let kubeconfig = Kubeconfig::read_from(path).expect("a kubeconfig");
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("a usable kubeconfig");
    // Refusals are what is looked at here.
    config.default_retry = false;
    let client = kube::Client::try_from(config).expect("a client");

    let only = std::env::var("LARIAT_SUITE_ONLY").unwrap_or_default();
    let mut passed = 0;
    let mut failures = Vec::new();
    let mut slowest = Vec::new();
    for (file, text) in FILES {
        let behaviours: Vec<Behaviour> =
            serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{file}.yaml: {error}"));
        for behaviour in behaviours
            .iter()
            .filter(|behaviour| behaviour.name.contains(&only))
        {
            let started = Instant::now();
            let result = run(&client, behaviour).await;
            slowest.push((started.elapsed(), format!("{file}: {}", behaviour.name)));
            match result {
                Ok(()) => passed += 1,
                Err(failure) => failures.push(format!("{file}: {}\n    {failure}", behaviour.name)),
            }
        }
    }
    println!("{passed} behaviours passed, {} failed", failures.len());
    slowest.sort();
    for (took, name) in slowest.iter().rev().take(5) {
        println!("{:>8} ms  {name}", took.as_millis());
    }
    assert!(
        failures.is_empty(),
        "{} behaviours differ:\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    assert!(
        passed >= BEHAVIOURS_MIN || !only.is_empty(),
        "only {passed} behaviours ran"
    );
}

async fn run(client: &kube::Client, behaviour: &Behaviour) -> Result<(), String> {
    let id = uuid::Uuid::new_v4().simple().to_string()[..10].to_owned();
    let namespace = format!("suite-{id}");
    let mut variables =
        BTreeMap::from([("ns".to_owned(), namespace.clone()), ("id".to_owned(), id)]);
    let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let create = Step {
        post: Some("/api/v1/namespaces".to_owned()),
        body: Some(made),
        expect: Statuses::One(201),
        ..Step::default()
    };
    once(client, &create, &mut variables).await?;
    for (index, step) in behaviour.steps.iter().enumerate() {
        let mut tries = if step.eventually { EVENTUALLY_TRIES } else { 1 };
        loop {
            tries -= 1;
            match once(client, step, &mut variables).await {
                Ok(()) => break,
                Err(_) if tries > 0 => tokio::time::sleep(EVENTUALLY_PAUSE).await,
                Err(failure) => return Err(format!("step {}: {failure}", index + 1)),
            }
        }
    }
    let delete = Step {
        delete: Some(format!("/api/v1/namespaces/{namespace}")),
        expect: Statuses::One(200),
        ..Step::default()
    };
    once(client, &delete, &mut variables).await
}

async fn once(
    client: &kube::Client,
    step: &Step,
    variables: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    let (method, path) = step.target()?;
    let path = filled(path, variables);
    let mut request = Request::builder().method(method.clone()).uri(&path);
    if let Some(accept) = &step.accept {
        request = request.header("Accept", accept);
    }
    let body = step.body(variables);
    if body.is_some() || step.content_type.is_some() {
        let default = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        request = request.header(
            "Content-Type",
            step.content_type.as_deref().unwrap_or(default),
        );
    }
    let request = request
        .body(kube::client::Body::from(body.unwrap_or_default()))
        .map_err(|e| e.to_string())?;
    let answer = client
        .send(request)
        .await
        .map_err(|error| format!("{method} {path}: {error}"))?;
    let (head, body) = answer.into_parts();
    let bytes = body
        .collect_bytes()
        .await
        .map_err(|error| format!("{method} {path}: {error}"))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let context = |what: String| {
        format!(
            "{method} {path}: {what}\n    answer: {} {}",
            head.status,
            shortened(&text)
        )
    };
    if !step.expect.has(head.status.as_u16()) {
        return Err(context(format!("expected {:?}", step.expect)));
    }
    for (name, part) in &step.headers {
        let found = head
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if !found.contains(part.as_str()) {
            return Err(context(format!(
                "header {name} is {found:?}, expected {part:?} in it"
            )));
        }
    }
    if let Some(expected) = &step.events {
        return check_events(&text, expected, variables).map_err(context);
    }
    let found: Value = serde_json::from_str(&text).unwrap_or(Value::String(text.clone()));
    if let Some(expected) = &step.matches {
        fits(&found, &filled_value(expected, variables), "").map_err(context)?;
    }
    for path in &step.absent {
        if let Some(value) = at(&found, path).filter(|value| !value.is_null()) {
            return Err(context(format!("{path} should be absent but is {value}")));
        }
    }
    for (name, path) in &step.capture {
        let value =
            at(&found, path).ok_or_else(|| context(format!("nothing to capture at {path}")))?;
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        variables.insert(name.clone(), value);
    }
    Ok(())
}

fn check_events(
    text: &str,
    expected: &[Value],
    variables: &BTreeMap<String, String>,
) -> Result<(), String> {
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{error} in {line}")))
        .collect::<Result<_, String>>()?;
    for (index, wanted) in expected.iter().enumerate() {
        let wanted = filled_value(wanted, variables);
        let event = found
            .get(index)
            .ok_or_else(|| format!("only {} events", found.len()))?;
        fits(event, &wanted, &format!("event {index}: "))?;
    }
    Ok(())
}

impl Step {
    fn target(&self) -> Result<(Method, &str), String> {
        let all = [
            (Method::GET, &self.get),
            (Method::POST, &self.post),
            (Method::PUT, &self.put),
            (Method::PATCH, &self.patch),
            (Method::DELETE, &self.delete),
        ];
        let mut given = all
            .into_iter()
            .filter_map(|(method, path)| Some((method, path.as_deref()?)));
        match (given.next(), given.next()) {
            (Some(target), None) => Ok(target),
            _ => Err("a step has exactly one of GET, POST, PUT, PATCH, DELETE".to_owned()),
        }
    }

    fn body(&self, variables: &BTreeMap<String, String>) -> Option<Vec<u8>> {
        if let Some(bytes) = self.padding {
            let padded = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"},
                "data": {"padding": "x".repeat(bytes)},
            });
            return Some(padded.to_string().into_bytes());
        }
        if let Some(text) = &self.text {
            return Some(filled(text, variables).into_bytes());
        }
        self.body
            .as_ref()
            .map(|body| filled_value(body, variables).to_string().into_bytes())
    }
}

/// Whether `found` has everything that `wanted` has. Strings in angle brackets stand for a form.
fn fits(found: &Value, wanted: &Value, path: &str) -> Result<(), String> {
    let differs = || {
        Err(format!(
            "{path} is {}, expected {wanted}",
            shortened(&found.to_string())
        ))
    };
    match wanted {
        Value::Object(fields) => {
            for (name, wanted) in fields {
                let Some(found) = found.get(name) else {
                    if wanted.is_null() {
                        continue;
                    }
                    return Err(format!("{path}.{name} is missing, expected {wanted}"));
                };
                fits(found, wanted, &format!("{path}.{name}"))?;
            }
            if found.is_object() { Ok(()) } else { differs() }
        }
        Value::Array(items) => {
            let list = found.as_array().filter(|list| list.len() == items.len());
            let Some(list) = list else { return differs() };
            list.iter()
                .zip(items)
                .enumerate()
                .try_for_each(|(index, (found, wanted))| {
                    fits(found, wanted, &format!("{path}[{index}]"))
                })
        }
        Value::String(form) => {
            let text = found.as_str();
            let holds = match form.as_str() {
                "<any>" => !found.is_null(),
                "<text>" => text.is_some_and(|text| !text.is_empty()),
                "<number>" => found.is_number(),
                "<version>" => text.is_some_and(|text| text.parse::<u64>().is_ok()),
                "<time>" => text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()),
                "<uuid>" => text.is_some_and(|text| uuid::Uuid::parse_str(text).is_ok()),
                "<list>" => found.is_array(),
                "<empty>" => found.as_array().is_some_and(Vec::is_empty) || found.is_null(),
                form => match form
                    .strip_prefix("<has ")
                    .and_then(|rest| rest.strip_suffix('>'))
                {
                    Some(part) => text.is_some_and(|text| text.contains(part)),
                    None => text == Some(form),
                },
            };
            if holds { Ok(()) } else { differs() }
        }
        plain => {
            if found == plain {
                Ok(())
            } else {
                differs()
            }
        }
    }
}

/// `a.b[0].c`; a field with dots in it is written `a["b.c"]`.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let mut place = value;
    for part in path
        .replace('[', ".[")
        .split('.')
        .filter(|part| !part.is_empty())
    {
        place = match part
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            Some(index) => place.get(index.parse::<usize>().ok()?)?,
            None => place.get(part)?,
        };
    }
    Some(place)
}

fn filled(text: &str, variables: &BTreeMap<String, String>) -> String {
    variables
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("${{{name}}}"), value)
        })
}

fn filled_value(value: &Value, variables: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => filled(text, variables).into(),
        Value::Array(items) => items
            .iter()
            .map(|item| filled_value(item, variables))
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (filled(name, variables), filled_value(value, variables)))
            .collect(),
        other => other.clone(),
    }
}

fn shortened(text: &str) -> String {
    const SHOWN_CHARS: usize = 600;
    text.chars().take(SHOWN_CHARS).collect()
}
