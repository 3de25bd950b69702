//! Events, with Kubernetes' reasons and texts where it has them.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::identity::{ClaimKey, PodKey, PvName};
use crate::reason::Reason;
use crate::release::Release;

/// The API refuses longer messages in attach and detach errors, and cuts events.
pub const MESSAGE_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    pub target: EventTarget,
    pub kind: EventKind,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventTarget {
    Pod(PodKey),
    Claim(ClaimKey),
    Volume(PvName),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    SuccessfulAttachVolume,
    FailedAttachVolume,
    /// Kubernetes has no event for this; its users ask for one.
    SuccessfulDetachVolume,
    /// Nor for this.
    FailedDetachVolume,
    ForceDetachVolume,
}

impl EventKind {
    pub fn is_warning(self) -> bool {
        match self {
            EventKind::SuccessfulAttachVolume | EventKind::SuccessfulDetachVolume => false,
            EventKind::FailedAttachVolume
            | EventKind::FailedDetachVolume
            | EventKind::ForceDetachVolume => true,
        }
    }
}

impl Event {
    pub(crate) fn attached(pod: &PodKey, volume: &PvName) -> Self {
        let message = format!("AttachVolume.Attach succeeded for volume \"{volume}\"");
        Self::on_pod(pod, EventKind::SuccessfulAttachVolume, &message)
    }

    pub(crate) fn attach_failed(pod: &PodKey, volume: &PvName, error: &str) -> Self {
        let message = format!("AttachVolume.Attach failed for volume \"{volume}\" : {error}");
        Self::on_pod(pod, EventKind::FailedAttachVolume, &message)
    }

    /// `users` are the pods that have it elsewhere, if they can be told.
    pub(crate) fn multi_attach(pod: &PodKey, volume: &PvName, users: &[&PodKey]) -> Self {
        let names: Vec<&str> = users
            .iter()
            .filter(|user| user.namespace == pod.namespace)
            .map(|user| user.name.as_str())
            .collect();
        let hidden = users.len() - names.len();
        // Names of other namespaces' pods are not for everyone to read.
        let why = match (names.is_empty(), hidden) {
            (true, 0) => "Volume is already exclusively attached to one node and can't be attached to another".to_owned(),
            (true, count) => format!("Volume is already used by {count} pod(s) in different namespaces"),
            (false, 0) => format!("Volume is already used by pod(s) {}", names.join(", ")),
            (false, count) => {
                format!("Volume is already used by pod(s) {} and {count} pod(s) in different namespaces", names.join(", "))
            }
        };
        let message = format!("Multi-Attach error for volume \"{volume}\" {why}");
        Self::on_pod(pod, EventKind::FailedAttachVolume, &message)
    }

    /// A node does not get the volume, for all who look at the volume or its claim: the reason's own sentence.
    pub(crate) fn refused(volume: &PvName, reason: &Reason) -> Self {
        Self::on_volume(volume, EventKind::FailedAttachVolume, &reason.to_string())
    }

    pub(crate) fn detached(volume: &PvName, node: &impl fmt::Display) -> Self {
        let message =
            format!("DetachVolume.Detach succeeded for volume \"{volume}\" on node \"{node}\"");
        Self::on_volume(volume, EventKind::SuccessfulDetachVolume, &message)
    }

    pub(crate) fn detach_failed(volume: &PvName, node: &impl fmt::Display, error: &str) -> Self {
        let message = format!(
            "DetachVolume.Detach failed for volume \"{volume}\" on node \"{node}\" : {error}"
        );
        Self::on_volume(volume, EventKind::FailedDetachVolume, &message)
    }

    pub(crate) fn forced(volume: &PvName, node: &impl fmt::Display, release: Release) -> Self {
        let message = format!(
            "Volume \"{volume}\" is detached from node \"{node}\" although it is in use there: {release}"
        );
        Self::on_volume(volume, EventKind::ForceDetachVolume, &message)
    }

    fn on_volume(volume: &PvName, kind: EventKind, message: &str) -> Self {
        Self {
            target: EventTarget::Volume(volume.clone()),
            kind,
            message: truncate_message(message).to_owned(),
        }
    }

    fn on_pod(pod: &PodKey, kind: EventKind, message: &str) -> Self {
        Self {
            target: EventTarget::Pod(pod.clone()),
            kind,
            message: truncate_message(message).to_owned(),
        }
    }
}

