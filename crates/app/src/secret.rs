//! The secret that engines and replicas share: each volume's key is derived from it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};
use clap::Args;

/// Whoever starts an engine by hand seldom may write where the agent's secret is.
const ELSEWHERE: &str = "run this as root, or name another file with --secret-file FILE";

#[derive(Args)]
pub(crate) struct SecretArgument {
    /// File with the secret that engines and replicas share; made, for its owner alone, if it is not there
    #[arg(
        long,
        env = "LARIAT_SECRET_FILE",
        default_value = "/var/lib/lariat/replica-secret",
        value_name = "FILE"
    )]
    secret_file: PathBuf,
}

impl SecretArgument {
    pub(crate) fn read_or_make(&self) -> Result<Vec<u8>> {
        let path = &self.secret_file;
        let shown = path.display();
        if !path.exists() {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(|error| {
                    let folder = folder.display();
                    anyhow!("cannot make the folder {folder} for the secret: {error}; {ELSEWHERE}")
                })?;
            }
            make(path).map_err(|error| {
                anyhow!("cannot make the secret in {shown}: {error}; {ELSEWHERE}")
            })?;
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| anyhow!("cannot read the secret in {shown}: {error}; {ELSEWHERE}"))?;
        let secret = text.trim().as_bytes().to_vec();
        ensure!(
            !secret.is_empty(),
            "{shown} is empty; write a secret into it, or remove it to have one made"
        );
        Ok(secret)
    }
}

/// Several who start together agree on the secret of the first: the file appears whole, and is never replaced.
fn make(path: &Path) -> io::Result<()> {
    let secret = format!(
        "{}{}",
        uuid::Uuid::new_v4().simple(),
        uuid::Uuid::new_v4().simple()
    );
    let draft = path.with_extension(format!("draft-{}", uuid::Uuid::new_v4().simple()));
    let mut options = OpenOptions::new();
    let made = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| {
            file.write_all(secret.as_bytes())
                .and_then(|()| file.sync_all())
        })
        .and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft).ok();
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::output::golden;

    #[test]
    fn a_secret_that_cannot_be_had_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("empty"), " \n").expect("a file");
        std::fs::create_dir(folder.path().join("folder")).expect("a folder");
        let lines = ["empty", "empty/secret", "folder"].map(|name| {
            let secret_file = folder.path().join(name);
            let refused = SecretArgument { secret_file }.read_or_make();
            exit::told(&refused.expect_err("no secret")) + "\n"
        });
        golden::check(
            "secret",
            &lines
                .concat()
                .replace(&folder.path().display().to_string(), "FOLDER"),
        );
    }

    #[test]
    fn all_who_start_at_once_have_the_same_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        for round in 0..50 {
            let secret_file = folder.path().join(format!("{round}/secret"));
            let secrets: Vec<Vec<u8>> = std::thread::scope(|scope| {
                let starts: Vec<_> = (0..4)
                    .map(|_| {
                        let secret_file = secret_file.clone();
                        let argument = SecretArgument { secret_file };
                        scope.spawn(move || argument.read_or_make().expect("a secret"))
                    })
                    .collect();
                starts
                    .into_iter()
                    .map(|start| start.join().expect("no panic"))
                    .collect()
            });
            assert_eq!(secrets[0].len(), 64);
            assert!(secrets.iter().all(|secret| *secret == secrets[0]));
            let files = std::fs::read_dir(secret_file.parent().expect("a folder"));
            assert_eq!(files.expect("a folder").count(), 1, "no draft stays");
        }
    }
}
