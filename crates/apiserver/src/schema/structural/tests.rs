use proptest::prelude::*;
use serde_json::json;

use super::super::arbitrary::{any_schema, any_value};
use super::*;

#[expect(
    clippy::needless_pass_by_value,
    reason = "rows read better as plain json!"
)]
fn definition(schema: Value) -> Value {
    json!({"metadata": {"name": "volumes.longhorn.io"}, "spec": {"group": "longhorn.io", "scope": "Namespaced",
        "names": {"plural": "volumes", "singular": "volume", "kind": "Volume", "listKind": "VolumeList", "shortNames": ["lhv"]},
        "versions": [{"name": "v1beta2", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

fn check(definition: &Value, expected: &[&str]) {
    let actual: Vec<String> = validate_definition(definition)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(actual.len(), expected.len(), "{actual:#?}");
    for (actual, expected) in actual.iter().zip(expected) {
        assert!(actual.starts_with(expected), "{actual}\n{expected}");
    }
}

const ROOT: &str = "spec.versions[0].schema.openAPIV3Schema";

/// The schema stands at `properties[spec].properties[f]`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "rows read better as plain json!"
)]
fn check_field(field: Value, expected: &[&str]) {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": field}}}});
    let prefixed: Vec<String> = expected
        .iter()
        .map(|expected| format!("{ROOT}.properties[spec].properties[f]{expected}"))
        .collect();
    let prefixed: Vec<&str> = prefixed.iter().map(String::as_str).collect();
    check(&definition(schema), &prefixed);
}

#[test]
fn the_definition() {
    let good = definition(json!({"type": "object"}));
    check(&good, &[]);
    let mut bad = good.clone();
    bad["metadata"]["name"] = json!("x.longhorn.io");
    check(
        &bad,
        &[
            r#"metadata.name: Invalid value: "x.longhorn.io": must be spec.names.plural+"."+spec.group"#,
        ],
    );
    let mut bad = good.clone();
    bad["spec"]["versions"][0]["storage"] = json!(false);
    check(
        &bad,
        &[
            r#"spec.versions: Invalid value: ["v1beta2"]: must have exactly one version marked as storage version"#,
        ],
    );
    let mut bad = good.clone();
    bad["spec"]["conversion"] = json!({"strategy": "Webhook"});
    check(
        &bad,
        &["spec.conversion.strategy: Forbidden: this server does not call conversion webhooks"],
    );
    let mut bad = good.clone();
    bad["spec"]["scope"] = json!("Galaxy");
    bad["spec"]["names"]["kind"] = json!("");
    bad["spec"]["versions"][0]["schema"] = json!({});
    bad["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".status.x"}});
    bad["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "A", "type": "text"}]);
    check(
        &bad,
        &[
            r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#,
            "spec.names.kind: Required value",
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
            r#"spec.versions[0].subresources.scale.specReplicasPath: Invalid value: ".status.x": should be a json path under .spec"#,
            "spec.versions[0].subresources.scale.statusReplicasPath: Required value",
            "spec.versions[0].additionalPrinterColumns[0].jsonPath: Required value",
            r#"spec.versions[0].additionalPrinterColumns[0].type: Unsupported value: "text""#,
        ],
    );
    check(
        &json!({"spec": 1}),
        &[
            "spec.group: Required value",
            "spec.scope: Required value",
            "metadata.name: Invalid value",
            "spec.names.plural: Required value",
            "spec.names.singular: Required value",
            "spec.names.kind: Required value",
            "spec.names.listKind: Required value",
            "spec.versions: Invalid value: []: must have exactly one",
        ],
    );
}

#[test]
fn the_root() {
    check(
        &definition(json!({})),
        &[&format!(
            "{ROOT}.type: Required value: must not be empty at the root"
        )],
    );
    check(
        &definition(json!({"type": "string"})),
        &[&format!(
            r#"{ROOT}.type: Invalid value: "string": must be object at the root"#
        )],
    );
    check(
        &definition(
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        ),
        &[&format!(
            "{ROOT}.properties[metadata]: Forbidden: must not specify anything other than name and generateName"
        )],
    );
    check(
        &definition(json!({"type": "object", "x-kubernetes-list-type": "heap"})),
        &[&format!(r#"{ROOT}: Invalid value: "": is not a schema: "#)],
    );
}

#[test]
fn structural_rules() {
    check_field(
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 3}),
        &[],
    );
    check_field(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+%?$"}),
        &[],
    );
    check_field(
        json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "%$"}]}),
        &[],
    );
    check_field(
        json!({}),
        &[".type: Required value: must not be empty for specified object fields"],
    );
    check_field(json!({"x-kubernetes-preserve-unknown-fields": true}), &[]);
    check_field(
        json!({"type": "text"}),
        &[r#".type: Unsupported value: "text": supported values: "array""#],
    );
    check_field(
        json!({"type": "array"}),
        &[".items: Required value: must be specified"],
    );
    check_field(
        json!({"type": "object", "additionalProperties": {"type": "string"}, "properties": {"a": {"type": "string"}}}),
        &[
            ".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ],
    );
    check_field(
        json!({"type": "object", "additionalProperties": false}),
        &[".additionalProperties: Forbidden: additionalProperties cannot be set to false"],
    );
    check_field(
        json!({"type": "object", "$ref": "#/x", "patternProperties": {}}),
        &[
            ".$ref: Forbidden: $ref is not supported",
            ".patternProperties: Forbidden: patternProperties is not supported",
        ],
    );
    check_field(
        json!({"type": "string", "anyOf": [{"type": "string"}, {"minLength": 1}]}),
        &[".anyOf[0].type: Forbidden: must be empty to be structural"],
    );
    check_field(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"properties": {"b": {"minLength": 1}}}]}),
        &[
            ".oneOf[1].properties[b]: Required value: because it is defined in oneOf[1].properties[b]",
        ],
    );
    check_field(
        json!({"type": "string", "pattern": "("}),
        &[r#".pattern: Invalid value: "(": must be a valid regular expression"#],
    );
    check_field(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        &[".uniqueItems: Forbidden"],
    );
    check_field(
        json!({"type": "object", "x-kubernetes-embedded-resource": true}),
        &[".properties: Required value: must not be empty if x-kubernetes-embedded-resource"],
    );
}

#[test]
fn list_maps() {
    let list = |keys: Value, items: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items});
    let item = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "object"}}});
    check_field(list(json!(["a"]), item.clone()), &[]);
    check_field(
        list(json!([]), item.clone()),
        &[".x-kubernetes-list-map-keys: Required value: must not be empty if"],
    );
    check_field(
        list(json!(["b", "z"]), item.clone()),
        &[
            ".items.properties[b].default: Required value: this property is in x-kubernetes-list-map-keys",
            r#".x-kubernetes-list-map-keys: Invalid value: ["b","z"]: entries must all be names of item properties"#,
        ],
    );
    check_field(
        list(json!(["a", "a", "c"]), item),
        &[
            r#".x-kubernetes-list-map-keys: Invalid value: ["a","a","c"]: must not contain duplicate entries"#,
            r#".items.properties[c].type: Invalid value: "object": must be a scalar type"#,
            ".items.properties[c].default: Required value",
        ],
    );
    check_field(
        list(json!(["a"]), json!({"type": "string"})),
        &[r#".items.type: Invalid value: "string": must be object if parent array's"#],
    );
    check_field(
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["a"]}),
        &[
            ".x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ],
    );
}

