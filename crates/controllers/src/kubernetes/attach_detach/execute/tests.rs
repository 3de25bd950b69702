//! What keeps an attachment from being deleted: a node that could not be told, and one that has the volume mounted after
//! all.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// What the API is asked for.
const TELL: &str = "PATCH /api/v1/nodes/n1/status";
const ASK: &str = "GET /api/v1/nodes/n1";
const DELETE: &str = "DELETE /apis/storage.k8s.io/v1/volumeattachments/va";

/// How the API answers for the node.
type Answer = (u16, Value);

fn volume(handle: &str) -> UniqueVolumeName {
    UniqueVolumeName {
        driver: "driver.longhorn.io".into(),
        handle: handle.into(),
    }
}

/// With a node that has these mounted.
fn shows(in_use: &[&str]) -> Answer {
    let in_use: Vec<String> = in_use
        .iter()
        .map(|handle| volume(handle).to_string())
        .collect();
    let node = json!({"metadata": {"name": "n1"}, "status": {"volumesInUse": in_use}});
    (200, node)
}

fn fails(code: u16, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason});
    (code, status)
}

fn gone() -> Answer {
    fails(404, "NotFound")
}

fn deletion(unless_in_use: Option<&str>) -> Deletion {
    Deletion {
        name: "va".into(),
        uid: "1".to_owned(),
        unless_in_use: unless_in_use.map(volume),
    }
}

#[test]
fn only_what_is_mounted_by_now_overtakes_a_deletion() {
    fn check(unless_in_use: Option<&str>, live: Option<Answer>, expected: bool) {
        let live = live.map(|(_, node)| serde_json::from_value::<Node>(node).expect("a node"));
        let overtaken = deletion(unless_in_use).is_overtaken(live.as_ref());
        assert_eq!(overtaken, expected, "{unless_in_use:?} {live:?}");
    }
    check(Some("v"), Some(shows(&[])), false);
    check(Some("v"), Some(shows(&["other"])), false);
    check(Some("v"), Some(shows(&["other", "v"])), true);
    // Nobody says any more that it is not mounted there.
    check(Some("v"), None, true);
    // Forced, although it is mounted or the node is gone.
    check(None, Some(shows(&["v"])), false);
    check(None, None, false);
}

/// One round of writes for a node that loses an attachment. `told`: its list changes; otherwise it is only asked.
async fn check(told: bool, answer: Answer, unless_in_use: Option<&str>, expected: &[&str]) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let api = tower::service_fn(move |request: Request<Body>| {
        let asked = format!("{} {}", request.method(), request.uri().path());
        let (code, body) = if asked.contains("/nodes/") {
            answer.clone()
        } else {
            (200, json!({"kind": "Status", "status": "Success"}))
        };
        noted.lock().expect("no holder panics").push(asked);
        let body = Body::from(body.to_string().into_bytes());
        let answer = Response::builder().status(code).body(body);
        async move { Ok::<_, Infallible>(answer.expect("an answer")) }
    });
    let client = Client::new(api, "default");
    let (recorder, model) = (
        Recorder::new(client.clone(), "test"),
        SharedModel::default(),
    );
    let mut executor = Executor::new(client, recorder, model.clone());
    let (name, key) = (AttachmentName::from("va"), Work::Node("n1".into()));
    model.lock().expect_gone(&name);
    let attached = told.then(BTreeSet::new);
    executor.spawn_node(key.clone(), attached, vec![deletion(unless_in_use)]);
    executor.finished().await;

    let asked = asked.lock().expect("no holder panics");
    assert_eq!(*asked, expected, "{unless_in_use:?}");
    let deleted = expected.contains(&DELETE);
    let is_awaited = model.lock().is_expected(&name);
    assert_eq!(is_awaited, deleted, "what is kept is decided anew");
    let is_put_off = executor.failures.contains_key(&key);
    assert_eq!(is_put_off, !deleted, "and not at once");
}

#[tokio::test]
async fn a_node_is_told_or_asked_before_an_attachment_is_deleted() {
    check(true, shows(&[]), Some("v"), &[TELL, DELETE]).await;
    check(false, shows(&["other"]), Some("v"), &[ASK, DELETE]).await;
    check(true, shows(&["v"]), None, &[TELL, DELETE]).await;
    check(true, gone(), None, &[TELL, DELETE]).await;
}

#[tokio::test]
async fn an_attachment_stays_where_the_node_says_no_or_nothing() {
    // The watch that shows what is mounted may be behind.
    check(true, shows(&["v"]), Some("v"), &[TELL]).await;
    check(false, shows(&["v"]), Some("v"), &[ASK]).await;
    check(true, gone(), Some("v"), &[TELL]).await;
    check(false, gone(), Some("v"), &[ASK]).await;
    // Force takes it from a node that has it mounted, but not from one that still relies on it.
    for unless_in_use in [Some("v"), None] {
        check(true, fails(403, "Forbidden"), unless_in_use, &[TELL]).await;
        check(true, fails(500, "InternalError"), unless_in_use, &[TELL]).await;
        check(false, fails(500, "InternalError"), unless_in_use, &[ASK]).await;
    }
}
