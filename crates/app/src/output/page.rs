//! One object in detail: labelled lines, and tables under headings.

use std::fmt::Write as _;

use super::table::{self, Cell, Column, Screen};

/// The labels of a page are this wide.
const LABEL_WIDTH: usize = 14;

/// Text that grows downwards.
#[derive(Debug, Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// `Label:  value`; nothing if there is no value.
    pub(crate) fn line(&mut self, label: &str, cell: &Cell, screen: Screen) {
        if cell.text == "-" {
            return;
        }
        let value = cell.tone.paint(&cell.text, screen.colour);
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{:<LABEL_WIDTH$}{value}", format!("{label}:"));
    }

    /// A table under its heading; nothing if it has no rows.
    pub(crate) fn table(
        &mut self,
        heading: &str,
        columns: &[Column],
        rows: &[Vec<Cell>],
        screen: Screen,
    ) {
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "\n{heading}:");
        let inner = Screen {
            width: screen.width.map(|width| width.saturating_sub(2)),
            ..screen
        };
        for line in table::render(columns, rows, inner).lines() {
            let _ = writeln!(self.text, "  {line}");
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