#[test]
fn defaults_and_rules() {
    check_field(json!({"type": "integer", "default": 3, "minimum": 1}), &[]);
    check_field(
        json!({"type": "integer", "default": 0, "minimum": 1}),
        &[".default: Invalid value: 0: "],
    );
    check_field(
        json!({"type": "string", "default": 1}),
        &[r#".default: Invalid value: "integer": "#],
    );
    check_field(
        json!({"type": "object", "default": {"x": 1}, "properties": {"a": {"type": "string"}}}),
        &[r#".default: Invalid value: {"x":1}: must not have unknown fields, but has "x""#],
    );
    check_field(
        json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.size() > 0"}]}),
        &[],
    );
    check_field(
        json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.size( >"}, {"message": "m"}]}),
        &[
            ".x-kubernetes-validations[1].rule: Required value: rule is not specified",
            r#".x-kubernetes-validations[0].rule: Invalid value: "self.size( >": compilation failed"#,
        ],
    );
}

#[test]
fn rules_say_why() {
    let field = |rule: Value| json!({"type": "string", "x-kubernetes-validations": [rule]});
    check_field(
        field(json!({"rule": "self ==\n'a'"})),
        &[
            ".x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks",
        ],
    );
    check_field(
        field(json!({"rule": "true", "message": "a\nb", "reason": "Because"})),
        &[
            r#".x-kubernetes-validations[0].message: Invalid value: "a\nb": message must not contain line breaks"#,
            r#".x-kubernetes-validations[0].reason: Unsupported value: "Because""#,
        ],
    );
}

#[test]
fn changes() {
    let mut old = definition(json!({"type": "object"}));
    old["status"] = json!({"storedVersions": ["v1beta2"], "conditions": [{"type": "Established", "status": "True"}]});
    assert!(validate_definition_change(&old, &old).is_empty());
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["versions"][0]["name"] = json!("v2");
    let errors: Vec<String> = validate_definition_change(&old, &new)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(
        errors[0],
        r#"spec.scope: Invalid value: "Cluster": field is immutable"#
    );
    assert!(errors[1].starts_with(
        r#"status.storedVersions[0]: Invalid value: "v1beta2": missing from spec.versions; "#
    ));
}

proptest! {
    #[test]
    fn never_panics(schema in any_schema(), value in any_value()) {
        validate_definition(&definition(serde_json::to_value(&schema).unwrap()));
        validate_definition(&definition(value.clone()));
        validate_definition_change(&value, &definition(value.clone()));
    }
}
