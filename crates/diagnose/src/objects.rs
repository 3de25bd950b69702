//! The objects of one kind in a dump.

use std::sync::Arc;

/// Whoever keeps these objects anyway, as a manager does, shares them with a dump: copies of all are as much memory again.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects<K>(Vec<Arc<K>>);

impl<K> Objects<K> {
    pub fn iter(&self) -> <&Self as IntoIterator>::IntoIter {
        self.into_iter()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K> From<Vec<Arc<K>>> for Objects<K> {
    fn from(shared: Vec<Arc<K>>) -> Self {
        Self(shared)
    }
}

impl<K> Extend<K> for Objects<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, objects: I) {
        self.0.extend(objects.into_iter().map(Arc::new));
    }
}

impl<'a, K> IntoIterator for &'a Objects<K> {
    type Item = &'a K;
    type IntoIter = std::iter::Map<std::slice::Iter<'a, Arc<K>>, fn(&'a Arc<K>) -> &'a K>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(AsRef::as_ref)
    }
}
