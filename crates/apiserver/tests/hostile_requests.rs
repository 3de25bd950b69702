//! Requests that no honest client would send, a hundred thousand of them: whatever comes in, the
//! answer is a well-formed refusal or a success. Never a 5xx, never a panic.

use std::sync::Arc;

use apiserver::auth::{Authenticator, User};
use apiserver::core::Core;
use apiserver::service::{ApiService, CertificateUser};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use revision_store::{Options, Store};
use serde_json::{Value, json};

/// `LARIAT_HOSTILE_REQUESTS` asks for more.
const REQUESTS: u64 = 100_000;

/// SplitMix64: a stream of numbers that a printed seed brings back.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("small")
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

const COLLECTIONS: &[&str] = &[
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/persistentvolumes",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/default/persistentvolumeclaims",
    "/apis/events.k8s.io/v1/namespaces/default/events",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/example.com/v1/namespaces/default/widgets",
    "/openapi/v3/api/v1",
    "/apis/nothing/v1/things",
];

const NAMES: &[&str] = &[
    "a",
    "b",
    "widgets.example.com",
    "default",
    "Bad_Name",
    "..",
    "%2e%2e",
    "\u{fc}",
    "",
];
const SUBRESOURCES: &[&str] = &[
    "status", "scale", "binding", "eviction", "finalize", "nothing",
];
const METHODS: &[Method] = &[
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::HEAD,
];

const PARAMETERS: &[&str] = &[
    "watch=true",
    "watch=perhaps",
    "limit=1",
    "limit=-3",
    "continue=eyJydiI6MX0",
    "continue=%%%",
    "resourceVersion=0",
    "resourceVersion=1",
    "resourceVersion=x",
    "resourceVersionMatch=Exact",
    "sendInitialEvents=true",
    "allowWatchBookmarks=1",
    "timeoutSeconds=1",
    "labelSelector=a%3Db",
    "labelSelector=((((",
    "labelSelector=a%20in%20(",
    "fieldSelector=metadata.name%3Da",
    "fieldSelector=spec.x%3D1",
    "fieldManager=me",
    "fieldManager=%00",
    "force=true",
    "dryRun=All",
    "dryRun=x",
    "fieldValidation=Strict",
    "fieldValidation=Ignore",
    "propagationPolicy=Foreground",
    "propagationPolicy=x",
    "gracePeriodSeconds=0",
    "gracePeriodSeconds=99999999999999999999",
    "includeObject=Object",
];

const CONTENT_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "",
];

const ACCEPTS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "*/*",
    ";;;,",
];

fn seeds() -> Vec<Value> {
    let metadata =
        json!({"name": "a", "namespace": "default", "labels": {"a": "b"}, "finalizers": ["x.y/z"]});
    vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "v"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b"}, "stringData": {"k": "v"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {
            "nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            "containers": [{"name": "c", "image": "i", "env": [{"name": "e", "value": "1"}], "ports": [{"containerPort": 80}]}]}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.e", "volumeHandle": "h"}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"},
            "spec": {"attacher": "d.e", "nodeName": "n", "source": {"persistentVolumeName": "a"}}, "status": {"attached": true}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"},
            "spec": {"holderIdentity": "h", "renewTime": "2026-01-01T00:00:00.000000Z"}}),
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": "1", "tags": ["x"]}}),
        definition(),
        json!([{"op": "add", "path": "/metadata/labels/x", "value": "y"}, {"op": "copy", "from": "/spec", "path": "/data"}]),
        json!({"spec": {"containers": [{"$patch": "delete", "name": "c"}], "$setElementOrder/containers": [{"name": "c"}]}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.y/z"], "managedFields": [{}]}}),
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u"}, "propagationPolicy": "Orphan"}),
        json!({"spec": {"replicas": 3}}),
    ]
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "x-kubernetes-validations": [{"rule": "self.size != 'bad'"}],
                    "properties": {"size": {"type": "string", "pattern": "^[a-z0-9]+$"}, "replicas": {"type": "integer"},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}}}}}]},
    })
}

/// Replaces, removes or grows something somewhere inside.
fn mutate(value: &mut Value, random: &mut Random) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !random.one_in(4) => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = random.pick(&keys).clone();
            match random.below(6) {
                0 => {
                    fields.remove(&key);
                }
                1 => {
                    let moved = fields.remove(&key).unwrap_or_default();
                    fields.insert(format!("{key}{}", random.below(3)), moved);
                }
                _ => mutate(&mut fields[&key], random),
            }
        }
        Value::Array(items) if !items.is_empty() && !random.one_in(4) => {
            let index = random.below(items.len());
            match random.below(5) {
                0 => {
                    items.remove(index);
                }
                1 => items.push(items[index].clone()),
                _ => mutate(&mut items[index], random),
            }
        }
        other => *other = strange(random),
    }
}

