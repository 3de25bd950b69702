//! Access modes: who may share a volume, and what CSI calls that.

use std::collections::BTreeSet;

use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
    ReadWriteOncePod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CsiAccessMode {
    SingleNodeWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReaderOnly,
    MultiNodeMultiWriter,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AccessModeError {
    #[error(
        "access mode {0:?} is not known; use ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod"
    )]
    Unknown(String),
    #[error("the volume has no access mode")]
    None,
    #[error("ReadWriteOnce and ReadOnlyMany together have no CSI equivalent: choose one")]
    OnceAndMany,
    #[error("ReadWriteOncePod cannot be combined with other access modes")]
    OncePodAndOthers,
}

impl AccessMode {
    pub fn parse(text: &str) -> Result<Self, AccessModeError> {
        match text {
            "ReadWriteOnce" => Ok(Self::ReadWriteOnce),
            "ReadOnlyMany" => Ok(Self::ReadOnlyMany),
            "ReadWriteMany" => Ok(Self::ReadWriteMany),
            "ReadWriteOncePod" => Ok(Self::ReadWriteOncePod),
            other => Err(AccessModeError::Unknown(other.to_owned())),
        }
    }
}

/// May the volume be attached to several nodes? Kubernetes also allows it when it knows no mode.
pub fn allows_many_nodes(modes: &BTreeSet<AccessMode>) -> bool {
    modes.is_empty()
        || modes.contains(&AccessMode::ReadWriteMany)
        || modes.contains(&AccessMode::ReadOnlyMany)
}

/// May two nodes have it at once for a live migration? Only what several nodes may write.
pub fn allows_migration(modes: &BTreeSet<AccessMode>) -> bool {
    modes.contains(&AccessMode::ReadWriteMany)
}

/// The mode to ask the driver for. `single_node_multi_writer` is the driver's capability.
pub fn csi_access_mode(
    modes: &BTreeSet<AccessMode>,
    single_node_multi_writer: bool,
) -> Result<CsiAccessMode, AccessModeError> {
    let has = |mode| modes.contains(&mode);
    if modes.is_empty() {
        return Err(AccessModeError::None);
    }
    if has(AccessMode::ReadWriteMany) {
        return Ok(CsiAccessMode::MultiNodeMultiWriter);
    }
    if has(AccessMode::ReadWriteOncePod) {
        return match (modes.len(), single_node_multi_writer) {
            (1, false) => Ok(CsiAccessMode::SingleNodeWriter),
            (1, true) => Ok(CsiAccessMode::SingleNodeSingleWriter),
            _ => Err(AccessModeError::OncePodAndOthers),
        };
    }
    match (
        has(AccessMode::ReadWriteOnce),
        has(AccessMode::ReadOnlyMany),
        single_node_multi_writer,
    ) {
        (true, true, _) => Err(AccessModeError::OnceAndMany),
        (true, false, false) => Ok(CsiAccessMode::SingleNodeWriter),
        (true, false, true) => Ok(CsiAccessMode::SingleNodeMultiWriter),
        (false, _, _) => Ok(CsiAccessMode::MultiNodeReaderOnly),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `RWO+ROX`, as kubectl abbreviates.
    fn modes(text: &str) -> BTreeSet<AccessMode> {
        let mode = |word: &str| match word {
            "RWO" => AccessMode::ReadWriteOnce,
            "ROX" => AccessMode::ReadOnlyMany,
            "RWX" => AccessMode::ReadWriteMany,
            "RWOP" => AccessMode::ReadWriteOncePod,
            other => panic!("unknown mode {other}"),
        };
        text.split('+')
            .filter(|word| !word.is_empty())
            .map(mode)
            .collect()
    }

    fn check(text: &str, many: bool, plain: &str, multi_writer: &str) {
        let show = |result: Result<CsiAccessMode, AccessModeError>| match result {
            Ok(mode) => format!("{mode:?}"),
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(allows_many_nodes(&modes(text)), many, "{text}");
        assert_eq!(show(csi_access_mode(&modes(text), false)), plain, "{text}");
        assert_eq!(
            show(csi_access_mode(&modes(text), true)),
            multi_writer,
            "{text}"
        );
    }

    #[test]
    fn kubernetes_modes_become_csi_modes() {
        check("RWO", false, "SingleNodeWriter", "SingleNodeMultiWriter");
        check("RWOP", false, "SingleNodeWriter", "SingleNodeSingleWriter");
        check("ROX", true, "MultiNodeReaderOnly", "MultiNodeReaderOnly");
        check("RWX", true, "MultiNodeMultiWriter", "MultiNodeMultiWriter");
        check(
            "RWX+RWO+ROX",
            true,
            "MultiNodeMultiWriter",
            "MultiNodeMultiWriter",
        );
        check("RWO+ROX", true, "OnceAndMany", "OnceAndMany");
        check("RWOP+RWO", false, "OncePodAndOthers", "OncePodAndOthers");
        check("", true, "None", "None");
    }

    #[test]
    fn only_shared_writing_migrates() {
        for (text, expected) in [
            ("RWX", true),
            ("RWX+RWO", true),
            ("ROX", false),
            ("RWO", false),
            ("", false),
        ] {
            assert_eq!(allows_migration(&modes(text)), expected, "{text}");
        }
    }

    #[test]
    fn unknown_modes_are_named() {
        assert_eq!(
            AccessMode::parse("ReadWriteMany"),
            Ok(AccessMode::ReadWriteMany)
        );
        let error = AccessMode::parse("rwx")
            .expect_err("not a Kubernetes name")
            .to_string();
        assert!(
            error.starts_with("access mode \"rwx\" is not known"),
            "{error}"
        );
    }
}
