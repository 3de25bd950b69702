//! One pod's volumes: mounted before it is called running, unmounted before it is gone.
//!
//! A volume is worked on by one pod at a time, different volumes side by side. All that has to survive a restart is in
//! the pod's folder, in the kernel's table of mounts and in the API.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api_types::names::{self, event_reason};
use cluster_core::names::UniqueVolumeName;
use events::{EventKind, Recorder, sentence};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;
use thiserror::Error;
use tokio::sync::Notify;

use super::KubeletOptions;
use super::csi::{CsiFailure, MountRequest, NodeCsi};
use super::node::{NodeObject, lists_as_attached};
use super::paths::{KubeletDir, Mounted, PodMounts};
use super::resolve::{PodVolume, Unresolved, resolve};
use crate::mount_table;

/// How often a pod at rest is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// After a failure; doubled up to the longest.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LONGEST: Duration = Duration::from_secs(30);

/// A pod that has waited this long for others says so in an event.
const WAIT_BEFORE_EVENT: Duration = Duration::from_secs(10);

/// What pods' tasks share.
pub(super) struct Manager {
    pub options: KubeletOptions,
    pub client: Client,
    pub dir: KubeletDir,
    pub csi: Arc<dyn NodeCsi>,
    pub node: NodeObject,
    pub recorder: Recorder,
    pub pods: Store<Pod>,
    pub claims: Store<PersistentVolumeClaim>,
    pub volumes: Store<PersistentVolume>,
    pub attachments: Store<VolumeAttachment>,
    /// The only object in it is this node's.
    pub own_node: Store<Node>,
    pub locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// The pods that have each volume, or are about to.
    pub users: Mutex<HashMap<String, BTreeSet<String>>>,
}

/// How a pod's task is told that something has changed, and tells whether it waits for that.
#[derive(Default)]
pub(super) struct Wake {
    changed: Notify,
    settled: AtomicBool,
}

impl Wake {
    pub fn notify(&self) {
        self.changed.notify_one();
    }

    /// Whether all is as it should be, so that changes elsewhere mean nothing to this pod.
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::SeqCst)
    }
}

/// What a pod's folder and mounts should come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Mounted,
    Unmounted,
    /// Unmounted, and then the object goes.
    Gone,
}

#[derive(Debug, Error)]
enum PodError {
    #[error("{0}")]
    Waiting(String),
    #[error("{0}")]
    Foreign(String),
    #[error("MountVolume.SetUp failed for volume \"{pv}\" : {source}")]
    Mount { pv: String, source: CsiFailure },
    #[error("UnmountVolume.TearDown failed for volume \"{pv}\" : {source}")]
    Unmount { pv: String, source: CsiFailure },
    #[error("cannot use the pod's folder")]
    Folder(#[source] std::io::Error),
    #[error("the API refused or did not answer")]
    Api(#[from] kube::Error),
}

fn wish(pod: &Pod) -> Wish {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    match (&pod.metadata.deletion_timestamp, phase) {
        (Some(_), _) => Wish::Gone,
        (None, Some("Succeeded" | "Failed")) => Wish::Unmounted,
        (None, _) => Wish::Mounted,
    }
}

impl Manager {
    /// Follows one pod until it is gone from the API and from this node.
    pub async fn follow(self: &Arc<Self>, uid: &str, wake: &Wake) {
        let (mut failures, mut said, begun) = (0u32, String::new(), Instant::now());
        loop {
            // Before it looks: what changes from now on is to be told.
            wake.settled.store(false, Ordering::SeqCst);
            let pod = self.find(uid);
            let settled = match &pod {
                Some(pod) => self.settle(pod, uid).await,
                None => match self.tear_down(uid).await {
                    Ok(()) => return,
                    Err(error) => Err(error),
                },
            };
            let pause = match settled {
                Ok(()) => {
                    failures = 0;
                    said.clear();
                    wake.settled.store(true, Ordering::SeqCst);
                    LOOK_AGAIN
                }
                Err(error) => {
                    let text = sentence(&error);
                    tracing::debug!(pod.uid = uid, error = text, "a pod is not settled");
                    let waits = matches!(error, PodError::Waiting(_));
                    if let Some(pod) = &pod
                        && text != said
                        && (!waits || begun.elapsed() >= WAIT_BEFORE_EVENT)
                    {
                        let reason = match &error {
                            PodError::Unmount { .. } => "FailedUnmount",
                            _ => event_reason::FAILED_MOUNT,
                        };
                        let about = [Some(pod.object_ref(&())), self.claim_behind(&error)];
                        for about in about.iter().flatten() {
                            self.recorder
                                .record(about, EventKind::Warning, reason, &text)
                                .await;
                        }
                        said = text;
                    }
                    failures = failures.saturating_add(1);
                    if waits { LOOK_AGAIN } else { retry(failures) }
                }
            };
            let _ = tokio::time::timeout(pause, wake.changed.notified()).await;
        }
    }

    /// Whose volume could not be mounted: whoever looks after the data looks there, and not at pods.
    fn claim_behind(&self, error: &PodError) -> Option<ObjectReference> {
        let PodError::Mount { pv, .. } = error else {
            return None;
        };
        let volume = self.volumes.get(&ObjectRef::new(pv))?;
        volume.spec.as_ref()?.claim_ref.clone()
    }

    fn find(&self, uid: &str) -> Option<Arc<Pod>> {
        self.pods
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid))
    }

