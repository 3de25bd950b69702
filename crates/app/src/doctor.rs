//! `lariat doctor`: what is wrong, and its repair.

mod repair;
mod told;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use diagnose::{Code, Finding, Index, Report, Scope, Severity, render_report};

use crate::client::Server;
use crate::exit::{Failure, Outcome};
use crate::gather::{Look, Source, look, resolve};
use crate::output::{self, AnswerArgument, say, tell};
use crate::{complete, runtime};

/// Only what is still there after this long is repaired: what was on its way has arrived by then.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(2);
/// How long a repaired trouble may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DoctorArguments {
    #[command(subcommand)]
    pub command: Option<DoctorCommand>,

    /// Volumes, claims or pods to look at; everything if there are none
    #[arg(value_name = "VOLUME|PVC|POD", add = complete::subjects())]
    pub subjects: Vec<String>,

    /// Carry out the repairs that are shown, and look again whether they helped
    #[arg(long, conflicts_with = "bundle")]
    pub fix: bool,

    #[command(flatten)]
    pub source: Source,

    #[command(flatten)]
    pub output: AnswerArgument,
}

#[derive(Subcommand)]
pub(crate) enum DoctorCommand {
    /// Explain a finding by its code, or list them all
    Explain {
        /// Such as LAR-104
        #[arg(add = complete::codes())]
        code: Option<String>,
    },
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    if let Some(DoctorCommand::Explain { code }) = &arguments.command {
        explain(code.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = runtime::block_on(diagnose(arguments))?;
    Ok(ExitCode::from(exit_code(&report)))
}

/// 0: nothing, or nothing but things to know; 3: warnings; 4: errors; 7: nothing so bad, but not everything could be read.
fn exit_code(report: &Report) -> u8 {
    match report.worst() {
        Some(Severity::Error) => 4,
        _ if !report.is_complete() => Outcome::Incomplete as u8,
        Some(Severity::Warning) => 3,
        None | Some(Severity::Info) => 0,
    }
}

fn explain(code: Option<&str>) -> Result<()> {
    let text = match code {
        Some(code) => {
            let code = code.parse::<Code>();
            let code = code.map_err(|error| Failure::new(Outcome::NotFound, error.to_string()))?;
            code.page().to_owned()
        }
        None => all_codes(),
    };
    say(&text)
}

fn all_codes() -> String {
    let lines = Code::ALL.iter().map(|code| {
        format!(
            "{code}  {:<8} {}\n",
            code.severity().to_string(),
            code.title()
        )
    });
    lines.collect()
}

async fn diagnose(arguments: &DoctorArguments) -> Result<Report> {
    let first = arguments.source.look().await?;
    let mut report = examined(&first, &arguments.subjects)?;
    let format = arguments.output.output.document();
    let is_text = format.is_none();
    if is_text {
        let text = render_report(&report, first.at);
        // A reader who has seen enough does not stop a repair.
        if arguments.fix {
            tell!("{}", text.trim_end());
        } else {
            say(&text)?;
        }
    }
    let mut repaired = Vec::new();
    if arguments.fix && report.findings.iter().any(|one| one.repair.is_some()) {
        (repaired, report) = fix(arguments, &report.findings, is_text).await?;
    }
    if let Some(format) = format {
        let mut document = serde_json::to_value(&report)?;
        document["repaired"] = serde_json::to_value(&repaired)?;
        say(&output::document(&document, format)?)?;
    }
    Ok(report)
}

fn examined(look: &Look, subjects: &[String]) -> Result<Report> {
    let index = Index::new(&look.dump, look.at);
    let mut without_volume = Vec::new();
    let scope = if subjects.is_empty() {
        Scope::Everything
    } else {
        let mut volumes = BTreeSet::new();
        for text in subjects {
            let subject = resolve(&index, text)?;
            volumes.extend(subject.volumes(&index));
            without_volume.extend(subject.claims_without_volume(&index));
        }
        Scope::Volumes(volumes)
    };
    Ok(Report::new(&index, &scope, without_volume))
}

/// What was repaired, and what is left.
async fn fix(
    arguments: &DoctorArguments,
    first: &[Finding],
    is_text: bool,
) -> Result<(Vec<Finding>, Report)> {
    let server = arguments.source.api.reach().await?;
    tokio::time::sleep(SECOND_LOOK_AFTER).await;
    let mut seen = look(&server).await?;
    let lasting = examined(&seen, &arguments.subjects)?.findings;
    let to_repair = lasting
        .iter()
        .filter(|finding| finding.repair.is_some() && first.iter().any(|one| one.is_same(finding)));
    let mut tried = Vec::new();
    for finding in to_repair {
        let repaired = repair::repair(&server, &arguments.subjects, &mut seen, finding).await;
        if is_text {
            tell!("{}", told::repaired(finding, &repaired).trim_end());
        }
        if repaired.is_ok() {
            tried.push(finding.clone());
        }
    }
    verify(&server, arguments, tried, is_text).await
}

/// Looks again until every repaired trouble is gone, or long enough. What could not be read is not gone.
async fn verify(
    server: &Server,
    arguments: &DoctorArguments,
    tried: Vec<Finding>,
    is_text: bool,
) -> Result<(Vec<Finding>, Report)> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let now = look(server).await?;
        let left = match examined(&now, &arguments.subjects) {
            Ok(left) => left,
            // What was asked about went with its trouble.
            Err(_) if !tried.is_empty() => examined(&now, &[])?,
            Err(error) => return Err(error),
        };
        let is_left = |finding: &Finding| {
            !left.is_complete() || left.findings.iter().any(|one| one.is_same(finding))
        };
        if tried.iter().any(is_left) && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        let (still, gone): (Vec<Finding>, Vec<Finding>) = tried.into_iter().partition(is_left);
        if is_text {
            tell!("{}", told::outcome(&gone, &still, &left).trim_end());
        }
        return Ok((gone, left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::golden;

    #[test]
    fn all_findings_are_listed() {
        golden::check("doctor-explain", &all_codes());
        let unknown = "LAR-999".parse::<Code>().expect_err("no code");
        let near = "LAR-110".parse::<Code>().expect_err("no code");
        golden::check("doctor-explain-unknown", &format!("{unknown}\n{near}\n"));
    }
}
