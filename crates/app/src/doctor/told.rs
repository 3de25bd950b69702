//! What `--fix` says, line by line.

use anyhow::Result;
use diagnose::{Finding, Report};

use super::GONE_WITHIN;
use super::repair::{Repaired, repair_of};
use crate::exit;

/// How one repair went.
pub(super) fn repaired(finding: &Finding, outcome: &Result<Repaired>) -> String {
    let code = finding.code;
    let repaired = match outcome {
        Ok(repaired) => repaired,
        Err(error) => return format!("{code}: not repaired: {}\n", exit::told(error)),
    };
    let mut text = if repaired.changed {
        format!("{code}: repaired: {}\n", repair_of(finding))
    } else {
        format!(
            "{code}: nothing left to repair: somebody else was quicker with {}\n",
            finding.subject
        )
    };
    for (volume, error) in &repaired.not_noted {
        text += &format!(
            "{code}: the history of volume {volume} does not say so: {}\n",
            exit::told(error)
        );
    }
    text
}

/// What became of the troubles that were repaired.
pub(super) fn outcome(gone: &[Finding], still: &[Finding], left: &Report) -> String {
    let mut lines: Vec<String> = gone
        .iter()
        .map(|finding| format!("{}: gone: {}", finding.code, finding.subject))
        .collect();
    let seconds = GONE_WITHIN.as_secs();
    lines.extend(still.iter().map(|finding| {
        if left.findings.iter().any(|one| one.is_same(finding)) {
            return format!(
                "{}: still there after {seconds} s: {}",
                finding.code, finding.sentence
            );
        }
        format!(
            "{}: whether it is gone cannot be told: {}",
            finding.code, finding.subject
        )
    }));
    let unread = left.unread.iter();
    lines.extend(unread.map(|unread| format!("not read: {unread}")));
    lines.push(match left.findings.len() {
        0 if left.is_complete() => "nothing is wrong any more".to_owned(),
        0 => "nothing is left of what could be looked at".to_owned(),
        1 => "1 finding is left".to_owned(),
        count => format!("{count} findings are left"),
    });
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use diagnose::{Code, ObjectRef, Repair, Unread};

    use super::*;
    use crate::inventory::api_error;
    use crate::output::golden;

    fn held() -> Finding {
        Finding::new(
            Code::AttachHeld,
            ObjectRef::ours("volumes.longhorn.io", "pvc-1"),
            "volume pvc-1: attaching is held after 5 failures",
        )
        .volume("pvc-1")
        .repair(Some(Repair {
            summary: "let the volume try again, with a new budget".to_owned(),
            actions: Vec::new(),
        }))
    }

    fn refused(code: u16, message: &str) -> kube::Error {
        let status = kube::core::Status::failure(message, "").with_code(code);
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn every_line_of_a_repair_is_meant() {
        let finding = held();
        let done = |changed, not_noted| Ok(Repaired { changed, not_noted });
        let forbidden = || {
            let error = refused(403, "volumes.longhorn.io \"pvc-1\" is forbidden");
            api_error(error, "repair", "volumes.longhorn.io longhorn-system/pvc-1")
        };
        let busy = || anyhow!("its tickets were changed by somebody else each of 5 times");
        let mut page = String::new();
        for outcome in [
            done(true, Vec::new()),
            done(false, Vec::new()),
            done(true, vec![("pvc-1".to_owned(), busy())]),
            Err(forbidden()),
            Err(anyhow!(
                "it changed meanwhile, and is not the same trouble any more"
            )),
        ] {
            page += &repaired(&finding, &outcome);
        }
        let report = |findings: &[Finding], unread: &[&str]| Report {
            findings: findings.to_vec(),
            unread: unread
                .iter()
                .map(|what| Unread {
                    what: (*what).to_owned(),
                    why: format!("{what} is forbidden"),
                    whole: true,
                })
                .collect(),
            without_volume: Vec::new(),
        };
        let mut other = held();
        other.part = "another".to_owned();
        for (name, gone, still, left) in [
            ("all gone", vec![held()], vec![], report(&[], &[])),
            ("still there", vec![], vec![held()], report(&[held()], &[])),
            (
                "cannot be told",
                vec![],
                vec![held()],
                report(&[], &["pods"]),
            ),
            ("not read", vec![held()], vec![], report(&[], &["events"])),
            (
                "others",
                vec![held()],
                vec![],
                report(&[other.clone(), other.clone()], &[]),
            ),
        ] {
            page += &format!("# {name}\n{}", outcome(&gone, &still, &left));
        }
        golden::check("doctor-fix", &page);
    }
}
