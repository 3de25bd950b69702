//! When an attachment that nobody wants may be given up.
//!
//! Kubernetes waits six minutes for a node that no longer answers, whatever is known about it. With a
//! fence proof nothing has to be waited for: whatever still runs there cannot write.

use std::fmt;
use std::time::Duration;

use crate::identity::Timestamp;
use crate::view::{Node, Settings};

/// What is known about the volume on that node.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// None if the Node object is gone.
    pub node: Option<&'a Node>,
    /// The node lists the volume in `volumesInUse`; unknown for a node that is gone.
    pub in_use: bool,
    pub fenced: bool,
    /// Another node is the only one that can write it: what this one had was the standby of a migration that is over.
    pub elsewhere: bool,
    /// Since when nobody has wanted it.
    pub unwanted_since: Timestamp,
}

/// Why it may be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// The node says that it is not mounted.
    Unmounted,
    /// A larger epoch shuts out whatever runs there.
    Fenced,
    /// The node does not answer, and the volume's writer is another.
    Elsewhere,
    /// A person has declared the node to be powered off.
    OutOfService,
    /// The node has not been ready for as long as Kubernetes waits.
    TimedOut,
    /// The Node object has been gone for that long.
    NodeGone,
}

/// Why not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// The node is well and still has it mounted.
    StillMounted,
    /// The node does not answer; released after `left` without an answer or at once with a proof.
    NotReady { left: Duration },
    /// The Node object is gone, and what ran there may still run.
    NodeGone { left: Duration },
    /// The node does not answer, and forcing is switched off.
    ForceDisabled,
}

pub fn may_release(
    situation: Situation<'_>,
    settings: &Settings,
    now: Timestamp,
) -> Result<Release, Hold> {
    if situation.fenced {
        return Ok(Release::Fenced);
    }
    let left = settings
        .unmount_wait
        .saturating_sub(now.since(situation.unwanted_since));
    match situation.node {
        Some(_) if !situation.in_use => Ok(Release::Unmounted),
        Some(node) if node.out_of_service => Ok(Release::OutOfService),
        Some(node) if node.ready => Err(Hold::StillMounted),
        Some(_) | None if situation.elsewhere => Ok(Release::Elsewhere),
        Some(_) | None if settings.never_force => Err(Hold::ForceDisabled),
        Some(_) if left.is_zero() => Ok(Release::TimedOut),
        Some(_) => Err(Hold::NotReady { left }),
        None if left.is_zero() => Ok(Release::NodeGone),
        None => Err(Hold::NodeGone { left }),
    }
}

impl Hold {
    pub fn wait(self) -> Option<Duration> {
        match self {
            Hold::StillMounted | Hold::ForceDisabled => None,
            Hold::NotReady { left } | Hold::NodeGone { left } => Some(left),
        }
    }
}

impl Release {
    /// Was it taken rather than given?
    pub fn is_forced(self) -> bool {
        match self {
            Release::Unmounted => false,
            Release::Fenced
            | Release::Elsewhere
            | Release::OutOfService
            | Release::TimedOut
            | Release::NodeGone => true,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Release::Unmounted => "it is not mounted there",
            Release::Fenced => "the volume is fenced, so nothing there can write",
            Release::Elsewhere => {
                "the node does not answer, and the volume is written from another"
            }
            Release::OutOfService => "the node is declared out of service",
            Release::TimedOut => "the node has not answered for the whole unmount wait",
            Release::NodeGone => "the node has been deleted and the unmount wait is over",
        })
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |left: &Duration| left.as_millis().div_ceil(1000);
        match self {
            Hold::StillMounted => f.write_str("it is still mounted there"),
            Hold::NotReady { left } => {
                write!(f, "the node does not answer; released in {} s, or at once with a fence proof", seconds(left))
            }
            Hold::NodeGone { left } => write!(
                f,
                "the node is deleted but may still run; released in {} s, or at once with a fence proof",
                seconds(left)
            ),
            Hold::ForceDisabled => f.write_str(
                "the node does not answer and forced detach is disabled; taint it out-of-service once it is powered off",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Words: `ready`, `lost`, `gone`, `taint`, `used`, `fence`, `elsewhere`, `never`, and seconds since unwanted.
    fn check(text: &str, expected: &str) {
        let has = |word: &str| text.split_whitespace().any(|other| other == word);
        let node = Node {
            ready: has("ready"),
            out_of_service: has("taint"),
            managed: true,
            volumes_in_use: BTreeSet::new(),
            volumes_attached: BTreeSet::new(),
        };
        let seconds: u64 = text
            .split_whitespace()
            .find_map(|word| word.parse().ok())
            .unwrap_or(0);
        let situation = Situation {
            node: (!has("gone")).then_some(&node),
            in_use: has("used"),
            fenced: has("fence"),
            elsewhere: has("elsewhere"),
            unwanted_since: Timestamp(1_000),
        };
        let settings = Settings {
            never_force: has("never"),
            ..Settings::default()
        };
        let answer = match may_release(situation, &settings, Timestamp(1_000 + seconds * 1_000)) {
            Ok(release) => release.to_string(),
            Err(hold) => hold.to_string(),
        };
        assert_eq!(answer, expected, "{text}");
    }

    #[test]
    fn a_healthy_node_is_asked_and_waited_for() {
        check("ready", "it is not mounted there");
        check("ready used 10000", "it is still mounted there");
        check("lost", "it is not mounted there");
    }

    #[test]
    fn a_lost_node_is_waited_for_as_kubernetes_does() {
        check(
            "lost used",
            "the node does not answer; released in 360 s, or at once with a fence proof",
        );
        check(
            "lost used 359",
            "the node does not answer; released in 1 s, or at once with a fence proof",
        );
        check(
            "lost used 360",
            "the node has not answered for the whole unmount wait",
        );
        check(
            "lost used never 360",
            "the node does not answer and forced detach is disabled; taint it out-of-service once it is powered off",
        );
    }

    #[test]
    fn a_deleted_node_may_still_run() {
        check(
            "gone",
            "the node is deleted but may still run; released in 360 s, or at once with a fence proof",
        );
        check(
            "gone 360",
            "the node has been deleted and the unmount wait is over",
        );
    }

    #[test]
    fn a_proof_or_a_persons_word_releases_at_once() {
        check(
            "lost used fence",
            "the volume is fenced, so nothing there can write",
        );
        check(
            "gone fence",
            "the volume is fenced, so nothing there can write",
        );
        check(
            "ready used fence",
            "the volume is fenced, so nothing there can write",
        );
        check(
            "lost used never fence",
            "the volume is fenced, so nothing there can write",
        );
        for text in [
            "lost used elsewhere",
            "gone elsewhere",
            "lost used never elsewhere",
        ] {
            check(
                text,
                "the node does not answer, and the volume is written from another",
            );
        }
        // In a migration that goes well, the source still has it mounted.
        check("ready used elsewhere", "it is still mounted there");
        check("lost used taint", "the node is declared out of service");
        check("ready used taint", "the node is declared out of service");
    }
}
