//! Why a volume is where it is, and what is wrong in a cluster.
//!
//! Two questions over a [`ClusterDump`], which is all objects of a cluster as they were at one moment:
//! [`why`](fn@why) follows one volume from its pod down to its replicas and says what everything waits for;
//! [`examine`] compares all objects with one another and yields [`Finding`]s with stable codes, evidence and, where
//! that is safe, a [`Repair`].
//!
//! Nothing is decided here that the cores decide already: their `decide` runs over the dump, and the sentences are those
//! of its reasons. What is not here: no clock (the time of the look is passed in), no I/O, no client, no async.
//! A repair is data; whoever holds a client carries it out.

mod bundle;
mod codes;
mod dump;
mod evidence;
mod finding;
mod findings;
mod index;
mod objects;
mod redact;
mod repair;
mod report;
mod subject;
mod text;
mod verdict;
pub mod why;

pub use bundle::{BundleFile, read_objects, write_objects};
pub use codes::{Code, CodeError};
pub use dump::{ClusterDump, KINDS, Kind, Unread};
pub use evidence::{Evidence, ObjectRef};
pub use finding::{Finding, Severity};
pub use findings::{Scope, examine};
pub use index::Index;
pub use objects::Objects;
pub use redact::{redact, redact_line, redact_texts};
pub use repair::{Action, Precondition, Repair};
pub use report::Report;
pub use subject::{Subject, SubjectError};
pub use text::{age, render_report, render_why};
pub use verdict::Verdict;
pub use why::{Chain, Link, why};
