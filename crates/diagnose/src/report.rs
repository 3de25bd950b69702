//! What `doctor` has to say: what is wrong, and what it could not look at.

use serde::Serialize;

use crate::dump::Unread;
use crate::finding::{Finding, Severity};
use crate::findings::{Scope, examine};
use crate::index::Index;
use crate::subject::Subject;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What diagnosis needs and could not read. That nothing was found there means nothing.
    pub unread: Vec<Unread>,
    /// Claims that were asked about and have no volume, so that there is nothing to compare.
    pub without_volume: Vec<Subject>,
}

impl Report {
    #[must_use]
    pub fn new(index: &Index<'_>, scope: &Scope, without_volume: Vec<Subject>) -> Self {
        Self {
            findings: examine(index, scope),
            unread: index.dump.missed().cloned().collect(),
            without_volume,
        }
    }

    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        let severities = self.findings.iter().map(|finding| finding.severity);
        severities.min()
    }

    /// Whether what is not among the findings is not there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unread.is_empty()
    }
}
