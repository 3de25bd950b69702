//! Taking secrets out of objects before they leave the cluster.
//!
//! What is not needed for diagnosis and may be secret goes, whether or not it is: every literal environment
//! variable, and everything that looks like a credential by its name.

use serde_json::Value;

/// What stands where something was taken out.
const GONE: &str = "REDACTED";

/// Parts of names of things that are secret.
const SECRET_WORDS: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "api-key",
    "access-key",
    "private-key",
];

/// Annotations that repeat the whole object, secrets included.
const COPIES: [&str; 1] = ["kubectl.kubernetes.io/last-applied-configuration"];

fn looks_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// Takes everything out of one object that is, or may be, a secret.
pub fn redact(object: &mut Value) {
    if object["kind"] == "Secret" {
        for field in ["data", "stringData"] {
            blank_values(&mut object[field], |_| true);
        }
    }
    let metadata = &mut object["metadata"];
    if let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.retain(|key, _| !COPIES.contains(&key.as_str()));
    }
    for field in ["annotations", "labels"] {
        blank_values(&mut metadata[field], looks_secret);
    }
    for entry in metadata
        .get_mut("managedFields")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        // The times tell about clocks; the fields tell nothing that the object does not.
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("fieldsV1");
        }
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = object.pointer_mut(&format!("/spec/{list}"));
        for container in containers
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            redact_container(container);
        }
    }
    if let Some(attributes) = object.pointer_mut("/spec/csi/volumeAttributes") {
        blank_values(attributes, looks_secret);
    }
    strip_passwords_of_urls(object);
    // Looking into a missing field leaves a null behind.
    drop_nulls(object);
}

fn redact_container(container: &mut Value) {
    let variables = container.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        if variable.get("value").is_some() {
            variable["value"] = GONE.into();
        }
    }
    for list in ["args", "command"] {
        let words = container.get_mut(list).and_then(Value::as_array_mut);
        let mut is_value = false;
        for word in words.into_iter().flatten() {
            let text = word.as_str().unwrap_or_default().to_owned();
            if is_value {
                *word = GONE.into();
                is_value = false;
            } else if let Some((name, _)) =
                text.split_once('=').filter(|(name, _)| looks_secret(name))
            {
                *word = format!("{name}={GONE}").into();
            } else {
                // `--password VALUE`: the next word is the secret.
                is_value = text.starts_with('-') && looks_secret(&text);
            }
        }
    }
}

fn blank_values(map: &mut Value, is_secret: fn(&str) -> bool) {
    for (key, value) in map.as_object_mut().into_iter().flatten() {
        if is_secret(key) {
            *value = GONE.into();
        }
    }
}

fn drop_nulls(object: &mut Value) {
    for pointer in ["", "/metadata"] {
        if let Some(map) = object.pointer_mut(pointer).and_then(Value::as_object_mut) {
            map.retain(|_, value| !value.is_null());
        }
    }
}

/// `scheme://user:password@host` becomes `scheme://REDACTED@host`, wherever it is.
fn strip_passwords_of_urls(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(stripped) = without_password(text) {
                *text = stripped;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(strip_passwords_of_urls),
        Value::Object(map) => map.values_mut().for_each(strip_passwords_of_urls),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A line of a log without the secrets that it may have: passwords in addresses, and the values of secret names.
#[must_use]
pub fn redact_line(line: &str) -> String {
    if line.starts_with('{')
        && let Ok(mut object) = serde_json::from_str(line)
    {
        redact_entry(&mut object);
        return object.to_string();
    }
    let line = without_password(line).unwrap_or_else(|| line.to_owned());
    let is_secret = |word: &&str| {
        word.split_once(['=', ':'])
            .is_some_and(|(name, value)| looks_secret(name) && !value.is_empty())
    };
    if !line.split(' ').any(|word| is_secret(&word)) {
        return line;
    }
    let words = line.split(' ').map(|word| {
        let at = word.find(['=', ':']).filter(|_| is_secret(&word));
        at.map_or_else(|| word.to_owned(), |at| format!("{}{GONE}", &word[..=at]))
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A line of a log in JSON.
fn redact_entry(value: &mut Value) {
    blank_values(value, looks_secret);
    match value {
        Value::String(text) => *text = redact_line(text),
        Value::Array(items) => items.iter_mut().for_each(redact_entry),
        Value::Object(map) => map.values_mut().for_each(redact_entry),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Every text in it as a line of a log.
pub fn redact_texts(value: &mut Value) {
    match value {
        Value::String(text) => *text = redact_line(text),
        Value::Array(items) => items.iter_mut().for_each(redact_texts),
        Value::Object(map) => map.values_mut().for_each(redact_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// None when there is nothing to take out.
#[must_use]
fn without_password(text: &str) -> Option<String> {
    let mut clean = String::new();
    let mut rest = text;
    let mut has_changed = false;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        clean.push_str(before);
        let end = after
            .find(|letter: char| letter == '/' || letter.is_whitespace() || letter == '"')
            .unwrap_or(after.len());
        match after[..end].rfind('@') {
            Some(at) => {
                clean.push_str(GONE);
                rest = &after[at..];
                has_changed = true;
            }
            None => rest = after,
        }
    }
    clean.push_str(rest);
    has_changed.then_some(clean)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(mut object: Value, expected: &Value) {
        redact(&mut object);
        assert_eq!(object, *expected);
    }

    #[test]
    fn lines_lose_their_secrets() {
        let line = "mount s3://id:pw@host/x with token=abc Password: size=5 volume.name=v";
        assert_eq!(
            redact_line(line),
            "mount s3://REDACTED@host/x with token=REDACTED Password: size=5 volume.name=v"
        );
        let line = r#"{"at":1,"token":"abc","tried":["s3://id:pw@host/x",{"api_key":7}],"why":"password=x y"}"#;
        assert_eq!(
            redact_line(line),
            r#"{"at":1,"token":"REDACTED","tried":["s3://REDACTED@host/x",{"api_key":"REDACTED"}],"why":"password=REDACTED y"}"#
        );
    }

    #[test]
    fn secrets_go_and_the_rest_stays() {
        check(
            json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "c2VjcmV0"}, "stringData": {"a": "b"}}),
            &json!({"kind": "Secret", "metadata": {"name": "s"}, "data": {"key": "REDACTED"}, "stringData": {"a": "REDACTED"}}),
        );
        check(
            json!({"kind": "Pod", "metadata": {
                "name": "p",
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{all}", "vault/db_password": "x", "lariat.io/mounts": "{}"},
                "managedFields": [{"time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}}],
            }, "spec": {"containers": [{
                "env": [{"name": "HARMLESS", "value": "v"}, {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
                "args": ["--user=me", "--api_key=1", "--password", "hunter2", "--size", "5"],
            }]}}),
            &json!({"kind": "Pod", "metadata": {
                "name": "p",
                "annotations": {"vault/db_password": "REDACTED", "lariat.io/mounts": "{}"},
                "managedFields": [{"time": "2026-01-01T00:00:00Z"}],
            }, "spec": {"containers": [{
                "env": [{"name": "HARMLESS", "value": "REDACTED"}, {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s"}}}],
                "args": ["--user=me", "--api_key=REDACTED", "--password", "REDACTED", "--size", "5"],
            }]}}),
        );
        check(
            json!({"kind": "Setting", "metadata": {"name": "t"}, "value": "s3://id:pw@bucket/ and nfs://host/path"}),
            &json!({"kind": "Setting", "metadata": {"name": "t"}, "value": "s3://REDACTED@bucket/ and nfs://host/path"}),
        );
    }
}
