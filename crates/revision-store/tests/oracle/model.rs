//! The slow, obvious store: a copy of everything at every revision.

use std::collections::BTreeMap;

use proptest::prelude::*;

/// A key's value with all that the store says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: String,
    pub create: u64,
    pub modified: u64,
    pub version: u64,
}

/// A change of one key: before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub revision: u64,
    pub key: String,
    pub before: Option<Entry>,
    pub after: Option<Entry>,
}

pub type Objects = BTreeMap<String, Entry>;

pub struct Model {
    /// The state at each revision, from 0.
    states: Vec<Objects>,
    changes: Vec<Change>,
    pub compacted: u64,
}

impl Model {
    pub fn new() -> Self {
        Self {
            states: vec![Objects::new()],
            changes: Vec::new(),
            compacted: 0,
        }
    }

    pub fn current(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    pub fn objects(&self) -> &Objects {
        self.states.last().expect("never empty")
    }

    /// The state at a revision, or why there is none: true if it was compacted, false if it is in the future.
    pub fn at(&self, revision: u64) -> Result<&Objects, bool> {
        if revision < self.compacted {
            return Err(true);
        }
        let index = usize::try_from(revision).expect("small");
        self.states.get(index).ok_or(false)
    }

    pub fn changes(&self, prefix: &str, after: u64, through: u64) -> Vec<Change> {
        self.changes
            .iter()
            .filter(|change| change.revision > after && change.revision <= through)
            .filter(|change| change.key.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Does the writes at once, or says which key stands in the way.
    pub fn write(&mut self, writes: &[Write]) -> Result<u64, String> {
        let current = self.objects();
        for write in writes {
            let entry = current.get(write.key());
            let is_allowed = match write.condition.resolve(entry, self.current()) {
                Resolved::Any => true,
                Resolved::Absent => entry.is_none(),
                Resolved::Modified(at) => entry.is_some_and(|entry| entry.modified == at),
            };
            let is_deletable = entry.is_some() || write.value.is_some();
            if !is_allowed || !is_deletable {
                return Err(write.key().to_owned());
            }
        }
        let revision = self.current() + 1;
        let mut next = current.clone();
        for write in writes {
            let key = write.key().to_owned();
            let before = next.get(&key).cloned();
            let after = write.value.map(|value| Entry {
                value: text(value),
                create: before.as_ref().map_or(revision, |before| before.create),
                modified: revision,
                version: before.as_ref().map_or(1, |before| before.version + 1),
            });
            match &after {
                Some(entry) => next.insert(key.clone(), entry.clone()),
                None => next.remove(&key),
            };
            self.changes.push(Change {
                revision,
                key,
                before,
                after,
            });
        }
        self.states.push(next);
        Ok(revision)
    }
}

/// Values of many lengths, some longer than a page.
pub fn text(value: u16) -> String {
    format!("{value} ").repeat(usize::from(value % 1500) + 1)
}

pub const KEYS: [&str; 7] = ["/a", "/a/1", "/a/2", "/b/1", "/b/2", "/b/22", "/c"];
pub const PREFIXES: [&str; 6] = ["", "/", "/a", "/b/", "/b/2", "/none"];

/// Puts a value, or deletes.
#[derive(Clone, Debug)]
pub struct Write {
    key: usize,
    pub value: Option<u16>,
    pub condition: Condition,
}

impl Write {
    pub fn key(&self) -> &'static str {
        KEYS[self.key]
    }

    /// The same write with a condition that no longer depends on the state.
    pub fn fixed(&self, condition: Resolved) -> Self {
        Self {
            condition: Condition::Fixed(condition),
            ..self.clone()
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Condition {
    Any,
    Absent,
    /// What the key's revision is.
    Right,
    /// Some revision, right by luck only.
    Some(u16),
    Fixed(Resolved),
}

#[derive(Clone, Copy, Debug)]
pub enum Resolved {
    Any,
    Absent,
    Modified(u64),
}

impl Condition {
    pub fn resolve(self, entry: Option<&Entry>, current: u64) -> Resolved {
        match (self, entry) {
            (Self::Any, _) => Resolved::Any,
            (Self::Absent, _) => Resolved::Absent,
            (Self::Right, Some(entry)) => Resolved::Modified(entry.modified),
            (Self::Right, None) => Resolved::Absent,
            (Self::Fixed(resolved), _) => resolved,
            (Self::Some(number), _) => Resolved::Modified(u64::from(number) % (current + 2)),
        }
    }
}

/// One step of a test. Numbers stand for revisions, modulo what exists and a little beyond.
#[derive(Clone, Debug)]
pub enum Step {
    Transact(Vec<Write>),
    /// Single writes that are all queued before the first is answered.
    Together(Vec<Write>),
    List {
        prefix: usize,
        at: Option<u16>,
        limit: usize,
    },
    Get {
        key: usize,
        at: u16,
    },
    Watch {
        prefix: usize,
        after: u16,
    },
    /// Every watcher reads all that it can.
    Drain,
    Compact(u16),
    Reopen,
}

pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => transaction().prop_map(Step::Transact),
        4 => prop::collection::vec(write(), 1..8).prop_map(Step::Together),
        3 => (0..PREFIXES.len(), prop::option::of(any::<u16>()), 1_usize..5)
            .prop_map(|(prefix, at, limit)| Step::List { prefix, at, limit }),
        1 => (0..KEYS.len(), any::<u16>()).prop_map(|(key, at)| Step::Get { key, at }),
        3 => (0..PREFIXES.len(), any::<u16>())
            .prop_map(|(prefix, after)| Step::Watch { prefix, after }),
        2 => Just(Step::Drain),
        1 => any::<u16>().prop_map(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

fn transaction() -> impl Strategy<Value = Vec<Write>> {
    prop::collection::vec(write(), 1..5).prop_map(|mut writes| {
        writes.sort_by_key(|write| write.key);
        writes.dedup_by_key(|write| write.key);
        writes
    })
}

fn write() -> impl Strategy<Value = Write> {
    let condition = prop_oneof![
        3 => Just(Condition::Any),
        1 => Just(Condition::Absent),
        2 => Just(Condition::Right),
        1 => any::<u16>().prop_map(Condition::Some),
    ];
    let value = prop_oneof![3 => any::<u16>().prop_map(Some), 1 => Just(None)];
    (0..KEYS.len(), value, condition).prop_map(|(key, value, condition)| Write {
        key,
        value,
        condition,
    })
}
