//! One trouble, with its code, its evidence and perhaps its repair.

use std::fmt;

use serde::Serialize;

use crate::codes::Code;
use crate::evidence::{Evidence, ObjectRef};
use crate::repair::Repair;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A volume cannot be used, or data is in danger.
    Error,
    /// It will be, if nothing is done.
    Warning,
    /// Worth knowing.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// What is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub code: Code,
    pub severity: Severity,
    /// The object that the finding is about. Code and subject together are its identity from look to look.
    pub subject: ObjectRef,
    /// The part of the subject that it is about, where one object can have several.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// The volumes that suffer from it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    pub sentence: String,
    pub evidence: Vec<Evidence>,
    /// What happens without anybody's help, and when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_itself: Option<String>,
    /// What a person can do where no repair is safe.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

impl Finding {
    #[must_use]
    pub fn new(code: Code, subject: ObjectRef, sentence: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            subject,
            part: String::new(),
            volumes: Vec::new(),
            sentence: sentence.into(),
            evidence: Vec::new(),
            by_itself: None,
            advice: Vec::new(),
            repair: None,
        }
    }

    #[must_use]
    pub fn part(mut self, part: &str) -> Self {
        part.clone_into(&mut self.part);
        self
    }

    #[must_use]
    pub fn volume(mut self, volume: &str) -> Self {
        self.volumes.push(volume.to_owned());
        self
    }

    #[must_use]
    pub fn evidence(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    #[must_use]
    pub fn by_itself(mut self, what: impl Into<String>) -> Self {
        self.by_itself = Some(what.into());
        self
    }

    #[must_use]
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    #[must_use]
    pub fn repair(mut self, repair: Option<Repair>) -> Self {
        self.repair = repair;
        self
    }

    /// The same trouble in another look.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (self.code, &self.subject, &self.part) == (other.code, &other.subject, &other.part)
    }
}
