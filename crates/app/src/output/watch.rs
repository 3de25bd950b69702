//! `--watch`: the list again whenever something changes.

use std::time::Duration;

use anyhow::Result;
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use tokio::time::{Instant, sleep};

use super::{Format, Row, Terminal, list, say};

/// Changes come in bursts; the list is read once for all of them.
const GATHER: Duration = Duration::from_millis(200);
/// Home, and clear from here to the end.
const REDRAW: &str = "\x1b[H\x1b[J";
const CLEAR: &str = "\x1b[2J";

/// A word whenever an object of this kind changes. Never ends: a broken watch is begun again.
pub(crate) fn pokes<K>(api: Api<K>) -> stream::BoxStream<'static, ()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher(api, watcher::Config::default())
        .default_backoff()
        .filter_map(async |event| {
            let is_news = matches!(
                event,
                Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone)
            );
            is_news.then_some(())
        })
        .boxed()
}

/// Shows rows until interrupted: on a terminal the whole table is drawn anew, elsewhere each row that changed is a line.
pub(crate) async fn follow<R: Row>(
    changes: impl Stream<Item = ()> + Unpin,
    mut fetch: impl AsyncFnMut() -> Result<Vec<R>>,
    format: Option<Format>,
) -> Result<()> {
    let mut changes = changes;
    let terminal = Terminal::of_stdout();
    let redraws = terminal.is_terminal && matches!(format, None | Some(Format::Wide));
    let mut before: Option<Vec<R>> = None;
    if redraws {
        say(CLEAR)?;
    }
    loop {
        let asked = Instant::now();
        let rows = fetch().await?;
        // A list that takes long is not asked for all the time.
        let pause = GATHER.max(asked.elapsed());
        if before.as_ref() != Some(&rows) {
            if redraws {
                let terminal = Terminal::of_stdout();
                let text = list(&rows, format, terminal.screen, Timestamp::now())?;
                say(&format!("{REDRAW}{text}"))?;
            } else {
                say(&news(before.as_deref(), &rows, format, terminal)?)?;
            }
            before = Some(rows);
        }
        if changes.next().await.is_none() {
            return Ok(());
        }
        sleep(pause).await;
        // Whatever came meanwhile is answered by the next look.
        while let Some(Some(())) = futures::FutureExt::now_or_never(changes.next()) {}
    }
}

/// The rows that are new or changed; the titles only the first time.
fn news<R: Row>(
    before: Option<&[R]>,
    rows: &[R],
    format: Option<Format>,
    terminal: Terminal,
) -> Result<String> {
    let known = before.unwrap_or_default();
    let fresh: Vec<R> = rows
        .iter()
        .filter(|row| !known.contains(row))
        .cloned()
        .collect();
    if fresh.is_empty() && before.is_some() {
        return Ok(String::new());
    }
    let text = list(&fresh, format, terminal.screen, Timestamp::now())?;
    let is_table = matches!(format, None | Some(Format::Wide));
    if is_table && before.is_some() {
        return Ok(text
            .split_once('\n')
            .map_or("", |(_, rest)| rest)
            .to_owned());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::super::{Cell, Column, Screen};
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize)]
    struct Word(&'static str, u32);

    impl Row for Word {
        const COLUMNS: &'static [Column] = &[Column::new("WORD"), Column::new("COUNT")];
        const NONE: &'static str = "no words";

        fn name(&self) -> String {
            format!("word/{}", self.0)
        }

        fn cells(&self, _: Timestamp) -> Vec<Cell> {
            vec![Cell::new(self.0), Cell::new(self.1.to_string())]
        }
    }

    #[test]
    fn only_what_changed_is_told_again() {
        let terminal = Terminal {
            screen: Screen::default(),
            is_terminal: false,
        };
        let check = |before: Option<&[Word]>, rows: &[Word], format, expected: &str| {
            assert_eq!(news(before, rows, format, terminal).unwrap(), expected);
        };
        let first = [Word("a", 1), Word("b", 1)];
        let second = [Word("a", 1), Word("b", 2)];
        check(None, &first, None, "WORD   COUNT\na      1\nb      1\n");
        check(Some(&first), &second, None, "b      2\n");
        check(Some(&second), &second, None, "");
        check(Some(&second), &second[..1], None, "");
        check(Some(&first), &second, Some(Format::Name), "word/b\n");
    }
}
