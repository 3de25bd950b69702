//! The end of an engine: in order, if everything allows it.

use block_core::wire;

use super::data::Origin;
use super::member::Role;
use super::membership::SyncStage;
use super::{Action, CommandId, EngineCore, Phase};
use crate::control::{Answer, CommandError};
use crate::frontend::FrontendState;

/// Whoever asked for the end must not start an engine of the same epoch again.
const NOT_IN_ORDER: &str = "the engine has ended, but not in order: what was under way may be on some replicas only, which the next engine, of a larger epoch, compares";

impl EngineCore {
    pub(super) fn begin_shutdown(&mut self, id: CommandId) -> Result<Option<Answer>, CommandError> {
        if self.shutdown.is_some() {
            return Err(CommandError::new("the engine is shutting down already"));
        }
        match &self.phase {
            Phase::Opening { .. } | Phase::Fenced { .. } => {
                self.shutdown = Some(id);
                // One that succeeds a standby has its front end open already.
                if self.frontend != FrontendState::Closed {
                    self.out.push(Action::CloseFrontend);
                }
                self.exit(false);
            }
            Phase::Serving | Phase::Closing { .. } => {
                self.shutdown = Some(id);
                self.phase = Phase::Closing { sealing: false };
                self.out.push(Action::CloseFrontend);
            }
            Phase::Done => return Err(CommandError::new("the engine has ended")),
        }
        Ok(None)
    }

    /// When the front end is closed: a last flush, then the members are told of the orderly end.
    pub(super) fn advance_closing(&mut self) {
        if self.phase != (Phase::Closing { sealing: false }) {
            return;
        }
        if !matches!(
            self.frontend,
            FrontendState::Closed | FrontendState::Failed { .. }
        ) {
            return;
        }
        let compared = !self.reconcile_runs();
        self.fail_all_tasks(&CommandError::new("the engine is shutting down"));
        // Requests that nobody waits for any more may be on some members only, and so may those of an engine that was
        // killed before us: not an orderly end.
        if !compared || self.requests_open() > 0 || self.stage != SyncStage::Settled {
            self.exit(false);
            return;
        }
        self.phase = Phase::Closing { sealing: true };
        self.start_fan(Origin::Seal, wire::Request::Flush);
    }

    pub(super) fn exit(&mut self, clean: bool) {
        if self.phase == Phase::Done {
            return;
        }
        // One that never served has nothing under way that could be left.
        let served = matches!(self.phase, Phase::Serving | Phase::Closing { .. });
        self.phase = Phase::Done;
        if let Some(command) = self.shutdown.take() {
            let result = if clean || !served {
                Ok(Answer::Done)
            } else {
                Err(CommandError::new(NOT_IN_ORDER))
            };
            self.out.push(Action::Answer { command, result });
        }
        self.out.push(Action::Exit { clean });
    }

    pub(super) fn fail_all_tasks(&mut self, error: &CommandError) {
        for (_, task) in std::mem::take(&mut self.tasks) {
            if let Some(command) = task.command {
                self.out.push(Action::Answer {
                    command,
                    result: Err(error.clone()),
                });
            }
        }
        self.barrier = None;
        self.barrier_queue.clear();
        self.locks.give_up_next();
        self.fans.retain(|_, fan| !fan.is_of_task());
        for member in &mut self.members {
            if matches!(member.role, Role::Joining { .. }) {
                member.role = Role::Out {
                    why: error.message.clone(),
                };
            }
        }
    }
}
