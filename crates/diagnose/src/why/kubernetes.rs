//! The upper half of the chain: pod, claim, PersistentVolume, and Kubernetes' own VolumeAttachment.

use api_types::names::{DRIVER, event_reason::FAILED_MOUNT};
use cluster_core::names::attachment_name;
use cluster_core::release::Hold;
use cluster_core::{NodeName, Reason};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::evidence::{Evidence, ObjectRef, last_seen};
use crate::findings::is_only_kept;
use crate::index::{Case, Index, handle, name, namespace};
use crate::verdict::Verdict;

use super::{Draft, Other, State, life, tickets};

/// What is younger than this is given the benefit of the doubt.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// What a node has not said of a mount for so long is over: a kubelet's longest pause is two minutes, and one attempt may take five, for a tool
/// that checks a file system has so long.
const MOUNT_RETRIES: SignedDuration = SignedDuration::from_mins(8);

fn is_young(index: &Index<'_>, since: Option<&Time>) -> bool {
    since.is_some_and(|since| index.now.duration_since(since.0) < PATIENCE)
}

pub(super) fn of_pod(index: &Index<'_>, wanted_namespace: &str, wanted: &str) -> Draft {
    let Some(pod) =
        index.dump.pods.iter().find(|pod| {
            name(&pod.metadata) == wanted && namespace(&pod.metadata) == wanted_namespace
        })
    else {
        return Draft::default();
    };
    let claims = cluster_core::wire::claims_of(pod);
    let mut drafts: Vec<(String, Draft)> = claims
        .iter()
        .map(|claim| {
            let mut draft = Draft::default();
            if pod_link(index, pod, &mut draft) {
                claim_link(index, &claim.namespace, &claim.name, Some(pod), &mut draft);
            }
            (claim.to_string(), draft)
        })
        .collect();
    if drafts.is_empty() {
        let mut draft = Draft::default();
        pod_link(index, pod, &mut draft);
        draft.fine(
            "pod",
            "the pod has no claims, so that no volume keeps it waiting",
            [],
        );
        return draft;
    }
    // The worst is the one that the pod waits for; of equals the first.
    drafts.sort_by_key(|(_, draft)| std::cmp::Reverse(draft.verdict));
    let (_, mut worst) = drafts.remove(0);
    worst.others = drafts
        .into_iter()
        .map(|(claim, draft)| Other {
            claim,
            verdict: draft.verdict.unwrap_or(Verdict::Idle),
        })
        .collect();
    worst
}

pub(super) fn of_claim(index: &Index<'_>, namespace: &str, name: &str) -> Draft {
    let mut draft = Draft::default();
    let pods = index
        .claim(namespace, name)
        .map(|claim| index.pods_of(claim))
        .unwrap_or_default();
    // A claim's story is that of the pod that waits for it.
    let pod = pods.iter().copied().find(|pod| !is_over(pod));
    claim_link(index, namespace, name, pod, &mut draft);
    draft
}

pub(super) fn of_volume(index: &Index<'_>, volume: &str) -> Draft {
    let mut draft = Draft {
        volume: Some(volume.to_owned()),
        ..Draft::default()
    };
    let Some(case) = index.case(volume) else {
        return draft;
    };
    // Of several stories the one of whoever waits: a pod, else a ticket; and if nobody does, of whoever has it.
    let waiting = |pod: &&&Pod| !is_over(pod) && phase(pod) != "Running";
    let pod = case.pods.iter().find(waiting);
    if pod.is_none() && tickets::has_waiting_workload(&case) {
        tickets::of_volume(index, &case, None, &mut draft);
        return draft;
    }
    let pod = pod.or_else(|| case.pods.iter().find(|pod| !is_over(pod)));
    attachment_link(index, &case, pod.copied(), &mut draft);
    draft
}

fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// False when the pod needs no volume.
fn pod_link(index: &Index<'_>, pod: &Pod, draft: &mut Draft) -> bool {
    let object = || ObjectRef::new("pods", &pod.metadata);
    let who = format!("{}/{}", namespace(&pod.metadata), name(&pod.metadata));
    let created = pod.metadata.creation_timestamp.as_ref();
    let phase_is = Evidence::new(object(), "status.phase", phase(pod)).since_time(created);
    if is_over(pod) {
        draft.fine(
            "pod",
            format!("pod {who} is over and needs no volume"),
            [phase_is],
        );
        draft.at_least(Verdict::Idle);
        return false;
    }
    if let Some(node) = node_of(pod) {
        draft.nodes.insert(node.to_owned());
        let word = if phase(pod) == "Running" {
            "runs"
        } else {
            "is to run"
        };
        let state = if phase(pod) == "Running" {
            State::Fine
        } else {
            State::Waiting
        };
        draft.link(
            "pod",
            state,
            format!("pod {who} {word} on node {node}"),
            [phase_is],
        );
        return true;
    }
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let scheduled = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    match scheduled {
        Some(condition) => {
            let message = condition.message.as_deref().unwrap_or_default();
            let evidence = Evidence::new(object(), "status.conditions[PodScheduled]", message)
                .since_time(condition.last_transition_time.as_ref());
            let sentence = format!("pod {who} has no node: {message}");
            if is_young(index, created) {
                draft.waits("pod", sentence, [evidence]);
            } else {
                draft.stuck("pod", sentence, [evidence]);
                draft.suggest(format!("kubectl describe {}", object().for_kubectl()));
            }
        }
        None => draft.waits("pod", format!("pod {who} has no node yet"), [phase_is]),
    }
    true
}

