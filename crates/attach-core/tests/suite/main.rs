//! What the ticket decision promises, as rows of data, properties and whole documents.

mod breaker;
mod migrations;
mod properties;
mod rules;
mod scene;
