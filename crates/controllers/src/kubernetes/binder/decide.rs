//! What to do next with one claim, and with one volume: pure, from the objects alone.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;

use super::quantity;

pub(super) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// One claim and what belongs to it.
pub(super) struct ClaimView<'a> {
    pub claim: &'a PersistentVolumeClaim,
    /// The volume that the claim names, or that is meant for it.
    pub volume: Option<&'a PersistentVolume>,
    pub classes: &'a [&'a StorageClass],
    /// Volumes that no claim has.
    pub free: &'a [&'a PersistentVolume],
    /// Some pod that has a node mounts it.
    pub is_used: bool,
    /// The driver that we provision for.
    pub driver: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimStep {
    Nothing,
    AddProtection,
    RemoveProtection,
    /// The default class, for a claim that names none.
    SetClass(String),
    Provision {
        class: String,
    },
    /// Write the claim into the volume.
    TakeVolume(String),
    /// Write the volume into the claim.
    NameVolume(String),
    MarkBound(String),
    MarkLost,
    Wait(ClaimWait),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimWait {
    NoClass,
    ClassMissing(String),
    FirstConsumer,
    /// Somebody else's driver.
    ExternalProvisioner(String),
    VolumeMissing(String),
    VolumeTaken(String),
    Mismatch {
        volume: String,
        problem: &'static str,
    },
}

impl ClaimWait {
    /// The reason of the event, whether it is a warning, and its sentence.
    pub fn event(&self) -> (&'static str, bool, String) {
        match self {
            ClaimWait::NoClass => (
                "FailedBinding",
                false,
                "no persistent volumes available for this claim and no storage class is set"
                    .to_owned(),
            ),
            ClaimWait::ClassMissing(class) => (
                "ProvisioningFailed",
                true,
                format!("storageclass.storage.k8s.io \"{class}\" not found"),
            ),
            ClaimWait::FirstConsumer => (
                "WaitForFirstConsumer",
                false,
                "waiting for first consumer to be created before binding".to_owned(),
            ),
            ClaimWait::ExternalProvisioner(name) => (
                "ExternalProvisioning",
                false,
                format!("waiting for a volume to be created by the external provisioner '{name}'"),
            ),
            ClaimWait::VolumeMissing(volume) => (
                "FailedBinding",
                true,
                format!("volume \"{volume}\" does not exist"),
            ),
            ClaimWait::VolumeTaken(volume) => (
                "FailedBinding",
                true,
                format!("volume \"{volume}\" already bound to a different claim."),
            ),
            ClaimWait::Mismatch { volume, problem } => (
                "VolumeMismatch",
                true,
                format!("Cannot bind to requested volume \"{volume}\": {problem}"),
            ),
        }
    }
}

pub(super) fn decide_claim(view: &ClaimView<'_>) -> ClaimStep {
    let claim = view.claim;
    let is_protected = has(claim.finalizers(), CLAIM_PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() {
        return if is_protected && !view.is_used {
            ClaimStep::RemoveProtection
        } else {
            ClaimStep::Nothing
        };
    }
    if !is_protected {
        return ClaimStep::AddProtection;
    }
    match named_volume(claim) {
        Some(name) => bind_named(view, name),
        None => find_volume(view),
    }
}

fn bind_named(view: &ClaimView<'_>, name: &str) -> ClaimStep {
    let claim = view.claim;
    let was_bound = claim.annotations().contains_key(BIND_COMPLETED);
    let Some(volume) = view.volume else {
        return match (was_bound, phase(claim)) {
            (true, "Lost") => ClaimStep::Nothing,
            (true, _) => ClaimStep::MarkLost,
            (false, _) => ClaimStep::Wait(ClaimWait::VolumeMissing(name.to_owned())),
        };
    };
    match owner(volume, claim) {
        Owner::This if !was_bound => ClaimStep::NameVolume(name.to_owned()),
        Owner::This if phase(claim) == "Bound" => ClaimStep::Nothing,
        Owner::This => ClaimStep::MarkBound(name.to_owned()),
        Owner::Other if was_bound && phase(claim) == "Lost" => ClaimStep::Nothing,
        Owner::Other if was_bound => ClaimStep::MarkLost,
        Owner::Other => ClaimStep::Wait(ClaimWait::VolumeTaken(name.to_owned())),
        Owner::Nobody | Owner::ThisName => match mismatch(claim, volume) {
            Some(problem) => ClaimStep::Wait(ClaimWait::Mismatch {
                volume: name.to_owned(),
                problem,
            }),
            None => ClaimStep::TakeVolume(name.to_owned()),
        },
    }
}

fn find_volume(view: &ClaimView<'_>) -> ClaimStep {
    let claim = view.claim;
    if let Some(volume) = view.volume {
        let name = volume.name_any();
        return match owner(volume, claim) {
            Owner::This => ClaimStep::NameVolume(name),
            Owner::ThisName | Owner::Nobody => ClaimStep::TakeVolume(name),
            Owner::Other => ClaimStep::Wait(ClaimWait::VolumeTaken(name)),
        };
    }
    let spec = claim.spec.as_ref();
    let Some(class_name) = spec.and_then(|spec| spec.storage_class_name.as_deref()) else {
        return match default_class(view.classes) {
            Some(class) => ClaimStep::SetClass(class.name_any()),
            None => smallest_fit(view)
                .map_or(ClaimStep::Wait(ClaimWait::NoClass), ClaimStep::TakeVolume),
        };
    };
    let class = view
        .classes
        .iter()
        .find(|class| class.name_any() == class_name);
    let waits_for_pod = class
        .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let is_selected = claim
        .annotations()
        .get(SELECTED_NODE)
        .is_some_and(|node| !node.is_empty());
    if waits_for_pod && !is_selected {
        return ClaimStep::Wait(ClaimWait::FirstConsumer);
    }
    if let Some(name) = smallest_fit(view) {
        return ClaimStep::TakeVolume(name);
    }
    match class {
        None if class_name.is_empty() => ClaimStep::Wait(ClaimWait::NoClass),
        None => ClaimStep::Wait(ClaimWait::ClassMissing(class_name.to_owned())),
        Some(class) if class.provisioner == view.driver => ClaimStep::Provision {
            class: class_name.to_owned(),
        },
        Some(class) => ClaimStep::Wait(ClaimWait::ExternalProvisioner(class.provisioner.clone())),
    }
}

/// The class that claims without one get: of several, the newest, as Kubernetes chooses.
fn default_class<'a>(classes: &[&'a StorageClass]) -> Option<&'a StorageClass> {
    let is_default = |class: &&&StorageClass| {
        let annotation = class.annotations().get(DEFAULT_CLASS);
        annotation.is_some_and(|value| value == "true")
    };
    classes
        .iter()
        .filter(is_default)
        .max_by_key(|class| {
            (
                class.metadata.creation_timestamp.clone(),
                std::cmp::Reverse(class.name_any()),
            )
        })
        .copied()
}

