//! What every store does, whatever is behind it: one suite, run over each back end.

mod history;
mod limits;
mod reads;
mod watches;
mod writes;

use std::sync::Arc;

use revision_store::{Event, Options, Precondition, Range, Revision, Store, Watcher};
use tempfile::TempDir;

/// Runs one behaviour over each back end, as tests named `behaviour::memory` and `behaviour::durable`.
macro_rules! behaviours {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test]
            async fn memory() {
                super::$name(crate::Fixture::memory()).await;
            }

            #[tokio::test]
            async fn durable() {
                super::$name(crate::Fixture::durable()).await;
            }
        }
    )+};
}
pub(crate) use behaviours;

/// Makes stores of one back end.
pub struct Fixture {
    folder: Option<TempDir>,
}

impl Fixture {
    fn memory() -> Self {
        Self { folder: None }
    }

    fn durable() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self {
            folder: Some(folder),
        }
    }

    fn store(&self) -> Store {
        self.store_with(Options::default())
    }

    fn store_with(&self, options: Options) -> Store {
        match &self.folder {
            None => Store::in_memory(options),
            Some(folder) => Store::open(folder.path().join("store"), options),
        }
        .expect("a new store opens")
    }
}

/// Puts without a precondition; for setting a scene.
async fn put(store: &Store, key: &str, value: &str) -> Revision {
    store
        .put(key, value, Precondition::Any)
        .await
        .unwrap_or_else(|error| panic!("put {key}: {error}"))
        .mod_revision
}

async fn delete(store: &Store, key: &str) -> Revision {
    store
        .delete(key, Precondition::Any)
        .await
        .unwrap_or_else(|error| panic!("delete {key}: {error}"))
        .revision
}

/// A list as text: `/a=1 /b=2`.
fn listed(store: &Store, range: &Range<'_>) -> String {
    let page = store.range(range).expect("a readable range");
    page.objects
        .iter()
        .map(|object| format!("{}={}", object.key, text(&object.value)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn at(prefix: &str, revision: u64) -> Range<'_> {
    Range {
        at: Some(Revision(revision)),
        ..Range::prefix(prefix)
    }
}

/// An event as text: `3 put /a=2 (was 1)`, `4 delete /a (was 2)`.
fn shown(event: &Event) -> String {
    let was = event.previous().map_or_else(
        || "new".to_owned(),
        |previous| format!("was {}", text(&previous.value)),
    );
    match event.object() {
        Some(object) => format!(
            "{} put {}={} ({was})",
            event.revision,
            object.key,
            text(&object.value)
        ),
        None => format!("{} delete {} ({was})", event.revision, event.key()),
    }
}

/// Everything that a watcher can yield now.
fn drained(watcher: &mut Watcher) -> Vec<String> {
    std::iter::from_fn(|| watcher.try_next().expect("a live watch"))
        .map(|event: Arc<Event>| shown(&event))
        .collect()
}

fn text(value: &[u8]) -> &str {
    std::str::from_utf8(value).expect("test values are text")
}
