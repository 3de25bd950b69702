//! Bounds: what is refused, and with which words.

use revision_store::{Operation, Options, Precondition, Revision};

use crate::{Fixture, behaviours, put};

behaviours!(
    oversized_writes_are_refused,
    what_just_fits_is_accepted,
    many_writes_share_a_small_queue,
);

fn small() -> Options {
    Options {
        key_bytes_max: 8,
        value_bytes_max: 16,
        transaction_operations_max: 2,
        queued_writes_max: 1,
        ..Options::default()
    }
}

fn put_of(key: &str, bytes: usize) -> Operation {
    Operation::Put {
        key: key.into(),
        value: vec![b'x'; bytes].into(),
        precondition: Precondition::Any,
    }
}

async fn oversized_writes_are_refused(fixture: Fixture) {
    let store = fixture.store_with(small());
    for (operations, message) in [
        (vec![put_of("", 1)], "the key is empty"),
        (
            vec![put_of("/12345678", 1)],
            "the key has 9 bytes, at most 8 are allowed",
        ),
        (
            vec![put_of("/a", 17)],
            "the value of /a has 17 bytes, at most 16 are allowed",
        ),
        (
            vec![put_of("/a", 1), put_of("/b", 1), put_of("/c", 1)],
            "the transaction has 3 operations, at most 2 are allowed",
        ),
        (
            vec![put_of("/a", 1), put_of("/a", 1)],
            "the transaction names /a twice",
        ),
        (vec![], "the transaction writes nothing"),
    ] {
        let error = store.transact(operations).await.unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(store.current_revision(), Revision::EMPTY);
}

async fn what_just_fits_is_accepted(fixture: Fixture) {
    let store = fixture.store_with(small());
    store
        .transact(vec![put_of("/1234567", 16), put_of("/", 0)])
        .await
        .expect("within all bounds");
    assert_eq!(store.get("/1234567").unwrap().value.len(), 16);
    assert!(store.get("/").unwrap().value.is_empty());
}

async fn many_writes_share_a_small_queue(fixture: Fixture) {
    let store = fixture.store_with(small());
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..100 {
        let store = store.clone();
        tasks.spawn(async move { put(&store, &format!("/{index}"), "x").await });
    }
    let mut revisions = tasks.join_all().await;
    revisions.sort();
    let expected: Vec<_> = (1..=100).map(Revision).collect();
    assert_eq!(revisions, expected, "each write has its own revision");
}
