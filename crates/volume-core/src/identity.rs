//! Names, counters and instants. Each is its own type, so that a node is never passed for a disk.

use std::fmt;
use std::time::Duration;

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            pub fn new(name: impl Into<String>) -> Self {
                Self(name.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $type {
            fn from(name: &str) -> Self {
                Self(name.to_owned())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        // Quotes add nothing in plans and test output.
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A `volumes.longhorn.io` object.
    VolumeName
);
name!(
    /// A `nodes.longhorn.io` object; the same as the Kubernetes node's name.
    NodeName
);
name!(
    /// A key of a node's `spec.disks`.
    DiskName
);
name!(
    /// An `engines.longhorn.io` object: one incarnation of a volume's engine.
    EngineName
);
name!(
    /// A `replicas.longhorn.io` object. Never reused: an in-sync set names replicas, and a name
    /// that came back with other data behind it would be a lie in that set.
    ReplicaName
);
name!(
    /// A snapshot in a volume's chain.
    SnapshotName
);

impl EngineName {
    /// One object per incarnation, so that a superseded engine keeps its own status until its node
    /// says that it is gone.
    pub fn of(volume: &VolumeName, epoch: Epoch) -> Self {
        Self(format!("{volume}-e-{epoch}"))
    }
}

impl ReplicaName {
    /// Eight hexadecimal digits as Longhorn has them, but counted instead of drawn.
    pub fn of(volume: &VolumeName, ordinal: u64) -> Self {
        Self(format!("{volume}-r-{ordinal:08x}"))
    }

    /// The ordinal of a name made by [`ReplicaName::of`]; other names have none.
    pub fn ordinal(&self) -> Option<u64> {
        let (_, digits) = self.0.rsplit_once("-r-")?;
        u64::from_str_radix(digits, 16).ok()
    }
}

/// An engine incarnation's number. Larger than that of every incarnation before it; 0 is "none yet".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Counts the commits of one in-sync record.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Epoch {
    pub const NONE: Epoch = Epoch(0);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Version {
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Milliseconds since 1970, as the caller's clock has them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// How long ago `earlier` was; zero when clocks disagree about the order.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

macro_rules! plain_number {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
plain_number!(Epoch, Version, Timestamp);

/// `a, b, c` for sentences.
pub(crate) fn listed<T: fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_names_count_up_and_read_back() {
        let volume = VolumeName::from("pvc-r-1");
        for ordinal in [0, 1, 0xffff_ffff, 0x1_0000_0000] {
            assert_eq!(ReplicaName::of(&volume, ordinal).ordinal(), Some(ordinal));
        }
        assert_eq!(ReplicaName::of(&volume, 26).as_str(), "pvc-r-1-r-0000001a");
        assert_eq!(ReplicaName::from("mine").ordinal(), None);
    }

    #[test]
    fn time_never_runs_backwards() {
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
        assert_eq!(Timestamp(9).since(Timestamp(5)), Duration::from_millis(4));
    }
}
