//! The engine's state for people and programs.

use super::member::Role;
use super::membership::SyncStage;
use super::tasks::TaskKind;
use super::{EngineCore, MemberSet, Phase};
use crate::control::{
    EngineState, EngineStatus, FenceProofReport, MemberReport, ProposalReport, StatisticsReport,
    TaskReport,
};
use crate::frontend::FrontendState;

impl EngineCore {
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        EngineStatus {
            volume: self.config.volume.clone(),
            epoch: self.config.epoch.0,
            size_bytes: self.size_bytes,
            state: self.state(),
            stalled: self.stall_reason(),
            frontend: self.frontend.clone(),
            endpoint: match &self.frontend {
                FrontendState::Ready { endpoint } => Some(endpoint.to_string()),
                _ => None,
            },
            generation: self.generation,
            in_sync: self.names(self.committed),
            members: self.members.iter().map(report_member).collect(),
            proposal: match &self.stage {
                SyncStage::Proposed { set, .. } => Some(ProposalReport {
                    generation: self.generation + 1,
                    in_sync: self.names(*set),
                }),
                _ => None,
            },
            committer_attached: self.committer_attached,
            fence_proof: self.fence_proof.as_ref().map(|proof| FenceProofReport {
                epoch: proof.epoch.0,
                replicas: proof.members.iter().map(ToString::to_string).collect(),
                at_us: proof.at.0,
            }),
            tasks: self
                .tasks
                .values()
                .map(|task| self.report_task(&task.kind))
                .collect(),
            statistics: StatisticsReport {
                read: self.statistics.read.report(),
                write: self.statistics.write.report(),
                unmap: self.statistics.unmap.report(),
                flush: self.statistics.flush.report(),
                open_requests: self.requests_open() as u64,
                barrier_max_us: self.statistics.barrier.quantile_us(1000),
            },
            snapshots_version: self.snapshots_version,
            process_id: std::process::id(),
        }
    }

    fn state(&self) -> EngineState {
        match &self.phase {
            Phase::Opening { .. } => EngineState::Opening {
                waiting_for: self
                    .committed
                    .iter()
                    .map(|member| &self.members[member.position()])
                    .filter(|member| !member.is_up())
                    .map(|member| match &member.trouble {
                        Some(trouble) => format!("{}: {trouble}", member.name()),
                        None => member.name().to_string(),
                    })
                    .collect(),
            },
            Phase::Serving => EngineState::Serving,
            Phase::Closing { .. } | Phase::Done => EngineState::Closing,
            Phase::Fenced { why } => EngineState::Fenced { why: why.clone() },
        }
    }

    /// Why requests cannot be answered now, if something keeps them.
    #[must_use]
    pub fn stall_reason(&self) -> Option<String> {
        if !matches!(self.phase, Phase::Serving | Phase::Closing { .. }) {
            return None;
        }
        let live = self
            .committed
            .iter()
            .any(|member| self.members[member.position()].is_up());
        match &self.stage {
            SyncStage::Proposed { set, .. } if self.committer_attached => Some(format!(
                "waiting for in-sync set {} ({}) to be recorded",
                self.generation + 1,
                self.names(*set).join(", ")
            )),
            SyncStage::Proposed { set, .. } => Some(format!(
                "in-sync set {} ({}) cannot be recorded: nobody who records is connected",
                self.generation + 1,
                self.names(*set).join(", ")
            )),
            _ if !live => {
                let names = self.names(self.committed).join(", ");
                Some(format!(
                    "no replica in sync can be reached ({names}); trying again"
                ))
            }
            _ => self.lease_stall(),
        }
    }

    fn lease_stall(&self) -> Option<String> {
        let reader = self.choose_reader(MemberSet::default())?;
        let lacking = self.lease_lacks(reader);
        (!self.reads_parked.is_empty() && !lacking.is_empty()).then(|| {
            format!(
                "reads wait for {} to say that no newer engine is obeyed there",
                self.names(lacking).join(", ")
            )
        })
    }

    fn report_task(&self, kind: &TaskKind) -> TaskReport {
        match kind {
            TaskKind::Broadcast(broadcast) => TaskReport {
                kind: broadcast.label.to_owned(),
                member: None,
                step: String::new(),
                done_bytes: 0,
                total_bytes: 0,
            },
            TaskKind::ListSnapshots { .. } => TaskReport {
                kind: "list snapshots".into(),
                member: None,
                step: String::new(),
                done_bytes: 0,
                total_bytes: 0,
            },
            TaskKind::Reconcile(reconcile) => TaskReport {
                kind: super::reconcile::TASK_KIND.into(),
                member: None,
                step: String::new(),
                done_bytes: reconcile.compared_bytes,
                total_bytes: self.size_bytes,
            },
            TaskKind::Rebuild(rebuild) => TaskReport {
                kind: "rebuild".into(),
                member: Some(self.members[rebuild.target.position()].name().to_string()),
                step: rebuild.step_name().to_owned(),
                done_bytes: rebuild.progress.done_bytes(),
                total_bytes: rebuild.progress.total_bytes(),
            },
        }
    }
}

pub(crate) fn report_member(member: &super::Member) -> MemberReport {
    MemberReport {
        name: member.name().to_string(),
        address: member.to.address.clone(),
        role: match &member.role {
            Role::InSync => "inSync",
            Role::Failed { .. } => "failed",
            Role::Joining { .. } => "rebuilding",
            Role::JoinReady => "joining",
            Role::Out { .. } => "out",
        }
        .to_owned(),
        connected: member.is_up(),
        trouble: member.trouble.clone(),
        read_us: member.read_us,
    }
}
