//! Publish and unpublish: one ticket is written or removed, and its answer waited for.

use api_types::{AttachmentTicket, VolumeAttachment, names};
use attach_core::{AttacherKind, Ticket, wire};
use cluster_core::names::attachment_name;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tonic::{Request, Status};

use super::ControllerService;
use super::api::{call, is_object_name};
use super::lifecycle::access_of;
use super::observed::{View, revision};
use super::release::{self, TicketState};
use crate::capability::Capability;
use crate::csi::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
};
use crate::{deadline, limits};

/// The id of the ticket of a volume for a node: the name of the Kubernetes VolumeAttachment.
fn ticket_id(volume: &str, node: &str) -> String {
    let name = attachment_name(&volume.into(), &names::DRIVER.into(), &node.into());
    name.as_str().to_owned()
}

impl ControllerService {
    pub(super) async fn publish(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<ControllerPublishVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        let node = limits::required("node_id", &request.node_id)?;
        limits::map("secrets", &request.secrets)?;
        limits::map("volume_context", &request.volume_context)?;
        let capability = Capability::parse_required(request.volume_capability.as_ref())?;
        if request.readonly {
            return Err(Status::invalid_argument(
                "readonly is not supported by ControllerPublishVolume, and not advertised; NodePublishVolume has it",
            ));
        }
        self.ready(deadline).await?;
        let _guard = self.in_flight.begin(id, "ControllerPublishVolume")?;
        let volume = self.volume(id, deadline).await?;
        self.node_exists(node, deadline).await?;
        if volume.metadata.deletion_timestamp.is_some() {
            return Err(Status::failed_precondition(format!(
                "volume {id} is being deleted"
            )));
        }
        if capability.access > access_of(&volume) {
            return Err(Status::invalid_argument(format!(
                "volume {id} has access mode {}, which is less than what is asked for",
                volume.spec.access_mode
            )));
        }
        let attachment = self.attachment(&volume, deadline).await?;
        let view = View {
            attachment: Some(attachment.clone().into()),
            ..self.observed.view(id)
        };
        release::admit(&view, node).map_err(Status::failed_precondition)?;
        // What is filed takes no more room: a call that is repeated succeeds also after the node's limit was lowered.
        if !release::has_csi_ticket(&attachment, node) {
            self.has_room(id, node, deadline).await?;
        }
        let (ticket, written) = self.file_ticket(&attachment, node, deadline).await?;
        tracing::debug!(volume.name = id, node.name = node, ticket.id = %ticket.id, generation = ticket.generation, "waiting for a ticket");
        self.satisfied(id, &ticket, written, deadline).await?;
        Ok(ControllerPublishVolumeResponse::default())
    }

