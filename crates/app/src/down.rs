//! `lariat down`: asks the running process to stop, and waits until it has.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Signal, kill_process};

use crate::cli::DownArguments;
use crate::data_dir::DataDir;
use crate::output::tell;

/// Nodes may take 45 s for their users and as long for the rest; most take one.
const STOP_TIMEOUT: Duration = Duration::from_secs(100);

pub(crate) fn run(arguments: &DownArguments) -> Result<()> {
    let data_dir = DataDir::new(&arguments.data_dir.path);
    let Some(pid) = data_dir.running()? else {
        tell!("nothing runs on {}", data_dir.root().display());
        return Ok(());
    };
    kill_process(pid, Signal::TERM)
        .with_context(|| format!("cannot stop process {}", pid.as_raw_nonzero()))?;
    let asked = Instant::now();
    while data_dir.running()?.is_some() {
        if asked.elapsed() > STOP_TIMEOUT {
            bail!(
                "process {} has not stopped within {} s; look at its output, or end it with: kill -9 {}",
                pid.as_raw_nonzero(),
                STOP_TIMEOUT.as_secs(),
                pid.as_raw_nonzero(),
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    tell!("stopped in {} ms", asked.elapsed().as_millis());
    Ok(())
}
