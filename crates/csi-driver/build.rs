//! Compiles the CSI protocol, without `protoc`: a build needs nothing but cargo.

use std::error::Error;

const FOLDER: &str = "proto";
const FILE: &str = "proto/csi.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FILE}");
    let descriptors = protox::compile([FILE], [FOLDER])?;
    // The specification's own comments hold indented text, which rustdoc would take for Rust.
    tonic_prost_build::configure()
        .disable_comments(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
