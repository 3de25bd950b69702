//! The asynchronous runtime, for the commands that need one.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use tokio_util::sync::CancellationToken;

use crate::up::until_signalled;

/// Runs one command to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(work)
}

/// A token that is cancelled by SIGINT and SIGTERM. Must be called inside a runtime.
pub(crate) fn until_asked_to_stop() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    let signalled = until_signalled()?;
    let cancel = stop.clone();
    tokio::spawn(async move {
        signalled.await;
        cancel.cancel();
    });
    Ok(stop)
}

/// Ends this process at once when its standard input closes: its parent is gone, and the next one starts another.
pub(crate) fn exit_with_parent() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        // Nobody writes to it; whatever comes is read until the end does.
        while matches!(input.read(&mut [0; 64]), Ok(bytes) if bytes > 0) {}
        std::process::exit(1);
    });
}
