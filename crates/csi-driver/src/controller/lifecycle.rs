//! Volumes come, grow and go.

use std::collections::{BTreeMap, HashMap};

use api_types::{AccessMode, ByteSize, Volume, VolumeSpec, VolumeState, names};
use attach_core::Attacher;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Status};

use super::ControllerService;
use super::api::{call, failed, is_object_name, object_name, timed_out};
use super::observed::{View, revision};
use super::parameters::{self, Parameters};
use crate::capability::{Access, Capability, DEFAULT_FILE_SYSTEM, Usage};
use crate::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume as CsiVolume,
    VolumeCapability, validate_volume_capabilities_response::Confirmed,
};
use crate::{deadline, limits};

/// On a Volume whose name had to be made from another: that other one.
const NAME_ANNOTATION: &str = "lariat.io/csi-name";
/// On a Volume: the file system that was asked for. A Volume has no field for it.
const FILE_SYSTEM_ANNOTATION: &str = "lariat.io/csi-fs-type";

impl ControllerService {
    pub(super) async fn create(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<CreateVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let name = limits::required("name", &request.name)?;
        limits::map("parameters", &request.parameters)?;
        limits::map("secrets", &request.secrets)?;
        limits::capabilities("volume_capabilities", &request.volume_capabilities)?;
        let access = Capability::parse_all(&request.volume_capabilities)?;
        let parameters = Parameters::parse(&request.parameters)?;
        if let Some(parameter) = request.mutable_parameters.keys().next() {
            return Err(Status::invalid_argument(format!(
                "mutable parameter {:?} is not supported: no parameter can be modified",
                limits::shown(parameter)
            )));
        }
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument(
                "volume_content_source is not supported yet: neither a snapshot nor a volume can be cloned",
            ));
        }
        let range = request.capacity_range;
        let spec = parameters.volume(access, parameters::size(range.as_ref())?)?;
        let id = object_name(name);
        self.ready(deadline).await?;
        let _guard = self.in_flight.begin(&id, "CreateVolume")?;
        let wanted = Wanted {
            name,
            file_system: file_system(&parameters, &request.volume_capabilities)?,
            spec,
        };
        let volume = self.ensure_volume(&id, &wanted, deadline).await?;
        if volume.metadata.deletion_timestamp.is_some() {
            return Err(Status::aborted(format!(
                "an earlier volume {id} is still being deleted; call again"
            )));
        }
        let other = difference(&volume, &wanted);
        let size_fits = parameters::fits(volume.spec.size.bytes(), range.as_ref());
        let other = other.or((!size_fits).then_some("size"));
        if let Some(field) = other {
            return Err(Status::already_exists(format!(
                "volume {id} exists already with another {field}; use another name or the same arguments"
            )));
        }
        self.attachment(&volume, deadline).await?;
        self.seen(&id, revision(&volume), deadline).await;
        let mut context = HashMap::new();
        if !parameters.file_system.is_empty() {
            context.insert(parameters::FILE_SYSTEM.to_owned(), parameters.file_system);
        }
        Ok(CreateVolumeResponse {
            volume: Some(CsiVolume {
                volume_context: context,
                ..csi_volume(&volume)
            }),
        })
    }

    /// The volume of this name: a new one, or the one that is there.
    async fn ensure_volume(
        &self,
        id: &str,
        wanted: &Wanted<'_>,
        deadline: Instant,
    ) -> Result<Volume, Status> {
        let mut annotations = BTreeMap::new();
        if let Some(file_system) = &wanted.file_system {
            annotations.insert(FILE_SYSTEM_ANNOTATION.to_owned(), file_system.clone());
        }
        if id != wanted.name {
            annotations.insert(NAME_ANNOTATION.to_owned(), wanted.name.to_owned());
        }
        let object = Volume {
            metadata: ObjectMeta {
                name: Some(id.to_owned()),
                annotations: Some(annotations),
                labels: Some([names::label::volume(id)].into()),
                finalizers: Some(vec![names::FINALIZER.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: wanted.spec.clone(),
            status: None,
        };
        let api = self.volumes();
        match timeout_at(deadline, api.create(&PostParams::default(), &object)).await {
            Ok(Ok(created)) => Ok(created),
            Ok(Err(kube::Error::Api(status))) if status.is_already_exists() => {
                call("read volume", id, deadline, api.get(id)).await
            }
            Ok(Err(error)) => Err(failed("create volume", id, &error)),
            Err(_) => Err(timed_out("create volume", id)),
        }
    }

    /// Waits until a write of ours shows in the cache, so that a list right after it has it. Not more than politeness: the
    /// write itself is done, whatever becomes of this.
    async fn seen(&self, id: &str, written: u64, deadline: Instant) {
        let look = |view: &View| {
            let is_new = |volume: &Volume| revision(volume) >= written;
            (view.volume.as_deref().is_some_and(is_new) && view.attachment.is_some()).then_some(())
        };
        self.observed.until(id, deadline, look).await;
    }

    pub(super) async fn delete(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<DeleteVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        limits::map("secrets", &request.secrets)?;
        self.ready(deadline).await?;
        let _guard = self.in_flight.begin(id, "DeleteVolume")?;
        if !is_object_name(id) {
            return Ok(DeleteVolumeResponse::default());
        }
        let view = self.live_view(id, deadline).await?;
        let Some(volume) = &view.volume else {
            return Ok(DeleteVolumeResponse::default());
        };
        if volume.metadata.deletion_timestamp.is_none() {
            if let Some(user) = user(&view) {
                return Err(Status::failed_precondition(format!(
                    "volume {id} is in use: {user}; unpublish or detach it first"
                )));
            }
            let api = self.volumes();
            let parameters = DeleteParams::background();
            match call("delete volume", id, deadline, api.delete(id, &parameters)).await {
                Ok(_) => {}
                Err(status) if status.code() == tonic::Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        let uid = volume.metadata.uid.clone();
        let gone = self.observed.until(id, deadline, |view| {
            let found = view.volume.as_ref();
            found
                .is_none_or(|found| found.metadata.uid != uid)
                .then_some(())
        });
        if gone.await.is_none() {
            return Err(Status::deadline_exceeded(format!(
                "volume {id} is being deleted, but its engines and replicas are not gone yet; call again"
            )));
        }
        Ok(DeleteVolumeResponse::default())
    }

    pub(super) async fn expand(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<ControllerExpandVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        limits::map("secrets", &request.secrets)?;
        let range = request.capacity_range.as_ref();
        let range = range.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
        if range.required_bytes == 0 && range.limit_bytes == 0 {
            return Err(Status::invalid_argument("capacity_range is empty"));
        }
        let usage = request.volume_capability.as_ref();
        let usage = usage
            .map(Capability::parse)
            .transpose()?
            .map(|found| found.usage);
        let wanted = parameters::size(Some(range))?;
        self.ready(deadline).await?;
        let _guard = self.in_flight.begin(id, "ControllerExpandVolume")?;
        let volume = self.volume(id, deadline).await?;
        let (size, limit) = (volume.spec.size.bytes(), range.limit_bytes);
        if limit > 0 && size > limit {
            return Err(Status::out_of_range(format!(
                "volume {id} has {size} bytes, more than the limit of {limit}, and cannot shrink"
            )));
        }
        let wanted = wanted.max(size);
        if wanted > size {
            let patch = Patch::Merge(json!({ "spec": { "size": ByteSize(wanted) } }));
            let (api, parameters) = (self.volumes(), PatchParams::default());
            let request = api.patch(id, &parameters, &patch);
            call("grow volume", id, deadline, request).await?;
        }
        // While it is detached nothing has a size yet; it grows when it is next attached, before its device opens.
        let grown = self.observed.until(id, deadline, |view| {
            let volume = view.volume.as_ref()?;
            let status = volume.status.as_ref();
            let is_detached = status.is_none_or(|status| status.state == VolumeState::Detached);
            let has_grown = status.is_some_and(|status| status.current_size.bytes() >= wanted);
            (volume.spec.size.bytes() >= wanted && (is_detached || has_grown)).then_some(())
        });
        if grown.await.is_none() {
            return Err(Status::deadline_exceeded(format!(
                "volume {id} is to have {wanted} bytes, but its engine has not grown yet; call again"
            )));
        }
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: wanted,
            node_expansion_required: usage != Some(Usage::Block),
        })
    }

    pub(super) async fn validate(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        limits::capabilities("volume_capabilities", &request.volume_capabilities)?;
        limits::map("volume_context", &request.volume_context)?;
        limits::map("parameters", &request.parameters)?;
        self.ready(deadline).await?;
        let volume = self.volume(id, deadline).await?;
        let message = match Capability::parse_all(&request.volume_capabilities) {
            Err(refusal) => Some(refusal.sentence().to_owned()),
            Ok(access) if access > access_of(&volume) => Some(format!(
                "volume {id} has access mode {}, which is less than what is asked for",
                volume.spec.access_mode
            )),
            Ok(_) => None,
        };
        if let Some(message) = message {
            return Ok(ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message,
            });
        }
        Ok(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        })
    }
}

