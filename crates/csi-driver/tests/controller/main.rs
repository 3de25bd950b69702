//! The Controller service over a real socket, against the real embedded API. The test plays the controllers.

mod crashes;
mod driver;
mod publishing;
#[path = "../support/mod.rs"]
mod support;
mod volumes;
