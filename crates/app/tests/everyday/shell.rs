//! What a person types, and what comes back.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::lariat;
use crate::world::World;

pub struct Shell {
    kubeconfig: PathBuf,
}

pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
    line: String,
}

impl Shell {
    pub fn new(world: &World) -> Self {
        Self {
            kubeconfig: world.cluster.kubeconfig(),
        }
    }

    /// A line without its first word.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(lariat());
        command
            .args(words(line))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("USER", "alice")
            .env_remove("SUDO_USER")
            .env_remove("COLUMNS")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        command
    }

    pub fn ask(&self, line: &str) -> Answer {
        answer(line, self.command(line).output())
    }

    /// The answer of a command that works.
    #[track_caller]
    pub fn says(&self, line: &str) -> String {
        self.ask(line).ends_with(0).out
    }

    #[track_caller]
    pub fn json(&self, line: &str) -> Value {
        let text = self.says(&format!("{line} -o json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }
}

pub fn answer(line: &str, output: std::io::Result<Output>) -> Answer {
    let output = output.unwrap_or_else(|error| panic!("lariat {line}: {error}"));
    Answer {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
        line: line.to_owned(),
    }
}

impl Answer {
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "lariat {}\n{}{}",
            self.line, self.out, self.err
        );
        self
    }

    /// All these parts are in what was said, and nothing that only a programmer reads.
    #[track_caller]
    pub fn has(self, parts: &[&str]) -> Self {
        let said = format!("{}{}", self.out, self.err);
        for part in parts {
            assert!(
                said.contains(part),
                "lariat {}: {part:?} is not in\n{said}",
                self.line
            );
        }
        for foreign in ["Some(", "Err(", "Error {", "panicked"] {
            assert!(!said.contains(foreign), "lariat {}\n{said}", self.line);
        }
        self
    }
}

/// Words at blanks; what is in quotes is one.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            letter => words.last_mut().expect("a word").push(letter),
        }
    }
    words
}
