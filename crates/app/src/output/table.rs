//! Tables: rows in, text out. Nothing here looks at a terminal, a clock or a cluster.

use std::fmt::Write as _;

/// Between two columns, as kubectl has it.
const GAP: usize = 3;
/// A column that shrinks stays at least this wide: less says nothing.
const SHRUNK_MIN: usize = 8;
const ELLIPSIS: char = '…';

/// One column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub title: &'static str,
    /// Only with `-o wide`.
    pub wide: bool,
    /// May be cut when the table does not fit.
    pub shrinks: bool,
    /// Never cut, and goes on in the terminal's next line: for commands, which people copy. Stands last.
    pub flows: bool,
    /// Left out when cutting is not enough, the largest number first; 0 stays for ever.
    pub spare: u8,
}

impl Column {
    pub(crate) const fn new(title: &'static str) -> Self {
        Self {
            title,
            wide: false,
            shrinks: false,
            flows: false,
            spare: 0,
        }
    }

    pub(crate) const fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    pub(crate) const fn shrinks(self) -> Self {
        Self {
            shrinks: true,
            ..self
        }
    }

    pub(crate) const fn flows(self) -> Self {
        Self {
            flows: true,
            ..self
        }
    }

    pub(crate) const fn spare(self, order: u8) -> Self {
        Self {
            spare: order,
            ..self
        }
    }
}

/// What a value means, for those who see colours. It never says more than the text does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Busy,
    Bad,
    Faint,
}

impl Tone {
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("32"),
            Self::Busy => Some("33"),
            Self::Bad => Some("31"),
            Self::Faint => Some("2"),
        }
    }

    /// The text in its colour, if there are colours.
    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        match self.code().filter(|_| colour) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub text: String,
    pub tone: Tone,
}

impl Cell {
    /// Nothing to say is said with a dash, so that columns can be counted.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        let text = one_line(&text.into());
        if text.is_empty() {
            return Self {
                text: "-".to_owned(),
                tone: Tone::Faint,
            };
        }
        Self {
            text,
            tone: Tone::Plain,
        }
    }

    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        let cell = Self::new(text);
        if cell.text == "-" {
            return cell;
        }
        Self { tone, ..cell }
    }
}

/// Text from the API may hold anything; a table has one line a row, and terminals obey control characters.
fn one_line(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    plain.trim().to_owned()
}

/// Where a table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Columns of the terminal; None when it is not one, and nothing is cut.
    pub width: Option<usize>,
    pub colour: bool,
    pub wide: bool,
}

/// The table as text, a line a row, with its titles.
pub(crate) fn render(columns: &[Column], rows: &[Vec<Cell>], screen: Screen) -> String {
    let mut shown: Vec<usize> = (0..columns.len())
        .filter(|&index| screen.wide || !columns[index].wide)
        .collect();
    let mut widths = natural_widths(columns, rows);
    if let Some(limit) = screen.width {
        // What flows needs room to begin with; the others are not cut for the rest of it.
        for (width, column) in widths.iter_mut().zip(columns) {
            if column.flows {
                *width = (*width).min(SHRUNK_MIN.max(letters(column.title)));
            }
        }
        fit(columns, &mut shown, &mut widths, limit, screen.wide);
    }
    let mut text = String::new();
    let titles: Vec<Cell> = columns
        .iter()
        .map(|column| Cell {
            text: column.title.to_owned(),
            tone: Tone::Plain,
        })
        .collect();
    for row in std::iter::once(&titles).chain(rows) {
        line(&mut text, columns, row, &shown, &widths, screen.colour);
    }
    text
}

fn natural_widths(columns: &[Column], rows: &[Vec<Cell>]) -> Vec<usize> {
    let width = |index: usize, column: &Column| {
        rows.iter()
            .map(|row| letters(&row[index].text))
            .chain([letters(column.title)])
            .max()
            .unwrap_or(0)
    };
    columns
        .iter()
        .enumerate()
        .map(|(index, column)| width(index, column))
        .collect()
}

/// First cuts what may be cut, the widest first; then leaves columns out, unless all of them were asked for.
fn fit(
    columns: &[Column],
    shown: &mut Vec<usize>,
    widths: &mut [usize],
    limit: usize,
    keep_all: bool,
) {
    let natural = widths.to_vec();
    loop {
        widths.copy_from_slice(&natural);
        loop {
            let total = total(shown, widths);
            if total <= limit {
                return;
            }
            let floor = |index: usize| SHRUNK_MIN.max(letters(columns[index].title));
            let widest = shown
                .iter()
                .copied()
                .filter(|&index| columns[index].shrinks && widths[index] > floor(index))
                .max_by_key(|&index| widths[index]);
            let Some(widest) = widest else { break };
            let rest = widths[widest].saturating_sub(total - limit);
            // Down to the next widest only, so that two long columns share the loss.
            let second = shown
                .iter()
                .copied()
                .filter(|&index| index != widest && columns[index].shrinks)
                .map(|index| widths[index])
                .max()
                .unwrap_or(0);
            let step = rest
                .max(second.min(widths[widest] - 1))
                .max(floor(widest))
                .min(widths[widest] - 1);
            widths[widest] = step;
        }
        let spare = shown
            .iter()
            .copied()
            .filter(|&index| columns[index].spare > 0 && !keep_all)
            .max_by_key(|&index| columns[index].spare);
        let Some(spare) = spare else { return };
        shown.retain(|&index| index != spare);
    }
}

