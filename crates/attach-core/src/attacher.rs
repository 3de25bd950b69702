//! Who may file a ticket, and what that entitles them to: one table.
//!
//! To add an attacher type: one variant of [`AttacherKind`], one row in [`TABLE`] at the same place.

use std::fmt;
use std::sync::Arc;

/// The attacher types that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttacherKind {
    /// A pod, through the CSI driver.
    Csi,
    /// A person, through the UI, the API or the command line.
    Manual,
    /// A snapshot that is created or deleted.
    Snapshot,
    /// A backup of a snapshot.
    Backup,
    /// A volume that is filled from a backup.
    Restore,
    /// A volume that is filled from another volume; both ends hold a ticket.
    Clone,
    /// The one server in front of a volume that many nodes share.
    ShareManager,
    /// A volume that grows.
    Expansion,
    /// A detached volume whose missing replicas are rebuilt.
    Rebuilding,
    /// A volume whose replicas are being recovered.
    Salvage,
    /// A volume whose replicas leave a disk or node.
    Eviction,
    /// A backing image that is exported from a volume.
    BackingImage,
}

/// The order in which tickets are served when the volume is detached: larger first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(pub u32);

/// When a workload that wants the volume elsewhere may end this attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruptible {
    Never,
    Always,
    /// Only once the data is copied and the volume waits to become healthy: an interrupted copy would
    /// have to start over.
    WhenCloneCopied,
}

/// Everything the decision knows about an attacher type.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub kind: AttacherKind,
    /// `type` of the ticket, in the API.
    pub wire: &'static str,
    /// What people call it.
    pub short: &'static str,
    pub priority: Priority,
    /// Whether it may interrupt. This goes by type and never by number: a restore has the highest
    /// priority and interrupts nobody.
    pub workload: bool,
    pub interruptible: Interruptible,
}

const fn row(
    kind: AttacherKind,
    wire: &'static str,
    short: &'static str,
    priority: u32,
    workload: bool,
    interruptible: Interruptible,
) -> Row {
    Row {
        kind,
        wire,
        short,
        priority: Priority(priority),
        workload,
        interruptible,
    }
}

/// One row for each kind, in the order of [`AttacherKind`].
#[rustfmt::skip]
pub const TABLE: [Row; 12] = {
    use AttacherKind::*;
    use Interruptible::*;
    [
        //  kind          wire name                       short            priority workload interruptible
        row(Csi,          "csi-attacher",                 "csi",                900, true,  Never),
        row(Manual,       "longhorn-api",                 "api",               1000, true,  Never),
        row(Snapshot,     "snapshot-controller",          "snapshot",           800, false, Always),
        row(Backup,       "backup-controller",            "backup",             800, false, Always),
        row(Restore,      "volume-restore-controller",    "restore",           2000, false, Never),
        row(Clone,        "volume-clone-controller",      "clone",              800, false, WhenCloneCopied),
        row(ShareManager, "share-manager-controller",     "share-manager",      900, true,  Never),
        row(Expansion,    "volume-expansion-controller",  "expansion",         2000, false, Never),
        row(Rebuilding,   "volume-rebuilding-controller", "rebuilding",         800, false, Never),
        row(Salvage,      "salvage-controller",           "salvage",            900, false, Never),
        row(Eviction,     "volume-eviction-controller",   "eviction",           800, false, Never),
        row(BackingImage, "bim-ds-controller",            "bim-ds",             800, false, Never),
    ]
};

impl AttacherKind {
    #[must_use]
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// `type` of the ticket, in the API.
    #[must_use]
    pub fn wire(self) -> &'static str {
        self.row().wire
    }
}

/// The `type` of a ticket as filed: one of ours, or one from somebody newer than us.
///
/// A foreign type is kept, shown and never selected. Upstream gives it priority 0, which makes it win
/// whenever it is alone; we would rather ask a person than serve a request that we do not understand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attacher {
    Known(AttacherKind),
    Foreign(Arc<str>),
}

impl Attacher {
    #[must_use]
    pub fn from_wire(text: &str) -> Self {
        TABLE
            .iter()
            .find(|row| row.wire == text)
            .map_or_else(|| Self::Foreign(text.into()), |row| Self::Known(row.kind))
    }

    #[must_use]
    pub fn wire(&self) -> &str {
        match self {
            Self::Known(kind) => kind.wire(),
            Self::Foreign(text) => text,
        }
    }

    #[must_use]
    pub fn kind(&self) -> Option<AttacherKind> {
        match self {
            Self::Known(kind) => Some(*kind),
            Self::Foreign(_) => None,
        }
    }

    #[must_use]
    pub fn is(&self, kind: AttacherKind) -> bool {
        *self == Self::Known(kind)
    }

    /// None for a foreign type: it takes no part in the order at all.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        self.kind().map(|kind| kind.row().priority)
    }

    #[must_use]
    pub fn is_workload(&self) -> bool {
        self.kind().is_some_and(|kind| kind.row().workload)
    }

    /// A foreign type is never interrupted: we cannot know what that would break.
    #[must_use]
    pub fn is_interruptible(&self, clone_copied: bool) -> bool {
        self.kind()
            .is_some_and(|kind| match kind.row().interruptible {
                Interruptible::Never => false,
                Interruptible::Always => true,
                Interruptible::WhenCloneCopied => clone_copied,
            })
    }
}

impl From<AttacherKind> for Attacher {
    fn from(kind: AttacherKind) -> Self {
        Self::Known(kind)
    }
}

impl fmt::Display for Attacher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_where_their_kind_says() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, place, "{}", row.wire);
            assert_eq!(row.kind.row().wire, row.wire);
            assert_eq!(Attacher::from_wire(row.wire), Attacher::Known(row.kind));
        }
    }

    #[test]
    fn priorities_and_classes_are_those_of_the_field() {
        let of_priority = |priority: u32| -> Vec<&str> {
            TABLE
                .iter()
                .filter(|row| row.priority == Priority(priority))
                .map(|row| row.short)
                .collect()
        };
        assert_eq!(of_priority(2000), ["restore", "expansion"]);
        assert_eq!(of_priority(1000), ["api"]);
        assert_eq!(of_priority(900), ["csi", "share-manager", "salvage"]);
        assert_eq!(
            of_priority(800),
            [
                "snapshot",
                "backup",
                "clone",
                "rebuilding",
                "eviction",
                "bim-ds"
            ]
        );

        let workloads: Vec<_> = TABLE
            .iter()
            .filter(|row| row.workload)
            .map(|row| row.short)
            .collect();
        assert_eq!(workloads, ["csi", "api", "share-manager"]);

        let interruptible = |clone_copied: bool| -> Vec<&str> {
            TABLE
                .iter()
                .filter(|row| Attacher::Known(row.kind).is_interruptible(clone_copied))
                .map(|row| row.short)
                .collect()
        };
        assert_eq!(interruptible(false), ["snapshot", "backup"]);
        assert_eq!(interruptible(true), ["snapshot", "backup", "clone"]);
    }

    #[test]
    fn a_foreign_type_has_no_priority_at_all() {
        let foreign = Attacher::from_wire("volume-teleport-controller");
        assert_eq!(foreign.wire(), "volume-teleport-controller");
        assert_eq!(foreign.priority(), None);
        assert!(!foreign.is_workload());
        assert!(!foreign.is_interruptible(true));
    }
}
