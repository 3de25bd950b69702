//! Commands as a person types them, and the page of what came back.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::golden;
use crate::support::{clear_leftovers, eventually, lariat};

/// A folder, called `FOLDER` in lines and on the page, and a port that somebody listens on, `TAKEN` in lines.
pub struct Scene {
    folder: tempfile::TempDir,
    taken: TcpListener,
    page: String,
}

impl Scene {
    pub fn new() -> Self {
        // Sockets have short paths.
        let folder = tempfile::Builder::new().prefix("lp").tempdir_in("/tmp");
        Self {
            folder: folder.expect("a temporary folder"),
            taken: TcpListener::bind("127.0.0.1:0").expect("a port"),
            page: String::new(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file");
    }

    /// Starts a line that goes on until it is told to stop.
    pub fn begin(&self, line: &str) -> Running {
        let output = tempfile::NamedTempFile::new_in(self.folder.path()).expect("a file");
        let taken = self.taken.local_addr().expect("an address").port();
        let words = line.split(' ').map(|word| match word {
            "lariat" => lariat().to_owned(),
            word => word
                .replace("FOLDER", &self.folder.path().to_string_lossy())
                .replace("TAKEN", &taken.to_string()),
        });
        let words: Vec<String> = words.collect();
        let paper = || File::options().append(true).open(output.path());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LARIAT_") {
                command.env_remove(name);
            }
        }
        let child = command
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env_remove("NO_COLOR")
            .env("HOME", self.path("home"))
            .env("LARIAT_DATA_DIR", self.path("no-cluster"))
            // Many tests run on one machine.
            .env("LARIAT_METRICS_LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(paper().expect("a file"))
            .stderr(paper().expect("a file"))
            .spawn()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        Running {
            child,
            line: line.to_owned(),
            output,
        }
    }

    /// Runs a line to its end.
    pub fn play(&mut self, line: &str) {
        let running = self.begin(line);
        self.end(running);
    }

    /// Waits for the end of a line, and puts on the page what it said.
    pub fn end(&mut self, running: Running) {
        self.end_with(running, "");
    }

    /// The same with the first line alone that has this part: what else is said, and how often, is a matter of when.
    pub fn end_with(&mut self, mut running: Running, part: &str) {
        let code = running.wait();
        let (line, said) = (&running.line, running.said());
        for foreign in ["Some(", "Err(", "Error {", "Status {", "panicked"] {
            assert!(!said.contains(foreign), "{line}\n{said}");
        }
        let mut said = self.told(&said);
        if !part.is_empty() {
            let chosen = said.lines().find(|line| line.contains(part));
            said = chosen.map(|line| format!("{line}\n")).unwrap_or_default();
        }
        let end = code.map_or_else(|| "killed".to_owned(), |code| format!("ends with {code}"));
        self.page += &format!("$ {line}\n{said}({end})\n\n");
    }

    /// What was said, without what differs each time.
    fn told(&self, said: &str) -> String {
        let folder = self.folder.path().to_string_lossy();
        let said = said.replace(folder.as_ref(), "FOLDER");
        let mut lines: Vec<String> = said.lines().map(|line| plain(line) + "\n").collect();
        // Which of two watches sees its hop first is a matter of chance.
        for passage in lines.chunk_by_mut(|one, other| is_hop(one) && is_hop(other)) {
            passage.sort();
        }
        lines.concat()
    }

    #[track_caller]
    pub fn check(&self, name: &str) {
        golden::check(name, &self.page);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        clear_leftovers(self.folder.path());
    }
}

/// A command that has not ended.
pub struct Running {
    child: Child,
    pub line: String,
    output: tempfile::NamedTempFile,
}

impl Running {
    pub fn said(&self) -> String {
        fs::read_to_string(self.output.path()).expect("text")
    }

    /// Waits for these words.
    #[track_caller]
    pub fn until(&mut self, words: &str) {
        let what = format!("{words:?} of {}", self.line);
        eventually(&what, || {
            let said = self.said();
            let ended = self.child.try_wait().expect("the process can be asked");
            let has = said.contains(words);
            assert!(has || ended.is_none(), "{} ended: {said}", self.line);
            has
        });
    }

    /// Waits for this file.
    #[track_caller]
    pub fn until_there(&mut self, path: &Path) {
        eventually(&format!("{} of {}", path.display(), self.line), || {
            let ended = self.child.try_wait().expect("the process can be asked");
            assert!(ended.is_none(), "{} ended: {}", self.line, self.said());
            path.exists()
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it can be signalled");
    }

    fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(&format!("the end of {}", self.line), || {
            status = self.child.try_wait().expect("the process can be asked");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            eprintln!("{} is killed; it said: {}", self.line, self.said());
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// One of a waterfall.
fn is_hop(line: &str) -> bool {
    line.contains(" BAR ")
}

/// A line without times, ports, ids and bars.
fn plain(line: &str) -> String {
    let digit = |letter: char| letter.is_ascii_digit();
    let id = |letter: char| letter.is_ascii_hexdigit() || letter == '-';
    let date = |letter: char| letter.is_ascii_digit() || "-:.TZ".contains(letter);
    let mut line = line.to_owned();
    if line.starts_with("20") && line.contains("Z ") {
        line = line.trim_start_matches(date).trim_start().to_owned();
    }
    if !line.contains("such as 127.0.0.1:") {
        line = after(&line, "127.0.0.1:", digit, "PORT");
    }
    line = after(&line, "process ", digit, "PID");
    line = after(&line, "kill -9 ", digit, "PID");
    line = after(&line, "demo-", id, "ID");
    line = after(&line, "pvc-", id, "ID");
    line = after(&line, "/pods/", id, "ID");
    line = after(&line, " at 20", date, "TIME").replace(" at 20TIME", " at TIME");
    for unit in [" ms", " s"] {
        line = before(&line, unit);
    }
    if line.contains('█') {
        let words = line
            .split_whitespace()
            .map(|word| match word.trim_matches('█') {
                "" => "BAR",
                word => word,
            });
        let words: Vec<&str> = words.collect();
        line = format!(" {}", words.join(" "));
    }
    // Numbers are flushed right, and so begin with as many blanks as they have digits to spare.
    match line.trim_start() {
        rest if rest.len() < line.len() => format!("  {rest}"),
        _ => line,
    }
}

/// Puts `with` where letters of a kind follow `mark`.
fn after(line: &str, mark: &str, is_part: impl Fn(char) -> bool, with: &str) -> String {
    let mut parts = line.split(mark);
    let mut changed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(&is_part);
        changed += mark;
        changed += if rest.len() < part.len() { with } else { "" };
        changed += rest;
    }
    changed
}

/// Puts N where a measured number stands before `unit`: whole milliseconds, or anything with a fraction. Whole seconds are bounds,
/// which are the same each time.
fn before(line: &str, unit: &str) -> String {
    let mut changed = String::new();
    let mut rest = line;
    while let Some(place) = rest.find(unit) {
        let (head, tail) = rest.split_at(place);
        let kept = head.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        let number = &head[kept.len()..];
        let is_measured = !number.is_empty() && (unit == " ms" || number.contains('.'));
        changed += kept;
        changed += if is_measured { "N" } else { number };
        changed += unit;
        rest = &tail[unit.len()..];
    }
    changed + rest
}
