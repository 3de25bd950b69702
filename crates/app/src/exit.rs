//! How a command ends, as scripts see it.

use std::process::ExitCode;

/// What is wrong, in one word that is a number. `lariat help exit-codes` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Failed = 1,
    /// It would interrupt or lose something, and nobody said that this is meant.
    Refused = 3,
    /// It was begun, and was not done in time.
    Unfinished = 4,
    NotFound = 5,
    Unreachable = 6,
    /// Part of what the answer rests on could not be read.
    Incomplete = 7,
}

/// An error that has a number of its own.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub outcome: Outcome,
    pub message: String,
}

impl Failure {
    pub(crate) fn new(outcome: Outcome, message: impl Into<String>) -> Self {
        Self {
            outcome,
            message: message.into(),
        }
    }

    pub(crate) fn refused(message: impl Into<String>) -> anyhow::Error {
        Self::new(Outcome::Refused, message).into()
    }
}

/// The number for an error, wherever in its chain the reason is.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    let outcome = error
        .downcast_ref::<Failure>()
        .map_or(Outcome::Failed, |failure| failure.outcome);
    ExitCode::from(outcome as u8)
}

/// The whole chain, once: what failed, and why, on one line.
pub(crate) fn told(error: &anyhow::Error) -> String {
    events::sentence(error.as_ref())
}

/// The page of `lariat help exit-codes`.
pub(crate) const PAGE: &str = "  0  done; for a question, the answer is on standard output
  1  failed: the message names the object and the next thing to try
  2  the command line makes no sense, or part of the input of `explain` could not be used
  3  refused: it would interrupt or lose something; the message says what, and how to insist (--yes, --force)
  4  not done in time: it was begun and goes on; the message says what it waits for
  5  there is no object of that name; near names are suggested
  6  the API cannot be reached: the message says which kubeconfig and address were tried
  7  the answer of `why`, `doctor` or `engine verify` is incomplete: part of what it asks about could not be read, and the
     answer says which

`why`, `doctor` and `engine verify` answer with their number, and use two of these for that:
  3  `why`: on its way, without anybody's help      `doctor`: warnings
  4  `why`: stuck, somebody has to do something     `doctor`: errors
     `engine verify`: a disk has changed a snapshot, or replicas differ";

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_number_survives_its_context() {
        let error: anyhow::Result<()> = Err(Failure::refused("no"));
        let error = error.context("while detaching").unwrap_err();
        assert_eq!(
            format!("{:?}", code(&error)),
            format!("{:?}", ExitCode::from(3))
        );
        let plain = anyhow::anyhow!("broken");
        assert_eq!(
            format!("{:?}", code(&plain)),
            format!("{:?}", ExitCode::from(1))
        );
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words_and_once() {
        let status = kube::core::Status::failure("pods is forbidden", "Forbidden").with_code(403);
        let error = anyhow::Error::new(kube::Error::Api(Box::new(status)));
        let error = error.context("cannot read volume v");
        assert_eq!(told(&error), "cannot read volume v: pods is forbidden");
        let broken = std::io::Error::other("no route");
        let error = anyhow::Error::new(kube::Error::ReadEvents(broken)).context("cannot watch");
        assert_eq!(
            told(&error),
            "cannot watch: Error reading events stream: no route"
        );
    }

    #[test]
    fn every_number_is_documented() {
        crate::output::golden::check("exit-codes", &format!("{PAGE}\n"));
        for outcome in [
            Outcome::Failed,
            Outcome::Refused,
            Outcome::Unfinished,
            Outcome::NotFound,
            Outcome::Unreachable,
            Outcome::Incomplete,
        ] {
            let number = format!("  {}  ", outcome as u8);
            assert!(PAGE.contains(&number), "{outcome:?}");
        }
    }
}
