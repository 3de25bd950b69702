//! Revisions, preconditions, transactions.

use revision_store::{Operation, Precondition, Range, Revision, WriteError};

use crate::{Fixture, behaviours, delete, listed, put, text};

behaviours!(
    revisions_count_every_write,
    an_object_knows_its_origin,
    preconditions_decide,
    a_conflict_shows_the_present_object,
    a_transaction_is_one_revision,
    a_refused_transaction_changes_nothing,
    concurrent_creates_have_one_winner,
    a_closed_store_refuses_writes,
);

async fn revisions_count_every_write(fixture: Fixture) {
    let store = fixture.store();
    assert_eq!(store.current_revision(), Revision::EMPTY);
    assert_eq!(put(&store, "/a", "1").await, Revision(1));
    assert_eq!(put(&store, "/b", "1").await, Revision(2));
    assert_eq!(put(&store, "/a", "1").await, Revision(3));
    assert_eq!(delete(&store, "/a").await, Revision(4));
    assert_eq!(store.current_revision(), Revision(4));
}

async fn an_object_knows_its_origin(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/other", "x").await;
    // (delete first, create revision, mod revision, version)
    for (delete_first, create, modified, version) in [
        (false, 2, 2, 1),
        (false, 2, 3, 2),
        (false, 2, 4, 3),
        (true, 6, 6, 1),
    ] {
        if delete_first {
            delete(&store, "/a").await;
        }
        put(&store, "/a", "x").await;
        let object = store.get("/a").expect("just written");
        assert_eq!(
            (object.create_revision, object.mod_revision, object.version),
            (Revision(create), Revision(modified), version)
        );
    }
}

async fn preconditions_decide(fixture: Fixture) {
    use Precondition::{Absent, Any, ModRevision};
    let store = fixture.store();
    put(&store, "/there", "0").await;
    let there = |store: &revision_store::Store| store.get("/there").unwrap().mod_revision;
    // (key, precondition, may be put, may be deleted); `/there` exists, `/not` does not.
    let rows = [
        ("/there", Any, true, true),
        ("/there", Absent, false, false),
        ("/there", ModRevision(Revision(0)), false, false),
        ("/there", ModRevision(Revision(999)), false, false),
        ("/not", Any, true, false),
        ("/not", Absent, true, false),
        ("/not", ModRevision(Revision(0)), false, false),
        ("/not", ModRevision(Revision(1)), false, false),
    ];
    for (key, precondition, puts, deletes) in rows {
        let result = store.put(key, "1", precondition).await;
        assert_eq!(result.is_ok(), puts, "put {key} if {precondition:?}");
        if key == "/not" && puts {
            delete(&store, key).await;
        }
        let result = store.delete(key, precondition).await;
        assert_eq!(result.is_ok(), deletes, "delete {key} if {precondition:?}");
        if key == "/there" && deletes {
            put(&store, key, "0").await;
        }
    }
    let stale = there(&store);
    let fresh = store
        .put("/there", "2", ModRevision(stale))
        .await
        .expect("its own revision matches")
        .mod_revision;
    assert!(store.put("/there", "3", ModRevision(stale)).await.is_err());
    assert!(store.delete("/there", ModRevision(stale)).await.is_err());
    assert!(store.delete("/there", ModRevision(fresh)).await.is_ok());
}

async fn a_conflict_shows_the_present_object(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "present").await;
    let before = store.current_revision();
    let error = store
        .put("/a", "x", Precondition::Absent)
        .await
        .unwrap_err();
    let WriteError::Conflict {
        key,
        current: Some(current),
    } = error
    else {
        panic!("expected a conflict with the object, got {error:?}");
    };
    assert_eq!((&*key, text(&current.value)), ("/a", "present"));
    let error = store
        .delete("/missing", Precondition::Any)
        .await
        .unwrap_err();
    assert!(
        matches!(error, WriteError::Conflict { current: None, .. }),
        "{error:?}"
    );
    assert_eq!(
        store.current_revision(),
        before,
        "a conflict takes no revision"
    );
}

async fn a_transaction_is_one_revision(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/old", "1").await;
    put(&store, "/guard", "1").await;
    let committed = store
        .transact(vec![
            Operation::Check {
                key: "/guard".into(),
                precondition: Precondition::ModRevision(Revision(2)),
            },
            Operation::Put {
                key: "/new".into(),
                value: "2".into(),
                precondition: Precondition::Absent,
            },
            Operation::Delete {
                key: "/old".into(),
                precondition: Precondition::ModRevision(Revision(1)),
            },
        ])
        .await
        .expect("all preconditions hold");
    assert_eq!(committed.revision, Revision(3));
    let events: Vec<_> = committed.events.iter().map(|e| crate::shown(e)).collect();
    assert_eq!(events, ["3 put /new=2 (new)", "3 delete /old (was 1)"]);
    assert_eq!(listed(&store, &Range::prefix("/")), "/guard=1 /new=2");
}

async fn a_refused_transaction_changes_nothing(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    let put_of = |key: &str, precondition| Operation::Put {
        key: key.into(),
        value: "2".into(),
        precondition,
    };
    let check = |key: &str, precondition| Operation::Check {
        key: key.into(),
        precondition,
    };
    use Precondition::{Absent, Any, ModRevision};
    for operations in [
        vec![put_of("/b", Any), put_of("/a", Absent)],
        vec![put_of("/b", Any), check("/a", ModRevision(Revision(9)))],
        vec![put_of("/b", Any), check("/c", ModRevision(Revision(1)))],
        vec![put_of("/b", Any), put_of("/b", Any)],
        vec![check("/a", Any)],
        vec![],
    ] {
        let shown = format!("{operations:?}");
        assert!(store.transact(operations).await.is_err(), "{shown}");
        assert_eq!(listed(&store, &Range::default()), "/a=1", "{shown}");
        assert_eq!(store.current_revision(), Revision(1), "{shown}");
    }
}

async fn concurrent_creates_have_one_winner(fixture: Fixture) {
    let store = fixture.store();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..50 {
        let store = store.clone();
        tasks.spawn(async move {
            let value = format!("writer {writer}");
            store.put("/one", value, Precondition::Absent).await
        });
    }
    let results = tasks.join_all().await;
    let winners: Vec<_> = results.iter().filter_map(|r| r.as_ref().ok()).collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(store.current_revision(), Revision(1));
    let winner = store.get("/one").expect("the winner's object");
    assert_eq!(&winner, winners[0]);
    // The losers were told who won.
    for error in results.into_iter().filter_map(Result::err) {
        let WriteError::Conflict { current, .. } = error else {
            panic!("expected a conflict, got {error:?}");
        };
        assert_eq!(current.as_ref(), Some(&winner));
    }
}

async fn a_closed_store_refuses_writes(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    store.clone().close().await;
    let error = store.put("/a", "2", Precondition::Any).await.unwrap_err();
    assert!(matches!(error, WriteError::Closed), "{error:?}");
    assert_eq!(text(&store.get("/a").unwrap().value), "1");
    store.close().await;
}
