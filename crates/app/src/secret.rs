//! The secret that engines and replicas share: each volume's key is derived from it.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use apiserver::server::write_private;
use clap::Args;

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
                std::fs::create_dir_all(folder)
                    .with_context(|| format!("cannot make {}", folder.display()))?;
            }
            let secret = format!(
                "{}{}",
                uuid::Uuid::new_v4().simple(),
                uuid::Uuid::new_v4().simple()
            );
            write_private(path, secret.as_bytes())?;
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the secret in {shown}"))?;
        let secret = text.trim().as_bytes().to_vec();
        ensure!(
            !secret.is_empty(),
            "{shown} is empty; write a secret into it, or remove it to have one made"
        );
        Ok(secret)
    }
}
