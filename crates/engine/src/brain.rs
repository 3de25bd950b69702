//! Which rules an engine follows: those of a standby, then, once it has taken the volume over, those of the writer.
//!
//! The front end stays as it is through a hand-over, so requests may come while the writer still opens the volume; they are kept
//! until it has.

use crate::control::{Answer, Command, CommandError, ReplicaAt, read_set};
use crate::core::{Action, CoreConfig, EngineCore, Event, Moment};
use crate::io::Request;
use crate::standby::StandbyCore;

pub enum Brain {
    Standby(Box<StandbyCore>),
    Writer {
        core: Box<EngineCore>,
        /// What users of the front end asked while the volume was being taken over; `None` once it is.
        kept: Option<Vec<Request>>,
    },
}

impl Brain {
    #[must_use]
    pub fn writer(config: CoreConfig) -> Self {
        Self::Writer {
            core: Box::new(EngineCore::new(config)),
            kept: None,
        }
    }

    #[must_use]
    pub fn standby(config: CoreConfig) -> Self {
        Self::Standby(Box::new(StandbyCore::new(config)))
    }

    /// Whether replicas are asked to obey this engine, and not only to be read from.
    #[must_use]
    pub fn claims_replicas(&self) -> bool {
        matches!(self, Self::Writer { .. })
    }

    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Standby(core) => core.is_busy(),
            Self::Writer { core, .. } => core.is_busy(),
        }
    }

    #[must_use]
    pub fn awaits_replies(&self) -> bool {
        match self {
            Self::Standby(core) => core.awaits_replies(),
            Self::Writer { core, .. } => core.awaits_replies(),
        }
    }

    pub fn apply(&mut self, now: Moment, event: Event, actions: &mut Vec<Action>) {
        match (self, event) {
            (
                brain,
                Event::Command {
                    id,
                    command:
                        Command::Promote {
                            generation,
                            in_sync,
                        },
                },
            ) => {
                let result = brain.promote(now, generation, in_sync, actions);
                actions.push(Action::Answer {
                    command: id,
                    result,
                });
            }
            (Self::Standby(core), event) => core.apply(now, event, actions),
            (
                Self::Writer {
                    kept: Some(kept), ..
                },
                Event::Submit(request),
            ) => kept.push(request),
            (Self::Writer { core, kept }, event) => {
                let before = actions.len();
                core.apply(now, event, actions);
                // The volume is open, or will never be: either way the core answers from here on.
                let settled = kept.is_some()
                    && actions[before..].iter().any(|action| {
                        matches!(
                            action,
                            Action::OpenFrontend { .. }
                                | Action::CloseFrontend
                                | Action::Exit { .. }
                        )
                    });
                if settled {
                    for request in kept.take().unwrap_or_default() {
                        core.apply(now, Event::Submit(request), actions);
                    }
                }
            }
        }
    }

    fn promote(
        &mut self,
        now: Moment,
        generation: u64,
        in_sync: Vec<ReplicaAt>,
        actions: &mut Vec<Action>,
    ) -> Result<Answer, CommandError> {
        let Self::Standby(standby) = self else {
            return Ok(Answer::Done);
        };
        let legacy = standby.hand_over(generation, read_set(in_sync)?);
        actions.extend(legacy.actions);
        let mut core = Box::new(EngineCore::succeeding(
            legacy.config,
            legacy.incarnation,
            legacy.frontend,
        ));
        core.apply(now, Event::Start, actions);
        if legacy.committer_attached {
            core.apply(now, Event::CommitterAttached, actions);
        }
        *self = Self::Writer {
            core,
            kept: Some(legacy.requests),
        };
        Ok(Answer::Done)
    }
}
