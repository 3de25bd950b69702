//! `lariat support-bundle`: everything that somebody else needs to help, in one archive, without secrets.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use diagnose::{BundleFile, Index, Scope, examine, redact_line, render_findings};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::cli::DataDirArgument;
use crate::client::ApiArguments;
use crate::gather::{Look, look};
use crate::runtime;

/// Of each log the last part: what happened just before somebody asked.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
const LOGS_MAX: usize = 500;
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
    let (look, server) = runtime::block_on(seen(&arguments.api))?;
    let mut files = diagnose::write_objects(&look.dump, look.at);
    files.push(BundleFile {
        path: "versions.json".to_owned(),
        bytes: versions(&server),
    });
    let index = Index::new(&look.dump, look.at);
    let findings = examine(&index, &Scope::Everything);
    files.push(BundleFile {
        path: "findings.txt".to_owned(),
        bytes: render_findings(&findings, look.at).into_bytes(),
    });
    files.extend(logs(&arguments.data_dir.path));
    let name = look
        .at
        .strftime("lariat-support-%Y%m%dT%H%M%SZ")
        .to_string();
    let default = PathBuf::from(format!("{name}.tar.gz"));
    let output = arguments.output.clone().unwrap_or(default);
    write(&output, &name, &files)?;
    println!(
        "{}: {} files, secrets removed",
        output.display(),
        files.len()
    );
    println!(
        "look into it with `lariat doctor --bundle {}`",
        output.display()
    );
    Ok(())
}

async fn seen(api: &ApiArguments) -> Result<(Look, serde_json::Value)> {
    let (client, told) = api.connect_told().await?;
    let look = look(&client, &told).await?;
    let request = http::Request::get("/version").body(Vec::new());
    let server = client.request(request?).await.unwrap_or_default();
    Ok((look, server))
}

fn versions(server: &serde_json::Value) -> Vec<u8> {
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

/// The logs of a cluster on this machine: its parts', and its engines'. Of another there are none here.
fn logs(data_dir: &Path) -> Vec<BundleFile> {
    let mut folders = vec![(data_dir.join("logs"), "logs".to_owned())];
    for entry in std::fs::read_dir(data_dir.join("nodes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let node = entry.file_name().to_string_lossy().into_owned();
        folders.push((entry.path().join("run"), format!("logs/engines/{node}")));
    }
    let mut files = Vec::new();
    for (folder, name) in folders {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if !file.ends_with(".log") || files.len() >= LOGS_MAX {
                continue;
            }
            if let Ok(text) = tail(&entry.path()) {
                let lines: Vec<String> = text.lines().map(redact_line).collect();
                files.push(BundleFile {
                    path: format!("{name}/{file}"),
                    bytes: (lines.join("\n") + "\n").into_bytes(),
                });
            }
        }
    }
    files
}

fn tail(path: &Path) -> std::io::Result<String> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
        .with_context(|| format!("cannot write {}", path.display()))?;
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
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let mut archive = tar::Archive::new(GzDecoder::new(file).take(BUNDLE_BYTES_MAX));
    let mut files = Vec::new();
    let entries = archive
        .entries()
        .with_context(|| format!("{name} is not an archive"))?;
    for entry in entries {
        let mut entry =
            entry.with_context(|| format!("{name} is not a whole archive (.tar.gz)"))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        if files.len() >= BUNDLE_FILES_MAX {
            bail!("{name} has more than {BUNDLE_FILES_MAX} files, so it is no support bundle");
        }
        let path = entry
            .path()
            .with_context(|| format!("{name} has a file without a name"))?;
        let path: PathBuf = path.components().skip(1).collect();
        let path = path.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry
            .read_to_end(&mut bytes)
            .with_context(|| format!("{name} is cut short in {path}"))?;
        files.push(BundleFile { path, bytes });
    }
    Ok(files)
}
