//! `lariat crds`

use std::io::Write as _;

use crate::cli::{CrdsArguments, CrdsOutput};

pub(crate) fn print(arguments: &CrdsArguments) -> anyhow::Result<()> {
    let text = match arguments.output {
        CrdsOutput::Yaml => api_types::crds_yaml()?,
        CrdsOutput::Json => api_types::crds_json()?,
    };
    // A reader that has seen enough (`| head`) is not an error.
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
