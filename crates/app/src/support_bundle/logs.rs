//! What of a log goes into an archive: its last part, without secrets.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use diagnose::{BundleFile, redact_line};

/// Of each log the last part: what happened just before somebody asked.
pub(super) const LOG_BYTES_MAX: usize = 4 * 1024 * 1024;
/// All of them together: with the objects they stay below what an archive may grow to.
pub(super) const LOGS_MAX: usize = 500;

/// The end of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    pub bytes: Vec<u8>,
    /// There was more before it.
    pub is_cut: bool,
}

impl Tail {
    /// Whole lines without secrets. Where the log was cut its first line goes: half of a secret's name looks like no secret's.
    pub(super) fn cleaned(&self) -> Vec<u8> {
        let begin = match self.bytes.iter().position(|byte| *byte == b'\n') {
            _ if !self.is_cut => 0,
            Some(end) => end + 1,
            None => self.bytes.len(),
        };
        let text = String::from_utf8_lossy(&self.bytes[begin..]);
        let lines = text.lines().map(|line| redact_line(line) + "\n");
        lines.collect::<String>().into_bytes()
    }
}

/// The logs of a cluster on this machine, as many as there is room for: its parts', and its engines'.
pub(super) fn of_this_machine(data_dir: &Path, room: usize) -> Vec<BundleFile> {
    let mut folders = vec![(data_dir.join("logs"), "logs".to_owned())];
    for entry in std::fs::read_dir(data_dir.join("nodes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let node = entry.file_name().to_string_lossy().into_owned();
        folders.push((entry.path().join("run"), format!("logs/engines/{node}")));
    }
    let mut files = Vec::new();
    for (folder, name) in folders {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if !file.ends_with(".log") || files.len() >= room {
                continue;
            }
            if let Ok(tail) = tail(&entry.path()) {
                files.push(BundleFile {
                    path: format!("{name}/{file}"),
                    bytes: tail.cleaned(),
                });
            }
        }
    }
    files
}

fn tail(path: &Path) -> std::io::Result<Tail> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(LOG_BYTES_MAX as u64);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(Tail {
        bytes,
        is_cut: begin > 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_line_does_not_show_what_the_whole_would_hide() {
        let check = |text: &str, is_cut: bool, expected: &str| {
            let tail = Tail {
                bytes: text.as_bytes().to_vec(),
                is_cut,
            };
            assert_eq!(String::from_utf8_lossy(&tail.cleaned()), expected);
        };
        check("", false, "");
        check("attached\n", false, "attached\n");
        check("token=sesame\nb", false, "token=REDACTED\nb\n");
        check("en=sesame\nb\n", true, "b\n");
        check("en=sesame", true, "");
    }

    #[test]
    fn of_a_long_log_the_last_lines_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = folder.path().join("logs");
        std::fs::create_dir(&logs).expect("a folder");
        let line = |number: usize| format!("line {number:>11}\n");
        let count = LOG_BYTES_MAX / line(0).len() + 10;
        let text: String = (0..count).map(line).collect();
        std::fs::write(logs.join("manager.log"), &text).expect("a log");
        let files = of_this_machine(folder.path(), LOGS_MAX);
        let [file] = &files[..] else {
            panic!("{} files", files.len());
        };
        assert_eq!(file.path, "logs/manager.log");
        assert!(file.bytes.len() <= LOG_BYTES_MAX && file.bytes.len() > LOG_BYTES_MAX / 2);
        let kept = String::from_utf8_lossy(&file.bytes);
        assert!(text.ends_with(&*kept), "the last of it");
        assert!(kept.starts_with("line "), "whole lines");
    }
}