    async fn settle(&self, pod: &Pod, uid: &str) -> Result<(), PodError> {
        match wish(pod) {
            Wish::Mounted => self.set_up(pod, uid).await,
            Wish::Unmounted => self.tear_down(uid).await,
            Wish::Gone => {
                self.tear_down(uid).await?;
                self.delete(pod).await
            }
        }
    }

    async fn set_up(&self, pod: &Pod, uid: &str) -> Result<(), PodError> {
        let claim_of = |namespace: &str, name: &str| {
            let found = self.claims.get(&ObjectRef::new(name).within(namespace));
            found.map(|claim| claim.as_ref().clone())
        };
        let volume_of = |name: &str| {
            let found = self.volumes.get(&ObjectRef::new(name));
            found.map(|volume| volume.as_ref().clone())
        };
        let volumes = resolve(pod, claim_of, volume_of).map_err(|unresolved| match unresolved {
            Unresolved::Waiting(why) => PodError::Waiting(why),
            Unresolved::Foreign(why) => PodError::Foreign(why),
        })?;
        let foreign = volumes
            .iter()
            .find(|volume| volume.driver != self.options.driver);
        if let Some(volume) = foreign {
            let why = format!(
                "volume \"{}\" is of driver {}, which this node does not have",
                volume.pv, volume.driver
            );
            return Err(PodError::Foreign(why));
        }
        if !volumes.is_empty() {
            self.note(uid, &volumes)?;
        }
        let mounts = join_all(volumes.iter().map(|volume| self.mount(pod, uid, volume))).await;
        let mut paths = BTreeMap::new();
        for (volume, mounted) in volumes.iter().zip(mounts) {
            paths.insert(volume.name.clone(), mounted?);
        }
        self.say_running(pod, &paths).await
    }

    /// Writes down what is about to be mounted, before it is.
    fn note(&self, uid: &str, volumes: &[PodVolume]) -> Result<(), PodError> {
        let mounts = PodMounts {
            volumes: volumes
                .iter()
                .map(|volume| (volume.pv.clone(), Mounted::from(volume)))
                .collect(),
        };
        if self.dir.load(uid) != mounts {
            self.dir.save(uid, &mounts).map_err(PodError::Folder)?;
        }
        let mut users = lock(&self.users);
        for volume in volumes {
            let pods = users.entry(volume.handle.clone()).or_default();
            pods.insert(uid.to_owned());
        }
        Ok(())
    }

    async fn mount(&self, pod: &Pod, uid: &str, volume: &PodVolume) -> Result<PathBuf, PodError> {
        let guard = self.lock_of(&volume.handle);
        let _guard = guard.lock().await;
        let unique = self.unique(&volume.handle);
        let mounted = Mounted::from(volume);
        let request = MountRequest {
            handle: volume.handle.clone(),
            staging: self.dir.staging(&volume.pv, &mounted),
            target: self.dir.target(uid, &volume.pv, volume.block),
            block: volume.block,
            fs_type: volume.fs_type.clone(),
            mount_flags: volume.mount_flags.clone(),
            access: volume.access,
            read_only: volume.read_only,
            publish_context: BTreeMap::new(),
            volume_context: volume.attributes.clone(),
        };
        // Whoever detaches looks at this first: it must be there before anything is mounted.
        self.node.use_volume(&unique.to_string()).await?;
        if self.is_mounted(&volume.handle, &request.target)? {
            return Ok(request.target);
        }
        let request = MountRequest {
            publish_context: self.attached(&unique).await?,
            ..request
        };
        std::fs::create_dir_all(&request.staging).map_err(PodError::Folder)?;
        if let Some(parent) = request.target.parent() {
            std::fs::create_dir_all(parent).map_err(PodError::Folder)?;
        }
        let failed = |source| PodError::Mount {
            pv: volume.pv.clone(),
            source,
        };
        self.csi.stage(&request).await.map_err(failed)?;
        self.csi.publish(&request).await.map_err(failed)?;
        // Without waiting: the pod is not to wait for words about it.
        let (recorder, about) = (self.recorder.clone(), pod.object_ref(&()));
        let message = format!("MountVolume.SetUp succeeded for volume \"{}\"", volume.pv);
        tokio::spawn(async move {
            recorder
                .record(&about, EventKind::Normal, "SuccessfulMountVolume", &message)
                .await;
        });
        Ok(request.target)
    }