/// What a volume admits.
pub(super) fn access_of(volume: &Volume) -> Access {
    match volume.spec.access_mode {
        AccessMode::ReadWriteMany => Access::ManyNodes,
        // Which pod gets it is Kubernetes' business: its scheduler admits one. Callers without the newer modes say "one node".
        AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod | AccessMode::Other(_) => {
            Access::SingleNode
        }
    }
}

/// The volume as callers know it.
pub(super) fn csi_volume(volume: &Volume) -> CsiVolume {
    CsiVolume {
        capacity_bytes: volume.spec.size.bytes(),
        volume_id: volume.name_any(),
        ..CsiVolume::default()
    }
}

/// What a CreateVolume asks for.
struct Wanted<'a> {
    name: &'a str,
    /// None for a raw device.
    file_system: Option<String>,
    spec: VolumeSpec,
}

/// The file system that a request asks for: its parameter says so, or its capability, where csi-provisioner puts it.
fn file_system(
    parameters: &Parameters,
    capabilities: &[VolumeCapability],
) -> Result<Option<String>, Status> {
    if !parameters.file_system.is_empty() {
        return Ok(Some(parameters.file_system.clone()));
    }
    for capability in capabilities {
        match Capability::parse(capability)?.usage {
            Usage::Mount { file_system, .. } if file_system.is_empty() => {
                return Ok(Some(DEFAULT_FILE_SYSTEM.to_owned()));
            }
            Usage::Mount { file_system, .. } => return Ok(Some(file_system)),
            Usage::Block => {}
        }
    }
    Ok(None)
}

