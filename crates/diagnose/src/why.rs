//! One chain of causes, from the pod down to the replica.
//!
//! Each link is a sentence of the core that decides there, with its evidence; the most specific is the last. The chain
//! ends where the cause is: what lies below a cause is not looked at.

mod kubernetes;
mod life;
mod tickets;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::codes::Code;
use crate::dump::Unread;
use crate::evidence::{Evidence, ObjectRef};
use crate::finding::Finding;
use crate::findings::{NODE_LEASE_PREFIX, Scope, examine, is_manager_running};
use crate::index::Index;
use crate::subject::Subject;
use crate::verdict::Verdict;

/// Why a pod, a claim or a volume is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    pub subject: Subject,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    pub verdict: Verdict,
    pub links: Vec<Link>,
    /// What happens without anybody's help, and when.
    pub by_itself: Vec<String>,
    /// What a person can do, as commands.
    pub to_do: Vec<String>,
    /// The findings of `doctor` that have to do with it.
    pub findings: Vec<FindingReference>,
    /// What could not be read, so that the chain may be wrong where it says that something is not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
    /// The other volumes of the same pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Other>,
}

/// One cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// What it is about: pod, claim, attachment, ticket, volume, engine, replica, mount, node, manager.
    pub layer: &'static str,
    pub state: State,
    pub sentence: String,
    pub evidence: Vec<Evidence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Fine,
    Waiting,
    Trouble,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingReference {
    pub code: Code,
    pub sentence: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Other {
    pub claim: String,
    pub verdict: Verdict,
}

/// Twice the six minutes after which even a node that cannot be fenced is given up.
const PATIENCE: SignedDuration = SignedDuration::from_mins(12);

/// Follows the causes.
#[must_use]
pub fn why(index: &Index<'_>, subject: &Subject) -> Chain {
    let mut draft = match subject {
        Subject::Pod { namespace, name } => kubernetes::of_pod(index, namespace, name),
        Subject::Claim { namespace, name } => kubernetes::of_claim(index, namespace, name),
        Subject::Volume { name } => kubernetes::of_volume(index, name),
    };
    draft.look_at_manager(index);
    draft.look_at_clock(index);
    draft.finish(index, subject.clone())
}

/// A chain that is being made.
#[derive(Default)]
pub(super) struct Draft {
    links: Vec<Link>,
    volume: Option<String>,
    /// None until something was said about it.
    verdict: Option<Verdict>,
    by_itself: Vec<String>,
    to_do: Vec<String>,
    others: Vec<Other>,
    /// Since when somebody waits. Evidence has times as well, but those of whoever is in the way say nothing about it.
    waiting_since: Option<Timestamp>,
    /// Nodes that the story is about.
    nodes: BTreeSet<String>,
    /// Whether it goes by what events say, which are otherwise not needed.
    goes_by_events: bool,
}

impl Draft {
    fn link(
        &mut self,
        layer: &'static str,
        state: State,
        sentence: impl Into<String>,
        evidence: impl IntoIterator<Item = Evidence>,
    ) {
        self.links.push(Link {
            layer,
            state,
            sentence: sentence.into(),
            evidence: evidence.into_iter().collect(),
        });
    }

    fn fine(
        &mut self,
        layer: &'static str,
        sentence: impl Into<String>,
        evidence: impl IntoIterator<Item = Evidence>,
    ) {
        self.link(layer, State::Fine, sentence, evidence);
    }

    fn waits(
        &mut self,
        layer: &'static str,
        sentence: impl Into<String>,
        evidence: impl IntoIterator<Item = Evidence>,
    ) {
        self.link(layer, State::Waiting, sentence, evidence);
        self.at_least(Verdict::Progressing);
    }

    fn stuck(
        &mut self,
        layer: &'static str,
        sentence: impl Into<String>,
        evidence: impl IntoIterator<Item = Evidence>,
    ) {
        self.link(layer, State::Trouble, sentence, evidence);
        self.at_least(Verdict::Stuck);
    }

    fn at_least(&mut self, verdict: Verdict) {
        self.verdict = self.verdict.max(Some(verdict));
    }

    /// Somebody waits since then; the longest wait counts.
    fn waits_since(&mut self, since: Option<Timestamp>) {
        let both = self.waiting_since.into_iter().chain(since);
        self.waiting_since = both.min();
    }

    fn by_itself(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.by_itself.contains(&what) {
            self.by_itself.push(what);
        }
    }

    fn suggest(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.to_do.contains(&what) {
            self.to_do.push(what);
        }
    }

    /// What has been on its way for too long does not arrive by itself, whatever it says that it is doing.
    fn look_at_clock(&mut self, index: &Index<'_>) {
        let is_progressing = self.verdict == Some(Verdict::Progressing);
        let Some(since) = self.waiting_since.filter(|_| is_progressing) else {
            return;
        };
        let waited = index.now.duration_since(since);
        if waited > PATIENCE {
            self.at_least(Verdict::Stuck);
            self.by_itself(format!(
                "it should have been done long ago: it has waited for {}",
                crate::text::age(waited)
            ));
        }
    }

    /// Whatever is on its way is moved by the manager.
    fn look_at_manager(&mut self, index: &Index<'_>) {
        if self.verdict == Some(Verdict::Progressing) && !is_manager_running(index) {
            let lease = ObjectRef::ours("leases.coordination.k8s.io", "lariat-manager");
            self.by_itself.clear();
            self.by_itself("nothing: no manager is at work");
            let renewed = index
                .lease(&lease.name)
                .and_then(|lease| lease.spec.as_ref());
            let renewed = renewed.and_then(|spec| spec.renew_time.as_ref());
            let evidence = Evidence::new(lease, "spec.renewTime", "not renewed");
            self.stuck(
                "manager",
                "no manager is at work, so that nothing moves",
                [evidence.since(renewed.map(|time| time.0))],
            );
        }
    }

    fn finish(mut self, index: &Index<'_>, subject: Subject) -> Chain {
        let findings = self.findings(index);
        for finding in &findings {
            if let Some(repair) = &finding.repair {
                let volume = self.volume.clone().unwrap_or_default();
                self.suggest(format!(
                    "lariat doctor {volume} --fix    # {}: {}",
                    finding.code, repair.summary
                ));
            }
            for advice in &finding.advice {
                self.suggest(advice);
            }
            if let Some(outlook) = finding
                .by_itself
                .clone()
                .filter(|_| self.by_itself.is_empty())
                && self.verdict != Some(Verdict::Attached)
            {
                self.by_itself(outlook);
            }
        }
        let verdict = self.verdict.unwrap_or(Verdict::Idle);
        let mut unread: Vec<Unread> = index.dump.missed().cloned().collect();
        if self.goes_by_events {
            let events = index.dump.unread.iter();
            unread.extend(events.filter(|it| it.resource() == "events").cloned());
        }
        if verdict == Verdict::Stuck && self.by_itself.is_empty() {
            self.by_itself("nothing");
        }
        if verdict == Verdict::Stuck && self.to_do.is_empty() {
            let volume = self.volume.clone().unwrap_or_default();
            self.suggest(format!("lariat doctor {volume}").trim_end());
        }
        Chain {
            subject,
            volume: self.volume,
            verdict,
            links: self.links,
            by_itself: self.by_itself,
            to_do: self.to_do,
            findings: findings
                .into_iter()
                .map(|finding| FindingReference {
                    code: finding.code,
                    sentence: finding.sentence,
                })
                .collect(),
            unread,
            others: self.others,
        }
    }

    /// Findings about this volume, and about the nodes and the manager that it needs.
    fn findings(&self, index: &Index<'_>) -> Vec<Finding> {
        let volumes: BTreeSet<String> = self.volume.iter().cloned().collect();
        let mut findings = examine(index, &Scope::Volumes(volumes.clone()));
        findings.retain(|finding| {
            let is_mine = finding.volumes.iter().any(|name| volumes.contains(name));
            is_mine || self.needs(finding)
        });
        findings
    }

    /// Is it about the manager, or about a node that this chain goes through?
    fn needs(&self, finding: &Finding) -> bool {
        let subject = finding.subject.name.as_str();
        match finding.code {
            Code::ManagerNotRunning | Code::VersionsDiffer => true,
            Code::AgentNotRunning | Code::LeaseFlaps => self.nodes.contains(subject),
            Code::ClockSkew => subject
                .strip_prefix(NODE_LEASE_PREFIX)
                .is_none_or(|node| self.nodes.contains(node)),
            _ => false,
        }
    }
}
