//! The controllers: thin shells over the decision cores.
//!
//! Each of them gathers a view from what it watches, asks a pure function what to write, and writes it. They meet
//! nowhere but in the API, and every field has one author.

pub mod attachment;
pub mod history;
pub mod holders;
pub mod kubernetes;
pub mod metrics;
pub mod nodes;
pub mod reaper;
pub mod runtime;
pub mod snapshots;
pub mod timeline;
pub mod volume;
