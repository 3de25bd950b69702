//! The controllers against the real embedded API, with the test in the place of the nodes' agents.

mod leadership;
mod marks;
mod support;
mod volumes;
