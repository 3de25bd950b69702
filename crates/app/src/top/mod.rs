//! `lariat top`: the cluster at a glance, until `q`.
//!
//! Plain ANSI: one screen of text that is drawn over itself needs no library, and this one restores the terminal however it
//! ends: by key, signal or error.

mod frame;
mod raw;

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::client::ApiArguments;
use crate::inventory::{Inventory, inside};
use crate::output::table::cut;
use crate::output::{self, Terminal, Tone, watch};
use crate::runtime;

/// Ages grow; nothing else changes without a watch telling so.
const TICK: Duration = Duration::from_secs(2);
/// Changes come in bursts; one look answers all of them.
const GATHER: Duration = Duration::from_millis(150);

/// The letter, Ctrl-C and Ctrl-D.
const LEAVES: [u8; 4] = [b'q', b'Q', 3, 4];

#[derive(Args)]
pub(crate) struct TopArguments {
    /// Show it once and end, for scripts
    #[arg(long)]
    pub once: bool,

    #[command(flatten)]
    pub api: ApiArguments,
}

pub(crate) fn run(arguments: &TopArguments) -> Result<()> {
    runtime::block_on(async {
        let client = arguments.api.open().await?;
        if arguments.once {
            let inventory = Inventory::of_volumes(&client).await?;
            let screen = Terminal::of_stdout().screen;
            let mut frame = frame::render(&inventory, screen, usize::MAX, Timestamp::now());
            if let Some(summary) = frame.first_mut() {
                // There is no key to press.
                let length = summary.strip_suffix(frame::QUITS).map(str::len);
                summary.truncate(length.unwrap_or(summary.len()));
            }
            return output::say(&format!("{}\n", frame.join("\n")));
        }
        needs_terminals(
            std::io::stdout().is_terminal(),
            std::io::stdin().is_terminal(),
        )?;
        live(&client).await
    })
}

/// One to draw on, and one that keys come from.
fn needs_terminals(stdout: bool, stdin: bool) -> Result<()> {
    ensure!(
        stdout && stdin,
        "top needs a terminal; for scripts use `lariat top --once` or `lariat volume list --watch`"
    );
    Ok(())
}

enum News {
    Key(u8),
    Changed,
    Tick,
    Stop,
}

async fn live(client: &kube::Client) -> Result<()> {
    let stop = runtime::until_asked_to_stop()?;
    let mut resized =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change())?;
    let mut changes = stream::select_all([
        watch::pokes::<api_types::Volume>(inside(client)),
        watch::pokes::<api_types::VolumeAttachment>(inside(client)),
        watch::pokes::<api_types::Node>(inside(client)),
    ]);
    // The terminal is taken only when there is something to show on it.
    let mut inventory = Inventory::of_volumes(client).await?;
    let _raw = raw::RawTerminal::take()?;
    let mut keys = keys();
    let mut pause = GATHER;
    let mut endurance = watch::Endurance::default();
    let mut failure: Option<String> = None;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let screen = Terminal::of_stdout().screen;
        let rows = raw::rows();
        let mut lines = frame::render(&inventory, screen, rows, Timestamp::now());
        if let (Some(failure), Some(first)) = (&failure, lines.first_mut()) {
            // Below it is what was seen last.
            let width = screen.width.unwrap_or(usize::MAX);
            *first = Tone::Bad.paint(&cut(failure, width), screen.colour);
        }
        output::say(&raw::drawn(&lines))?;
        let news = tokio::select! {
            () = stop.cancelled() => News::Stop,
            key = keys.recv() => key.map_or(News::Stop, News::Key),
            _ = changes.next() => News::Changed,
            _ = resized.recv() => News::Tick,
            _ = tick.tick() => News::Tick,
        };
        let is_failing = failure.is_some();
        match news {
            News::Stop => return Ok(()),
            News::Key(key) if LEAVES.contains(&key) => return Ok(()),
            News::Key(_) => {}
            News::Tick if !is_failing => {}
            News::Tick | News::Changed => {
                tokio::time::sleep(pause).await;
                while let Some(Some(())) = futures::FutureExt::now_or_never(changes.next()) {}
                let asked = Instant::now();
                let fetched = tokio::select! {
                    fetched = endurance.fetch(Inventory::of_volumes(client)) => fetched?,
                    // A server that hangs must not keep a person here.
                    () = until_left(&mut keys) => return Ok(()),
                    () = stop.cancelled() => return Ok(()),
                };
                match fetched {
                    Ok(seen) => (inventory, failure) = (seen, None),
                    Err(why) => failure = Some(why),
                }
                // A large cluster is not asked for everything all the time.
                pause = GATHER.max(asked.elapsed());
            }
        }
    }
}

/// Until a key is pressed that ends it.
async fn until_left(keys: &mut mpsc::Receiver<u8>) {
    while keys.recv().await.is_some_and(|key| !LEAVES.contains(&key)) {}
}

/// Keys as they are pressed. The thread ends with the process: a read of a terminal cannot be called off.
fn keys() -> mpsc::Receiver<u8> {
    let (pressed, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut byte = [0];
        while matches!(input.read(&mut byte), Ok(1)) {
            if pressed.blocking_send(byte[0]).is_err() {
                return;
            }
        }
    });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::output::golden;

    #[test]
    fn scripts_are_told_what_to_use_instead() {
        assert!(needs_terminals(true, true).is_ok());
        let refused = [(false, true), (true, false), (false, false)]
            .map(|(stdout, stdin)| exit::told(&needs_terminals(stdout, stdin).expect_err("none")));
        assert!(refused.iter().all(|text| *text == refused[0]));
        golden::check("top-no-terminal", &format!("{}\n", refused[0]));
    }
}
