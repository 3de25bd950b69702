//! `cargo xtask conformance [SUITE…]`: runs the suites and prints what came of them.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use conformance::suites::{ALL, Outcome, Suite};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut terminated = signal(SignalKind::terminate())?;
    // Whoever interrupts this drops the suite that runs, and with it every process that it started.
    tokio::select! {
        ended = run() => ended,
        _ = terminated.recv() => bail!("terminated"),
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
}

async fn run() -> Result<ExitCode> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut rows = Vec::new();
    for suite in chosen(&names)? {
        println!("=== {}", suite.name);
        let started = Instant::now();
        let outcome = (suite.run)().await.unwrap_or_else(|error| {
            let mut outcome = Outcome::default();
            outcome.fail(format!("{} could not run: {error:?}", suite.name));
            outcome
        });
        for failure in &outcome.failures {
            println!("FAILED {failure}\n");
        }
        rows.push((suite.name, outcome, started.elapsed()));
    }
    println!(
        "{:<16} {:>7} {:>7} {:>8}",
        "SUITE", "PASSED", "FAILED", "SECONDS"
    );
    for (name, outcome, took) in &rows {
        println!(
            "{name:<16} {:>7} {:>7} {:>8.1}",
            outcome.passed,
            outcome.failures.len(),
            took.as_secs_f64()
        );
    }
    let failed: usize = rows
        .iter()
        .map(|(_, outcome, _)| outcome.failures.len())
        .sum();
    let passed: usize = rows.iter().map(|(_, outcome, _)| outcome.passed).sum();
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The suites with these names, or all that run by default.
fn chosen(names: &[String]) -> Result<Vec<&'static Suite>> {
    if names.is_empty() {
        return Ok(ALL.iter().filter(|suite| suite.by_default).collect());
    }
    let mut suites = Vec::new();
    for name in names {
        let Some(suite) = ALL.iter().find(|suite| suite.name == name) else {
            let known: Vec<_> = ALL.iter().map(|suite| suite.name).collect();
            bail!("no suite named {name}; there are: {}", known.join(", "));
        };
        suites.push(suite);
    }
    Ok(suites)
}