/// The first field in which an existing volume is not the one that is asked for. Its size is judged by itself.
fn difference(volume: &Volume, wanted: &Wanted<'_>) -> Option<&'static str> {
    let annotated = |key: &str| volume.annotations().get(key);
    let is_named = volume.name_any() == wanted.name
        || annotated(NAME_ANNOTATION).is_some_and(|known| known == wanted.name);
    // A raw device can be either, and a volume that was made by other means does not say.
    let has_file_system = match (annotated(FILE_SYSTEM_ANNOTATION), &wanted.file_system) {
        (Some(known), Some(wanted)) => known == wanted,
        (None, _) | (_, None) => true,
    };
    let (found, wanted) = (&volume.spec, &wanted.spec);
    #[rustfmt::skip]
    let fields = [
        ("name", is_named),
        ("fsType", has_file_system),
        ("access mode", found.access_mode == wanted.access_mode),
        ("migratable", found.migratable == wanted.migratable),
        ("numberOfReplicas", found.number_of_replicas == wanted.number_of_replicas),
        ("dataLocality", found.data_locality == wanted.data_locality),
        ("diskSelector", found.disk_selector == wanted.disk_selector),
        ("nodeSelector", found.node_selector == wanted.node_selector),
        ("staleReplicaTimeout", found.stale_replica_timeout == wanted.stale_replica_timeout),
        ("replicaAutoBalance", found.replica_auto_balance == wanted.replica_auto_balance),
        ("replicaSoftAntiAffinity", found.replica_soft_anti_affinity == wanted.replica_soft_anti_affinity),
        ("replicaZoneSoftAntiAffinity", found.replica_zone_soft_anti_affinity == wanted.replica_zone_soft_anti_affinity),
        ("replicaDiskSoftAntiAffinity", found.replica_disk_soft_anti_affinity == wanted.replica_disk_soft_anti_affinity),
        ("unmapMarkSnapChainRemoved", found.unmap_mark_snap_chain_removed == wanted.unmap_mark_snap_chain_removed),
    ];
    fields
        .iter()
        .find(|(_, is_same)| !is_same)
        .map(|(field, _)| *field)
}

/// Who needs the volume to stay, as part of a sentence. Operations of the system itself do not: they end with it.
fn user(view: &View) -> Option<String> {
    let tickets = view
        .attachment
        .iter()
        .flat_map(|object| object.spec.attachment_tickets.values());
    let mut workloads =
        tickets.filter(|ticket| Attacher::from_wire(&ticket.attacher_type).is_workload());
    workloads.next().map(|ticket| {
        format!(
            "a ticket of {} wants it on node {}",
            ticket.attacher_type, ticket.node_id
        )
    })
}
