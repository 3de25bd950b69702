//! `lariat manual`: a man page for every command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, CommandFactory as _};

use crate::cli::Cli;
use crate::output::tell;

#[derive(Args)]
pub(crate) struct ManualArguments {
    /// Folder to write them into; made if it is not there
    #[arg(long, default_value = "man/man1", value_name = "DIR")]
    pub dir: PathBuf,
}

pub(crate) fn run(arguments: &ManualArguments) -> Result<()> {
    let dir = &arguments.dir;
    let count = write(dir)?;
    tell!("{}", written(count, dir));
    Ok(())
}

fn written(count: usize, dir: &Path) -> String {
    format!(
        "wrote {count} pages into {}; try: man {}",
        dir.display(),
        dir.join("lariat.1").display()
    )
}

fn write(dir: &Path) -> Result<usize> {
    let refused = |what: &str, error: std::io::Error| {
        anyhow!(
            "{what} {}: {error}; name another folder with --dir DIR",
            dir.display()
        )
    };
    std::fs::create_dir_all(dir).map_err(|error| refused("cannot make the folder", error))?;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir)
        .map_err(|error| refused("cannot write man pages into", error))?;
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(entries.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::output::golden;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let count = write(folder.path()).expect("man pages");
        assert!(count > 20, "{count} pages");
        for name in ["lariat.1", "lariat-volume-list.1", "lariat-ticket-show.1"] {
            let page = std::fs::read_to_string(folder.path().join(name)).expect(name);
            assert!(page.contains(".SH NAME"), "{name}: {page}");
        }
    }

    #[test]
    fn what_was_written_and_what_was_not_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "").expect("a file");
        let full = folder.path().join("full");
        std::fs::create_dir_all(full.join("lariat.1")).expect("a folder in the page's place");
        let mut lines = vec![written(3, folder.path())];
        for dir in [folder.path().join("file"), full] {
            lines.push(exit::told(&write(&dir).expect_err("no place for pages")));
        }
        let page = lines.join("\n") + "\n";
        golden::check(
            "manual",
            &page.replace(&folder.path().display().to_string(), "FOLDER"),
        );
    }
}
