//! Reads and writes of the API that several calls share, with their failures as CSI codes.

use std::future::Future;
use std::sync::Arc;

use api_types::{Engine, Node, Volume, VolumeAttachment, VolumeAttachmentSpec, names};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::ControllerService;
use super::observed::View;

/// A label's value has at most this many bytes, and engines and replicas are labelled with their volume.
const NAME_BYTES_MAX: usize = 63;

impl ControllerService {
    pub(super) fn volumes(&self) -> Api<Volume> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    pub(super) fn attachments(&self) -> Api<VolumeAttachment> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    pub(super) fn nodes(&self) -> Api<Node> {
        Api::namespaced(self.client.clone(), names::NAMESPACE)
    }

    /// Waits until the cache can be believed.
    pub(super) async fn ready(&self, deadline: Instant) -> Result<(), Status> {
        if self.observed.filled(deadline).await {
            return Ok(());
        }
        Err(Status::unavailable(
            "the volumes have not been read from the API yet; see whether it answers, and call again",
        ))
    }

    /// A volume that exists. The cache may lag behind another process's write, so that only the API can say that it does not.
    pub(super) async fn volume(&self, id: &str, deadline: Instant) -> Result<Arc<Volume>, Status> {
        if let Some(volume) = self.observed.view(id).volume {
            return Ok(volume);
        }
        let missing = || Status::not_found(format!("volume {id} does not exist"));
        if !is_object_name(id) {
            return Err(missing());
        }
        let found = call("read volume", id, deadline, self.volumes().get_opt(id)).await?;
        found.map(Arc::new).ok_or_else(missing)
    }

    /// The volume's attachment, made if it is missing.
    pub(super) async fn attachment(
        &self,
        volume: &Volume,
        deadline: Instant,
    ) -> Result<VolumeAttachment, Status> {
        let (api, name) = (self.attachments(), volume.name_any());
        let found = call("read attachment", &name, deadline, api.get_opt(&name)).await?;
        if let Some(found) = found {
            return Ok(found);
        }
        let object = VolumeAttachment {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some([names::label::volume(&name)].into()),
                owner_references: volume.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: VolumeAttachmentSpec {
                volume: name.clone(),
                ..VolumeAttachmentSpec::default()
            },
            status: None,
        };
        let created = timeout_at(deadline, api.create(&PostParams::default(), &object)).await;
        match created {
            Ok(Ok(created)) => Ok(created),
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => {
                call("read attachment", &name, deadline, api.get(&name)).await
            }
            Ok(Err(error)) => Err(failed("create attachment", &name, &error)),
            Err(_) => Err(timed_out("create attachment", &name)),
        }
    }

    /// The volume as the API has it this very moment, not as the cache does.
    pub(super) async fn live_view(&self, id: &str, deadline: Instant) -> Result<View, Status> {
        let engines: Api<Engine> = Api::namespaced(self.client.clone(), names::NAMESPACE);
        let of_volume = ListParams::default().labels(&format!("{}={id}", names::label::VOLUME));
        let (volumes, attachments) = (self.volumes(), self.attachments());
        let (volume, attachment, engines) = futures::try_join!(
            call("read volume", id, deadline, volumes.get_opt(id)),
            call("read attachment", id, deadline, attachments.get_opt(id)),
            call(
                "list engines of volume",
                id,
                deadline,
                engines.list(&of_volume)
            ),
        )?;
        Ok(View {
            volume: volume.map(Arc::new),
            attachment: attachment.map(Arc::new),
            engines: engines.items.into_iter().map(Arc::new).collect(),
        })
    }
}

/// Makes a request of the API, within the call's time.
pub(super) async fn call<T>(
    what: &str,
    name: &str,
    deadline: Instant,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Status> {
    match timeout_at(deadline, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failed(what, name, &error)),
        Err(_) => Err(timed_out(what, name)),
    }
}

pub(super) fn timed_out(what: &str, name: &str) -> Status {
    Status::deadline_exceeded(format!(
        "cannot {what} {name}: the API has not answered in time"
    ))
}

/// A request that the API refused or did not answer, as a CSI code.
pub(super) fn failed(what: &str, name: &str, error: &kube::Error) -> Status {
    let text = format!("cannot {what} {name}: {}", events::sentence(error));
    match error {
        kube::Error::Api(status) => match status.code {
            404 => Status::not_found(text),
            409 => Status::aborted(text),
            400 | 422 => Status::invalid_argument(text),
            429 | 500..=599 => Status::unavailable(text),
            _ => Status::internal(text),
        },
        _ => Status::unavailable(text),
    }
}

/// The name of the Volume for a name that a caller chose. Names that an object may have stay as they are; others,
/// which Kubernetes never sends but CSI allows, become a hash.
pub(super) fn object_name(name: &str) -> String {
    if is_object_name(name) {
        return name.to_owned();
    }
    let mut hashed = String::from("vol-");
    for byte in Sha256::digest(name.as_bytes()).iter().take(16) {
        use std::fmt::Write as _;
        // Writing to a String cannot fail.
        let _ = write!(hashed, "{byte:02x}");
    }
    hashed
}

/// A DNS label, as volume names must be: they end up in labels of engines and replicas.
pub(super) fn is_object_name(name: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&first), Some(&last)) if is_end(first) && is_end(last))
        && bytes.len() <= NAME_BYTES_MAX
        && bytes.iter().all(|&byte| is_end(byte) || byte == b'-')
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_refusal_is_answered_in_the_apis_own_words() {
        let check = |code: u16, expected: Code| {
            let refused = kube::core::Status::failure("not by this account", "Odd").with_code(code);
            let status = failed("read volume", "v", &kube::Error::Api(Box::new(refused)));
            assert_eq!(status.code(), expected, "{code}");
            assert_eq!(
                status.message(),
                "cannot read volume v: not by this account"
            );
        };
        check(403, Code::Internal);
        check(404, Code::NotFound);
        check(409, Code::Aborted);
        check(422, Code::InvalidArgument);
        check(503, Code::Unavailable);
    }

    #[test]
    fn names_stay_where_they_can() {
        let check = |name: &str, expected: &str| assert_eq!(object_name(name), expected);
        check(
            "pvc-00000000-0000-0000-0000-000000000000",
            "pvc-00000000-0000-0000-0000-000000000000",
        );
        check("a", "a");
        // Computed with: printf 'Upper' | sha256sum
        check("Upper", "vol-ada6d7a662f03a9ad858d482acae6970");
        assert_eq!(object_name(&"x".repeat(63)), "x".repeat(63));
        for odd in ["-a", "a-", "a.b", "a/b", "ü", "../x", &"x".repeat(64), ""] {
            let name = object_name(odd);
            assert!(
                name.starts_with("vol-") && is_object_name(&name),
                "{odd}: {name}"
            );
        }
    }
}
