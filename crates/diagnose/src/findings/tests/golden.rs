//! Every finding that a row makes, as people read it, is in `findings.txt`. With `UPDATE_EXPECT=1` what is missing there is
//! added; to be rid of texts that nobody writes any more, empty the file first.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::now;
use crate::finding::Finding;
use crate::report::Report;
use crate::text::render_report;

/// Rows run side by side, and all of them look into one file.
static FILE: Mutex<()> = Mutex::new(());

#[track_caller]
pub(super) fn check(findings: &[Finding]) {
    let _lock = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/findings/tests/findings.txt");
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let mut texts: BTreeSet<&str> = kept.split("\n\n").map(str::trim_end).collect();
    let rendered: Vec<String> = findings.iter().map(text).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        texts.extend(rendered.iter().map(String::as_str));
        texts.remove("");
        let all: Vec<&str> = texts.into_iter().collect();
        fs::write(&path, all.join("\n\n") + "\n").expect("the file can be written");
        return;
    }
    for text in &rendered {
        assert!(
            texts.contains(text.as_str()),
            "this is not in tests/findings.txt; if it is meant, add it with UPDATE_EXPECT=1:\n{text}"
        );
    }
}

/// One finding without the line that sums up.
fn text(finding: &Finding) -> String {
    let report = Report {
        findings: vec![finding.clone()],
        unread: Vec::new(),
        without_volume: Vec::new(),
    };
    let text = render_report(&report, now());
    let (finding, _) = text.trim_end().rsplit_once('\n').expect("a summary");
    finding.to_owned()
}
