//! Which volumes there are, where they are, and how they are.

use api_types::{Volume, VolumeRobustness, VolumeState, condition, volume_condition};
use tonic::{Request, Status};

use super::ControllerService;
use super::api::is_object_name;
use super::lifecycle::csi_volume;
use super::observed::View;
use super::release::published_nodes;
use crate::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ListVolumesRequest, ListVolumesResponse, VolumeHealth,
    VolumeHealthErrorType, controller_get_volume_response, list_volumes_response,
    volume_health::VolumeHealthEntry,
};
use crate::{deadline, limits};

/// Entries of a page when the caller sets no limit: an answer has to fit gRPC's 4 MiB, and an entry has up to 400 bytes.
const PAGE_ENTRIES_MAX: usize = 5_000;
/// A token is this and the last name of the page before, so that volumes which come and go meanwhile shift nothing.
const TOKEN_PREFIX: &str = "after:";

impl ControllerService {
    pub(super) async fn list(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<ListVolumesResponse, Status> {
        self.ready(deadline::of(request.metadata())).await?;
        let request = request.into_inner();
        let (views, next_token) = self.page(request.max_entries, &request.starting_token)?;
        let entries = views.iter().filter_map(|view| {
            Some(list_volumes_response::Entry {
                volume: Some(csi_volume(view.volume.as_ref()?)),
                status: Some(list_volumes_response::VolumeStatus {
                    published_node_ids: published_nodes(view),
                }),
            })
        });
        Ok(ListVolumesResponse {
            entries: entries.collect(),
            next_token,
        })
    }

    pub(super) async fn list_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<ControllerListVolumeHealthResponse, Status> {
        self.ready(deadline::of(request.metadata())).await?;
        let request = request.into_inner();
        limits::map("secrets", &request.secrets)?;
        let (views, next_token) = self.page(request.max_entries, &request.starting_token)?;
        let entries = views
            .iter()
            .filter_map(|view| Some(health(view.volume.as_ref()?)));
        Ok(ControllerListVolumeHealthResponse {
            entries: entries.collect(),
            next_token,
        })
    }

    pub(super) async fn get(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<ControllerGetVolumeResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        self.ready(deadline).await?;
        let volume = self.volume(id, deadline).await?;
        Ok(ControllerGetVolumeResponse {
            volume: Some(csi_volume(&volume)),
            status: Some(controller_get_volume_response::VolumeStatus {
                published_node_ids: published_nodes(&self.observed.view(id)),
            }),
        })
    }

    pub(super) async fn get_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<ControllerGetVolumeHealthResponse, Status> {
        let deadline = deadline::of(request.metadata());
        let request = request.into_inner();
        let id = limits::required("volume_id", &request.volume_id)?;
        limits::map("secrets", &request.secrets)?;
        self.ready(deadline).await?;
        let volume = self.volume(id, deadline).await?;
        Ok(ControllerGetVolumeHealthResponse {
            volume_health: Some(health(&volume)),
        })
    }

    /// A page of volumes, and the token of the next one; empty at the end.
    fn page(&self, entries_max: i32, token: &str) -> Result<(Vec<View>, String), Status> {
        let count = usize::try_from(entries_max)
            .map_err(|_| Status::invalid_argument("max_entries must not be negative"))?;
        let count = if count == 0 {
            PAGE_ENTRIES_MAX
        } else {
            count.min(PAGE_ENTRIES_MAX)
        };
        let mut views = self.observed.views(after(token)?, count + 1);
        let mut next = String::new();
        if views.len() > count {
            views.truncate(count);
            let last = views.last().and_then(|view| view.volume.as_ref());
            let name = last.and_then(|volume| volume.metadata.name.clone());
            next = format!("{TOKEN_PREFIX}{}", name.unwrap_or_default());
        }
        Ok((views, next))
    }
}

/// The name behind which a page begins.
fn after(token: &str) -> Result<&str, Status> {
    if token.is_empty() {
        return Ok("");
    }
    let name = token
        .strip_prefix(TOKEN_PREFIX)
        .filter(|name| is_object_name(name));
    name.ok_or_else(|| {
        Status::aborted(format!(
            "starting_token {:?} is none of ours; start again without a token",
            limits::shown(token)
        ))
    })
}

/// How a volume is; no entries for a volume that is fine, or of which nothing bad is known.
fn health(volume: &Volume) -> VolumeHealth {
    let mut entries = Vec::new();
    let mut say = |status: VolumeHealthErrorType, reason: &str, message: &str| {
        entries.push(VolumeHealthEntry {
            status: status.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    };
    if let Some(status) = &volume.status {
        match status.robustness {
            VolumeRobustness::Faulted => say(
                VolumeHealthErrorType::Inaccessible,
                "Faulted",
                "no replica that has all the data can be used",
            ),
            VolumeRobustness::Degraded => say(
                VolumeHealthErrorType::Degraded,
                "Degraded",
                "fewer replicas than wanted have all the data",
            ),
            VolumeRobustness::Healthy | VolumeRobustness::Unknown | VolumeRobustness::Other(_) => {}
        }
        let scheduled = condition::find(&status.conditions, volume_condition::SCHEDULED);
        let is_unscheduled = scheduled
            .filter(|condition| condition.status == api_types::ConditionStatus::False)
            .filter(|_| status.state != VolumeState::Deleting);
        if let Some(condition) = is_unscheduled {
            say(
                VolumeHealthErrorType::Degraded,
                "NotScheduled",
                &format!("not every wanted replica has a disk: {}", condition.message),
            );
        }
    }
    VolumeHealth {
        volume_id: volume.metadata.name.clone().unwrap_or_default(),
        health_statuses: entries,
    }
}

#[cfg(test)]
mod tests {
    use api_types::VolumeStatus;
    use tonic::Code;

    use super::*;

    #[test]
    fn tokens_are_ours_or_refused() {
        let check = |token: &str, expected: Result<&str, Code>| {
            assert_eq!(
                after(token).map_err(|status| status.code()),
                expected,
                "{token}"
            );
        };
        check("", Ok(""));
        check("after:pvc-1", Ok("pvc-1"));
        check("after:", Err(Code::Aborted));
        check("after:../x", Err(Code::Aborted));
        check("1", Err(Code::Aborted));
        check("invalid-token", Err(Code::Aborted));
    }

    #[test]
    fn health_tells_what_is_wrong() {
        let check = |robustness: VolumeRobustness, expected: &[&str]| {
            let volume = Volume {
                status: Some(VolumeStatus {
                    robustness,
                    ..VolumeStatus::default()
                }),
                ..Volume::default()
            };
            let entries = health(&volume).health_statuses;
            let reasons: Vec<&str> = entries.iter().map(|entry| entry.reason.as_str()).collect();
            assert_eq!(reasons, expected);
        };
        check(VolumeRobustness::Healthy, &[]);
        check(VolumeRobustness::Unknown, &[]);
        check(VolumeRobustness::Degraded, &["Degraded"]);
        check(VolumeRobustness::Faulted, &["Faulted"]);
        assert!(health(&Volume::default()).health_statuses.is_empty());
    }
}
