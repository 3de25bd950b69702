//! Zeroes that are written as data.

use anyhow::{Result, bail, ensure};
use block_core::wire::{Reply, Request};

use crate::MIB;
use crate::cluster::{Cluster, FrontendChoice, nbd_options};
use crate::programs::run;

const WRITTEN: u64 = 8 * MIB;

/// What each replica takes on its disk, and zeroes have been flushed.
fn allocated_bytes(cluster: &Cluster) -> Result<Vec<u64>> {
    let of = |at| match cluster.replica_client(at)?.call(Request::Status)? {
        Reply::Status(status) => Ok(status.allocated_bytes),
        other => bail!("{other:?}"),
    };
    (0..2).map(of).collect()
}

fn write_zeroes_as_data(cluster: &Cluster, offset: u64) -> Result<()> {
    let options = nbd_options(&cluster.endpoint()?)?;
    let write = format!("write -P 0 {offset} {WRITTEN}");
    let commands = ["-c", &write, "-c", "flush"];
    run(
        "qemu-io",
        &[&["--image-opts", &options][..], &commands[..]].concat(),
    )
    .map(|_| ())
}

/// Only where it is asked for, zeroes take no space: neither where nothing was, nor over older data.
#[test]
fn zeroes_are_found_if_that_is_asked_for() -> Result<()> {
    let mut cluster = Cluster::start(2, 64 * MIB, FrontendChoice::Nbd)?;
    let empty = allocated_bytes(&cluster)?;
    write_zeroes_as_data(&cluster, 0)?;
    for (before, after) in empty.iter().zip(allocated_bytes(&cluster)?) {
        ensure!(after >= before + WRITTEN, "{after} after {before}");
    }
    cluster.write_pattern(16 * MIB, MIB, 1)?;
    cluster.snapshot("below")?;
    cluster.shutdown()?;

    cluster.detect_zeroes = true;
    cluster.start_engine()?;
    let before = allocated_bytes(&cluster)?;
    write_zeroes_as_data(&cluster, 32 * MIB)?;
    ensure!(allocated_bytes(&cluster)? == before, "where nothing was");
    write_zeroes_as_data(&cluster, 16 * MIB)?;
    for (before, after) in before.iter().zip(allocated_bytes(&cluster)?) {
        // A mark is a bit, and the file of marks has blocks.
        ensure!(after <= before + 64 * 1024, "{after} after {before}");
    }
    let options = nbd_options(&cluster.endpoint()?)?;
    let read = format!("read -P 0 {} {WRITTEN}", 16 * MIB);
    let text = run("qemu-io", &["--image-opts", &options, "-c", &read])?;
    ensure!(!text.contains("verification failed"), "{text}");
    cluster.shutdown()?;
    cluster.ensure_identical()
}