/// Cuts a message to what the API accepts, between characters.
pub fn truncate_message(message: &str) -> &str {
    if message.len() <= MESSAGE_BYTES_MAX {
        return message;
    }
    let end = (0..=MESSAGE_BYTES_MAX)
        .rev()
        .find(|index| message.is_char_boundary(*index))
        .unwrap_or(0);
    &message[..end]
}

/// What a message says apart from its figures: numbers, with or without a unit, become `#`. Names with digits in them
/// stay, since another node or replica is another matter.
pub fn without_figures(message: &str) -> String {
    let mut pattern = String::with_capacity(message.len());
    for (index, word) in message.split(' ').enumerate() {
        if index > 0 {
            pattern.push(' ');
        }
        let core = word.trim_matches(|letter: char| letter.is_ascii_punctuation() && letter != '#');
        if is_figure(core) {
            pattern.push_str(&word.replacen(core, "#", 1));
        } else {
            pattern.push_str(word);
        }
    }
    pattern
}

/// `12`, `1.5`, `3/4`, `10Gi`, `85`, `200ms`: digits and what stands between them, then at most a short unit.
fn is_figure(word: &str) -> bool {
    let digits = word.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = word.len() - digits.len();
    let mut letters = digits.chars();
    unit <= 3
        && letters.next().is_some_and(|first| first.is_ascii_digit())
        && letters.all(|letter| letter.is_ascii_digit() || matches!(letter, '.' | ',' | '/' | ':'))
}

/// Longer names leave no room for the suffix that makes an event's name unique.
const NAME_BYTES_MAX: usize = 230;

/// The name of the event about an object that has this identity: the same one has the same name, whoever tells it.
pub fn event_name(object: &str, identity: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in identity {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    let digest = hasher.finalize();
    let hex: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let end = (0..=object.len().min(NAME_BYTES_MAX))
        .rev()
        .find(|index| object.is_char_boundary(*index))
        .unwrap_or(0);
    format!("{}.{hex}", &object[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_between_characters() {
        assert_eq!(truncate_message("short"), "short");
        assert_eq!(truncate_message(&"x".repeat(2000)).len(), 1024);
        // Three bytes each: 341 of them fit.
        assert_eq!(truncate_message(&"€".repeat(500)).len(), 1023);
        assert_eq!(truncate_message(&"x".repeat(1024)).len(), 1024);
    }

    #[test]
    fn figures_do_not_make_another_event() {
        let check = |message: &str, expected: &str| {
            assert_eq!(without_figures(message), expected, "{message}");
        };
        check("12 of 30 GiB are free", "# of # GiB are free");
        check("waits (200ms), at 85%.", "waits (#), at #%.");
        check("disk has 1.5Gi, needs 10737418240;", "disk has #, needs #;");
        // Names are not figures, whatever digits they have.
        check("attached on node node-1", "attached on node node-1");
        check("replica v-r-00000001 failed", "replica v-r-00000001 failed");
        check("pvc-12 3f 3 4096bytes", "pvc-12 # # 4096bytes");
        check("", "");
    }

    #[test]
    fn an_events_name_follows_from_its_identity() {
        let name = event_name("p", &["uid", "Reason"]);
        assert_eq!(name, event_name("p", &["uid", "Reason"]));
        assert_ne!(name, event_name("p", &["uidReason", ""]));
        assert!(name.starts_with("p."));
        assert_eq!(event_name(&"€".repeat(100), &[]).len(), 228 + 17);
    }

    #[test]
    fn other_namespaces_pods_are_counted_not_named() {
        let key = |namespace: &str, name: &str| PodKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        };
        let pod = key("a", "new");
        let check = |users: &[&PodKey], expected: &str| {
            let event = Event::multi_attach(&pod, &"pv".into(), users);
            assert_eq!(
                event.message,
                format!("Multi-Attach error for volume \"pv\" {expected}")
            );
        };
        check(
            &[],
            "Volume is already exclusively attached to one node and can't be attached to another",
        );
        check(&[&key("a", "old")], "Volume is already used by pod(s) old");
        check(
            &[&key("b", "secret")],
            "Volume is already used by 1 pod(s) in different namespaces",
        );
        check(
            &[&key("a", "old"), &key("b", "secret")],
            "Volume is already used by pod(s) old and 1 pod(s) in different namespaces",
        );
    }
}
