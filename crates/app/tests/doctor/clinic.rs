//! The commands under test, as a person runs them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{eventually, lariat};

/// What a command said, and how it ended.
pub struct Answer {
    pub code: i32,
    pub text: String,
    pub errors: String,
}

pub fn run(kubeconfig: &Path, arguments: &[&str]) -> Answer {
    let output = Command::new(lariat())
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .output()
        .expect("lariat runs");
    Answer {
        code: output.status.code().unwrap_or(-1),
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The codes that `doctor` finds now.
pub fn codes(kubeconfig: &Path) -> Vec<String> {
    let answer = run(kubeconfig, &["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&answer.text)
        .unwrap_or_else(|error| panic!("{error}: {}{}", answer.text, answer.errors));
    let findings = report["findings"].as_array().expect("findings");
    let code = |finding: &Value| finding["code"].as_str().expect("a code").to_owned();
    findings.iter().map(code).collect()
}

#[track_caller]
pub fn until_found(kubeconfig: &Path, code: &str) {
    let mut found = Vec::new();
    eventually(&format!("{code} to be found"), || {
        found = codes(kubeconfig);
        found.iter().any(|one| one == code)
    });
}

#[track_caller]
pub fn until_gone(kubeconfig: &Path, code: &str) {
    eventually(&format!("{code} to be gone"), || {
        codes(kubeconfig).iter().all(|one| one != code)
    });
}

/// `why` ends with this code and says all of this.
#[track_caller]
pub fn until_why(kubeconfig: &Path, subject: &str, code: i32, parts: &[&str]) {
    let mut last = String::new();
    eventually(
        &format!("why {subject} to answer {code} with {parts:?}"),
        || {
            let answer = run(kubeconfig, &["why", subject]);
            let said = format!("{}{}", answer.text, answer.errors);
            let is_it = answer.code == code && parts.iter().all(|part| said.contains(part));
            if !is_it && said != last {
                eprintln!("not yet, {}: {said}", answer.code);
            }
            last = said;
            is_it
        },
    );
}

/// Repairs, and shows that this code was repaired and is gone.
#[track_caller]
pub fn fix(kubeconfig: &Path, subject: &str, code: &str) {
    let arguments: Vec<&str> = ["doctor", subject, "--fix"]
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect();
    let answer = run(kubeconfig, &arguments);
    let text = format!("{}{}", answer.text, answer.errors);
    for word in ["repaired", "gone"] {
        assert!(text.contains(&format!("{code}: {word}")), "{text}");
    }
}

/// The volume's history tells of the repair: who did what, and why.
#[track_caller]
pub fn until_noted(kubeconfig: &Path, volume: &str, code: &str) {
    let did = format!("repaired {code}: ");
    eventually(
        &format!("the history of {volume} to tell of {code}"),
        || {
            let answer = run(kubeconfig, &["volume", "history", volume, "-o", "json"]);
            let lines: Value = serde_json::from_str(&answer.text).unwrap_or_default();
            let lines = lines.as_array().map(Vec::as_slice).unwrap_or_default();
            lines.iter().any(|line| {
                let (entry, text) = (&line["decision"], |value: &Value| {
                    value.as_str().unwrap_or_default().to_owned()
                });
                text(&entry["changes"][0]["what"]).starts_with(&did)
                    && text(&entry["who"]).contains('@')
                    && !text(&entry["reasons"][0]).is_empty()
            })
        },
    );
}
