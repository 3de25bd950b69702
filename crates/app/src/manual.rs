//! `lariat manual`: a man page for every command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
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
    tell!(
        "wrote {count} pages into {}; try: man {}",
        dir.display(),
        dir.join("lariat.1").display()
    );
    Ok(())
}

fn write(dir: &Path) -> Result<usize> {
    std::fs::create_dir_all(dir)
        .with_context(|| format!("cannot make the folder {}", dir.display()))?;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, dir)
        .with_context(|| format!("cannot write man pages into {}", dir.display()))?;
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    Ok(entries.count())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