fn strange(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(1.5e300),
        4 => json!(u64::MAX),
        5 => json!(""),
        6 => json!("x".repeat(random.below(3000))),
        7 => json!([]),
        8 => json!({}),
        9 => json!({"$patch": "replace", "": {"f:a": {}}}),
        10 => (0..random.below(100)).fold(json!(1), |inner, _| json!({"properties": inner})),
        _ => json!("2026-01-01T00:00:00Z\u{0}\u{fffd}"),
    }
}

fn request(seeds: &[Value], random: &mut Random) -> Request<Full<Bytes>> {
    let mut path = (*random.pick(COLLECTIONS)).to_owned();
    if random.one_in(2) {
        let name: &&str = random.pick(NAMES);
        path = format!("{path}/{}", percent(name));
        if random.one_in(4) {
            path = format!("{path}/{}", random.pick(SUBRESOURCES));
        }
    }
    let parameters: Vec<&str> = (0..random.below(4))
        .map(|_| *random.pick(PARAMETERS))
        .collect();
    if !parameters.is_empty() {
        path = format!("{path}?{}", parameters.join("&"));
    }
    let mut value = random.pick(seeds).clone();
    for _ in 0..random.below(4) {
        mutate(&mut value, random);
    }
    let mut body = value.to_string().into_bytes();
    if random.one_in(8) {
        let at = random.below(body.len());
        body[at] = u8::try_from(random.below(256)).expect("a byte");
        body.truncate(body.len() - random.below(body.len()) / 2);
    }
    let mut request = Request::builder()
        .method(random.pick(METHODS).clone())
        .uri(&path)
        .header("Content-Type", *random.pick(CONTENT_TYPES))
        .header("Accept", *random.pick(ACCEPTS))
        .body(Full::new(Bytes::from(body)))
        .expect("a well-formed request");
    if !random.one_in(50) {
        request
            .extensions_mut()
            .insert(CertificateUser(User::new("hostile")));
    }
    request
}

/// URLs are ASCII; what is not is escaped, as any client does.
fn percent(name: &str) -> String {
    let escaped = |byte: u8| {
        if byte.is_ascii_graphic() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    name.bytes().map(escaped).collect()
}

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_in_is_answered() {
    let count = number_from("LARIAT_HOSTILE_REQUESTS", REQUESTS);
    let seed = number_from("LARIAT_HOSTILE_SEED", 1);
    println!("LARIAT_HOSTILE_SEED={seed} LARIAT_HOSTILE_REQUESTS={count}");
    let core = Core::new(Store::in_memory(Options::default()).expect("a store"));
    let service = ApiService::new(Arc::clone(&core), Authenticator::new("token"));
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    service
        .apply(&namespace, "test")
        .await
        .expect("a namespace");
    service
        .apply(&definition(), "test")
        .await
        .expect("a definition");

    let halves = [seed, seed ^ u64::MAX].map(|seed| {
        let service = service.clone();
        tokio::spawn(async move { throw(&service, seed, count / 2).await })
    });
    let mut accepted = 0;
    for half in halves {
        accepted += half.await.expect("no panic");
    }
    // A test that is refused everything shows nothing about what lies behind the checks.
    assert!(
        accepted > count / 50,
        "only {accepted} of {count} requests were accepted"
    );
}

async fn throw(service: &ApiService, seed: u64, count: u64) -> u64 {
    let seeds = seeds();
    let mut random = Random(seed);
    let mut accepted = 0;
    for number in 0..count {
        let request = request(&seeds, &mut random);
        let shown = format!(
            "{} {} {:?}",
            request.method(),
            request.uri(),
            request.headers()
        );
        let answer = service.handle(request).await;
        let code = answer.status().as_u16();
        if code < 400 {
            // A watch goes on; hanging up in the middle is one more thing that clients do.
            accepted += 1;
            continue;
        }
        let body = answer
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let context = format!("seed {seed}, request {number}: {shown}");
        let status: Value = serde_json::from_slice(&body)
            .unwrap_or_else(|error| panic!("{context}: {error}: {body:?}"));
        assert!(code < 500, "{context}: {status}");
        assert_eq!(status["kind"], "Status", "{context}: {status}");
        assert_eq!(status["code"], code, "{context}: {status}");
    }
    accepted
}
