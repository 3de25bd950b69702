//! Engines that cannot answer their users while their node ends.
//!
//! An unmount writes back what is in the page cache, and waits for it without an end: for a replica on a node that is
//! gone, or for a record that nobody writes. A node that ends would wait as long. Such an engine is killed: what its
//! users wrote and never synced is lost, as in a power cut; what was acknowledged is not.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

use engine::control::client::ControlClient;

use super::Context;
use super::process::{self, Handle};

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Longer than it takes an engine to give up on a silent replica (8 s), and to have that recorded.
const PATIENCE: Duration = Duration::from_secs(12);

const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// Looks until it is dropped.
pub(super) async fn end_stalled(context: &Context) -> Infallible {
    let mut since: HashMap<u32, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let engines = process::find(&context.layout).unwrap_or_default();
        since.retain(|pid, _| engines.iter().any(|(running, _)| running == pid));
        for (pid, volume) in engines {
            let socket = context.layout.control(&volume);
            let looked = tokio::task::spawn_blocking(move || stall(&socket)).await;
            let Some(why) = looked.unwrap_or_default() else {
                since.remove(&pid);
                continue;
            };
            let begun = *since.entry(pid).or_insert_with(Instant::now);
            if begun.elapsed() < PATIENCE {
                continue;
            }
            tracing::warn!(
                volume.name = %volume, pid, why,
                "this node ends, and the volume's engine cannot finish what its users wrote: it is killed, and what \
                 they have not synced is lost"
            );
            Handle::adopted(pid).kill();
        }
    }
}

/// Why an engine's users wait, if they do.
fn stall(socket: &Path) -> Option<String> {
    let ask = || {
        let mut client = ControlClient::connect(socket)?;
        client.set_timeout(Some(ANSWER_PATIENCE))?;
        client.status()
    };
    match ask() {
        Ok(status) => status.stalled,
        Err(error) => Some(events::sentence(&error)),
    }
}
