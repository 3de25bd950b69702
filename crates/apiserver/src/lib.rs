//! A Kubernetes-compatible API server over a revisioned store.
//!
//! Objects are `serde_json::Value` from the socket to the disk: a typed struct of another minor
//! version would drop the fields it does not know. What a kind means (its schema, its merge keys,
//! its columns, its rules) is data that generic code walks.

pub mod builtin;
pub mod field_error;
pub mod openapi;
pub mod patch;
pub mod schema;
