//! Sets of fields: a tree of path steps with the algebra of ownership on it.

use std::collections::{BTreeMap, BTreeSet};

use super::path::PathElement;
use super::shape::Node;

/// A set of paths. Owning a field does not mean owning what is below it, nor the reverse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    members: BTreeSet<PathElement>,
    /// Never holds an empty set, so that equal sets have equal trees.
    children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.is_empty()
    }

    /// Adds one path. The empty path, the whole object, belongs to nobody.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub fn contains(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => self.members.contains(last),
            [first, rest @ ..] => self.child(first).is_some_and(|child| child.contains(rest)),
        }
    }

    pub(super) fn insert_member(&mut self, element: PathElement) {
        self.members.insert(element);
    }

    /// Adds everything of a set below one step.
    pub(super) fn insert_below(&mut self, element: PathElement, below: FieldSet) {
        if below.is_empty() {
            return;
        }
        let merged = match self.children.remove(&element) {
            Some(existing) => existing.union(&below),
            None => below,
        };
        self.children.insert(element, merged);
    }

    pub(super) fn has_member(&self, element: &PathElement) -> bool {
        self.members.contains(element)
    }

    pub(super) fn child(&self, element: &PathElement) -> Option<&FieldSet> {
        self.children.get(element)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &PathElement> {
        self.members.iter()
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&PathElement, &FieldSet)> {
        self.children.iter()
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut children = self.children.clone();
        for (element, theirs) in &other.children {
            let merged = match children.get(element) {
                Some(ours) => ours.union(theirs),
                None => theirs.clone(),
            };
            children.insert(element.clone(), merged);
        }
        Self {
            members: self.members.union(&other.members).cloned().collect(),
            children,
        }
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let shared = |(element, ours): (&PathElement, &FieldSet)| {
            let both = ours.intersection(other.child(element)?);
            (!both.is_empty()).then(|| (element.clone(), both))
        };
        Self {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: self.children.iter().filter_map(shared).collect(),
        }
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let left = |(element, ours): (&PathElement, &FieldSet)| {
            let rest = match other.child(element) {
                Some(theirs) => ours.difference(theirs),
                None => ours.clone(),
            };
            (!rest.is_empty()).then(|| (element.clone(), rest))
        };
        Self {
            members: self.members.difference(&other.members).cloned().collect(),
            children: self.children.iter().filter_map(left).collect(),
        }
    }

    /// How many paths are in the set.
    pub fn len(&self) -> usize {
        self.members.len() + self.children.values().map(Self::len).sum::<usize>()
    }

    /// Every path of the set, parents before what is below them.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        self.first_paths(usize::MAX, usize::MAX)
    }

    /// As many of [`FieldSet::paths`] as stay within a count and a number of bytes, and always one. A
    /// set shares the beginnings of its paths, a list of them does not: all paths of a deep set may
    /// take a thousand times its memory.
    pub(super) fn first_paths(&self, count_max: usize, bytes_max: usize) -> Vec<Vec<PathElement>> {
        let mut listing = Listing {
            paths: Vec::new(),
            count_max,
            bytes_left: bytes_max,
        };
        self.list(&mut Vec::new(), 0, &mut listing);
        listing.paths
    }

    fn list(&self, prefix: &mut Vec<PathElement>, prefix_bytes: usize, listing: &mut Listing) {
        for member in &self.members {
            let bytes = prefix_bytes + member.notation().len();
            if !listing.has_room(bytes) {
                return;
            }
            let mut path = prefix.clone();
            path.push(member.clone());
            listing.paths.push(path);
            listing.bytes_left = listing.bytes_left.saturating_sub(bytes);
        }
        for (element, child) in &self.children {
            let bytes = prefix_bytes + element.notation().len();
            if !listing.has_room(bytes) {
                return;
            }
            prefix.push(element.clone());
            child.list(prefix, bytes, listing);
            prefix.pop();
        }
    }

    /// The set with every struct that it reaches into. Those are implied rather than recorded, and
    /// only where fields are taken away does it matter who else implies them.
    #[must_use]
    pub(in crate::patch) fn with_named_parents(&self, node: Node<'_>) -> Self {
        let mut result = Self {
            members: self.members.clone(),
            children: BTreeMap::new(),
        };
        for (element, child) in &self.children {
            if let PathElement::Field(name) = element
                && node.names(name)
            {
                result.members.insert(element.clone());
            }
            let child = child.with_named_parents(node.step(element));
            result.children.insert(element.clone(), child);
        }
        result
    }

    /// The set after a list or map lost its parts to a schema that now says `atomic`: whoever owned
    /// a part owns the whole.
    #[must_use]
    pub(in crate::patch) fn reconciled(&self, node: Node<'_>) -> Self {
        let mut result = Self {
            members: self.members.clone(),
            children: BTreeMap::new(),
        };
        for (element, child) in &self.children {
            let below = node.step(element);
            if below.is_atomic() {
                result.members.insert(element.clone());
            } else {
                result
                    .children
                    .insert(element.clone(), child.reconciled(below));
            }
        }
        result
    }
}

struct Listing {
    paths: Vec<Vec<PathElement>>,
    count_max: usize,
    bytes_left: usize,
}

impl Listing {
    fn has_room(&self, bytes: usize) -> bool {
        self.paths.len() < self.count_max && (self.paths.is_empty() || bytes <= self.bytes_left)
    }
}

impl FromIterator<Vec<PathElement>> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Vec<PathElement>>>(paths: I) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(&path);
        }
        set
    }
}

/// A path as messages show it.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(ToString::to_string).collect()
}
