//! Views of snapshots that were looked at, for whoever looks next.

use std::sync::Arc;

use block_core::layers::LayerId;

use super::view::{Reach, View};

/// Each has an index of its own, so there are few: one backup, one clone and one rebuild at a time.
const VIEWS_KEPT: usize = 3;

/// At most one view of a snapshot and reach, the last used at the end.
pub(super) struct KeptViews<F>(Vec<Arc<View<F>>>);

impl<F> Default for KeptViews<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F> KeptViews<F> {
    /// The kept view that knows the most, if it knows enough.
    pub fn find(&mut self, top: LayerId, reach: Reach) -> Option<Arc<View<F>>> {
        let of = |reach| move |view: &Arc<View<F>>| (view.top, view.reach) == (top, reach);
        let whole = self.0.iter().position(of(Reach::Whole));
        let at = whole.or_else(|| self.0.iter().position(of(reach)))?;
        let view = self.0.remove(at);
        self.0.push(view.clone());
        Some(view)
    }

    pub fn keep(&mut self, view: Arc<View<F>>) {
        self.0.push(view);
        if self.0.len() > VIEWS_KEPT {
            self.0.remove(0);
        }
    }

    /// Drops the views of a snapshot, and says whether nobody is using them.
    pub fn forget(&mut self, top: LayerId) -> bool {
        let used = |view: &Arc<View<F>>| view.top == top && Arc::strong_count(view) > 1;
        let is_used = self.0.iter().any(used);
        self.0.retain(|view| view.top != top);
        !is_used
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
