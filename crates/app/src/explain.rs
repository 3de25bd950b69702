//! `lariat explain`: replays the ticket decision on a dump, and writes nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use attach_core::explain::{self, Input, Outcome};
use jiff::Timestamp;

use crate::cli::ExplainArguments;
use crate::output;

/// Dumps are text that people look at; one larger than this is something else.
const INPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;

pub(crate) fn run(arguments: &ExplainArguments) -> Result<ExitCode> {
    let mut texts = arguments
        .files
        .iter()
        .map(read)
        .collect::<Result<Vec<_>>>()?;
    if let Some(bundle) = &arguments.bundle {
        texts.extend(objects_of(bundle)?);
    }
    let outcome = explained(&texts, Timestamp::now());
    for problem in &outcome.problems {
        eprintln!("lariat: {problem}");
    }
    let format = arguments.output.output;
    let text = output::answer(&outcome.report(), format, || outcome.text())?;
    output::say(&text)?;
    Ok(ExitCode::from(outcome.exit_code()))
}

fn explained(texts: &[(String, String)], now: Timestamp) -> Outcome {
    let inputs: Vec<Input<'_>> = texts
        .iter()
        .map(|(name, text)| Input { name, text })
        .collect();
    explain::run(&inputs, now)
}

/// The lists of objects in a support bundle.
fn objects_of(bundle: &Path) -> Result<Vec<(String, String)>> {
    let files = crate::support_bundle::read(bundle)?.into_iter();
    let lists = files.filter(|file| file.path.starts_with("objects/"));
    Ok(lists
        .map(|file| {
            let text = String::from_utf8_lossy(&file.bytes).into_owned();
            (file.path, text)
        })
        .collect())
}

/// The name that messages use, and the text. `-` is standard input.
fn read(path: &PathBuf) -> Result<(String, String)> {
    let mut text = String::new();
    let name = if path == Path::new("-") {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let source: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("cannot open {name}"))?)
    };
    source
        .take(INPUT_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {name} as text"))?;
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::exit;
    use crate::inventory::sample;
    use crate::output::golden;

    fn values<K: Serialize>(objects: &[K]) -> Vec<Value> {
        let value = |object: &K| serde_json::to_value(object).expect("JSON");
        objects.iter().map(value).collect()
    }

    /// As `kubectl get -o json` writes it: four volumes, of which one has what a newer version filed.
    fn dump() -> Value {
        let cluster = sample::cluster();
        let items = [
            values(&cluster.volumes),
            values(&cluster.attachments),
            values(&cluster.engines),
            values(&cluster.nodes),
        ]
        .concat();
        json!({"apiVersion": "v1", "kind": "List", "items": items})
    }

    /// What a person sees: what could not be used, and the answer.
    fn page(dump: &Value) -> String {
        let texts = [("dump.json".to_owned(), dump.to_string())];
        let outcome = explained(&texts, sample::now());
        let problems = outcome.problems.iter();
        let problems = problems.map(|problem| format!("lariat: {problem}\n"));
        problems.collect::<String>() + &outcome.text()
    }

    #[test]
    fn a_dump_is_explained_to_a_person() {
        golden::check("explain", &page(&dump()));
    }

    #[test]
    fn what_cannot_be_used_is_named_and_the_rest_explained() {
        let mut dump = dump();
        let items = dump["items"].as_array_mut().expect("items");
        items[0]["spec"]["size"] = json!("a lot");
        items[6]["spec"]["attachmentTickets"]["csi-eeeeeeee"]["id"] = json!("csi-9");
        items.retain(|item| item["kind"] != "Node");
        let mut text = page(&dump);
        text += "# no volumes\n";
        text += &page(&json!({"apiVersion": "v1", "kind": "List", "items": []}));
        text += "# no file\n";
        let missing = PathBuf::from("no-such-file.yaml");
        text += &(exit::told(&read(&missing).expect_err("no such file")) + "\n");
        golden::check("explain-problems", &text);
    }
}
