//! `lariat down`: asks the running process to stop, and waits until it has.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Signal, kill_process};

use crate::cli::DownArguments;
use crate::data_dir::DataDir;
use crate::exit::{Failure, Outcome};
use crate::output::tell;

/// Nodes may take 45 s for their users and as long for the rest; most take one.
const STOP_TIMEOUT: Duration = Duration::from_secs(100);

pub(crate) fn run(arguments: &DownArguments) -> Result<()> {
    let data_dir = DataDir::new(&arguments.data_dir.path);
    let folder = data_dir.root().display();
    if !data_dir.is_there() {
        let message = format!(
            "there is no folder {folder}, so nothing runs on it; name the folder of a running `lariat up` with --data-dir"
        );
        return Err(Failure::new(Outcome::NotFound, message).into());
    }
    let Some(pid) = data_dir.running()? else {
        tell!("nothing runs on {folder}; start it with: lariat up --data-dir {folder}");
        return Ok(());
    };
    kill_process(pid, Signal::TERM).with_context(|| {
        format!(
            "cannot stop process {}, which runs on {folder}; run it as the user who ran `lariat up`",
            pid.as_raw_nonzero()
        )
    })?;
    let asked = Instant::now();
    while data_dir.running()?.is_some() {
        if asked.elapsed() > STOP_TIMEOUT {
            let message = format!(
                "process {pid}, which runs on {folder}, has not stopped within {} s; look at its output, or end it with: kill -9 {pid}",
                STOP_TIMEOUT.as_secs(),
                pid = pid.as_raw_nonzero(),
            );
            return Err(Failure::new(Outcome::Unfinished, message).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    tell!("stopped in {} ms", asked.elapsed().as_millis());
    Ok(())
}
