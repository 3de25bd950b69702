//! Runs the tools of util-linux, e2fsprogs and xfsprogs, each bounded in time and in what it may say.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tonic::Status;

/// Longer than any tool here needs on a healthy device: a check of a large file system is the slowest.
const PATIENCE: Duration = Duration::from_secs(300);
/// How much of a tool's complaint is passed on.
const OUTPUT_BYTES_MAX: usize = 1024;

/// What a tool said.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub stdout: String,
    /// Both outputs on one line, cut: some tools complain on stdout.
    pub complaint: String,
}

/// Runs a tool to its end. Its failures are for the caller to judge; not being able to run it is ours.
pub async fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Answer, Status> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let name = program.to_owned();
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            return Err(Status::internal(format!(
                "cannot run {name}: {error}; is it installed on this node?"
            )));
        }
        Err(_) => {
            return Err(Status::deadline_exceeded(format!(
                "{name} has not ended after {} s; does the device answer?",
                PATIENCE.as_secs()
            )));
        }
    };
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let both = format!("{} {stdout}", String::from_utf8_lossy(&output.stderr));
    let mut complaint = both.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = (0..=OUTPUT_BYTES_MAX.min(complaint.len()))
        .rev()
        .find(|&at| complaint.is_char_boundary(at));
    complaint.truncate(end.unwrap_or(0));
    let code = output.status.code().unwrap_or(-1);
    tracing::debug!(tool = name, code, complaint, "a tool has ended");
    Ok(Answer {
        code,
        stdout,
        complaint,
    })
}
