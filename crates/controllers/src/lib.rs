//! The controllers: each gathers a view, lets a core decide, and writes what it decided.

pub mod kubernetes;
pub mod runtime;
pub mod timeline;
