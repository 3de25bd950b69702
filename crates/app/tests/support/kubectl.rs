//! The real `kubectl`, talking to one cluster.
//!
//! Whatever version is installed is used: `LARIAT_KUBECTL` names another program. What an old one
//! cannot do is asked for in the way it can, so that no test is left out for its sake.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use super::PATIENCE;

pub struct Kubectl {
    program: OsString,
    kubeconfig: PathBuf,
    /// Discovery is kept here, not in the home of who runs the tests.
    home: tempfile::TempDir,
    minor_version: u32,
}

impl Kubectl {
    pub fn new(kubeconfig: &Path) -> Self {
        let program = std::env::var_os("LARIAT_KUBECTL").unwrap_or_else(|| "kubectl".into());
        let output = Command::new(&program)
            .args(["version", "--client", "-o", "json"])
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "{} cannot be run: {error}; `make setup` installs it, LARIAT_KUBECTL names another",
                    program.display()
                )
            });
        let version: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{}: no version: {error}", program.display()));
        let minor = version["clientVersion"]["minor"].as_str();
        let minor = minor.and_then(|minor| minor.trim_end_matches('+').parse().ok());
        Self {
            program,
            kubeconfig: kubeconfig.to_owned(),
            home: tempfile::tempdir().expect("a temporary folder"),
            minor_version: minor.expect("a minor version of kubectl"),
        }
    }

    /// Whether this is kubectl 1.`minor` or later.
    pub fn is_at_least(&self, minor: u32) -> bool {
        self.minor_version >= minor
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .env("HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output();
        output.expect("kubectl can be run")
    }

    /// What the command prints. It must succeed.
    #[track_caller]
    pub fn prints(&self, arguments: &[&str]) -> String {
        succeeded(arguments, &self.run(arguments))
    }

    /// What lines of shell print, in which `kubectl` is this one. They must succeed.
    #[track_caller]
    pub fn shell(&self, lines: &str) -> String {
        let script = format!("kubectl() {{ env \"$LARIAT_KUBECTL\" \"$@\"; }}\n{lines}");
        let output = Command::new("sh")
            .args(["-euc", &script])
            .env("LARIAT_KUBECTL", &self.program)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.home.path())
            .stdin(Stdio::null())
            .output();
        succeeded(&[lines], &output.expect("a shell"))
    }

    /// The command must succeed, and print each of these.
    #[track_caller]
    pub fn shows(&self, arguments: &[&str], parts: &[&str]) {
        let text = self.prints(arguments);
        check_parts(arguments, &text, parts);
    }

    /// The command must fail, and say why with these words.
    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], parts: &[&str]) {
        let output = self.run(arguments);
        assert!(
            !output.status.success(),
            "kubectl {arguments:?} should fail"
        );
        check_parts(arguments, &everything(&output), parts);
    }

    pub fn run_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl can be run");
        let mut stdin = child.stdin.take().expect("a pipe was asked for");
        stdin
            .write_all(input.as_bytes())
            .expect("kubectl reads its input");
        drop(stdin);
        child.wait_with_output().expect("kubectl ends")
    }

    /// As [`Self::prints`], for a command that reads `-f -`.
    #[track_caller]
    pub fn feeds(&self, arguments: &[&str], input: &str) -> String {
        succeeded(arguments, &self.run_with_input(arguments, input))
    }

    /// Starts a command that goes on, to be read line by line: its output and its errors.
    pub fn follow(&self, arguments: &[&str]) -> Follower {
        let mut child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl can be run");
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().expect("a pipe was asked for");
        let stderr = child.stderr.take().expect("a pipe was asked for");
        for reader in [
            Box::new(stdout) as Box<dyn std::io::Read + Send>,
            Box::new(stderr),
        ] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(reader).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Follower { child, lines }
    }
}

/// A kubectl that still runs.
pub struct Follower {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    /// The next line, which must come.
    #[track_caller]
    pub fn next_line(&self) -> String {
        self.lines
            .recv_timeout(PATIENCE)
            .expect("kubectl prints another line")
    }

    /// Reads on until a line has this in it.
    #[track_caller]
    pub fn read_until(&self, part: &str) {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(part) => return,
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with {part:?} among:\n{}", seen.join("\n")),
            }
        }
    }

    /// Waits for the command to end by itself, well.
    #[track_caller]
    pub fn succeeds(mut self) {
        super::eventually("kubectl to end", || {
            self.child
                .try_wait()
                .expect("the process can be asked")
                .is_some()
        });
        let status = self.child.wait().expect("it has ended");
        assert!(status.success(), "kubectl ended with {status}");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn everything(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[track_caller]
fn succeeded(arguments: &[&str], output: &Output) -> String {
    assert!(
        output.status.success(),
        "kubectl {arguments:?} ended with {}:\n{}",
        output.status,
        everything(output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn check_parts(arguments: &[&str], text: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            text.contains(part),
            "kubectl {arguments:?} does not print {part:?} but:\n{text}"
        );
    }
}
