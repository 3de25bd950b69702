//! Programs that other people wrote.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What a program says, on both of its outputs. It must succeed, and within two minutes.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new("timeout")
        .arg("120")
        .arg(program)
        .args(arguments)
        .output()
        .with_context(|| format!("{program} cannot be run; install its package"))?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(
        output.status.success(),
        "{program} {arguments:?} ended with {}: {text}",
        output.status
    );
    Ok(text)
}
