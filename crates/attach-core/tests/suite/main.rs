//! What the ticket decision promises, as rows of data, properties and whole documents.
#![expect(
    clippy::needless_pass_by_value,
    reason = "rows of data read better without borrows"
)]

mod breaker;
mod explain;
mod migrations;
mod properties;
mod rules;
mod scenarios;
mod scene;
