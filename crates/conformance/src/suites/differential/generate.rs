//! Requests from a seed. None depends on an answer but through the placeholders of [`Request`].

use http::Method;
use serde_json::{Value, json};

use super::dice::Dice;
use super::exchange::{OWN_UID, Request};
use super::kinds::{KINDS, Kind};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// Few names, so that requests meet each other's objects.
const NAMES: &[&str] = &["o0", "o1", "o2", "o3"];

/// What each is called, the type of its body, and the body.
type Nonsense = (&'static str, Option<&'static str>, Option<&'static str>);
#[rustfmt::skip]
const NONSENSE: &[Nonsense] = &[
    ("post to an object", Some(JSON), Some("{}")),
    ("put to a collection", Some(JSON), Some("{}")),
    ("patch of a collection", Some(MERGE), Some("{}")),
    ("create from half a text", Some(JSON), Some("{\"kind\":")),
    ("create from nothing", Some(JSON), Some("")),
    ("create from a table", Some("text/csv"), Some("a,b")),
    ("patch of no type", Some(JSON), Some("{}")),
    ("unknown subresource", None, None),
    ("unknown resource", None, None),
    ("create from a list", Some(JSON), Some("[]")),
    ("update to null", Some(JSON), Some("null")),
    ("create from half a YAML text", Some("application/yaml"), Some("kind: [")),
];

/// Makes requests in one namespace.
pub struct Generator {
    dice: Dice,
    namespace: String,
}

impl Generator {
    pub fn new(seed: u64, namespace: &str) -> Self {
        Self {
            dice: Dice::new(seed),
            namespace: namespace.to_owned(),
        }
    }

    pub fn next(&mut self) -> Request {
        let kind = &KINDS[self.dice.below(KINDS.len())];
        let name = *self.dice.pick(NAMES);
        match self.dice.below(100) {
            0..24 => self.create(kind, name),
            24..32 => self.get(kind, name),
            32..44 => self.list(kind),
            44..56 => self.update(kind, name),
            56..82 => self.patch(kind, name),
            82..92 => self.delete(kind, name),
            92..94 => self.delete_many(kind),
            _ => self.nonsense(kind, name),
        }
    }

    fn request(&self, kind: &Kind, method: Method, what: &'static str, path: String) -> Request {
        Request {
            what,
            label: format!("{what}: {method} {path}"),
            resource: kind.name,
            method,
            about: path
                .split('?')
                .next()
                .unwrap_or_default()
                .trim_end_matches("/status")
                .to_owned(),
            dry_run: path.contains("dryRun=All"),
            path,
            content_type: None,
            accept: None,
            body: None,
        }
    }

    fn with_body(&self, mut request: Request, content_type: &'static str, body: &Value) -> Request {
        let text = body.to_string().replace("${ns}", &self.namespace);
        request.label = format!("{} {content_type} {text}", request.label);
        request.content_type = Some(content_type);
        request.body = Some(text);
        request
    }

    fn object_path(&self, kind: &Kind, name: &str) -> String {
        format!("{}/{name}", kind.collection(&self.namespace))
    }

    /// Further parameters of a write.
    fn options(&mut self) -> String {
        let choices = [
            "",
            "",
            "",
            "",
            "?dryRun=All",
            "?fieldManager=one",
            "?fieldManager=two",
            "?fieldValidation=Strict",
            "?fieldValidation=Warn",
            "?fieldValidation=Ignore",
            "?dryRun=Some",
            "?fieldValidation=Maybe",
        ];
        (*self.dice.pick(&choices)).to_owned()
    }

    fn object(&mut self, kind: &Kind, name: &str) -> Value {
        let mut object = (kind.content)(&mut self.dice);
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.into();
        object["metadata"] = json!({"name": name});
        let metadata = &mut object["metadata"];
        match self.dice.below(40) {
            0 => metadata["name"] = "Bad_Name".into(),
            1 => metadata["name"] = Value::Null,
            2 => metadata["namespace"] = "elsewhere".into(),
            3 => metadata["labels"] = json!({"bad key!": "x"}),
            4 => metadata["labels"] = json!({"a": "bad value!"}),
            5 => metadata["annotations"] = json!({"a": 5}),
            6 => metadata["finalizers"] = json!(["not qualified"]),
            7 => {
                metadata["ownerReferences"] =
                    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}]);
            }
            9 => metadata["finalizers"] = json!(["example.com/f"]),
            10 => metadata["resourceVersion"] = "5".into(),
            11 => metadata["uid"] = OWN_UID.into(),
            12 => object["apiVersion"] = "v9".into(),
            13 => object["kind"] = "Other".into(),
            14 => object["unheardOf"] = 1.into(),
            15 => object["apiVersion"] = Value::Null,
            16 => object["metadata"] = "text".into(),
            17..30 => metadata["labels"] = json!({"a": self.dice.pick(&["1", "2"]), "b": "c"}),
            _ => {}
        }
        object
    }

    fn create(&mut self, kind: &Kind, name: &str) -> Request {
        let path = format!("{}{}", kind.collection(&self.namespace), self.options());
        let object = self.object(kind, name);
        let mut request = self.request(kind, Method::POST, "create", path);
        request.about = self.object_path(kind, name);
        self.with_body(request, JSON, &object)
    }

    fn get(&mut self, kind: &Kind, name: &str) -> Request {
        let query = *self.dice.pick(&[
            "",
            "",
            "?resourceVersion=0",
            "?resourceVersion=abc",
            "?pretty=true",
        ]);
        let path = format!("{}{query}", self.object_path(kind, name));
        let mut request = self.request(kind, Method::GET, "get", path);
        request.accept = *self.dice.pick(&[
            None,
            None,
            Some(TABLE),
            Some("text/plain"),
            Some("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
        ]);
        request
    }

    fn list(&mut self, kind: &Kind) -> Request {
        let field = *self.dice.pick(kind.fields);
        let queries = [
            String::new(),
            "?labelSelector=a%3D1".into(),
            "?labelSelector=a+in+%281%2C2%29%2Cb".into(),
            "?labelSelector=%21a".into(),
            "?labelSelector=a%21%3D1".into(),
            "?labelSelector=%3D%3D".into(),
            format!(
                "?fieldSelector={}",
                field.replace('=', "%3D").replace('!', "%21")
            ),
            "?fieldSelector=spec.nothing%3D1".into(),
            "?limit=1".into(),
            "?limit=2&continue=${continue}".into(),
            "?limit=-1".into(),
            "?limit=x".into(),
            "?continue=rubbish".into(),
            "?resourceVersion=0".into(),
            "?resourceVersion=0&resourceVersionMatch=NotOlderThan".into(),
            "?resourceVersionMatch=Exact".into(),
            "?resourceVersion=abc".into(),
            "?resourceVersion=999999999".into(),
        ];
        let path = format!(
            "{}{}",
            kind.collection(&self.namespace),
            self.dice.pick(&queries)
        );
        let mut request = self.request(kind, Method::GET, "list", path);
        // Cluster-scoped objects of others are in no namespace of ours.
        if !kind.namespaced && !request.path.contains('?') {
            request.path += "?labelSelector=b";
        }
        request.accept = *self.dice.pick(&[
            None,
            None,
            None,
            Some(TABLE),
            Some("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
        ]);
        request
    }

    fn update(&mut self, kind: &Kind, name: &str) -> Request {
        let status = kind.has_status && self.dice.chance(30);
        let path = format!(
            "{}{}{}",
            self.object_path(kind, name),
            if status { "/status" } else { "" },
            self.options()
        );
        let mut object = self.object(kind, name);
        if status {
            object["status"] = (kind.status)(&mut self.dice);
        }
        if object["metadata"].is_object() {
            match self.dice.below(10) {
                0..6 => object["metadata"]["resourceVersion"] = "${rv}".into(),
                6 => object["metadata"]["resourceVersion"] = "${old}".into(),
                7 => object["metadata"]["uid"] = "${uid}".into(),
                _ => {}
            }
        }
        let request = self.request(kind, Method::PUT, "update", path);
        self.with_body(request, JSON, &object)
    }

    fn patch(&mut self, kind: &Kind, name: &str) -> Request {
        let status = kind.has_status && self.dice.chance(25);
        let path = format!(
            "{}{}{}",
            self.object_path(kind, name),
            if status { "/status" } else { "" },
            self.options()
        );
        let mut change = if status {
            json!({"status": (kind.status)(&mut self.dice)})
        } else {
            (kind.change)(&mut self.dice)
        };
        match self.dice.below(20) {
            0 => change = json!({"metadata": {"labels": {"a": self.dice.pick(&["1", "2"])}}}),
            1 => change = json!({"metadata": {"finalizers": ["example.com/f"]}}),
            2 => change = json!({"metadata": {"finalizers": null}}),
            3 => change = json!({"metadata": {"resourceVersion": "${old}"}, "data": {"k": "z"}}),
            4 => change = json!({"metadata": {"name": "other"}}),
            5 => change = json!({"kind": "Other"}),
            6 => change = json!({"metadata": {"uid": OWN_UID}}),
            7 => change = json!([1]),
            8 => change = json!({}),
            _ => {}
        }
        match self.dice.below(10) {
            0..4 => {
                let request = self.request(kind, Method::PATCH, "merge patch", path);
                self.with_body(request, MERGE, &change)
            }
            4 | 5 => {
                let request = self.request(kind, Method::PATCH, "strategic patch", path);
                self.with_body(request, STRATEGIC, &change)
            }
            6 | 7 => self.apply(kind, name, path, change),
            _ => {
                let operations = self.operations();
                let request = self.request(kind, Method::PATCH, "JSON patch", path);
                self.with_body(request, JSON_PATCH, &operations)
            }
        }
    }

    fn operations(&mut self) -> Value {
        self.dice.one(&[
            &|_| json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}]),
            &|_| json!([{"op": "replace", "path": "/metadata/labels/a", "value": "2"}]),
            &|_| json!([{"op": "test", "path": "/metadata/name", "value": "o1"}, {"op": "add", "path": "/metadata/annotations", "value": {"x": "y"}}]),
            &|_| json!([{"op": "remove", "path": "/spec/nothing"}]),
            &|_| json!([{"op": "remove", "path": "/metadata/labels"}]),
            &|_| json!([{"op": "dance", "path": "/metadata"}]),
            &|_| json!({"op": "add"}),
            &|_| json!([{"op": "move", "from": "/metadata/labels", "path": "/metadata/annotations"}]),
            &|_| json!([{"op": "copy", "from": "/metadata/labels", "path": "/metadata/annotations"}]),
        ])
    }

    fn apply(&mut self, kind: &Kind, name: &str, path: String, mut change: Value) -> Request {
        let joint = if path.contains('?') { '&' } else { '?' };
        let manager = *self.dice.pick(&[
            "fieldManager=one",
            "fieldManager=two",
            "fieldManager=two&force=true",
            "force=true",
            "fieldManager=",
        ]);
        let path = if path.contains("fieldManager") {
            path
        } else {
            format!("{path}{joint}{manager}")
        };
        if change.is_object() {
            change["apiVersion"] = kind.api_version().into();
            if change["kind"].is_null() {
                change["kind"] = kind.kind.into();
            }
            if self.dice.chance(90) {
                change["metadata"]["name"] = name.into();
            }
        }
        let request = self.request(kind, Method::PATCH, "apply", path);
        self.with_body(request, APPLY, &change)
    }

    fn delete(&mut self, kind: &Kind, name: &str) -> Request {
        let object = self.object_path(kind, name);
        let body = match self.dice.below(10) {
            0 => json!({"preconditions": {"uid": "${uid}"}}),
            1 => json!({"preconditions": {"uid": OWN_UID}}),
            2 => json!({"preconditions": {"resourceVersion": "${old}"}}),
            3 => {
                json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "gracePeriodSeconds": 0})
            }
            4 => json!({"kind": "Other", "apiVersion": "v1"}),
            _ => {
                let query = *self.dice.pick(&[
                    "",
                    "",
                    "",
                    "?dryRun=All",
                    "?gracePeriodSeconds=0",
                    "?propagationPolicy=Background",
                    "?propagationPolicy=Never",
                    "?gracePeriodSeconds=-1",
                ]);
                return self.request(kind, Method::DELETE, "delete", format!("{object}{query}"));
            }
        };
        // With a body the real server ignores parameters, even a dry run.
        let request = self.request(kind, Method::DELETE, "delete", object);
        self.with_body(request, JSON, &body)
    }

    fn delete_many(&mut self, kind: &Kind) -> Request {
        let query = *self.dice.pick(&[
            "?labelSelector=a%3D1,b",
            "?labelSelector=b&dryRun=All",
            "?labelSelector=a%3D2,b&gracePeriodSeconds=0",
        ]);
        let path = format!("{}{query}", kind.collection(&self.namespace));
        self.request(kind, Method::DELETE, "delete many", path)
    }

    /// What no client of good will sends.
    fn nonsense(&mut self, kind: &Kind, name: &str) -> Request {
        let object = self.object_path(kind, name);
        let collection = kind.collection(&self.namespace);
        let (what, content_type, body) = *self.dice.pick(NONSENSE);
        let (method, path) = match what {
            "post to an object" => (Method::POST, object),
            "put to a collection" => (Method::PUT, collection),
            "patch of a collection" => (Method::PATCH, collection),
            "patch of no type" => (Method::PATCH, object),
            "unknown subresource" => (Method::GET, format!("{object}/nothing")),
            "unknown resource" => (Method::GET, format!("{}/nothings", kind.root)),
            "update to null" => (Method::PUT, object),
            _ => (Method::POST, collection),
        };
        let mut request = self.request(kind, method, what, path);
        request.label = format!("{} {content_type:?} {body:?}", request.label);
        request.content_type = content_type;
        request.body = body.map(str::to_owned);
        request.about = "nonsense".to_owned();
        request
    }
}
