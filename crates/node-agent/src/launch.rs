//! What an engine process is told when an agent starts it: one JSON value on its standard input, because the secret
//! must be neither on a command line nor in a file.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::frontend::FrontendKind;
use engine::run::{RunMode, RunOptions};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest launch specification: 32 replicas with long names and addresses take far less.
const SPEC_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchSpec {
    pub volume: String,
    pub epoch: u64,
    /// The version of the in-sync set.
    pub generation: u64,
    pub size_bytes: u64,
    pub in_sync: Vec<String>,
    /// Those of `in_sync` that will hardly answer, because their node or disk is lost.
    pub written_off: Vec<String>,
    /// Where each replica of `in_sync` is served; of those written off, as far as somebody knows.
    pub addresses: BTreeMap<String, String>,
    pub frontend: FrontendKind,
    /// Another engine has the volume, and will hand it over.
    pub standby: bool,
    /// In base64.
    pub secret: String,
    /// Whether lines to replicas are encrypted.
    pub tls: bool,
    pub runtime_dir: PathBuf,
    pub device_dir: PathBuf,
    pub keeper: Option<PathBuf>,
    pub rebuild_bytes_per_second_max: u64,
}

#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("cannot read the launch specification from standard input")]
    Read(#[source] std::io::Error),
    #[error("the launch specification is not one")]
    Parse(#[source] serde_json::Error),
    #[error("the launch specification's secret is not base64")]
    Secret(#[source] base64::DecodeError),
}

impl LaunchSpec {
    #[must_use]
    pub fn encode_secret(secret: &[u8]) -> String {
        STANDARD.encode(secret)
    }

    /// Reads a specification to its end, which a starter that was killed half-way does not write.
    pub fn read(from: impl Read) -> Result<Self, LaunchError> {
        let mut text = Vec::new();
        from.take(SPEC_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(LaunchError::Read)?;
        serde_json::from_slice(&text).map_err(LaunchError::Parse)
    }

    pub fn run_options(&self) -> Result<RunOptions, LaunchError> {
        let mut options = RunOptions::by_hand(&self.volume);
        options.size_bytes = Some(self.size_bytes);
        options.replicas = self
            .addresses
            .iter()
            .map(|(name, address)| format!("{name}={address}"))
            .collect();
        options.frontend = self.frontend;
        options.secret = STANDARD.decode(&self.secret).map_err(LaunchError::Secret)?;
        options.tls = self.tls;
        options.runtime_dir.clone_from(&self.runtime_dir);
        options.device_dir.clone_from(&self.device_dir);
        options.keeper.clone_from(&self.keeper);
        options.rebuild_bytes_per_second_max = self.rebuild_bytes_per_second_max;
        options.mode = RunMode::Managed {
            epoch: self.epoch,
            generation: self.generation,
            in_sync: self.in_sync.clone(),
            written_off: self.written_off.clone(),
            // Replicas are made by the agents of their nodes; one that is missing is lost, not new.
            create: false,
            standby: self.standby,
        };
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_survives_the_pipe_and_half_of_one_does_not() {
        let spec = LaunchSpec {
            volume: "v".into(),
            epoch: 3,
            generation: 7,
            size_bytes: 1 << 20,
            in_sync: vec!["a".into()],
            written_off: Vec::new(),
            addresses: [("a".to_owned(), "127.0.0.1:1".to_owned())].into(),
            frontend: FrontendKind::Fuse,
            standby: true,
            secret: LaunchSpec::encode_secret(b"secret"),
            tls: true,
            runtime_dir: "/r".into(),
            device_dir: "/d".into(),
            keeper: None,
            rebuild_bytes_per_second_max: 0,
        };
        let text = serde_json::to_vec(&spec).expect("JSON");
        let read = LaunchSpec::read(text.as_slice()).expect("a specification");
        assert!(read == spec);
        let options = read.run_options().expect("options");
        assert_eq!(options.replicas, ["a=127.0.0.1:1"]);
        assert_eq!(options.secret, b"secret");
        assert!(options.tls);
        assert!(LaunchSpec::read(&text[..text.len() / 2]).is_err());
    }
}
