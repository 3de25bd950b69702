//! Gets and lists, now and in the past.

use revision_store::{Range, ReadError, Revision};

use crate::{Fixture, at, behaviours, delete, listed, put, text};

behaviours!(
    a_missing_key_is_none,
    ranges_select_by_prefix_limit_and_position,
    a_page_counts_what_remains,
    the_past_stays_as_it_was,
    pages_of_one_list_are_of_one_revision,
    the_future_cannot_be_read,
);

async fn a_missing_key_is_none(fixture: Fixture) {
    let store = fixture.store();
    assert!(store.get("/a").is_none());
    put(&store, "/a", "1").await;
    assert!(store.get("/").is_none(), "a prefix is not a key");
    assert!(store.get("/a/").is_none());
    delete(&store, "/a").await;
    assert!(store.get("/a").is_none());
    assert_eq!(store.count("/"), 0);
}

async fn ranges_select_by_prefix_limit_and_position(fixture: Fixture) {
    let store = fixture.store();
    for key in ["/b/2", "/a", "/b/1", "/b/10", "/c", "/b", "/bä"] {
        put(&store, key, "x").await;
    }
    // (prefix, after, limit, keys)
    let rows = [
        ("", None, None, "/a /b /b/1 /b/10 /b/2 /bä /c"),
        ("/", None, Some(2), "/a /b"),
        ("/b", None, None, "/b /b/1 /b/10 /b/2 /bä"),
        ("/b/", None, None, "/b/1 /b/10 /b/2"),
        ("/b/", Some("/b/1"), None, "/b/10 /b/2"),
        ("/b/", Some("/b/11"), None, "/b/2"),
        ("/b/", Some("/a"), Some(1), "/b/1"),
        ("/b/", Some("/c"), None, ""),
        ("/b/", None, Some(0), ""),
        ("/nothing", None, None, ""),
    ];
    for (prefix, after, limit, expected) in rows {
        let range = Range {
            prefix,
            after,
            limit,
            at: None,
        };
        let page = store.range(&range).expect("the present is readable");
        let keys: Vec<_> = page.objects.iter().map(|object| &*object.key).collect();
        assert_eq!(keys.join(" "), expected, "{range:?}");
    }
    assert_eq!(store.count("/b/"), 3);
}

async fn a_page_counts_what_remains(fixture: Fixture) {
    let store = fixture.store();
    for index in 0..10 {
        put(&store, &format!("/x/{index}"), "x").await;
    }
    put(&store, "/y", "x").await;
    for (after, limit, remaining) in [
        (None, None, 0),
        (None, Some(3), 7),
        (None, Some(10), 0),
        (Some("/x/2"), Some(3), 4),
        (Some("/x/9"), Some(3), 0),
    ] {
        let range = Range {
            prefix: "/x/",
            after,
            limit,
            at: None,
        };
        assert_eq!(
            store.range(&range).unwrap().remaining,
            remaining,
            "{range:?}"
        );
    }
}

async fn the_past_stays_as_it_was(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    put(&store, "/b", "2").await;
    put(&store, "/a", "3").await;
    delete(&store, "/b").await;
    put(&store, "/c", "5").await;
    put(&store, "/b", "6").await;
    for (revision, expected) in [
        (0, ""),
        (1, "/a=1"),
        (2, "/a=1 /b=2"),
        (3, "/a=3 /b=2"),
        (4, "/a=3"),
        (5, "/a=3 /c=5"),
        (6, "/a=3 /b=6 /c=5"),
    ] {
        assert_eq!(
            listed(&store, &at("/", revision)),
            expected,
            "at {revision}"
        );
        let b = store.get_at("/b", Revision(revision)).unwrap();
        let b = b.map_or_else(|| "none".to_owned(), |b| text(&b.value).to_owned());
        let expected = ["none", "none", "2", "2", "none", "none", "6"][revision as usize];
        assert_eq!(b, expected, "/b at {revision}");
    }
}

async fn pages_of_one_list_are_of_one_revision(fixture: Fixture) {
    let store = fixture.store();
    for index in 0..20 {
        put(&store, &format!("/x/{index:02}"), "old").await;
    }
    let mut keys = Vec::new();
    let mut after: Option<String> = None;
    let mut revision = None;
    loop {
        let page = store
            .range(&Range {
                prefix: "/x/",
                after: after.as_deref(),
                limit: Some(3),
                at: revision,
            })
            .expect("the list's revision is retained");
        assert!(
            page.objects
                .iter()
                .all(|object| text(&object.value) == "old")
        );
        keys.extend(page.objects.iter().map(|object| object.key.to_string()));
        revision = Some(page.revision);
        after = keys.last().cloned();
        // Between pages the world moves: behind the list's position and ahead of it.
        for index in [0, keys.len(), 19] {
            put(&store, &format!("/x/{index:02}"), "new").await;
        }
        put(&store, &format!("/x/{:02}.5", keys.len()), "new").await;
        if page.remaining == 0 {
            break;
        }
        delete(&store, &format!("/x/{:02}", keys.len())).await;
    }
    let expected: Vec<_> = (0..20).map(|index| format!("/x/{index:02}")).collect();
    assert_eq!(keys, expected);
}

async fn the_future_cannot_be_read(fixture: Fixture) {
    let store = fixture.store();
    put(&store, "/a", "1").await;
    let expected = ReadError::Future {
        requested: Revision(2),
        current: Revision(1),
    };
    assert_eq!(store.range(&at("/", 2)).unwrap_err(), expected);
    assert_eq!(store.get_at("/a", Revision(2)).unwrap_err(), expected);
    assert_eq!(store.watch("/", Revision(2)).err(), Some(expected));
}
