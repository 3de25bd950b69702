use proptest::prelude::*;
use serde_json::json;

use super::super::arbitrary::{any_schema, any_value};
use super::*;

fn errors_of(schema: Value, value: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = Schema::from_value(schema).unwrap();
    validate(&schema, value, old)
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// The schema stands at `spec.f`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "rows read better as plain json!"
)]
fn check(field_schema: Value, value: Value, expected: &[&str]) {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": field_schema}}}});
    let object = json!({"spec": {"f": value}});
    assert_eq!(errors_of(schema, &object, None), expected, "{object}");
}

#[test]
fn types() {
    check(json!({"type": "string"}), json!("a"), &[]);
    check(
        json!({"type": "string"}),
        json!(1),
        &[r#"spec.f: Invalid value: "integer": spec.f in body must be of type string: "integer""#],
    );
    check(json!({"type": "integer"}), json!(1.0), &[]);
    check(
        json!({"type": "integer"}),
        json!(1.5),
        &[r#"spec.f: Invalid value: "number": spec.f in body must be of type integer: "number""#],
    );
    check(json!({"type": "number"}), json!(1), &[]);
    check(
        json!({"type": "object"}),
        json!([]),
        &[r#"spec.f: Invalid value: "array": spec.f in body must be of type object: "array""#],
    );
    check(
        json!({"type": "string", "nullable": true}),
        json!(null),
        &[],
    );
    check(
        json!({"type": "string"}),
        json!(null),
        &[r#"spec.f: Invalid value: "null": spec.f in body must be of type string: "null""#],
    );
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!("50%"),
        &[],
    );
    check(json!({"x-kubernetes-int-or-string": true}), json!(5), &[]);
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        &[
            r#"spec.f: Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean""#,
        ],
    );
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(3_000_000_000_i64),
        &[
            r#"spec.f: Invalid value: 3000000000: spec.f in body must be of type int32: "3000000000""#,
        ],
    );
    check(
        json!({"type": "string", "format": "date-time"}),
        json!("soon"),
        &[r#"spec.f: Invalid value: "soon": spec.f in body must be of type date-time: "soon""#],
    );
}

#[test]
fn strings_and_numbers() {
    check(
        json!({"type": "string", "enum": ["a", "b"]}),
        json!("x"),
        &[r#"spec.f: Unsupported value: "x": supported values: "a", "b""#],
    );
    check(
        json!({"type": "string", "maxLength": 2}),
        json!("abc"),
        &["spec.f: Too long: may not be more than 2 bytes"],
    );
    check(json!({"type": "string", "maxLength": 2}), json!("äö"), &[]);
    check(
        json!({"type": "string", "minLength": 2}),
        json!("a"),
        &[r#"spec.f: Invalid value: "a": spec.f in body should be at least 2 chars long"#],
    );
    check(
        json!({"type": "string", "pattern": "^[a-z]+$"}),
        json!("A"),
        &[r#"spec.f: Invalid value: "A": spec.f in body should match '^[a-z]+$'"#],
    );
    check(
        json!({"type": "integer", "minimum": 1}),
        json!(0),
        &["spec.f: Invalid value: 0: spec.f in body should be greater than or equal to 1"],
    );
    check(
        json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
        json!(1),
        &["spec.f: Invalid value: 1: spec.f in body should be greater than 1"],
    );
    check(
        json!({"type": "number", "maximum": 1.5}),
        json!(2),
        &["spec.f: Invalid value: 2: spec.f in body should be less than or equal to 1.5"],
    );
    check(
        json!({"type": "integer", "multipleOf": 512}),
        json!(1000),
        &["spec.f: Invalid value: 1000: spec.f in body should be a multiple of 512"],
    );
    check(
        json!({"type": "number", "multipleOf": 0.1}),
        json!(0.3),
        &[],
    );
}

#[test]
fn objects_and_lists() {
    check(
        json!({"type": "object", "required": ["volume"]}),
        json!({}),
        &["spec.f.volume: Required value"],
    );
    check(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"k": 1}),
        &[
            r#"spec.f.k: Invalid value: "integer": spec.f.k in body must be of type string: "integer""#,
        ],
    );
    check(
        json!({"type": "object", "minProperties": 1, "additionalProperties": true}),
        json!({}),
        &["spec.f: Invalid value: 0: spec.f in body should have at least 1 properties"],
    );
    check(
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
        json!(["a", 2]),
        &[
            "spec.f: Too many: 2: must have at most 1 items",
            r#"spec.f[1]: Invalid value: "integer": spec.f[1] in body must be of type string: "integer""#,
        ],
    );
    check(
        json!({"type": "array", "minItems": 1}),
        json!([]),
        &["spec.f: Invalid value: 0: spec.f in body should have at least 1 items"],
    );
    check(
        json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
        json!([1, 1.0]),
        &["spec.f: Invalid value: [1,1.0]: spec.f in body shouldn't contain duplicates"],
    );
    check(
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        json!(["a", "b", "a"]),
        &[r#"spec.f[2]: Duplicate value: "a""#],
    );
    let ports = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
        "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}});
    check(
        ports.clone(),
        json!([{"port": 1}, {"port": 1, "protocol": "TCP"}]),
        &[r#"spec.f[1]: Duplicate value: {"port":1,"protocol":"TCP"}"#],
    );
    check(
        ports,
        json!([{"port": 1}, {"port": 1, "protocol": "UDP"}]),
        &[],
    );
}

#[test]
fn combinators() {
    let string_or_number = json!([{"type": "string"}, {"type": "integer"}]);
    check(json!({"anyOf": string_or_number}), json!(1), &[]);
    check(
        json!({"anyOf": string_or_number}),
        json!(true),
        &[
            r#"<nil>: Invalid value: "": "spec.f" must validate at least one schema (anyOf)"#,
            r#"spec.f: Invalid value: "boolean": spec.f in body must be of type string: "boolean""#,
        ],
    );
    check(
        json!({"oneOf": [{"minimum": 1}, {"minimum": 2}]}),
        json!(3),
        &[
            r#"<nil>: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ],
    );
    check(
        json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({}),
        &[
            r#"<nil>: Invalid value: "": "spec.f" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.f.a: Required value",
        ],
    );
    check(
        json!({"not": {"enum": ["x"]}}),
        json!("x"),
        &[r#"<nil>: Invalid value: "": "spec.f" must not validate the schema (not)"#],
    );
    check(
        json!({"allOf": [{"minimum": 1}, {"maximum": 5}]}),
        json!(9),
        &[
            "spec.f: Invalid value: 9: spec.f in body should be less than or equal to 5",
            r#"<nil>: Invalid value: "": "spec.f" must validate all the schemas (allOf)"#,
        ],
    );
}

#[test]
fn embedded_resources_say_what_they_are() {
    let schema = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    check(
        schema.clone(),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}),
        &[],
    );
    check(
        schema,
        json!({"kind": "", "metadata": {"name": 1}}),
        &[
            "spec.f.apiVersion: Required value: must not be empty",
            "spec.f.kind: Required value: must not be empty",
            r#"spec.f.metadata.name: Invalid value: "integer": spec.f.metadata.name in body must be of type string: "integer""#,
        ],
    );
}

#[test]
fn what_was_stored_wrong_may_stay_wrong() {
    let schema = json!({"type": "object", "properties": {
        "mode": {"type": "string", "enum": ["a"]},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer", "maximum": 1}}}}}});
    let old = json!({"mode": "old", "list": [{"name": "x", "v": 9}]});
    let touched =
        json!({"mode": "old", "list": [{"name": "y", "v": 1}, {"name": "x", "v": 9}], "n": 1});
    assert!(errors_of(schema.clone(), &touched, Some(&old)).is_empty());
    let worse = json!({"mode": "new", "list": [{"name": "x", "v": 10}]});
    assert_eq!(errors_of(schema, &worse, Some(&old)).len(), 2);
}

#[test]
fn built_in_kinds_are_only_typed() {
    let schema = Schema::from_value(json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "string"}, "q": {"x-kubernetes-int-or-string": true, "format": "quantity"}}}))
    .unwrap();
    assert!(validate_types(&schema, &json!({"a": null, "q": 0.5})).is_empty());
    assert_eq!(
        validate_types(&schema, &json!({"a": 1, "q": "1Gig"})).len(),
        2
    );
}

#[test]
fn metadata_is_typed_for_all() {
    let errors = validate_metadata_types(
        &json!({"metadata": {"labels": {"a": 1}, "creationTimestamp": null}}),
    );
    assert_eq!(
        errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            r#"metadata.labels.a: Invalid value: "integer": metadata.labels.a in body must be of type string: "integer""#
        ]
    );
    assert_eq!(validate_metadata_types(&json!({})), []);
}

proptest! {
    #[test]
    fn never_panics(schema in any_schema(), value in any_value(), old in prop::option::of(any_value())) {
        validate(&schema, &value, old.as_ref());
        validate_types(&schema, &value);
    }

    #[test]
    fn an_unchanged_object_is_never_refused(schema in any_schema(), value in any_value()) {
        let errors: Vec<_> = validate(&schema, &value, Some(&value));
        // Rules that do not even compile are refused whatever they are asked.
        prop_assert!(errors.iter().all(|error| error.detail.contains("rule")), "{errors:?}");
    }
}
