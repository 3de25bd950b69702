//! Lariat on a real Kubernetes: the real API with its authorisation, the real binder, scheduler and attach-detach
//! controller, the real external-provisioner. Only kubelets are missing: `lariat node run --embedded` stands in for them.
//!
//! Run by `cargo xtask conformance kubernetes`, which builds the programs and says where they are (`LARIAT_KUBERNETES_BIN`).
//! Ordinary test runs leave it out.

mod control_plane;
#[path = "../attacher/driver.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod driver;
mod failures;
mod flow;
mod installation;
mod migration;
mod storm;
#[path = "../support/mod.rs"]
mod support;
