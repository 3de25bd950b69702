//! `lariat explain`: replays the ticket decision on a dump, and writes nothing.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use attach_core::explain::{self, Input};

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
    let inputs: Vec<Input<'_>> = texts
        .iter()
        .map(|(name, text)| Input { name, text })
        .collect();
    let outcome = explain::run(&inputs, jiff::Timestamp::now());
    for problem in &outcome.problems {
        eprintln!("lariat: {problem}");
    }
    let format = arguments.output.output;
    let text = output::answer(&outcome.report(), format, || outcome.text())?;
    output::say(&text)?;
    Ok(ExitCode::from(outcome.exit_code()))
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
