//! Processes that tests start, signal and wait for.

use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::PATIENCE;

/// The example program next to this test: cargo builds it for every test run.
pub fn spawn(arguments: &[&str]) -> Result<Child> {
    let test = std::env::current_exe()?;
    let program = test
        .ancestors()
        .nth(2)
        .context("a test lies in target/<profile>/deps")?
        .join("examples/volume");
    ensure!(
        program.exists(),
        "{} is missing: run the tests with cargo",
        program.display()
    );
    Process::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))
}

pub fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("a process has a number")?;
    Ok(kill_process(pid, signal)?)
}

pub fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

pub fn await_that(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while !holds()? {
        ensure!(Instant::now() < give_up, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}
