//! `lariat support-bundle`: everything that somebody else needs to help, in one archive, without secrets.

mod logs;
mod pod_logs;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use api_types::names::label;
use clap::Args;
use controllers::history;
use diagnose::{BundleFile, Index, Report, Scope, Unread, redact_texts, render_report};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::cli::DataDirArgument;
use crate::client::ApiArguments;
use crate::exit;
use crate::gather::{Look, look};
use crate::inventory::{inside, list};
use crate::output::say;
use crate::runtime;

/// An archive that grows beyond this when it is opened is not one of ours.
const BUNDLE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
const BUNDLE_FILES_MAX: usize = 10_000;

#[derive(Args)]
pub(crate) struct SupportBundleArguments {
    #[command(flatten)]
    pub api: ApiArguments,

    #[command(flatten)]
    pub data_dir: DataDirArgument,

    /// The archive to write [default: lariat-support-TIME.tar.gz in the present folder]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &SupportBundleArguments) -> Result<()> {
    let Seen {
        look,
        server,
        histories,
        pod_logs,
    } = runtime::block_on(seen(&arguments.api))?;
    let mut files = diagnose::write_objects(&look.dump, look.at);
    match histories {
        Ok(histories) => files.push(BundleFile {
            path: "histories.json".to_owned(),
            bytes: serde_json::to_vec_pretty(&histories)?,
        }),
        Err(error) => eprintln!("lariat: not in the archive: {}", exit::told(&error)),
    }
    files.push(BundleFile {
        path: "versions.json".to_owned(),
        bytes: versions(&server),
    });
    let index = Index::new(&look.dump, look.at);
    let report = Report::new(&index, &Scope::Everything, Vec::new());
    files.push(BundleFile {
        path: "findings.txt".to_owned(),
        bytes: render_report(&report, look.at).into_bytes(),
    });
    for unread in &report.unread {
        eprintln!("lariat: {}", left_out(unread));
    }
    if let Some(left_out) = pod_logs::left_out(&pod_logs) {
        eprintln!("lariat: {left_out}");
    }
    let room = logs::LOGS_MAX.saturating_sub(pod_logs.len());
    files.extend(pod_logs);
    files.extend(logs::of_this_machine(&arguments.data_dir.path, room));
    let name = look
        .at
        .strftime("lariat-support-%Y%m%dT%H%M%SZ")
        .to_string();
    let default = PathBuf::from(format!("{name}.tar.gz"));
    let output = arguments.output.clone().unwrap_or(default);
    write(&output, &name, &files)?;
    say(&written(&output, &files))
}

fn written(output: &Path, files: &[BundleFile]) -> String {
    let output = output.display();
    format!(
        "{output}: {} files, secrets removed\nlook into it with `lariat doctor --bundle {output}`\n",
        files.len()
    )
}

fn left_out(unread: &Unread) -> String {
    format!("not in the archive, since it could not be read: {unread}")
}

/// What there is to see of a cluster.
struct Seen {
    look: Look,
    /// What the API says of its version.
    server: Value,
    histories: Result<Value>,
    pod_logs: Vec<BundleFile>,
}

async fn seen(api: &ApiArguments) -> Result<Seen> {
    let server = api.reach().await?;
    let look = look(&server).await?;
    let request = http::Request::get("/version").body(Vec::new());
    let version = server.client.request(request?).await;
    Ok(Seen {
        look,
        server: version.unwrap_or_default(),
        histories: histories(&server.client).await,
        pod_logs: pod_logs::read(&server.client).await,
    })
}

/// What was decided about each volume, oldest first. Reasons are words of people and programs, and may have secrets in them.
async fn histories(client: &Client) -> Result<Value> {
    let kept: Vec<ConfigMap> = list(inside(client), "histories", Some(label::VOLUME)).await?;
    let prefix = history::object_name("");
    let of_volume = |mut object: ConfigMap| {
        let volume = object.name_any().strip_prefix(&prefix)?.to_owned();
        let text = object.data.as_mut()?.remove(history::KEY)?;
        let mut entries = json!(history::read(&text));
        redact_texts(&mut entries);
        Some(json!({"volume": volume, "entries": entries}))
    };
    Ok(kept.into_iter().filter_map(of_volume).collect())
}

fn versions(server: &Value) -> Vec<u8> {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let versions = json!({
        "lariat": env!("CARGO_PKG_VERSION"),
        "kubernetes": server,
        "kernel": text(system.release()),
        "machine": text(system.machine()),
    });
    serde_json::to_vec_pretty(&versions).unwrap_or_default()
}

