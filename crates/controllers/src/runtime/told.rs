//! What people have been told already, so that a reason is told when it becomes one and not at every look.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// The reasons in force, by the object that they are about. Losing them costs repeated events.
#[derive(Default)]
pub struct Told {
    by_object: Mutex<HashMap<String, BTreeSet<String>>>,
}

impl Told {
    /// Those of `now` that were not in force before. A reason is known by its fingerprint.
    pub fn fresh<T>(&self, object: &str, now: impl IntoIterator<Item = (String, T)>) -> Vec<T> {
        let mut all = self
            .by_object
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = all.entry(object.to_owned()).or_default();
        let mut after = BTreeSet::new();
        let mut fresh = Vec::new();
        for (fingerprint, reason) in now {
            if !before.contains(&fingerprint) && !after.contains(&fingerprint) {
                fresh.push(reason);
            }
            after.insert(fingerprint);
        }
        *before = after;
        fresh
    }

    pub fn forget(&self, object: &str) {
        let mut all = self
            .by_object
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_again_only_after_it_was_gone() {
        let told = Told::default();
        let check = |now: &str, expected: &str| {
            let now = now.split_whitespace().map(|word| (word.to_owned(), word));
            assert_eq!(told.fresh("v", now).join(" "), expected);
        };
        check("a b a", "a b");
        check("b c", "c");
        check("a b", "a");
        check("", "");
        check("b", "b");
    }
}
