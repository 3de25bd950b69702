//! Lariat beside what its users run: the suites of `cargo xtask conformance`, and the real control plane that they need.
//!
//! A suite is a file in `suites/` and a line in [`suites::ALL`]. It never passes by skipping: what it needs is built, or it fails.

pub mod control_plane;
pub mod embedded;
pub mod process;
pub mod programs;
pub mod suites;
