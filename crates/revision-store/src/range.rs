//! Lists: which keys, as of when, how many.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::{Object, Revision};

/// What to list. The default is everything, now, without a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    pub prefix: &'a str,
    /// Only keys behind this one: the last key of the page before.
    pub after: Option<&'a str>,
    pub limit: Option<usize>,
    /// The state at this revision rather than the current one.
    pub at: Option<Revision>,
}

impl<'a> Range<'a> {
    pub fn prefix(prefix: &'a str) -> Self {
        Self {
            prefix,
            ..Self::default()
        }
    }

    pub(crate) fn lower_bound(&self) -> Bound<&'a str> {
        match self.after {
            Some(after) if after >= self.prefix => Bound::Excluded(after),
            _ => Bound::Included(self.prefix),
        }
    }

    /// The first key behind all keys with the prefix; none if there is no such key.
    pub(crate) fn upper_bound(&self) -> Option<String> {
        let mut bound = self.prefix.to_owned();
        while let Some(last) = bound.pop() {
            // The range skips the code points that are no characters.
            if let Some(next) = (last..=char::MAX).nth(1) {
                bound.push(next);
                return Some(bound);
            }
        }
        None
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        key.starts_with(self.prefix) && self.after.is_none_or(|after| key > after)
    }
}

/// One page of a list, in key order.
#[derive(Clone, Debug)]
pub struct Page {
    /// The state that the page is of. Ask for the next page at this revision.
    pub revision: Revision,
    pub objects: Vec<Arc<Object>>,
    /// Objects in the range behind this page.
    pub remaining: usize,
}

/// A key that has changed since the revision that is being read.
pub(crate) struct Changed<'s> {
    /// Its object then.
    pub(crate) then: Option<&'s Arc<Object>>,
    pub(crate) exists_now: bool,
}

/// The objects of a range as they were: the present ones, except for the keys that have changed since.
pub(crate) struct AsOf<'s, I: Iterator<Item = &'s Arc<Object>>> {
    present: Peekable<I>,
    changed: Peekable<btree_map::IntoIter<&'s str, Changed<'s>>>,
}

impl<'s, I: Iterator<Item = &'s Arc<Object>>> AsOf<'s, I> {
    pub(crate) fn new(present: I, changed: BTreeMap<&'s str, Changed<'s>>) -> Self {
        Self {
            present: present.peekable(),
            changed: changed.into_iter().peekable(),
        }
    }

    /// How many objects are left. It counts the present ones without looking at them, which for a small page of a
    /// large range is most of the work, and corrects the count by what has changed.
    pub(crate) fn remaining(self) -> usize {
        let mut appeared = 0;
        let mut disappeared = 0;
        for (_, changed) in self.changed {
            appeared += usize::from(changed.exists_now);
            disappeared += usize::from(changed.then.is_some());
        }
        self.present.count() + disappeared - appeared
    }
}

impl<'s, I: Iterator<Item = &'s Arc<Object>>> Iterator for AsOf<'s, I> {
    type Item = &'s Arc<Object>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let order = match (self.present.peek(), self.changed.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(object), Some((key, _))) => (*object.key).cmp(key),
            };
            if order == Ordering::Less {
                return self.present.next();
            }
            if order == Ordering::Equal {
                self.present.next();
            }
            if let Some((_, changed)) = self.changed.next()
                && changed.then.is_some()
            {
                return changed.then;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_upper_bound() {
        for (prefix, bound) in [
            ("", None),
            ("/a/", Some("/a0")),
            ("/a", Some("/b")),
            ("z\u{7f}", Some("z\u{80}")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
        ] {
            let found = Range::prefix(prefix).upper_bound();
            assert_eq!(found.as_deref(), bound, "{prefix:?}");
            if let Some(found) = found {
                assert!(format!("{prefix}\u{10ffff}") < found);
            }
        }
    }
}
