//! For a person at three in the morning: plain text, one thought a line, the evidence below it.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use crate::dump::Unread;
use crate::evidence::Evidence;
use crate::finding::Severity;
use crate::report::Report;
use crate::why::{Chain, State};

/// As kubectl writes ages.
#[must_use]
pub fn age(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 > 0 => format!("{minutes}m{}s", seconds % 60),
        120..10_800 => format!("{minutes}m"),
        10_800..28_800 if minutes % 60 > 0 => format!("{hours}h{}m", minutes % 60),
        10_800..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

fn evidence(evidence: &Evidence, now: Timestamp) -> String {
    match evidence.since {
        Some(since) => format!("{evidence}, for {}", age(now.duration_since(since))),
        None => evidence.to_string(),
    }
}

/// Sentences are read, not copied: of a name that is a hash the beginning is enough. Evidence and commands keep all of it.
fn short(sentence: &str) -> String {
    const HASH_LETTERS: usize = 64;
    const SHOWN: usize = 12;
    let mut text = String::new();
    let mut rest = sentence;
    while let Some(at) = rest.find("csi-") {
        let (before, name) = rest.split_at(at);
        text.push_str(before);
        let hash = name.bytes().skip(4).take_while(u8::is_ascii_hexdigit);
        if hash.count() == HASH_LETTERS {
            text.push_str(&name[..SHOWN]);
            text.push('…');
            rest = &name[4 + HASH_LETTERS..];
        } else {
            text.push_str("csi-");
            rest = &name[4..];
        }
    }
    text.push_str(rest);
    text
}

/// A label of twelve letters, then text; lines that follow stand below the text.
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: &str) {
        writeln!(self.0, "  {label:<12} {text}").expect("text can be written into a string");
    }
}

/// The chain.
#[must_use]
pub fn render_why(chain: &Chain, now: Timestamp) -> String {
    let mut title = format!("{}: {}", chain.subject, chain.verdict);
    if let Some(volume) = chain.volume.as_ref().filter(
        |volume| !matches!(&chain.subject, crate::Subject::Volume { name } if name == *volume),
    ) {
        write!(title, " (volume {volume})").expect("text can be written into a string");
    }
    let mut page = Page(format!("{title}\n"));
    for link in &chain.links {
        let label = match link.state {
            State::Fine => link.layer.to_owned(),
            State::Waiting => format!("… {}", link.layer),
            State::Trouble => format!("! {}", link.layer),
        };
        page.line(&label, &short(&link.sentence));
        for one in &link.evidence {
            page.line("", &format!("  {}", evidence(one, now)));
        }
    }
    section(&mut page, "By itself", &chain.by_itself);
    section(&mut page, "To do", &chain.to_do);
    let findings: Vec<String> = chain
        .findings
        .iter()
        .map(|finding| format!("{}: {}", finding.code, short(&finding.sentence)))
        .collect();
    section(&mut page, "Findings", &findings);
    let others: Vec<String> = chain
        .others
        .iter()
        .map(|other| format!("claim {}: {}", other.claim, other.verdict))
        .collect();
    section(&mut page, "Also", &others);
    unread(&mut page, &chain.unread);
    page.0
}

fn section(page: &mut Page, label: &str, lines: &[String]) {
    for (place, line) in lines.iter().enumerate() {
        page.line(if place == 0 { label } else { "" }, line);
    }
}

/// The findings, the worst first, what could not be looked at, and a line that sums it up.
#[must_use]
pub fn render_report(report: &Report, now: Timestamp) -> String {
    let mut page = Page(String::new());
    for finding in &report.findings {
        writeln!(
            page.0,
            "{} {}: {}",
            finding.code,
            finding.severity,
            short(&finding.sentence)
        )
        .expect("text can be written into a string");
        for one in &finding.evidence {
            page.line("", &evidence(one, now));
        }
        if let Some(outlook) = &finding.by_itself {
            page.line("By itself", outlook);
        }
        section(&mut page, "To do", &finding.advice);
        if let Some(repair) = &finding.repair {
            page.line("Repair", &repair.summary);
            for action in &repair.actions {
                page.line("", &action.to_string());
            }
        }
    }
    let bare: Vec<String> = report
        .without_volume
        .iter()
        .map(|claim| {
            format!(
                "{claim} has no volume yet: `lariat why {}` says why",
                claim.exact()
            )
        })
        .collect();
    section(&mut page, "No volume", &bare);
    unread(&mut page, &report.unread);
    page.0.push_str(&summary(report));
    page.0
}

fn unread(page: &mut Page, unread: &[Unread]) {
    let lines: Vec<String> = unread.iter().map(ToString::to_string).collect();
    section(page, "Not read", &lines);
}

fn summary(report: &Report) -> String {
    let Report {
        findings,
        without_volume,
        ..
    } = report;
    if findings.is_empty() {
        return match (report.is_complete(), without_volume.is_empty()) {
            (true, true) => "nothing is wrong\n",
            (true, false) => "nothing else is known to be wrong\n",
            (false, _) => "nothing was found, but not everything could be looked at\n",
        }
        .to_owned();
    }
    let count = |severity: Severity| {
        let count = findings.iter().filter(|one| one.severity == severity);
        (count.count(), severity)
    };
    let counts: Vec<String> = [Severity::Error, Severity::Warning, Severity::Info]
        .map(count)
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, severity)| match severity {
            Severity::Info => format!("{count} to know"),
            _ if count == 1 => format!("1 {severity}"),
            _ => format!("{count} {severity}s"),
        })
        .collect();
    let repairs = findings.iter().filter(|one| one.repair.is_some()).count();
    let mut text = counts.join(", ");
    if repairs > 0 {
        write!(text, "; `lariat doctor --fix` repairs {repairs}")
            .expect("text can be written into a string");
    }
    text.push_str("; `lariat doctor explain CODE` explains");
    if !report.is_complete() {
        text.push_str("; not everything could be looked at");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_cut_and_other_names_are_not() {
        let hash = "ab".repeat(32);
        assert_eq!(
            short(&format!("a csi-{hash} b csi-1")),
            "a csi-abababab… b csi-1"
        );
    }

    #[test]
    fn ages_are_kubectls() {
        let check = |seconds: i64, expected: &str| {
            assert_eq!(age(SignedDuration::from_secs(seconds)), expected);
        };
        check(-3, "0s");
        check(119, "119s");
        check(120, "2m");
        check(150, "2m30s");
        check(660, "11m");
        check(10_860, "3h1m");
        check(100_000, "27h");
        check(200_000, "2d");
    }
}
