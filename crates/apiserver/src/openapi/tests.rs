use prost::Message as _;

use super::*;

fn resources() -> Vec<Resource> {
    let builtin = |group: &str, kind: &str, plural: &str, namespaced| Resource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        namespaced,
        subresources: vec!["status".to_owned()],
        schema: builtin::schema(group, "v1", kind).unwrap(),
    };
    let volume = json!({"type": "object", "description": "A volume.", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "string", "nullable": true, "description": "How large."},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}},
            "mode": {"type": "string", "enum": ["rw"], "default": "rw"}}}}});
    vec![
        builtin("", "Pod", "pods", true),
        builtin("", "Namespace", "namespaces", false),
        builtin(
            "storage.k8s.io",
            "VolumeAttachment",
            "volumeattachments",
            false,
        ),
        Resource {
            group: "longhorn.io".to_owned(),
            version: "v1beta2".to_owned(),
            kind: "Volume".to_owned(),
            plural: "volumes".to_owned(),
            namespaced: true,
            subresources: vec![],
            schema: Arc::new(Schema::from_value(volume).unwrap()),
        },
    ]
}

fn documents() -> Documents {
    Documents::new(resources(), "v1.37.0")
}

fn parsed(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

/// Every `$ref` of a document must lead somewhere.
fn check_references(document: &Value) {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let pointer = reference.trim_start_matches('#');
                    assert!(document.pointer(pointer).is_some(), "{reference}");
                }
                fields.values().for_each(|child| walk(child, document));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, document)),
            _ => {}
        }
    }
    walk(document, document);
}

#[test]
fn v2_defines_every_kind() {
    let documents = documents();
    let document = parsed(documents.v2_json());
    check_references(&document);
    assert_eq!(document["swagger"], "2.0");
    let pod = &document["definitions"]["io.k8s.api.core.v1.Pod"];
    assert_eq!(
        pod["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "Pod"}])
    );
    let core = |name: &str| &document["definitions"][format!("io.k8s.api.core.v1.{name}")];
    let spec = &pod["properties"]["spec"];
    assert_eq!(spec["$ref"], "#/definitions/io.k8s.api.core.v1.PodSpec");
    assert!(
        spec["description"]
            .as_str()
            .unwrap()
            .starts_with("Specification of")
    );
    let containers = &core("PodSpec")["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(
        containers["items"]["$ref"],
        "#/definitions/io.k8s.api.core.v1.Container"
    );
    assert_eq!(core("Container")["properties"]["image"]["type"], "string");
    assert!(
        core("Container")["description"]
            .as_str()
            .unwrap()
            .starts_with("A single")
    );
    let quantity = &document["definitions"]["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["type"], "string");
    assert!(quantity.get("format").is_none());
    assert!(!document.to_string().contains("\":null"));
    let volume = &document["definitions"]["io.longhorn.v1beta2.Volume"]["properties"];
    assert_eq!(
        volume["spec"]["properties"]["size"]["description"],
        "How large."
    );
    assert!(
        volume["spec"]["properties"]["size"]
            .get("nullable")
            .is_none()
    );
    assert!(volume["spec"]["properties"]["port"].get("anyOf").is_none());
    assert!(
        volume["spec"]["properties"]["free"]
            .get("properties")
            .is_none()
    );
    assert!(document["definitions"]["io.longhorn.v1beta2.VolumeList"].is_object());
}

/// What kubectl looks at before it sends `dryRun` or `fieldValidation`, or a strategic merge patch.
#[test]
fn patches_say_what_they_take() {
    let documents = documents();
    let v2 = parsed(documents.v2_json());
    let patch = &v2["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-action"], "patch");
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "", "version": "v1", "kind": "Pod"})
    );
    assert_eq!(patch["operationId"], "patchCoreV1NamespacedPod");
    let names = |operation: &Value| -> Vec<String> {
        let parameters = operation["parameters"].as_array().unwrap().iter();
        parameters
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        names(patch),
        ["dryRun", "fieldManager", "fieldValidation", "force", "body"]
    );
    let v3 = parsed(documents.v3("apis/longhorn.io/v1beta2").unwrap());
    let patch =
        &v3["paths"]["/apis/longhorn.io/v1beta2/namespaces/{namespace}/volumes/{name}"]["patch"];
    assert_eq!(
        names(patch),
        ["dryRun", "fieldManager", "fieldValidation", "force"]
    );
    let content = patch["requestBody"]["content"].as_object().unwrap();
    assert!(content.contains_key("application/apply-patch+yaml"));
    assert!(!content.contains_key("application/strategic-merge-patch+json"));
}

#[test]
fn v3_has_one_document_for_each_group_version() {
    let documents = documents();
    let index = parsed(documents.v3_index());
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(
        paths.keys().collect::<Vec<_>>(),
        [
            "api/v1",
            "apis/longhorn.io/v1beta2",
            "apis/storage.k8s.io/v1"
        ]
    );
    for (path, entry) in paths {
        let document = documents.v3(path).unwrap();
        let address = entry["serverRelativeURL"].as_str().unwrap();
        assert_eq!(
            address,
            format!("/openapi/v3/{path}?hash={}", hash_of(document))
        );
        check_references(&parsed(document));
    }
    let document = parsed(documents.v3("apis/longhorn.io/v1beta2").unwrap());
    let spec =
        &document["components"]["schemas"]["io.longhorn.v1beta2.Volume"]["properties"]["spec"];
    assert_eq!(spec["properties"]["size"]["nullable"], true);
    assert_eq!(
        spec["properties"]["port"]["x-kubernetes-int-or-string"],
        true
    );
    assert!(documents.v3("apis/nowhere/v1").is_none());
}

#[test]
fn the_protobuf_form_says_the_same() {
    let documents = documents();
    let json = parsed(documents.v2_json());
    let decoded = proto::Document::decode(documents.v2_protobuf()).unwrap();
    assert_eq!(decoded.swagger, "2.0");
    let definitions = decoded.definitions.unwrap().additional_properties;
    let names: Vec<&String> = json["definitions"].as_object().unwrap().keys().collect();
    assert_eq!(
        definitions
            .iter()
            .map(|definition| &definition.name)
            .collect::<Vec<_>>(),
        names
    );
    let paths = decoded.paths.unwrap().path;
    assert_eq!(paths.len(), json["paths"].as_object().unwrap().len());
    let pod = definitions
        .iter()
        .find(|definition| definition.name == "io.k8s.api.core.v1.Pod")
        .and_then(|definition| definition.value.as_ref())
        .unwrap();
    let extension = &pod.vendor_extension[0];
    assert_eq!(extension.name, "x-kubernetes-group-version-kind");
    let yaml: Value = serde_json::from_str(&extension.value.as_ref().unwrap().yaml).unwrap();
    assert_eq!(yaml, json!([{"group": "", "version": "v1", "kind": "Pod"}]));
    let attachment = paths
        .iter()
        .find(|path| path.name == "/apis/storage.k8s.io/v1/volumeattachments/{name}")
        .and_then(|path| path.value.as_ref()?.patch.as_ref())
        .unwrap();
    let query: Vec<String> = attachment
        .parameters
        .iter()
        .filter_map(|item| match item.parameter.as_ref()?.kind.as_ref()? {
            proto::ParameterKind::NonBody(proto::NonBodyParameter {
                kind: Some(proto::NonBodyKind::Query(query)),
            }) => Some(query.name.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        query,
        ["dryRun", "fieldManager", "fieldValidation", "force"]
    );
}