fn claim_link(
    index: &Index<'_>,
    claim_namespace: &str,
    claim_name: &str,
    pod: Option<&Pod>,
    draft: &mut Draft,
) {
    let who = format!("{claim_namespace}/{claim_name}");
    let Some(claim) = index.claim(claim_namespace, claim_name) else {
        let object = ObjectRef::named("persistentvolumeclaims", claim_namespace, claim_name);
        draft.stuck(
            "claim",
            format!("claim {who} does not exist"),
            [Evidence::missing(object)],
        );
        draft.suggest(format!(
            "create the claim {who}, or correct its name in the pod"
        ));
        return;
    };
    let object = || ObjectRef::new("persistentvolumeclaims", &claim.metadata);
    let created = claim.metadata.creation_timestamp.as_ref();
    let status = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let evidence = Evidence::new(object(), "status.phase", status.unwrap_or("Pending"));
    let Some(pv_name) = cluster_core::wire::claim(claim).volume else {
        let sentence = format!("claim {who} has no volume yet");
        if status == Some("Lost") {
            draft.stuck(
                "claim",
                format!("claim {who} has lost its volume"),
                [evidence],
            );
        } else if waits_for_pod(claim, pod) {
            draft.waits(
                "claim",
                format!("{sentence}: it gets one when a pod uses it"),
                [evidence],
            );
        } else if is_young(index, created) {
            draft.waits("claim", sentence, [evidence.since_time(created)]);
        } else {
            draft.stuck("claim", sentence, [evidence.since_time(created)]);
            draft.suggest(format!("kubectl describe {}", object().for_kubectl()));
            draft.suggest("kubectl get storageclass    # is there one of that name?");
        }
        return;
    };
    draft.fine(
        "claim",
        format!("claim {who} is bound to volume {pv_name}"),
        [evidence],
    );
    match index.persistent_volume(pv_name.as_str()) {
        Some(volume) => volume_link(index, volume, pod, draft),
        None => {
            let object = ObjectRef::named("persistentvolumes", "", pv_name.as_str());
            draft.stuck(
                "volume",
                format!("PersistentVolume {pv_name} does not exist"),
                [Evidence::missing(object)],
            );
        }
    }
}

/// A claim that nobody uses may wait for its first pod for ever; that is no trouble.
fn waits_for_pod(claim: &PersistentVolumeClaim, pod: Option<&Pod>) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    let chosen =
        annotations.is_some_and(|all| all.contains_key("volume.kubernetes.io/selected-node"));
    pod.is_none() && !chosen
}

fn volume_link(index: &Index<'_>, volume: &PersistentVolume, pod: Option<&Pod>, draft: &mut Draft) {
    let pv_name = name(&volume.metadata);
    let Some(handle) = handle(volume) else {
        let driver = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let driver = driver.map_or("no CSI driver", |csi| csi.driver.as_str());
        let evidence = Evidence::new(
            ObjectRef::new("persistentvolumes", &volume.metadata),
            "spec.csi.driver",
            driver,
        );
        draft.fine(
            "volume",
            format!("volume {pv_name} belongs to {driver}, of which nothing more is known here"),
            [evidence],
        );
        return;
    };
    draft.volume = Some(handle.to_owned());
    match index.case(handle) {
        Some(case) => attachment_link(index, &case, pod, draft),
        None => {
            let object = ObjectRef::ours("volumes.longhorn.io", handle);
            draft.stuck(
                "volume",
                format!("volume {handle} does not exist any more, only its PersistentVolume does"),
                [Evidence::missing(object)],
            );
            draft.suggest("restore the volume from a backup under the same name, or delete claim and PersistentVolume");
        }
    }
}

