//! A Kubernetes-compatible API server over a revisioned store.
//!
//! Objects are `serde_json::Value` from the socket to the disk: a typed struct of another minor
//! version would drop the fields it does not know. What a kind means (its schema, its merge keys,
//! its columns, its rules) is data that generic code walks.

pub mod auth;
mod body;
pub mod builtin;
pub mod catalog;
pub mod core;
mod crd;
mod discovery;
mod events;
pub mod field_error;
pub mod lifecycle;
mod metrics;
mod negotiate;
mod object;
pub mod openapi;
mod options;
pub mod patch;
pub mod protobuf;
mod render;
pub mod request;
pub mod schema;
mod selector;
pub mod server;
pub mod service;
mod status;
mod table;
mod verbs;