fn smallest_fit(view: &ClaimView<'_>) -> Option<String> {
    // A selector that we do not evaluate matches nothing.
    if view
        .claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.selector.is_some() || spec.data_source.is_some())
    {
        return None;
    }
    view.free
        .iter()
        .filter(|volume| mismatch(view.claim, volume).is_none())
        .min_by_key(|volume| (capacity(volume), volume.name_any()))
        .map(|volume| volume.name_any())
}

/// Whose a volume is, seen from a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    This,
    /// Reserved for a claim of this name.
    ThisName,
    Other,
}

pub(super) fn owner(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Owner {
    let Some(reference) = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref())
    else {
        return Owner::Nobody;
    };
    let is_name =
        reference.namespace == claim.metadata.namespace && reference.name == claim.metadata.name;
    match reference.uid.as_deref().filter(|uid| !uid.is_empty()) {
        _ if !is_name => Owner::Other,
        None => Owner::ThisName,
        Some(uid) if Some(uid) == claim.metadata.uid.as_deref() => Owner::This,
        Some(_) => Owner::Other,
    }
}

fn mismatch(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<&'static str> {
    let (Some(wanted), Some(given)) = (&claim.spec, &volume.spec) else {
        return Some("an object without a specification");
    };
    if volume.metadata.deletion_timestamp.is_some() {
        return Some("the volume is being deleted");
    }
    let class = |name: &Option<String>| name.clone().unwrap_or_default();
    if class(&wanted.storage_class_name) != class(&given.storage_class_name) {
        return Some("storageClassName does not match");
    }
    let mode = |mode: &Option<String>| mode.as_deref() == Some("Block");
    if mode(&wanted.volume_mode) != mode(&given.volume_mode) {
        return Some("incompatible volumeMode");
    }
    let modes = given.access_modes.clone().unwrap_or_default();
    let mut missing = wanted.access_modes.iter().flatten();
    if missing.any(|mode| !modes.contains(mode)) {
        return Some("incompatible accessMode");
    }
    if capacity(volume) < requested_bytes(claim).unwrap_or(0) {
        return Some("requested PV is too small");
    }
    None
}