    /// What the attachment of a volume to this node says, once it is attached and nobody is about to take it away.
    async fn attached(
        &self,
        unique: &UniqueVolumeName,
    ) -> Result<BTreeMap<String, String>, PodError> {
        let waiting = |why: &str| {
            let handle = &unique.handle;
            Err(PodError::Waiting(format!(
                "waiting for volume \"{handle}\" to be attached to this node{why}"
            )))
        };
        let name = unique.attachment_on(&self.options.node.as_str().into());
        let Some(attachment) = self.attachments.get(&ObjectRef::new(name.as_str())) else {
            return waiting("");
        };
        if attachment.metadata.deletion_timestamp.is_some() {
            return waiting(": it is being detached first");
        }
        let status = attachment.status.clone().unwrap_or_default();
        if !status.attached {
            let error = status.attach_error.and_then(|error| error.message);
            return waiting(&error.map_or_else(String::new, |error| format!(": {error}")));
        }
        let unique = unique.to_string();
        let lists = |node: Arc<Node>| lists_as_attached(&node, &unique);
        let listed = self.own_node.find(|_| true).is_some_and(lists);
        if !listed || !self.node.has_attached(&unique).await? {
            return waiting(": the node does not list it yet");
        }
        Ok(status.attachment_metadata.unwrap_or_default())
    }

    /// Whether the volume is at its place. A mount of a device that the volume has no more does not count: its engine
    /// was replaced, and so was the device.
    fn is_mounted(&self, handle: &str, target: &Path) -> Result<bool, PodError> {
        let mounts = mount_table::below(self.dir.root()).map_err(PodError::Folder)?;
        let Some(mount) = mounts.iter().rev().find(|mount| mount.target == target) else {
            return Ok(false);
        };
        let device = std::fs::canonicalize(self.options.devices.join(handle));
        let Ok(device) = device else {
            // The engine is away, for a moment or for good: there is nothing better to mount.
            return Ok(true);
        };
        let number = mount_table::device_number(&device).map_err(PodError::Folder)?;
        let node = device.file_name().map(|name| Path::new("/").join(name));
        Ok(mount.device == number || Some(&mount.root) == node.as_ref())
    }

    /// Unmounts all that a pod has here; tries until it has, so bound it.
    pub async fn tear_down_for_good(&self, uid: &str) {
        while let Err(error) = self.tear_down(uid).await {
            tracing::warn!(
                pod.uid = uid,
                error = &error as &dyn std::error::Error,
                "cannot unmount a pod's volumes yet"
            );
            tokio::time::sleep(RETRY_FIRST).await;
        }
    }

    async fn tear_down(&self, uid: &str) -> Result<(), PodError> {
        let mounts = self.dir.load(uid);
        let unmounts = mounts
            .volumes
            .iter()
            .map(|(pv, mounted)| self.unmount(uid, pv, mounted));
        for unmounted in join_all(unmounts).await {
            unmounted?;
        }
        self.dir.forget(uid, &mounts);
        Ok(())
    }