/// Kubernetes' VolumeAttachment for the pod's node, and on to the tickets where that is the driver's turn.
fn attachment_link(index: &Index<'_>, case: &Case<'_>, pod: Option<&Pod>, draft: &mut Draft) {
    let Some(node) = pod.and_then(node_of) else {
        return tickets::of_volume(index, case, None, draft);
    };
    draft.nodes.insert(node.to_owned());
    let id = attachment_name(&case.name.into(), &DRIVER.into(), &node.into());
    let wanted = NodeName::from(node);
    let waits = case.cluster_reasons.iter().find(|reason| match reason {
        Reason::WaitingForDetach { wanted: to, .. } | Reason::WaitingForTurn { wanted: to, .. } => {
            *to == wanted
        }
        Reason::NodeFull { node, .. } => *node == wanted,
        _ => false,
    });
    if let Some(reason) = waits {
        return multi_attach(index, case, reason, draft);
    }
    let Some(attachment) = index.attachment(id.as_str()) else {
        let object = ObjectRef::named("volumeattachments.storage.k8s.io", "", id.as_str());
        let created = pod.and_then(|pod| pod.metadata.creation_timestamp.as_ref());
        let sentence = format!(
            "Kubernetes has not asked for volume {} on node {node} yet",
            case.name
        );
        let evidence = [Evidence::missing(object)];
        if is_young(index, created) {
            draft.waits("attachment", sentence, evidence);
        } else {
            draft.stuck("attachment", sentence, evidence);
            draft.suggest("see whether the attach-detach controller runs (kube-controller-manager, or `lariat manager --embedded`)");
        }
        return;
    };
    let object = || ObjectRef::new("volumeattachments.storage.k8s.io", &attachment.metadata);
    let created = attachment.metadata.creation_timestamp.as_ref();
    if let Some(deleted) = attachment.metadata.deletion_timestamp.as_ref() {
        let evidence = Evidence::new(object(), "metadata.deletionTimestamp", deleted.0);
        let evidence = [evidence.since_time(Some(deleted))];
        if is_only_kept(index, attachment) {
            let sentence = format!("the old attachment to node {node} was deleted and does not go");
            draft.stuck("attachment", sentence, evidence);
        } else {
            let sentence =
                format!("the attachment to node {node} is being deleted; a new one follows");
            draft.waits("attachment", sentence, evidence);
        }
        draft.waits_since(Some(deleted.0));
        draft.by_itself("a new attachment is made when this one is gone");
        return tickets::of_volume(index, case, None, draft);
    }
    let status = attachment.status.as_ref();
    if status.is_some_and(|status| status.attached) {
        let evidence = Evidence::new(object(), "status.attached", true).since_time(created);
        draft.fine(
            "attachment",
            format!("for Kubernetes it is attached to node {node}"),
            [evidence],
        );
    } else {
        let error = status.and_then(|status| status.attach_error.as_ref());
        let evidence = match error {
            Some(error) => {
                let message = error.message.as_deref().unwrap_or_default();
                Evidence::new(object(), "status.attachError.message", message)
                    .since_time(error.time.as_ref())
            }
            None => Evidence::new(object(), "status.attached", false).since_time(created),
        };
        let sentence = format!("Kubernetes waits until the driver has attached it to node {node}");
        draft.waits("attachment", sentence, [evidence]);
        draft.waits_since(created.map(|time| time.0));
    }
    tickets::of_volume(index, case, Some(id.as_str()), draft);
    if draft.verdict == Some(Verdict::Attached) && pod.is_some_and(|pod| !has_its_mounts(pod)) {
        mount_link(index, case, node, draft);
    }
}

/// A kubelet makes a pod's sandbox when all its volumes are mounted, and not before; one that plays a kubelet says that the pod runs.
fn has_its_mounts(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    let has_sandbox = conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "PodReadyToStartContainers" && condition.status == "True"
    });
    has_sandbox || phase(pod) != "Pending"
}

/// The node has the volume's device: what it says of mounting it, as long as it goes on saying it.
fn mount_link(index: &Index<'_>, case: &Case<'_>, node: &str, draft: &mut Draft) {
    draft.goes_by_events = true;
    let refusals = index.dump.events.iter().filter(|event| {
        let source = event.source.as_ref();
        event.reason.as_deref() == Some(FAILED_MOUNT)
            && event.involved_object.uid == case.volume.metadata.uid
            && source.and_then(|source| source.host.as_deref()) == Some(node)
    });
    let newest = refusals
        .filter_map(|event| last_seen(event).map(|at| (at, event)))
        .max_by_key(|(at, _)| *at);
    let Some((_, event)) = newest.filter(|(at, _)| index.now.duration_since(*at) < MOUNT_RETRIES)
    else {
        return;
    };
    let message = event.message.as_deref().unwrap_or_default();
    let evidence = Evidence::new(
        ObjectRef::new("events", &event.metadata),
        "reason",
        FAILED_MOUNT,
    )
    .since_time(event.first_timestamp.as_ref());
    draft.stuck(
        "mount",
        format!("node {node} has the device and does not mount it: {message}"),
        [evidence],
    );
    draft.by_itself(
        "the node tries again, with pauses of two minutes at most, and mounts it when the cause is gone",
    );
    draft.suggest(format!(
        "do what it says, on node {node} where it names a device"
    ));
}

