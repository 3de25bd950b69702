//! What the long-running commands, and those that start and stop them, say to whoever runs them: compared with files, line by
//! line, from the real program.

#[path = "../../src/output/golden.rs"]
mod golden;
#[path = "../support/mod.rs"]
mod support;

mod agents;
mod scene;
mod up;
