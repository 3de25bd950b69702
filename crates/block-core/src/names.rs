//! Names of volumes, snapshots and replicas, checked once at the edge.
//!
//! A volume's name becomes a folder's name and all names travel in frames, so they are short and of a plain alphabet.

use std::fmt;

/// The longest name, in bytes. Kubernetes object names have at most 253.
pub const NAME_BYTES_MAX: usize = 253;

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a {kind} name must not be empty")]
    Empty { kind: &'static str },
    #[error("a {kind} name has at most 253 bytes, this one has {bytes}")]
    TooLong { kind: &'static str, bytes: usize },
    #[error(
        "a {kind} name may use letters, digits, '-', '_' and '.', and starts with a letter or a digit; this has {found:?}"
    )]
    BadCharacter { kind: &'static str, found: char },
}

fn check_name(kind: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { kind });
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong {
            kind,
            bytes: name.len(),
        });
    }
    for (at, found) in name.char_indices() {
        let allowed = found.is_ascii_alphanumeric() || (at > 0 && matches!(found, '-' | '_' | '.'));
        if !allowed {
            return Err(NameError::BadCharacter { kind, found });
        }
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn new(name: &str) -> Result<Self, NameError> {
                check_name($kind, name)?;
                Ok(Self(name.into()))
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }
    };
}

name_type!(
    /// A volume, on every replica that holds a copy of it.
    VolumeName,
    "volume"
);
name_type!(
    /// A snapshot of one volume; equal on all its replicas.
    SnapshotName,
    "snapshot"
);
name_type!(
    /// One replica of a volume, as the in-sync set names it.
    ReplicaName,
    "replica"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_folder() {
        for good in ["a", "pvc-0f.1", "A_b", "0"] {
            assert!(VolumeName::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(254);
        for bad in ["", ".", "..", "a/b", "-a", "a b", "é", "a\0", long.as_str()] {
            assert!(VolumeName::new(bad).is_err(), "{bad:?}");
        }
    }
}
