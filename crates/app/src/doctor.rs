//! `lariat doctor`: what is wrong, and its repair.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use controllers::history::{NOTES, with_note};
use diagnose::{
    Action, ClusterDump, Code, Finding, Index, ObjectRef, Report, Scope, Severity, render_report,
};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use crate::client::Server;
use crate::exit::{self, Failure, Outcome};
use crate::gather::{Look, Source, look, resolve};
use crate::inventory::api_error;
use crate::{complete, person, runtime};

/// Only what is still there after this long is repaired: what was on its way has arrived by then.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(2);
/// How long a repaired trouble may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(30);
/// A repair that meets another change each time is not alone; somebody works on the same object.
const ATTEMPTS_MAX: usize = 5;
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

    #[arg(short, long, value_enum, default_value_t = DoctorOutput::Text)]
    pub output: DoctorOutput,
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
    let mut output = std::io::stdout();
    let text = match code {
        Some(code) => {
            let code = code.parse::<Code>();
            let code = code.map_err(|error| Failure::new(Outcome::NotFound, error.to_string()))?;
            code.page().to_owned()
        }
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

async fn diagnose(arguments: &DoctorArguments) -> Result<Report> {
    let first = arguments.source.look().await?;
    let mut report = examined(&first, &arguments.subjects)?;
    let is_text = arguments.output == DoctorOutput::Text;
    if is_text {
        show(&render_report(&report, first.at))?;
    }
    let mut repaired = Vec::new();
    if arguments.fix && report.findings.iter().any(|one| one.repair.is_some()) {
        (repaired, report) = fix(arguments, &report.findings, is_text).await?;
    }
    if !is_text {
        let mut document = serde_json::to_value(&report)?;
        document["repaired"] = serde_json::to_value(&repaired)?;
        show(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
    }
    Ok(report)
}

fn show(text: &str) -> Result<()> {
    write!(std::io::stdout(), "{text}").context("cannot write the findings")
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
        let outcome = repair(&server, &arguments.subjects, &mut seen, finding).await;
        if is_text {
            let text = match &outcome {
                Ok(()) => format!("{}: repaired: {}\n", finding.code, repair_of(finding)),
                Err(error) => format!("{}: not repaired: {}\n", finding.code, exit::told(error)),
            };
            show(&text)?;
        }
        if outcome.is_ok() {
            tried.push(finding.clone());
        }
    }
    verify(&server, arguments, tried, is_text).await
}

/// Each write names the version of the object that was looked at, and several findings can be about one object: where it
/// has changed, the repair is made of another look, as long as the trouble is still the same.
async fn repair(
    server: &Server,
    subjects: &[String],
    seen: &mut Look,
    finding: &Finding,
) -> Result<()> {
    let mut finding = finding.clone();
    for _ in 0..ATTEMPTS_MAX {
        match carry_out(&server.client, &seen.dump, &finding).await? {
            Carried::Out => return Ok(()),
            Carried::Conflict => {}
        }
        *seen = look(server).await?;
        let now = examined(seen, subjects)?.findings.into_iter();
        let mut same = now.filter(|one| one.is_same(&finding) && one.repair.is_some());
        finding = same
            .next()
            .context("it changed meanwhile, and is not the same trouble any more")?;
    }
    bail!(
        "{} was changed by somebody else each of {ATTEMPTS_MAX} times; try again",
        finding.subject
    )
}

fn repair_of(finding: &Finding) -> &str {
    finding
        .repair
        .as_ref()
        .map(|repair| repair.summary.as_str())
        .unwrap_or_default()
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
            show(&outcome(&gone, &still, &left))?;
        }
        return Ok((gone, left));
    }
}

/// What became of the troubles that were repaired.
fn outcome(gone: &[Finding], still: &[Finding], left: &Report) -> String {
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

/// How a repair went.
enum Carried {
    Out,
    /// The object is not the one that was looked at any more. Nothing was written to it.
    Conflict,
}

async fn carry_out(client: &Client, dump: &ClusterDump, finding: &Finding) -> Result<Carried> {
    let actions = finding.repair.iter().flat_map(|repair| &repair.actions);
    for action in actions {
        let request = request(action, note(dump, finding, action))?;
        match client.request::<serde_json::Value>(request).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(kube::Error::Api(status)) if status.is_conflict() => return Ok(Carried::Conflict),
            Err(error) => return Err(api_error(error, "repair", &action.object().to_string())),
        }
    }
    Ok(Carried::Out)
}

/// Whatever is done to a volume's tickets stands in its history: the annotation that brings it there, for the same write.
fn note(dump: &ClusterDump, finding: &Finding, action: &Action) -> Option<String> {
    let object = action.object();
    let mut attachments = dump.longhorn_attachments.iter();
    let attachment = attachments
        .find(|one| ObjectRef::new("volumeattachments.longhorn.io", &one.metadata) == *object)?;
    let did = format!("repaired {}: {}", finding.code, repair_of(finding));
    let note = person::note(&did, &finding.sentence, Timestamp::now());
    Some(with_note(attachment, note))
}

fn request(action: &Action, note: Option<String>) -> Result<http::Request<Vec<u8>>> {
    let path = action.object().path();
    let path = path.with_context(|| format!("nothing is known about {}", action.object()))?;
    let request = match action.guarded_patch() {
        Some(mut patch) => {
            if let Some(note) = note {
                patch["metadata"]["annotations"][NOTES] = note.into();
            }
            http::Request::patch(format!("{path}?fieldManager=lariat-doctor"))
                .header("content-type", "application/merge-patch+json")
                .body(patch.to_string().into_bytes())
        }
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
