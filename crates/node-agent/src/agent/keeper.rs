//! The keeper: a process beside the engines that holds their devices open while they restart. It outlives this
//! agent as engines do, so that a successor finds it.

use std::io;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::sync::watch;

use super::layout::Layout;
use super::{AgentError, Context, process, stopped};

/// How often a keeper that a predecessor started is looked at, and the pause before a new one is started.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Sees to it that a keeper runs, until told to stop; then ends it.
pub(super) async fn run(
    context: Arc<Context>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let layout = &context.layout;
    let mut child: Option<Child> = None;
    loop {
        if child.is_none() && !answers(layout) {
            match start(&context) {
                Ok(started) => {
                    if let Some(pid) = started.id() {
                        // Only for the successor's orderly end.
                        let _ = std::fs::write(layout.keeper_pid(), pid.to_string());
                    }
                    child = Some(started);
                }
                Err(error) => tracing::warn!(%error, "cannot start the keeper"),
            }
        }
        let ended = async {
            match &mut child {
                Some(child) => drop(child.wait().await),
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        tokio::select! {
            () = ended => {
                if child.take().is_some() {
                    tracing::warn!("the keeper ended; devices of engines that end now are lost");
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
            () = stopped(&mut stop) => break,
        }
    }
    end(layout);
    if let Some(mut child) = child {
        let _ = child.wait().await;
    }
    for file in [layout.keeper_socket(), layout.keeper_pid()] {
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

fn answers(layout: &Layout) -> bool {
    UnixStream::connect(layout.keeper_socket()).is_ok()
}

fn start(context: &Context) -> io::Result<Child> {
    let log = std::fs::File::create(context.layout.run().join("keeper.log"))?;
    tokio::process::Command::new(&context.executable)
        .args(["engine", "keeper"])
        .arg(context.layout.keeper_socket())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Apart from this agent's, so that what is sent to it does not hit the keeper.
        .process_group(0)
        .kill_on_drop(false)
        .spawn()
}

/// Ends the keeper of this node's folder, and nobody else: the number alone could be another process's by now.
fn end(layout: &Layout) {
    let pid = std::fs::read_to_string(layout.keeper_pid())
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(pid) = pid
        && process::has_argument(pid, &layout.keeper_socket())
        && let Some(pid) = Pid::from_raw(pid)
    {
        let _ = kill_process(pid, Signal::TERM);
    }
}
