//! `explain`: the decision replayed on a dump, for a person or a program. Reads, and writes nothing.
//!
//! [`run`] takes the text of any number of files: YAML or JSON streams, `List`s, whole support bundles. Objects that
//! play no part are passed over; what should play one and cannot be read becomes a [`Problem`] that names document and
//! field, and everything else is still explained.

mod attachment;
mod documents;
mod kubernetes;
mod objects;
mod report;
mod text;

use jiff::Timestamp;

use crate::decide;
use crate::plan::Plan;
use crate::view::View;

pub use documents::INPUT_BYTES_MAX;
pub use report::{ReasonReport, Report, TicketReport, VolumeReport};

/// One file or standard input: its name, for messages, and its text.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

/// Something in the input that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{document}: {}{message}", prefix(.field))]
pub struct Problem {
    /// The file, the place of the document in it, and the object if it could be made out.
    pub document: String,
    /// The path of the field in the object; empty when the whole document is at fault.
    pub field: String,
    pub message: String,
}

fn prefix(field: &str) -> String {
    if field.is_empty() {
        String::new()
    } else {
        format!("{field}: ")
    }
}

/// Everything that could be made of the input.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub volumes: Vec<Explained>,
    pub problems: Vec<Problem>,
}

/// One volume: what was seen, and what is decided.
#[derive(Clone, Debug)]
pub struct Explained {
    pub view: View,
    pub plan: Plan,
}

/// Decides every Volume in the input as the controller would at `now`.
#[must_use]
pub fn run(inputs: &[Input<'_>], now: Timestamp) -> Outcome {
    let mut problems = Vec::new();
    let documents = documents::read(inputs, &mut problems);
    let objects = objects::Objects::collect(documents, &mut problems);
    let volumes = objects
        .views(now, &mut problems)
        .into_iter()
        .map(|(view, remarks)| {
            let mut plan = decide(&view);
            plan.reasons.extend(remarks);
            Explained { view, plan }
        })
        .collect();
    Outcome { volumes, problems }
}

impl Outcome {
    /// 0, or 2 when some of the input could not be used.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.problems.is_empty() { 0 } else { 2 }
    }

    /// The machine-readable form.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            volumes: self.volumes.iter().map(VolumeReport::new).collect(),
        }
    }

    /// The form for people. Problems are told apart from it, one line each.
    #[must_use]
    pub fn text(&self) -> String {
        text::render(&self.volumes)
    }
}