fn write(path: &Path, folder: &str, files: &[BundleFile]) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // What a cluster looks like inside is not everybody's business.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| {
            let path = path.display();
            anyhow!(
                "cannot write the archive {path}: {error}; name another place with --output FILE"
            )
        })?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(0);
        archive
            .append_data(
                &mut header,
                format!("{folder}/{}", file.path),
                &file.bytes[..],
            )
            .with_context(|| format!("cannot write {} into {}", file.path, path.display()))?;
    }
    let finished = archive.into_inner().and_then(GzEncoder::finish);
    let file = finished.with_context(|| format!("cannot finish {}", path.display()))?;
    file.sync_all()
        .with_context(|| format!("cannot save {}", path.display()))
}

/// The files of an archive, without the folder that they are in.
pub(crate) fn read(path: &Path) -> Result<Vec<BundleFile>> {
    let name = path.display();
    let file = File::open(path).map_err(|error| {
        anyhow!("cannot open {name}: {error}; `lariat support-bundle` writes such an archive")
    })?;
    let broken = |what: &str, error: &std::io::Error| {
        anyhow!(
            "{name} {what}: {error}; copy it here once more, or write another one with `lariat support-bundle`"
        )
    };
    let mut archive = tar::Archive::new(GzDecoder::new(file).take(BUNDLE_BYTES_MAX));
    let mut files = Vec::new();
    let entries = archive
        .entries()
        .map_err(|error| broken("is not an archive", &error))?;
    for entry in entries {
        let mut entry =
            entry.map_err(|error| broken("is not a whole archive (.tar.gz)", &error))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        if files.len() >= BUNDLE_FILES_MAX {
            bail!("{name} has more than {BUNDLE_FILES_MAX} files, so it is no support bundle");
        }
        let path = entry
            .path()
            .map_err(|error| broken("has a file without a name", &error))?;
        let path: PathBuf = path.components().skip(1).collect();
        let path = path.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry
            .read_to_end(&mut bytes)
            .map_err(|error| broken(&format!("is cut short in {path}"), &error))?;
        files.push(BundleFile { path, bytes });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::golden;

    #[test]
    fn what_was_written_and_what_was_not_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let files: Vec<BundleFile> = ["objects.json", "versions.json"]
            .map(|path| BundleFile {
                path: path.to_owned(),
                bytes: b"{}".to_vec(),
            })
            .into();
        let pods = Unread {
            what: "pods".to_owned(),
            why: "pods is forbidden".to_owned(),
            whole: true,
        };
        std::fs::write(path("letter"), "no archive").expect("a file");
        write(&path("whole"), "lariat-support", &files).expect("an archive");
        let whole = std::fs::read(path("whole")).expect("an archive");
        std::fs::write(path("half"), &whole[..whole.len() / 2]).expect("half of it");
        let mut lines = vec![left_out(&pods)];
        let many: Vec<BundleFile> = (0..=BUNDLE_FILES_MAX)
            .map(|number| BundleFile {
                path: number.to_string(),
                bytes: Vec::new(),
            })
            .collect();
        write(&path("many"), "other", &many).expect("an archive");
        // What cannot be compressed has its end at the end of the archive.
        let log = BundleFile {
            path: "logs/manager.log".to_owned(),
            bytes: (0..4096)
                .flat_map(|_| *uuid::Uuid::new_v4().as_bytes())
                .collect(),
        };
        write(&path("cut"), "lariat-support", &[log]).expect("an archive");
        let large = std::fs::read(path("cut")).expect("an archive");
        std::fs::write(path("cut"), &large[..large.len() / 2]).expect("half of it");
        for name in ["missing", "letter", "half", "cut", "many"] {
            let error = read(&path(name)).expect_err("no archive");
            lines.push(exit::told(&error));
        }
        let refused = write(&path("none/archive"), "lariat-support", &files);
        lines.push(exit::told(&refused.expect_err("no such folder")));
        let page = written(Path::new("FOLDER/bundle.tar.gz"), &files) + &lines.join("\n") + "\n";
        golden::check(
            "support-bundle",
            &page.replace(&folder.path().display().to_string(), "FOLDER"),
        );
        assert_eq!(read(&path("whole")).expect("an archive").len(), files.len());
    }
}
