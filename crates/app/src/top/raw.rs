//! A terminal that is drawn on, and is given back as it was.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Held while the terminal is drawn on.
pub(super) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    pub(super) fn take() -> Result<Self> {
        let before =
            tcgetattr(std::io::stdin()).context("cannot ask the terminal for its state")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)
            .context("cannot take the terminal")?;
        let taken = Self { before };
        write(ENTER);
        Ok(taken)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        write(LEAVE);
        // Nothing is left to try if the terminal itself is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

pub(super) fn rows() -> usize {
    let size = tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| usize::from(size.ws_row))
        .filter(|&rows| rows > 0)
        .unwrap_or(24)
}

/// Lines drawn over what is there: each is cleared to its end, and what is below the last is cleared too.
pub(super) fn drawn(lines: &[String]) -> String {
    let body = lines.join("\x1b[K\r\n");
    format!("\x1b[H{body}\x1b[K\x1b[J")
}
