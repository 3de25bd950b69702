//! `lariat doctor`: what is wrong, and its repair.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use diagnose::{Action, Code, Finding, Index, Scope, Severity, Subject, examine, render_findings};
use kube::Client;
use serde_json::json;

use crate::gather::{Look, Source, look};
use crate::runtime;

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
    #[arg(value_name = "VOLUME|PVC|POD")]
    pub subjects: Vec<String>,

    /// Carry out the repairs that are shown, and look again whether they helped
    #[arg(long, conflicts_with = "bundle")]
    pub fix: bool,

    #[command(flatten)]
    pub source: Source,

    #[arg(short, long, value_enum, default_value_t = DoctorOutput::Text)]
    pub output: DoctorOutput,
}

#[derive(Subcommand)]
pub(crate) enum DoctorCommand {
    /// Explain a finding by its code, or list them all
    Explain {
        /// Such as LAR-104
        code: Option<String>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoctorOutput {
    Text,
    Json,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    if let Some(DoctorCommand::Explain { code }) = &arguments.command {
        explain(code.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let findings = runtime::block_on(diagnose(arguments))?;
    Ok(ExitCode::from(exit_code(&findings)))
}

/// 0: nothing, or nothing but things to know; 3: warnings; 4: errors.
fn exit_code(findings: &[Finding]) -> u8 {
    match findings.iter().map(|finding| finding.severity).min() {
        None | Some(Severity::Info) => 0,
        Some(Severity::Warning) => 3,
        Some(Severity::Error) => 4,
    }
}

fn explain(code: Option<&str>) -> Result<()> {
    let mut output = std::io::stdout();
    let text = match code {
        Some(code) => code.parse::<Code>()?.page().to_owned(),
        None => {
            let lines = Code::ALL.iter().map(|code| {
                format!(
                    "{code}  {:<8} {}\n",
                    code.severity().to_string(),
                    code.title()
                )
            });
            lines.collect()
        }
    };
    write!(output, "{text}").context("cannot write the explanation")
}

async fn diagnose(arguments: &DoctorArguments) -> Result<Vec<Finding>> {
    let first = arguments.source.look().await?;
    let findings = examined(&first, &arguments.subjects)?;
    let is_text = arguments.output == DoctorOutput::Text;
    if is_text {
        show(&render_findings(&findings, first.at))?;
    }
    let mut repaired = Vec::new();
    let mut left = findings;
    if arguments.fix && left.iter().any(|finding| finding.repair.is_some()) {
        (repaired, left) = fix(arguments, &left, is_text).await?;
    }
    if !is_text {
        let report = json!({"findings": left, "repaired": repaired});
        show(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    }
    Ok(left)
}

fn show(text: &str) -> Result<()> {
    write!(std::io::stdout(), "{text}").context("cannot write the findings")
}

fn examined(look: &Look, subjects: &[String]) -> Result<Vec<Finding>> {
    let index = Index::new(&look.dump, look.at);
    let scope = if subjects.is_empty() {
        Scope::Everything
    } else {
        let mut volumes = BTreeSet::new();
        for text in subjects {
            volumes.extend(Subject::resolve(&index, text)?.volumes(&index));
        }
        Scope::Volumes(volumes)
    };
    Ok(examine(&index, &scope))
}

/// What was repaired, and what is left.
async fn fix(
    arguments: &DoctorArguments,
    first: &[Finding],
    is_text: bool,
) -> Result<(Vec<Finding>, Vec<Finding>)> {
    let (client, told) = arguments.source.api.connect_told().await?;
    tokio::time::sleep(SECOND_LOOK_AFTER).await;
    let second = look(&client, &told).await?;
    let lasting = examined(&second, &arguments.subjects)?;
    let to_repair = lasting
        .iter()
        .filter(|finding| finding.repair.is_some() && first.iter().any(|one| one.is_same(finding)));
    let mut tried = Vec::new();
    for finding in to_repair {
        let outcome = carry_out(&client, finding).await;
        if is_text {
            let text = match &outcome {
                Ok(()) => format!("{}: repaired: {}\n", finding.code, repair_of(finding)),
                Err(error) => format!("{}: not repaired: {error:#}\n", finding.code),
            };
            show(&text)?;
        }
        if outcome.is_ok() {
            tried.push(finding.clone());
        }
    }
    verify(&client, &told, arguments, tried, is_text).await
}

fn repair_of(finding: &Finding) -> &str {
    finding
        .repair
        .as_ref()
        .map(|repair| repair.summary.as_str())
        .unwrap_or_default()
}

/// Looks again until every repaired trouble is gone, or long enough.
async fn verify(
    client: &Client,
    told: &str,
    arguments: &DoctorArguments,
    tried: Vec<Finding>,
    is_text: bool,
) -> Result<(Vec<Finding>, Vec<Finding>)> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let now = look(client, told).await?;
        let left = match examined(&now, &arguments.subjects) {
            Ok(left) => left,
            // What was asked about went with its trouble.
            Err(_) if !tried.is_empty() => examined(&now, &[])?,
            Err(error) => return Err(error),
        };
        let is_left = |finding: &Finding| left.iter().any(|one| one.is_same(finding));
        if tried.iter().any(is_left) && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        let (still, gone): (Vec<Finding>, Vec<Finding>) = tried.into_iter().partition(is_left);
        if is_text {
            for finding in &gone {
                show(&format!("{}: gone: {}\n", finding.code, finding.subject))?;
            }
            for finding in &still {
                let seconds = GONE_WITHIN.as_secs();
                show(&format!(
                    "{}: still there after {seconds} s: {}\n",
                    finding.code, finding.sentence
                ))?;
            }
            show(&match left.len() {
                0 => "nothing is wrong any more\n".to_owned(),
                1 => "1 finding is left\n".to_owned(),
                count => format!("{count} findings are left\n"),
            })?;
        }
        return Ok((gone, left));
    }
}

async fn carry_out(client: &Client, finding: &Finding) -> Result<()> {
    let actions = finding.repair.iter().flat_map(|repair| &repair.actions);
    for action in actions {
        let request = request(action)?;
        match client.request::<serde_json::Value>(request).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(kube::Error::Api(status)) if status.is_conflict() => bail!(
                "{} has changed since it was looked at; look again",
                action.object()
            ),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("{} refused the repair", action.object()));
            }
        }
    }
    Ok(())
}

fn request(action: &Action) -> Result<http::Request<Vec<u8>>> {
    let path = action.object().path();
    let path = path.with_context(|| format!("nothing is known about {}", action.object()))?;
    let request = match action.guarded_patch() {
        Some(patch) => http::Request::patch(format!("{path}?fieldManager=lariat-doctor"))
            .header("content-type", "application/merge-patch+json")
            .body(patch.to_string().into_bytes()),
        None => {
            let when = action.when();
            let mut preconditions = serde_json::Map::new();
            if !when.uid.is_empty() {
                preconditions.insert("uid".to_owned(), when.uid.clone().into());
            }
            if !when.resource_version.is_empty() {
                preconditions.insert(
                    "resourceVersion".to_owned(),
                    when.resource_version.clone().into(),
                );
            }
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions,
            });
            http::Request::delete(path)
                .header("content-type", "application/json")
                .body(options.to_string().into_bytes())
        }
    };
    request.context("cannot make the request")
}
