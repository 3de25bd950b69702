//! `--watch`: the list again whenever something changes.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use tokio::time::{Instant, sleep, timeout};

use super::{Format, Row, Terminal, list, say};
use crate::exit::{self, Failure, Outcome};

/// Changes come in bursts; the list is read once for all of them.
const GATHER: Duration = Duration::from_millis(200);
/// A list that has not come by then will not come.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// After a failure, until the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A server that restarts is back within this; whoever watches one that is not should know.
const FAILING_MAX: Duration = Duration::from_secs(60);
/// Home, and clear from here to the end.
const REDRAW: &str = "\x1b[H\x1b[J";
const CLEAR: &str = "\x1b[2J";

/// A word whenever an object of this kind changes. Never ends: a broken watch is begun again.
pub(crate) fn changes<K>(api: Api<K>) -> stream::BoxStream<'static, ()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let all = events(api);
    all.filter_map(async |is_alive| is_alive.then_some(()))
        .boxed()
}

/// The same, and a word when the watch breaks: whoever shows what is there looks whether it can still be seen.
pub(crate) fn pokes<K>(api: Api<K>) -> stream::BoxStream<'static, ()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    events(api).map(|_| ()).boxed()
}

/// True for a change, false for a watch that broke.
fn events<K>(api: Api<K>) -> impl Stream<Item = bool> + Send
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    use watcher::Event;
    watcher(api, watcher::Config::default())
        .default_backoff()
        .filter_map(async |event| match event {
            Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => Some(true),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(_) => Some(false),
        })
}

/// A live view outlives a server that is away for a moment.
#[derive(Default)]
pub(crate) struct Endurance {
    failing_since: Option<Instant>,
}

impl Endurance {
    /// What was fetched, or why it failed this time. An error is one that does not go by itself, or has not for a minute.
    pub(crate) async fn fetch<T>(
        &mut self,
        fetch: impl Future<Output = Result<T>>,
    ) -> Result<Result<T, String>> {
        let fetched = match timeout(LIST_TIMEOUT, fetch).await {
            Ok(fetched) => fetched,
            Err(_) => Err(anyhow!("no answer within {} s", LIST_TIMEOUT.as_secs())),
        };
        self.judge(fetched, Instant::now())
    }

    fn judge<T>(&mut self, fetched: Result<T>, now: Instant) -> Result<Result<T, String>> {
        let error = match fetched {
            Ok(fetched) => {
                self.failing_since = None;
                return Ok(Ok(fetched));
            }
            // It answered, and there is no such object: that is an answer.
            Err(error) if error.is::<Failure>() => return Err(error),
            Err(error) => exit::told(&error),
        };
        let since = *self.failing_since.get_or_insert(now);
        if now.duration_since(since) >= FAILING_MAX {
            let seconds = FAILING_MAX.as_secs();
            let message = format!("{error}; it has failed for {seconds} s, and is given up");
            return Err(Failure::new(Outcome::Unreachable, message).into());
        }
        // First, since a line may be cut.
        Ok(Err(format!("trying again: {error}")))
    }
}

/// What was said last of a server that is away: the same is not said twice.
#[derive(Default)]
struct Told(Option<String>);

impl Told {
    fn failed(&mut self, failure: String) -> Option<String> {
        let is_new = self.0.as_ref() != Some(&failure);
        let line = is_new.then(|| format!("lariat: {failure}"));
        self.0 = Some(failure);
        line
    }

    fn answered(&mut self) -> Option<&'static str> {
        self.0.take().map(|_| "lariat: the API answers again")
    }
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
    let mut told = Told::default();
    let mut endurance = Endurance::default();
    if redraws {
        say(CLEAR)?;
    }
    loop {
        let asked = Instant::now();
        let rows = match endurance.fetch(fetch()).await {
            Ok(Ok(rows)) => rows,
            // Nothing has been shown that could be stale.
            Ok(Err(failure)) if before.is_none() => bail!("{failure}"),
            Ok(Err(failure)) => {
                if redraws {
                    // Above it is what was seen last.
                    let rows = before.as_deref().unwrap_or_default();
                    say(&format!("{}\n{failure}\n", drawn(rows, format)?))?;
                }
                let line = told.failed(failure);
                if let Some(line) = line.filter(|_| !redraws) {
                    eprintln!("{line}");
                }
                sleep(RETRY_AFTER).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let back = told.answered();
        if let Some(line) = back.filter(|_| !redraws) {
            eprintln!("{line}");
        }
        // A list that takes long is not asked for all the time.
        let pause = GATHER.max(asked.elapsed());
        if redraws && (back.is_some() || before.as_ref() != Some(&rows)) {
            say(&drawn(&rows, format)?)?;
        } else if before.as_ref() != Some(&rows) {
            say(&news(before.as_deref(), &rows, format, terminal)?)?;
        }
        before = Some(rows);
        if changes.next().await.is_none() {
            return Ok(());
        }
        sleep(pause).await;
        // Whatever came meanwhile is answered by the next look.
        while let Some(Some(())) = futures::FutureExt::now_or_never(changes.next()) {}
    }
}

/// The whole table, over what is there.
fn drawn<R: Row>(rows: &[R], format: Option<Format>) -> Result<String> {
    let screen = Terminal::of_stdout().screen;
    let text = list(rows, format, screen, Timestamp::now())?;
    Ok(format!("{REDRAW}{text}"))
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

    use super::super::{Cell, Column, Screen, golden};
    use super::*;
    use crate::inventory::api_error;

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
    fn a_server_may_be_away_for_a_moment() {
        let mut endurance = Endurance::default();
        let begin = Instant::now();
        let mut judge = |fetched: Result<()>, seconds: u64| {
            let now = begin + Duration::from_secs(seconds);
            endurance.judge(fetched, now)
        };
        let away = |why: &'static str| {
            let broken = kube::Error::ReadEvents(std::io::Error::other(why));
            Err(api_error(broken, "list", "volumes"))
        };
        let mut told = Told::default();
        let mut lines: Vec<String> = Vec::new();
        for (seconds, why) in [(0, "no route"), (30, "no route"), (59, "refused")] {
            let judged = judge(away(why), seconds).expect("it may come back");
            lines.extend(told.failed(judged.expect_err("it is away")));
        }
        assert_eq!(lines.len(), 2, "the same is said once");
        assert_eq!(judge(Ok(()), 60).expect("an answer"), Ok(()));
        lines.extend(told.answered().map(str::to_owned));
        assert_eq!(told.answered(), None);
        assert!(judge(away("refused"), 61).is_ok(), "counted anew");
        let given_up = judge(away("refused"), 121).expect_err("too long");
        lines.push(format!("lariat: {}", exit::told(&given_up)));
        golden::check("watch-messages", &(lines.join("\n") + "\n"));
        let failure: &Failure = given_up.downcast_ref().expect("a number");
        assert_eq!(failure.outcome, Outcome::Unreachable);
        let gone = Failure::new(Outcome::NotFound, "there is no volume v");
        assert!(judge(Err(gone.into()), 122).is_err());
    }

    #[test]
    fn a_failed_list_is_tried_again() {
        let mut answers = vec![
            Ok(vec![Word("a", 2)]),
            Err(anyhow!("refused")),
            Ok(vec![Word("a", 1)]),
        ];
        let changes = stream::iter([()]).boxed();
        let followed = crate::runtime::block_on(follow(
            changes,
            async || answers.pop().expect("not asked again"),
            None,
        ));
        followed.expect("the end of the changes");
        assert!(answers.is_empty());
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
