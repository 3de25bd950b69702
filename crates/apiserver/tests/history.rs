//! What a client is told that asks for history which is no longer kept: start over, never wait for ever.

use std::sync::Arc;

use apiserver::auth::{Authenticator, User};
use apiserver::core::Core;
use apiserver::service::{Answer, ApiService, CertificateUser};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use revision_store::{Options, Store};
use serde_json::{Value, json};

const PATH: &str = "/api/v1/namespaces/default/configmaps";

struct Server {
    store: Store,
    service: ApiService,
}

impl Server {
    async fn start(options: Options) -> Self {
        let store = Store::in_memory(options).expect("a store");
        let core = Core::new(store.clone());
        let service = ApiService::new(Arc::clone(&core), Authenticator::new("token"));
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        service
            .apply(&namespace, "test")
            .await
            .expect("a namespace");
        Self { store, service }
    }

    async fn write(&self, name: &str, value: usize) {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
            "data": {"value": value.to_string()},
        });
        self.service.apply(&object, "test").await.expect("a write");
    }

    async fn get(&self, query: &str) -> Answer {
        let mut request = Request::get(format!("{PATH}?{query}"))
            .body(Full::new(Bytes::new()))
            .expect("a request");
        request
            .extensions_mut()
            .insert(CertificateUser(User::new("test")));
        self.service.handle(request).await
    }
}

async fn json_of(answer: Answer) -> Value {
    let bytes = answer
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{error}: {bytes:?}"))
}

#[tokio::test]
async fn compacted_history_is_gone() {
    let server = Server::start(Options::default()).await;
    for value in 0..20 {
        server.write("a", value).await;
    }
    let page = json_of(server.get("limit=1").await).await;
    let newest = server.store.current_revision();
    server.store.compact(newest).await.expect("a compaction");

    let watched = json_of(server.get("watch=true&resourceVersion=1").await).await;
    assert_eq!(watched["type"], "ERROR");
    assert_eq!(watched["object"]["code"], 410, "{watched}");
    assert_eq!(watched["object"]["reason"], "Expired", "{watched}");

    let listed = server
        .get("resourceVersion=1&resourceVersionMatch=Exact")
        .await;
    assert_eq!(listed.status(), 410);
    let version = page["metadata"]["resourceVersion"]
        .as_str()
        .expect("a version");
    let still_there = server
        .get(&format!(
            "resourceVersion={version}&resourceVersionMatch=Exact"
        ))
        .await;
    assert_eq!(still_there.status(), 200);
}

#[tokio::test]
async fn a_watcher_that_falls_behind_is_closed() {
    let options = Options {
        history_events_max: 8,
        ..Options::default()
    };
    let server = Server::start(options).await;
    let version = server.store.current_revision();
    let watch = server
        .get(&format!("watch=true&resourceVersion={version}"))
        .await;
    assert_eq!(watch.status(), 200);
    // Nobody reads while far more happens than is kept.
    for value in 0..200 {
        server.write("a", value).await;
    }
    server
        .store
        .compact(server.store.current_revision())
        .await
        .expect("a compaction");
    let mut body = watch.into_body();
    let mut last = Value::Null;
    while let Some(frame) = body.frame().await {
        let data = frame.expect("a frame").into_data().expect("data");
        last = serde_json::from_slice(&data).expect("a line of JSON");
    }
    assert_eq!(last["type"], "ERROR", "{last}");
    assert_eq!(last["object"]["code"], 410, "{last}");
}
