//! What schedules have reached.

/// What happened, to know that the hard parts were reached.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub writes: u64,
    pub reads: u64,
    pub failed_members: u64,
    pub last_members_lost: u64,
    pub rebuilds: u64,
    pub rebuilds_interrupted: u64,
    pub snapshots: u64,
    pub fenced: u64,
    pub engines: u64,
    pub reconciled: u64,
    pub repaired: u64,
    pub stalled_commits: u64,
    pub clean_ends: u64,
    pub late_replies: u64,
    /// Those that came when the member had a newer connection.
    pub replies_of_older_connections: u64,
    pub superseded_requests: u64,
    pub written_off: u64,
    /// Writes that were asked of an engine after a newer one had answered, and refused.
    pub replaced_writers: u64,
    /// Machines restarted together with an engine's kill, and so that something was lost there.
    pub power_cuts: u64,
    pub power_cuts_that_lost: u64,
    /// Machines restarted under a living engine with writes half done, and after which it gave up.
    pub machine_restarts: u64,
    pub machine_restarts_that_fenced: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.failed_members += other.failed_members;
        self.last_members_lost += other.last_members_lost;
        self.rebuilds += other.rebuilds;
        self.rebuilds_interrupted += other.rebuilds_interrupted;
        self.snapshots += other.snapshots;
        self.fenced += other.fenced;
        self.engines += other.engines;
        self.reconciled += other.reconciled;
        self.repaired += other.repaired;
        self.stalled_commits += other.stalled_commits;
        self.clean_ends += other.clean_ends;
        self.late_replies += other.late_replies;
        self.replies_of_older_connections += other.replies_of_older_connections;
        self.superseded_requests += other.superseded_requests;
        self.written_off += other.written_off;
        self.replaced_writers += other.replaced_writers;
        self.power_cuts += other.power_cuts;
        self.power_cuts_that_lost += other.power_cuts_that_lost;
        self.machine_restarts += other.machine_restarts;
        self.machine_restarts_that_fenced += other.machine_restarts_that_fenced;
    }

    pub fn hard_parts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("a failed member", self.failed_members),
            ("the last member lost", self.last_members_lost),
            ("a finished rebuild", self.rebuilds),
            ("an interrupted rebuild", self.rebuilds_interrupted),
            ("a snapshot", self.snapshots),
            ("a fenced engine", self.fenced),
            ("a comparison after a crash", self.reconciled),
            ("blocks that had to be made equal", self.repaired),
            ("a commit that had to wait", self.stalled_commits),
            ("an orderly end", self.clean_ends),
            ("a late reply", self.late_replies),
            (
                "a reply of an older connection",
                self.replies_of_older_connections,
            ),
            ("a member that was written off", self.written_off),
            ("a writer that was replaced", self.replaced_writers),
            (
                "a machine that lost writes with an engine",
                self.power_cuts_that_lost,
            ),
            (
                "a machine restarted with writes half done",
                self.machine_restarts,
            ),
            (
                "a late request of an older connection",
                self.superseded_requests,
            ),
        ]
    }
}

/// A small generator: fast, and the same everywhere.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// What a replica that lies has told, and what came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    pub lies: u64,
    pub mutated_frames: u64,
    pub connections_ended: u64,
    pub left_behind: u64,
    pub rebuilt: u64,
    pub written: u64,
}
