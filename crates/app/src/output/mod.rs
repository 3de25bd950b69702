//! What a person sees: tables that fit the terminal, documents for programs, and colours where there are some.
//!
//! Commands make rows; everything here renders rows. Only [`Terminal`] knows that there is a terminal.

#[cfg(test)]
pub(crate) mod golden;
pub(crate) mod human;
mod listing;
pub(crate) mod page;
pub(crate) mod table;
pub(crate) mod watch;

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::Serialize;

pub(crate) use listing::Listing;
pub(crate) use table::{Cell, Column, Screen, Tone};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The table with all its columns
    Wide,
    Json,
    Yaml,
    /// One name a line, for scripts
    Name,
}

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct OutputArgument {
    /// How to show it [default: a table]
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// For answers that are a text and no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AnswerFormat {
    Text,
    Json,
    Yaml,
}

impl AnswerFormat {
    /// None for the text.
    pub(crate) fn document(self) -> Option<Format> {
        match self {
            Self::Text => None,
            Self::Json => Some(Format::Json),
            Self::Yaml => Some(Format::Yaml),
        }
    }
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct AnswerArgument {
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = AnswerFormat::Text)]
    pub output: AnswerFormat,
}

/// What a list is made of.
pub(crate) trait Row: Serialize + Clone + PartialEq {
    const COLUMNS: &'static [Column];
    /// Said when there are none, with the next thing to try.
    const NONE: &'static str;

    /// `volume/pvc-1`, for `-o name`.
    fn name(&self) -> String;

    /// One a column.
    fn cells(&self, now: Timestamp) -> Vec<Cell>;
}

/// Rows as text. Ends with a line end, unless there is nothing to say.
pub(crate) fn list<R: Row>(
    rows: &[R],
    format: Option<Format>,
    screen: Screen,
    now: Timestamp,
) -> Result<String> {
    match format {
        Some(Format::Name) => Ok(rows.iter().map(|row| row.name() + "\n").collect()),
        Some(format @ (Format::Json | Format::Yaml)) => document(&rows, format),
        None | Some(Format::Wide) => {
            let cells: Vec<Vec<Cell>> = rows.iter().map(|row| row.cells(now)).collect();
            let screen = Screen {
                wide: format.is_some(),
                ..screen
            };
            Ok(table::render(R::COLUMNS, &cells, screen))
        }
    }
}

/// An answer as its own text, or as a document for programs.
pub(crate) fn answer(
    value: &impl Serialize,
    format: AnswerFormat,
    text: impl FnOnce() -> String,
) -> Result<String> {
    match format.document() {
        None => Ok(text()),
        Some(format) => document(value, format),
    }
}

/// Anything as a document for programs.
pub(crate) fn document(value: &impl Serialize, format: Format) -> Result<String> {
    match format {
        Format::Yaml => serde_saphyr::to_string(value).context("cannot write this as YAML"),
        Format::Json | Format::Wide | Format::Name => {
            let text = serde_json::to_string_pretty(value).context("cannot write this as JSON")?;
            Ok(text + "\n")
        }
    }
}

/// Standard output, as far as it matters to how things are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    pub screen: Screen,
    pub is_terminal: bool,
}

impl Terminal {
    pub(crate) fn of_stdout() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            is_terminal,
            screen: Screen {
                width: is_terminal.then(width).flatten(),
                colour: is_terminal && !set("NO_COLOR") && !dumb,
                wide: false,
            },
        }
    }
}

fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok();
    if let Some(columns) = asked.and_then(|columns| columns.parse().ok()) {
        return Some(columns).filter(|&columns| columns > 0);
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// `println!` for what is done meanwhile: it goes on also when nobody listens any more.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::output::say_line(&format!($($words)*))
    };
}
pub(crate) use tell;

pub(crate) fn say_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // What cannot be written because standard output is broken cannot be told there either.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Writes to standard output. A reader that has seen enough, such as `head`, is no failure.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.context("cannot write to standard output"),
    }
}

/// What a person is told instead of a table without rows. Programs get an empty document.
fn nothing<R: Row>(rows: &[R], format: Option<Format>) -> Option<&'static str> {
    let is_table = matches!(format, None | Some(Format::Wide));
    (rows.is_empty() && is_table).then_some(R::NONE)
}

/// Shows rows once.
pub(crate) fn show<R: Row>(rows: &[R], format: Option<Format>) -> Result<()> {
    if let Some(nothing) = nothing(rows, format) {
        eprintln!("{nothing}");
        return Ok(());
    }
    let screen = Terminal::of_stdout().screen;
    say(&list(rows, format, screen, Timestamp::now())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Inventory, sample};
    use crate::{disk, node, ticket, volume};

    /// What there is to say of a cluster without any of these, and of one with some.
    fn check<R: Row>(page: &mut String, rows: impl Fn(&Inventory) -> Vec<R>) {
        let empty = rows(&Inventory::default());
        let said = nothing(&empty, None).expect("no rows");
        assert_eq!(nothing(&empty, Some(Format::Wide)), Some(said));
        assert_eq!(nothing(&empty, Some(Format::Json)), None);
        assert_eq!(nothing(&empty, Some(Format::Name)), None);
        assert_eq!(nothing(&rows(&sample::cluster()), None), None);
        *page += &format!("{said}\n");
    }

    #[test]
    fn a_list_of_nothing_is_said_with_what_to_do() {
        let mut page = String::new();
        check(&mut page, volume::list::rows);
        check(&mut page, |inventory| {
            ticket::list::rows(inventory, None, sample::now())
        });
        check(&mut page, node::list::rows);
        check(&mut page, |inventory| disk::list::rows(inventory, None));
        golden::check("empty-lists", &page);
    }
}