fn capacity(volume: &PersistentVolume) -> i64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let storage = capacity.and_then(|capacity| capacity.get("storage"));
    storage
        .and_then(|amount| quantity::bytes(&amount.0))
        .unwrap_or(0)
}

pub(super) fn requested_bytes(claim: &PersistentVolumeClaim) -> Option<i64> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    quantity::bytes(&resources.requests.as_ref()?.get("storage")?.0)
}

pub(super) fn named_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(super) fn has(finalizers: &[String], name: &str) -> bool {
    finalizers.iter().any(|finalizer| finalizer == name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeStep {
    Nothing,
    AddProtection,
    RemoveProtection,
    SetPhase(&'static str),
    /// `DeleteVolume`, then the object.
    Destroy,
    /// Some attachment still names it.
    WaitForDetach,
}

/// One volume; `claim` is the one that its reference means, if it exists and is the same one.
pub(super) fn decide_volume(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
    is_attached: bool,
    driver: &str,
) -> VolumeStep {
    let Some(spec) = &volume.spec else {
        return VolumeStep::Nothing;
    };
    let is_deleting = volume.metadata.deletion_timestamp.is_some();
    let is_protected = has(volume.finalizers(), VOLUME_PROTECTION);
    if !is_deleting && !is_protected {
        return VolumeStep::AddProtection;
    }
    let reference = spec.claim_ref.as_ref();
    let is_reserved = reference.is_some_and(|reference| reference.uid.is_some());
    let wanted_phase = match (reference, claim) {
        (_, Some(_)) => "Bound",
        (Some(_), None) if is_reserved => "Released",
        (Some(_) | None, None) => "Available",
    };
    if wanted_phase == "Bound" {
        return set_phase(volume, wanted_phase);
    }
    let is_ours = spec.csi.as_ref().is_some_and(|csi| csi.driver == driver)
        && volume
            .annotations()
            .get(PROVISIONED_BY)
            .is_some_and(|by| by == driver);
    let is_doomed = is_ours
        && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
        && (wanted_phase == "Released" || is_deleting);
    if is_doomed && is_protected {
        return match set_phase(volume, wanted_phase) {
            VolumeStep::Nothing if is_attached => VolumeStep::WaitForDetach,
            VolumeStep::Nothing => VolumeStep::Destroy,
            step => step,
        };
    }
    if is_deleting {
        return if is_protected {
            VolumeStep::RemoveProtection
        } else {
            VolumeStep::Nothing
        };
    }
    set_phase(volume, wanted_phase)
}

fn set_phase(volume: &PersistentVolume, phase: &'static str) -> VolumeStep {
    let status = volume.status.as_ref();
    if status.and_then(|status| status.phase.as_deref()) == Some(phase) {
        VolumeStep::Nothing
    } else {
        VolumeStep::SetPhase(phase)
    }
}

#[cfg(test)]
mod tests;
