//! Node agents as processes, against `lariat up`: the tests play the controllers. They need root, FUSE and loop
//! devices.

mod bench;
mod engines;
mod lease;
mod letting_go;
mod pods;
#[path = "../support/mod.rs"]
mod support;
