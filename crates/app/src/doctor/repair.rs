//! One repair: carried out as it was shown, and noted in the histories of the volumes that it is about.

use anyhow::{Context as _, Result, bail};
use api_types::VolumeAttachment;
use controllers::history::{NOTES, Note, with_note};
use diagnose::{Action, ClusterDump, Finding, ObjectRef};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::examined;
use crate::client::Server;
use crate::gather::{Look, look};
use crate::inventory::{api_error, inside};
use crate::person;

/// A repair that meets another change each time is not alone; somebody works on the same object.
const ATTEMPTS_MAX: usize = 5;

/// A repair that was carried out.
#[derive(Debug, Default)]
pub(super) struct Repaired {
    /// Somebody else may have done it just before.
    pub changed: bool,
    /// Volumes whose histories do not tell of it, and why. The repair itself stands.
    pub not_noted: Vec<(String, anyhow::Error)>,
}

/// Each write names the version of the object that was looked at, and several findings can be about one object: where it
/// has changed, the repair is made of another look, as long as the trouble is still the same.
pub(super) async fn repair(
    server: &Server,
    subjects: &[String],
    seen: &mut Look,
    finding: &Finding,
) -> Result<Repaired> {
    let mut finding = finding.clone();
    for _ in 0..ATTEMPTS_MAX {
        match carry_out(&server.client, &seen.dump, &finding).await? {
            Carried::Out { changed: true } => {
                let not_noted = note_on_volumes(&server.client, &finding).await;
                return Ok(Repaired {
                    changed: true,
                    not_noted,
                });
            }
            Carried::Out { changed: false } => return Ok(Repaired::default()),
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

pub(super) fn repair_of(finding: &Finding) -> &str {
    finding
        .repair
        .as_ref()
        .map(|repair| repair.summary.as_str())
        .unwrap_or_default()
}

/// How one attempt went.
enum Carried {
    /// Whether it changed anything: what is gone already needs no repair.
    Out { changed: bool },
    /// The object is not the one that was looked at any more. Nothing was written to it.
    Conflict,
}

async fn carry_out(client: &Client, dump: &ClusterDump, finding: &Finding) -> Result<Carried> {
    let actions = finding.repair.iter().flat_map(|repair| &repair.actions);
    let mut changed = false;
    for action in actions {
        let request = request(action, noted_with(dump, finding, action))?;
        match client.request::<serde_json::Value>(request).await {
            Ok(_) => changed = true,
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(kube::Error::Api(status)) if status.is_conflict() => return Ok(Carried::Conflict),
            Err(error) => return Err(api_error(error, "repair", &action.object().to_string())),
        }
    }
    Ok(Carried::Out { changed })
}

/// What is done to a volume's tickets is noted in the same write: the annotation that brings it into the history.
fn noted_with(dump: &ClusterDump, finding: &Finding, action: &Action) -> Option<String> {
    let object = action.object();
    let mut attachments = dump.longhorn_attachments.iter();
    let attachment = attachments.find(|one| object_of(one) == *object)?;
    Some(with_note(attachment, note(finding)))
}

fn object_of(attachment: &VolumeAttachment) -> ObjectRef {
    ObjectRef::new("volumeattachments.longhorn.io", &attachment.metadata)
}

fn note(finding: &Finding) -> Note {
    let did = format!("repaired {}: {}", finding.code, repair_of(finding));
    person::note(&did, &finding.sentence, Timestamp::now())
}

/// What was done to anything else is noted on the volumes that suffered, afterwards. Yields those where that failed.
async fn note_on_volumes(client: &Client, finding: &Finding) -> Vec<(String, anyhow::Error)> {
    let actions = finding.repair.iter().flat_map(|repair| &repair.actions);
    let written: Vec<&ObjectRef> = actions.map(Action::object).collect();
    let mut failed = Vec::new();
    for volume in &finding.volumes {
        let own = ObjectRef::ours("volumeattachments.longhorn.io", volume);
        if written.contains(&&own) {
            continue;
        }
        if let Err(error) = note_on(client, volume, finding).await {
            failed.push((volume.clone(), error));
        }
    }
    failed
}

async fn note_on(client: &Client, volume: &str, finding: &Finding) -> Result<()> {
    let api: Api<VolumeAttachment> = inside(client);
    let note = note(finding);
    for _ in 0..ATTEMPTS_MAX {
        let found = api.get_opt(volume).await;
        let found =
            found.map_err(|error| api_error(error, "read the tickets of volume", volume))?;
        // A volume that is gone, or that nobody has ever asked for, has no place for notes.
        let Some(attachment) = found else {
            return Ok(());
        };
        let patch = json!({"metadata": {
            "resourceVersion": attachment.metadata.resource_version,
            "annotations": {(NOTES): with_note(&attachment, note.clone())},
        }});
        match api
            .patch(volume, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => return Err(api_error(error, "note what was done to volume", volume)),
        }
    }
    bail!("its tickets were changed by somebody else each of {ATTEMPTS_MAX} times")
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