    async fn unmount(&self, uid: &str, pv: &str, mounted: &Mounted) -> Result<(), PodError> {
        let guard = self.lock_of(&mounted.handle);
        let _guard = guard.lock().await;
        let failed = |source| PodError::Unmount {
            pv: pv.to_owned(),
            source,
        };
        let target = self.dir.target(uid, pv, mounted.block);
        self.csi
            .unpublish(&mounted.handle, &target)
            .await
            .map_err(failed)?;
        let last = {
            let mut users = lock(&self.users);
            let pods = users.entry(mounted.handle.clone()).or_default();
            pods.remove(uid);
            pods.is_empty()
        };
        if last {
            let staging = self.dir.staging(pv, mounted);
            self.csi
                .unstage(&mounted.handle, &staging)
                .await
                .map_err(failed)?;
            // The service removes it or not; an empty folder means nothing.
            let _ = std::fs::remove_dir(&staging);
            if let Some(folder) = staging.parent() {
                let _ = std::fs::remove_dir(folder);
            }
            let unique = self.unique(&mounted.handle).to_string();
            self.node.release_volume(&unique).await?;
        }
        Ok(())
    }

    async fn delete(&self, pod: &Pod) -> Result<(), PodError> {
        let api: Api<Pod> =
            Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        match api.delete(&pod.name_any(), &parameters).await {
            Ok(_) => Ok(()),
            // It is gone, or a namesake has taken its place.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn say_running(
        &self,
        pod: &Pod,
        paths: &BTreeMap<String, PathBuf>,
    ) -> Result<(), PodError> {
        let api: Api<Pod> =
            Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let mounts = serde_json::to_string(paths).map_err(kube::Error::SerdeError)?;
        let annotated = pod.annotations().get(names::annotation::MOUNTS) == Some(&mounts);
        if !annotated && !paths.is_empty() {
            let patch = json!({"metadata": {
                "uid": pod.metadata.uid,
                "annotations": {names::annotation::MOUNTS: mounts},
            }});
            gone_is_fine(
                api.patch(
                    &pod.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(&patch),
                )
                .await,
            )?;
        }
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if phase == Some("Running") {
            return Ok(());
        }
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let text = "its volumes are mounted; this node runs no containers";
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True", "lastTransitionTime": now,
                "reason": "VolumesMounted", "message": text})
        };
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {
            "phase": "Running",
            "hostIP": self.options.host.to_string(),
            "startTime": now,
            "conditions": [condition("Initialized"), condition("ContainersReady"), condition("Ready")],
        }});
        // Strategic: the scheduler's condition stays.
        gone_is_fine(
            api.patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await,
        )
    }

    fn unique(&self, handle: &str) -> UniqueVolumeName {
        UniqueVolumeName {
            driver: self.options.driver.as_str().into(),
            handle: handle.into(),
        }
    }

    fn lock_of(&self, handle: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock(&self.locks);
        // Those that nobody holds or waits for need not be kept.
        locks.retain(|_, held| Arc::strong_count(held) > 1);
        locks.entry(handle.to_owned()).or_default().clone()
    }

    /// Reads what a predecessor had mounted, and for whom; returns the volumes in use.
    pub fn remember(&self) -> BTreeSet<String> {
        let mut users = lock(&self.users);
        for uid in self.dir.pods() {
            for mounted in self.dir.load(&uid).volumes.into_values() {
                users.entry(mounted.handle).or_default().insert(uid.clone());
            }
        }
        users
            .keys()
            .map(|handle| self.unique(handle).to_string())
            .collect()
    }
}

fn gone_is_fine(patched: Result<Pod, kube::Error>) -> Result<(), PodError> {
    match patched {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn retry(failures: u32) -> Duration {
    let doubled = RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(RETRY_LONGEST)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pod_should_come_to() {
        let check = |deleting: bool, phase: Option<&str>, expected: Wish| {
            let mut value = json!({"metadata": {"name": "p"}});
            if deleting {
                value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            if let Some(phase) = phase {
                value["status"]["phase"] = phase.into();
            }
            let pod: Pod = serde_json::from_value(value).expect("a pod");
            assert_eq!(wish(&pod), expected, "{deleting} {phase:?}");
        };
        check(false, None, Wish::Mounted);
        check(false, Some("Pending"), Wish::Mounted);
        check(false, Some("Running"), Wish::Mounted);
        check(false, Some("Succeeded"), Wish::Unmounted);
        check(false, Some("Failed"), Wish::Unmounted);
        check(true, Some("Running"), Wish::Gone);
        check(true, Some("Failed"), Wish::Gone);
    }

    #[test]
    fn failures_are_retried_ever_later() {
        assert_eq!(retry(1), RETRY_FIRST);
        assert_eq!(retry(2), RETRY_FIRST * 2);
        assert_eq!(retry(100), RETRY_LONGEST);
    }
}