    /// A node takes as many volumes as it said when it registered. The scheduler counts too, but may not see what others file.
    async fn has_room(&self, id: &str, node: &str, deadline: Instant) -> Result<(), Status> {
        let api: Api<CSINode> = Api::all(self.client.clone());
        let found = call("read CSINode", node, deadline, api.get_opt(node)).await?;
        let drivers = found.map(|found| found.spec.drivers).unwrap_or_default();
        let own = drivers
            .into_iter()
            .find(|driver| driver.name == names::DRIVER);
        let limit = own.and_then(|own| own.allocatable?.count);
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
            return Ok(());
        };
        let others = self
            .observed
            .count(|volume, attachment| volume != id && release::has_csi_ticket(attachment, node));
        if others < limit {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "node {node} has {others} volumes and takes {limit}; volume {id} needs another node, or one of them must be detached"
        )))
    }

    async fn node_exists(&self, node: &str, deadline: Instant) -> Result<(), Status> {
        let found = call(
            "read node",
            node,
            deadline,
            self.nodes().get_metadata_opt(node),
        )
        .await;
        match found {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Status::not_found(format!(
                "node {node} is not known: no node agent has registered under that name"
            ))),
            Err(status) => Err(status),
        }
    }

    /// Writes the ticket for a node, unless the same one is filed already. Returns it with the revision from which on
    /// it can be seen.
    async fn file_ticket(
        &self,
        attachment: &VolumeAttachment,
        node: &str,
        deadline: Instant,
    ) -> Result<(AttachmentTicket, u64), Status> {
        let id = ticket_id(&attachment.spec.volume, node);
        let mut ticket = Ticket::new(AttacherKind::Csi, id.as_str(), node);
        let filed = wire::tickets(attachment).remove(&ticket.id);
        let status = wire::statuses(attachment).remove(&ticket.id);
        ticket.generation = Ticket::generation_after(&ticket, filed.as_ref(), status.as_ref());
        let filed = filed.filter(|filed| filed.defect.is_none() && filed.is_same_request(&ticket));
        let ticket = wire::ticket_to_wire(&ticket);
        if filed.is_some() {
            return Ok((ticket, revision(attachment)));
        }
        let mut patch = Map::new();
        patch.insert(ticket.id.clone(), json!(ticket));
        let written = self.patch_tickets(attachment, patch, deadline).await?;
        Ok((ticket, written))
    }

    /// Changes these tickets and no others: a merge patch names only its own keys, so that writers never collide.
    async fn patch_tickets(
        &self,
        attachment: &VolumeAttachment,
        tickets: Map<String, Value>,
        deadline: Instant,
    ) -> Result<u64, Status> {
        let name = attachment.name_any();
        let patch = Patch::Merge(json!({ "spec": { "attachmentTickets": tickets } }));
        let api = self.attachments();
        let parameters = PatchParams::default();
        let request = api.patch(&name, &parameters, &patch);
        let written = call("write the ticket of volume", &name, deadline, request).await?;
        Ok(revision(&written))
    }

    async fn satisfied(
        &self,
        id: &str,
        ticket: &AttachmentTicket,
        written: u64,
        deadline: Instant,
    ) -> Result<(), Status> {
        let mut last_reason = String::new();
        let answer = self.observed.until(id, deadline, |view| {
            match release::ticket_state(view, ticket, written) {
                TicketState::Waiting(reason) => {
                    last_reason = reason;
                    None
                }
                settled => Some(settled),
            }
        });
        let node = &ticket.node_id;
        match answer.await {
            Some(TicketState::Satisfied) => Ok(()),
            Some(TicketState::Withdrawn) => Err(Status::aborted(format!(
                "the ticket of volume {id} for node {node} was removed or changed while it was waited for; call again"
            ))),
            Some(TicketState::VolumeGone) => {
                Err(Status::not_found(format!("volume {id} was deleted")))
            }
            Some(TicketState::Held(sentence)) => Err(Status::failed_precondition(sentence)),
            Some(TicketState::Waiting(_)) | None => {
                let view = self.observed.view(id);
                Err(match release::elsewhere(&view, node) {
                    // It does not come by calling again: that node has to let go, or to be fenced.
                    Some(sentence) => Status::failed_precondition(format!(
                        "{sentence}, and therefore not on node {node}: {last_reason}"
                    )),
                    None => Status::deadline_exceeded(format!(
                        "volume {id} is not attached to node {node} yet: {last_reason}"
                    )),
                })
            }
        }
    }

    pub(super) async fn unpublish(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<ControllerUnpublishVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        let node = limits::optional("node_id", &request.node_id)?;
        let node = Some(node).filter(|node| !node.is_empty());
        limits::map("secrets", &request.secrets)?;
        self.ready(deadline).await?;
        let _guard = self.in_flight.begin(id, "ControllerUnpublishVolume")?;
        if !is_object_name(id) {
            return Ok(ControllerUnpublishVolumeResponse::default());
        }
        let view = self.live_view(id, deadline).await?;
        // A volume goes only when its engines are gone, so that nothing of it can be published.
        if view.volume.is_none() {
            return Ok(ControllerUnpublishVolumeResponse::default());
        }
        let mut removed = Vec::new();
        if let Some(attachment) = &view.attachment {
            let tickets = attachment.spec.attachment_tickets.iter();
            removed = tickets
                .filter(|(_, ticket)| release::is_csi(ticket))
                .filter(|(_, ticket)| node.is_none_or(|node| node == ticket.node_id))
                .map(|(id, _)| id.clone())
                .collect();
            if !removed.is_empty() {
                let patch = removed.iter().map(|id| (id.clone(), Value::Null));
                self.patch_tickets(attachment, patch.collect(), deadline)
                    .await?;
            }
        }
        // After a restart the ticket may be gone while its status is not.
        match node {
            Some(node) => removed.push(ticket_id(id, node)),
            None => removed.extend(
                view.attachment
                    .iter()
                    .flat_map(|it| release::answered_csi(it)),
            ),
        }
        self.released(id, node, &removed, deadline).await?;
        Ok(ControllerUnpublishVolumeResponse::default())
    }

    /// Waits until the node has let go, or is shut out. The cache says when to look; only the API is believed.
    async fn released(
        &self,
        id: &str,
        node: Option<&str>,
        removed: &[String],
        deadline: Instant,
    ) -> Result<(), Status> {
        let mut changes = self.observed.subscribe(id);
        loop {
            changes.mark_seen();
            let mut reason = release::released(&self.observed.view(id), node, removed).err();
            if reason.is_none() {
                let live = self.live_view(id, deadline).await?;
                reason = release::released(&live, node, removed).err();
            }
            let Some(reason) = reason else {
                return Ok(());
            };
            tracing::debug!(volume.name = id, reason, "waiting for a detach");
            if !changes.changed(deadline).await {
                let place =
                    node.map_or_else(|| "every node".to_owned(), |node| format!("node {node}"));
                return Err(Status::deadline_exceeded(format!(
                    "volume {id} is not detached from {place} yet: {reason}"
                )));
            }
        }
    }
}