/// The volume is, or may be, on another node: what keeps it there?
fn multi_attach(index: &Index<'_>, case: &Case<'_>, reason: &Reason, draft: &mut Draft) {
    let holder = match reason {
        Reason::WaitingForDetach { holder, .. } => holder,
        Reason::WaitingForTurn { first, .. } => first,
        Reason::NodeFull { node, .. } => {
            let evidence = Evidence::new(
                ObjectRef::named("csinodes.storage.k8s.io", "", node.as_str()),
                "spec.drivers[].allocatable.count",
                "reached",
            );
            draft.stuck("attachment", reason.to_string(), [evidence]);
            return;
        }
        _ => return,
    };
    draft.nodes.insert(holder.as_str().to_owned());
    let id = attachment_name(&case.name.into(), &DRIVER.into(), holder);
    let evidence = index.attachment(id.as_str()).map(|attachment| {
        let is_attached = attachment
            .status
            .as_ref()
            .is_some_and(|status| status.attached);
        let object = ObjectRef::new("volumeattachments.storage.k8s.io", &attachment.metadata);
        Evidence::new(object, "status.attached", is_attached)
            .since_time(attachment.metadata.creation_timestamp.as_ref())
    });
    draft.link("attachment", State::Waiting, reason.to_string(), evidence);
    let next = case.cluster_reasons.iter().find(|reason| match reason {
        Reason::Detaching { node, .. } | Reason::DetachHeld { node, .. } => node == holder,
        _ => false,
    });
    let users = case
        .pods
        .iter()
        .filter(|pod| node_of(pod) == Some(holder.as_str()) && !is_over(pod));
    let users: Vec<&&Pod> = users.collect();
    match next {
        Some(Reason::DetachHeld { hold, .. }) => {
            let evidence = crate::findings::node_evidence(index, holder.as_str());
            let sentence = next.map(ToString::to_string).unwrap_or_default();
            match hold {
                Hold::NotReady { left } | Hold::NodeGone { left } => {
                    draft.waits("node", sentence, evidence);
                    draft.by_itself(format!(
                        "the volume is released within {} s, or as soon as it is fenced",
                        left.as_secs()
                    ));
                    life::fence(case, draft);
                }
                Hold::StillMounted
                    if users
                        .iter()
                        .any(|pod| pod.metadata.deletion_timestamp.is_some()) =>
                {
                    draft.waits("node", sentence, evidence);
                    draft.by_itself("the volume is released when the pod there has ended");
                }
                Hold::StillMounted | Hold::ForceDisabled => draft.stuck("node", sentence, evidence),
            }
        }
        Some(other) => {
            draft.waits("attachment", other.to_string(), []);
            draft.by_itself("the volume is detached there and then attached here");
        }
        None => held_by_pods(index, case, holder, &users, id.as_str(), draft),
    }
}

fn held_by_pods(
    index: &Index<'_>,
    case: &Case<'_>,
    holder: &NodeName,
    users: &[&&Pod],
    id: &str,
    draft: &mut Draft,
) {
    if index
        .attachment(id)
        .is_some_and(|attachment| attachment.metadata.deletion_timestamp.is_some())
    {
        draft.waits(
            "attachment",
            format!("the driver is detaching it from node {holder}"),
            crate::findings::node_evidence(index, holder.as_str()),
        );
        return tickets::of_volume(index, case, Some(id), draft);
    }
    for pod in users {
        let object = ObjectRef::new("pods", &pod.metadata);
        let evidence = Evidence::new(object.clone(), "spec.nodeName", holder)
            .since_time(pod.metadata.creation_timestamp.as_ref());
        let who = format!("{}/{}", namespace(&pod.metadata), name(&pod.metadata));
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        if is_leaving {
            draft.waits(
                "pod",
                format!("pod {who} uses it on node {holder} and is ending"),
                [evidence],
            );
            draft.by_itself("the volume is released when that pod has ended");
        } else {
            draft.stuck(
                "pod",
                format!("pod {who} uses it on node {holder}"),
                [evidence],
            );
            draft.suggest(format!(
                "kubectl delete {}    # if it need not run there",
                object.for_kubectl()
            ));
        }
    }
    if users.is_empty() {
        draft.waits(
            "attachment",
            format!("nobody uses it on node {holder} any more"),
            [],
        );
    }
}