fn total(shown: &[usize], widths: &[usize]) -> usize {
    let text: usize = shown.iter().map(|&index| widths[index]).sum();
    text + GAP * shown.len().saturating_sub(1)
}

fn line(
    text: &mut String,
    columns: &[Column],
    row: &[Cell],
    shown: &[usize],
    widths: &[usize],
    colour: bool,
) {
    for (place, &index) in shown.iter().enumerate() {
        let (cell, is_last) = (&row[index], place + 1 == shown.len());
        let cut = if columns[index].flows {
            cell.text.clone()
        } else {
            cut(&cell.text, widths[index])
        };
        let padding = if is_last {
            0
        } else {
            widths[index].saturating_sub(letters(&cut)) + GAP
        };
        let painted = cell.tone.paint(&cut, colour);
        // Writing to a String cannot fail.
        let _ = write!(text, "{painted}{:padding$}", "");
    }
    text.push('\n');
}

/// The beginning of a text, with a sign that there was more.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if letters(text) <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push(ELLIPSIS);
    cut
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::new("NAME").shrinks(),
        Column::new("STATE"),
        Column::new("CLAIM").shrinks().spare(1),
        Column::new("EPOCH").wide(),
    ];

    fn rows() -> Vec<Vec<Cell>> {
        let row = |texts: [&str; 4]| texts.map(Cell::new).to_vec();
        vec![
            row([
                "pvc-0b6f2c52-9d6c-4f0e-8f4b-2b1c7c1d1e11",
                "attached",
                "default/database-0",
                "7",
            ]),
            row(["scratch", "detached", "", "1"]),
        ]
    }

    #[track_caller]
    fn check(width: Option<usize>, wide: bool, expected: &str) {
        let screen = Screen {
            width,
            wide,
            colour: false,
        };
        assert_eq!(render(&COLUMNS, &rows(), screen), expected);
    }

    #[test]
    fn a_table_fits() {
        check(
            None,
            true,
            "NAME                                       STATE      CLAIM                EPOCH\n\
             pvc-0b6f2c52-9d6c-4f0e-8f4b-2b1c7c1d1e11   attached   default/database-0   7\n\
             scratch                                    detached   -                    1\n",
        );
        check(
            Some(60),
            false,
            "NAME                           STATE      CLAIM\n\
             pvc-0b6f2c52-9d6c-4f0e-8f4b…   attached   default/database-0\n\
             scratch                        detached   -\n",
        );
        check(
            Some(42),
            false,
            "NAME             STATE      CLAIM\n\
             pvc-0b6f2c52-…   attached   default/datab…\n\
             scratch          detached   -\n",
        );
        check(
            Some(25),
            false,
            "NAME             STATE\n\
             pvc-0b6f2c52-…   attached\n\
             scratch          detached\n",
        );
    }

    #[test]
    fn commands_are_whole() {
        let columns = [Column::new("ABOUT").shrinks(), Column::new("TO DO").flows()];
        let row = |about, todo| vec![Cell::new(about), Cell::new(todo)];
        let rows = [
            row(
                "pvc-0b6f2c52-9d6c-4f0e",
                "lariat volume detach pvc-0b6f2c52-9d6c-4f0e",
            ),
            row("scratch", ""),
        ];
        let screen = Screen {
            width: Some(25),
            ..Screen::default()
        };
        assert_eq!(
            render(&columns, &rows, screen),
            "ABOUT            TO DO\n\
             pvc-0b6f2c52-…   lariat volume detach pvc-0b6f2c52-9d6c-4f0e\n\
             scratch          -\n"
        );
    }

    #[test]
    fn nothing_is_wider_than_its_screen_while_that_is_possible() {
        for width in 20..120 {
            let screen = Screen {
                width: Some(width),
                colour: false,
                wide: false,
            };
            for line in render(&COLUMNS, &rows(), screen).lines() {
                assert!(
                    letters(line) <= width.max(27),
                    "{width}: {line:?} is {}",
                    letters(line)
                );
            }
        }
    }

    #[test]
    fn colours_surround_the_text_and_control_characters_are_gone() {
        let columns = [Column::new("A"), Column::new("B")];
        let rows = [vec![
            Cell::toned("ok", Tone::Good),
            Cell::new("a\x1b[31mred\nline"),
        ]];
        let screen = Screen {
            colour: true,
            ..Screen::default()
        };
        let text = render(&columns, &rows, screen);
        assert_eq!(text, "A    B\n\x1b[32mok\x1b[0m   a [31mred line\n");
    }
}
