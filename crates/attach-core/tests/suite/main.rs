//! What the ticket decision promises, as rows of data, properties and whole documents.

mod breaker;
mod explain;
mod migrations;
mod properties;
mod rules;
mod scenarios;
mod scene;
