//! Writes: what may be asked, and how a group of them becomes events.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::state::State;
use crate::{Change, Event, Object, Options, Revision, WriteError};

/// What must hold of a key for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists and was last changed by this revision.
    ModRevision(Revision),
}

impl Precondition {
    fn holds(self, current: Option<&Object>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::ModRevision(revision) => {
                current.is_some_and(|object| object.mod_revision == revision)
            }
        }
    }
}

/// One part of a transaction.
#[derive(Clone, Debug)]
pub enum Operation {
    Put {
        key: String,
        value: Bytes,
        precondition: Precondition,
    },
    /// Deleting a key that does not exist is a conflict, whatever the precondition.
    Delete {
        key: String,
        precondition: Precondition,
    },
    /// Writes nothing; lets the others depend on a key that they leave alone.
    Check {
        key: String,
        precondition: Precondition,
    },
}

impl Operation {
    fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } | Self::Check { key, .. } => key,
        }
    }

    fn holds(&self, current: Option<&Object>) -> bool {
        match self {
            Self::Put { precondition, .. } | Self::Check { precondition, .. } => {
                precondition.holds(current)
            }
            Self::Delete { precondition, .. } => current.is_some() && precondition.holds(current),
        }
    }

    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } => value.len(),
            Self::Delete { .. } | Self::Check { .. } => 0,
        }
    }
}

/// A durable transaction: its revision and what it changed, in the order of its operations.
#[derive(Clone, Debug)]
pub struct Committed {
    pub revision: Revision,
    pub events: Vec<Arc<Event>>,
}

/// A durable deletion.
#[derive(Clone, Debug)]
pub struct Deleted {
    pub revision: Revision,
    pub previous: Arc<Object>,
}

/// Refuses what no state of the store could accept, before it takes a place in the queue.
pub(crate) fn validate(operations: &[Operation], options: &Options) -> Result<(), WriteError> {
    if operations.len() > options.transaction_operations_max {
        return Err(WriteError::TransactionTooLarge {
            operations: operations.len(),
            operations_max: options.transaction_operations_max,
        });
    }
    if operations
        .iter()
        .all(|operation| matches!(operation, Operation::Check { .. }))
    {
        return Err(WriteError::TransactionEmpty);
    }
    let mut keys = HashSet::with_capacity(operations.len());
    for operation in operations {
        let key = operation.key();
        if key.is_empty() {
            return Err(WriteError::KeyEmpty);
        }
        if key.len() > options.key_bytes_max {
            return Err(WriteError::KeyTooLong {
                bytes: key.len(),
                bytes_max: options.key_bytes_max,
            });
        }
        if operation.value_bytes() > options.value_bytes_max {
            return Err(WriteError::ValueTooLarge {
                key: key.to_owned(),
                bytes: operation.value_bytes(),
                bytes_max: options.value_bytes_max,
            });
        }
        // Twice the same key in one revision would have no order that a reader could see.
        if !keys.insert(key) {
            return Err(WriteError::TransactionKeyTwice {
                key: key.to_owned(),
            });
        }
    }
    Ok(())
}

/// The writes of one commit: each sees the effects of those before it, none is durable yet.
pub(crate) struct Group<'s> {
    state: &'s State,
    /// Keys that this group has changed: their object now, or none.
    changed: HashMap<Arc<str>, Option<Arc<Object>>>,
    events: Vec<Arc<Event>>,
    revision: Revision,
    time_ms: u64,
}

impl<'s> Group<'s> {
    pub(crate) fn new(state: &'s State, now_ms: u64) -> Self {
        Self {
            state,
            changed: HashMap::new(),
            events: Vec::new(),
            revision: state.current(),
            // A clock that was set back must not make the log run backwards.
            time_ms: now_ms.max(state.last_time_ms()),
        }
    }

    /// Adds one transaction to the group, or leaves the group as it is.
    pub(crate) fn stage(&mut self, operations: Vec<Operation>) -> Result<Committed, WriteError> {
        for operation in &operations {
            let current = self.get(operation.key());
            if !operation.holds(current.map(AsRef::as_ref)) {
                return Err(WriteError::Conflict {
                    key: operation.key().into(),
                    current: current.cloned(),
                });
            }
        }
        self.revision = self.revision.next();
        let first = self.events.len();
        for operation in operations {
            let record_index =
                u32::try_from(self.events.len() - first).expect("transactions are bounded");
            let previous = self.get(operation.key()).cloned();
            let (key, change) = match operation {
                Operation::Put { key, value, .. } => {
                    let object =
                        Arc::new(self.version(key, value, previous.as_ref(), record_index));
                    (object.key.clone(), Change::Put { object, previous })
                }
                Operation::Delete { .. } => {
                    let previous = previous.expect("a deletion's key was just seen to exist");
                    (previous.key.clone(), Change::Delete { previous })
                }
                Operation::Check { .. } => continue,
            };
            let event = Arc::new(Event {
                revision: self.revision,
                change,
                record_index,
                time_ms: self.time_ms,
            });
            self.changed.insert(key, event.object().cloned());
            self.events.push(event);
        }
        Ok(Committed {
            revision: self.revision,
            events: self.events[first..].to_vec(),
        })
    }

    pub(crate) fn into_events(self) -> Vec<Arc<Event>> {
        self.events
    }

    fn get(&self, key: &str) -> Option<&Arc<Object>> {
        match self.changed.get(key) {
            Some(object) => object.as_ref(),
            None => self.state.get(key),
        }
    }

    fn version(
        &self,
        key: String,
        value: Bytes,
        previous: Option<&Arc<Object>>,
        record_index: u32,
    ) -> Object {
        Object {
            // All versions of a key share one copy of its name.
            key: previous.map_or_else(|| key.into(), |object| object.key.clone()),
            value,
            create_revision: previous.map_or(self.revision, |object| object.create_revision),
            mod_revision: self.revision,
            version: previous.map_or(1, |object| object.version + 1),
            record_index,
        }
    }
}
