//! One replica as the engine sees it.

use std::fmt;

use block_core::ReplicaName;
use block_core::wire::HostBoot;

use super::tasks::TaskId;
use super::{Incarnation, MemberAddress, Moment};

/// A member's place in the engine's list. A name keeps its place while anything speaks of it; see `places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberIndex(u8);

impl MemberIndex {
    #[must_use]
    pub fn from_position(position: usize) -> Self {
        assert!(
            position < MemberSet::MEMBERS_MAX,
            "more members than a set can hold"
        );
        Self(position as u8)
    }

    #[must_use]
    pub fn position(self) -> usize {
        usize::from(self.0)
    }
}

/// Some of the members.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MemberSet(u32);

impl MemberSet {
    pub const MEMBERS_MAX: usize = 32;

    #[must_use]
    pub fn contains(self, member: MemberIndex) -> bool {
        self.0 & (1 << member.0) != 0
    }

    pub fn insert(&mut self, member: MemberIndex) {
        self.0 |= 1 << member.0;
    }

    pub fn remove(&mut self, member: MemberIndex) {
        self.0 &= !(1 << member.0);
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[must_use]
    pub fn is_subset_of(self, other: Self) -> bool {
        self.without(other).is_empty()
    }

    pub fn iter(self) -> impl Iterator<Item = MemberIndex> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then(|| left.trailing_zeros() as u8)?;
            left &= left - 1;
            Some(MemberIndex(lowest))
        })
    }
}

impl FromIterator<MemberIndex> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberIndex>>(members: I) -> Self {
        let mut set = Self::default();
        for member in members {
            set.insert(member);
        }
        set
    }
}

impl fmt::Debug for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|member| member.0))
            .finish()
    }
}

/// ```text
///            fails              removal recorded
///  InSync ──────────> Failed ────────────────────> Out
///    ^                                              │ rebuild
///    │ addition recorded                            v
///    └───────── JoinReady <──────── Joining <───────┘
///                          verified
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has every acknowledged write.
    InSync,
    /// Recorded as in sync, but misses a write or cannot be reached: to be left behind.
    Failed { why: String },
    /// Being rebuilt; takes live writes once `live`.
    Joining { task: TaskId, live: bool },
    /// Equal to the others, and to be recorded as such.
    JoinReady,
    /// Not a part of the volume now.
    Out { why: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Down { retry_at: Moment },
    Connecting { since: Moment },
    Up,
}

/// Why a connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkRefusal {
    /// The replica obeys a newer engine.
    StaleEpoch(String),
    /// It obeys a newer connection of the same epoch, of this number.
    Superseded { newest: Incarnation, why: String },
    /// It may work later.
    Unreachable(String),
}

#[derive(Clone, Debug)]
pub struct Member {
    pub to: MemberAddress,
    pub role: Role,
    pub link: Link,
    pub incarnation: Incarnation,
    /// The latest moment at which something was sent that it has answered: it obeyed no newer engine then.
    pub confirmed_at: Moment,
    /// When anything came from it last.
    pub heard_at: Moment,
    pub ping_open: bool,
    /// Why the last connection ended or was refused.
    pub trouble: Option<String>,
    pub retries: u32,
    /// Reads that it is asked for now.
    pub reads_open: u32,
    /// What its reads took lately, smoothed.
    pub read_us: u64,
    /// The volume's size there, once known.
    pub size_bytes: u64,
    /// The start of its machine when it last connected.
    pub host_boot: Option<HostBoot>,
    /// Its machine was restarted after an engine that did not end in order: writes may be missing.
    pub may_lack_writes: bool,
    /// It has as much to make durable as the others in sync. One that was rebuilt has less, until all have flushed together.
    pub flushes_as_others: bool,
    /// It was part of a set that ended in order.
    pub was_clean: bool,
    pub allocated_bytes: u64,
}

impl Member {
    #[must_use]
    pub fn new(to: MemberAddress, role: Role) -> Self {
        Self {
            to,
            role,
            link: Link::Down {
                retry_at: Moment(0),
            },
            incarnation: Incarnation(0),
            confirmed_at: Moment(0),
            heard_at: Moment(0),
            ping_open: false,
            trouble: None,
            retries: 0,
            reads_open: 0,
            read_us: 0,
            size_bytes: 0,
            host_boot: None,
            may_lack_writes: false,
            flushes_as_others: false,
            was_clean: false,
            allocated_bytes: 0,
        }
    }

    #[must_use]
    pub fn name(&self) -> &ReplicaName {
        &self.to.name
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// Whether this engine has ever had it.
    #[must_use]
    pub fn was_connected(&self) -> bool {
        self.host_boot.is_some()
    }

    /// The replica is served elsewhere from now on. What is connected stays so: it is the replica, wherever it will be found next.
    /// Answers whether an attempt to connect to the old address is to be given up.
    pub fn move_to(&mut self, address: String, now: Moment) -> bool {
        self.to.address = address;
        let was_connecting = matches!(self.link, Link::Connecting { .. });
        if !self.is_up() {
            self.link = Link::Down { retry_at: now };
            self.retries = 0;
        }
        was_connecting
    }

    /// Members that are left behind are not connected again: a rebuild does that.
    #[must_use]
    pub fn wants_link(&self) -> bool {
        matches!(
            self.role,
            Role::InSync | Role::Joining { .. } | Role::JoinReady
        )
    }

    /// Takes part in writes now.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        self.is_up()
            && match self.role {
                Role::InSync | Role::JoinReady | Role::Joining { live: true, .. } => true,
                Role::Joining { live: false, .. } | Role::Failed { .. } | Role::Out { .. } => false,
            }
    }
}
