use super::*;

#[expect(
    clippy::needless_pass_by_value,
    reason = "rows read better as plain json!"
)]
fn check(schema: Value, value: Value, old: Option<Value>, expected: &[&str]) {
    let schema = Schema::from_value(schema).unwrap();
    let errors: Vec<String> = super::super::validate::validate(&schema, &value, old.as_ref())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(errors, expected, "{value}");
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "rows read better as plain json!"
)]
fn with_rule(rule: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule],
        "properties": {"replicas": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string"}}}}})
}

#[test]
fn failures_read_like_the_real_servers() {
    let rule =
        with_rule(json!({"rule": "self.replicas <= self.max", "message": "too many replicas"}));
    check(
        rule.clone(),
        json!({"spec": {"replicas": 1, "max": 2}}),
        None,
        &[],
    );
    check(
        rule.clone(),
        json!({"spec": {"replicas": 3, "max": 2}}),
        None,
        &[r#"spec: Invalid value: "object": too many replicas"#],
    );
    check(rule, json!({}), None, &[]);
    check(
        with_rule(json!({"rule": "self.replicas > 0"})),
        json!({"spec": {"replicas": 0}}),
        None,
        &[r#"spec: Invalid value: "object": failed rule: self.replicas > 0"#],
    );
    check(
        with_rule(
            json!({"rule": "self.replicas > 0", "messageExpression": "'got ' + string(self.replicas)", "fieldPath": ".replicas"}),
        ),
        json!({"spec": {"replicas": 0}}),
        None,
        &[r#"spec.replicas: Invalid value: "object": got 0"#],
    );
    check(
        with_rule(
            json!({"rule": "has(self.name)", "message": "say its name", "reason": "FieldValueRequired", "fieldPath": ".name"}),
        ),
        json!({"spec": {}}),
        None,
        &["spec.name: Required value: say its name"],
    );
}

#[test]
fn transition_rules_need_an_old_value() {
    let rule =
        with_rule(json!({"rule": "self.name == oldSelf.name", "message": "name is immutable"}));
    check(rule.clone(), json!({"spec": {"name": "a"}}), None, &[]);
    check(
        rule.clone(),
        json!({"spec": {"name": "a"}}),
        Some(json!({"spec": {"name": "a"}})),
        &[],
    );
    check(
        rule,
        json!({"spec": {"name": "a"}}),
        Some(json!({"spec": {"name": "b"}})),
        &[r#"spec: Invalid value: "object": name is immutable"#],
    );
}

#[test]
fn list_items_meet_their_old_selves_by_key() {
    let schema = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
        "items": {"type": "object", "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "must not shrink"}],
            "properties": {"n": {"type": "string"}, "v": {"type": "integer"}}}});
    let old = json!([{"n": "a", "v": 5}, {"n": "b", "v": 1}]);
    check(
        schema,
        json!([{"n": "b", "v": 2}, {"n": "a", "v": 4}, {"n": "c", "v": 0}]),
        Some(old),
        &[r#"[1]: Invalid value: "object": must not shrink"#],
    );
}

#[test]
fn rules_wait_for_a_sound_shape() {
    check(
        with_rule(json!({"rule": "self.replicas > 0"})),
        json!({"spec": {"replicas": "x"}}),
        None,
        &[
            r#"spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string""#,
            r#"<nil>: Invalid value: "null": some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"#,
        ],
    );
}

#[test]
fn what_cannot_run_is_refused() {
    for rule in [
        json!({"rule": "self.replicas >"}),
        json!({"rule": ""}),
        json!(7),
        json!({"rule": "(".repeat(5000)}),
        json!({"rule": "1 + ".repeat(9000)}),
        json!({"rule": "self.replicas"}),
        json!({"rule": "self.nothing.here == 1"}),
        json!({"rule": "nonsense(self)"}),
    ] {
        let schema = Schema::from_value(with_rule(rule.clone())).unwrap();
        let errors = validate(&schema, &json!({"spec": {"replicas": 1}}), None);
        assert_eq!(errors.len(), 1, "{rule}: {errors:?}");
    }
}

#[test]
fn loops_over_loops_have_a_budget() {
    let schema = json!({"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [
        {"rule": "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"}]});
    let schema = Schema::from_value(schema).unwrap();
    let errors = validate(&schema, &json!(vec![1; 2000]), None);
    assert!(errors[0].detail.contains("cost budget"), "{errors:?}");
    assert_eq!(validate(&schema, &json!([1, 2]), None), []);
}

/// The kinds of rules that widely used CRDs have.
#[test]
fn rules_seen_in_the_wild() {
    let rows = [
        (
            json!({"type": "string"}),
            "self == oldSelf",
            json!("a"),
            Some(json!("a")),
            true,
        ),
        (
            json!({"type": "string"}),
            "self == oldSelf",
            json!("a"),
            Some(json!("b")),
            false,
        ),
        (
            json!({"type": "object", "properties": {"volumeHandle": {"type": "string"}}}),
            "!has(oldSelf.volumeHandle) || has(self.volumeHandle)",
            json!({}),
            Some(json!({"volumeHandle": "x"})),
            false,
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"protocol": {"type": "string"}, "tls": {"type": "object"}}}}),
            "self.all(l, l.protocol in ['HTTPS', 'TLS'] ? has(l.tls) : true)",
            json!([{"protocol": "HTTP"}, {"protocol": "TLS"}]),
            None,
            false,
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            "self.all(key, size(key) <= 3) && size(self) <= 2",
            json!({"abc": "x", "de": "y"}),
            None,
            true,
        ),
        (
            json!({"type": "string"}),
            "self.matches('^[a-z]+$')",
            json!("A"),
            None,
            false,
        ),
        (
            json!({"type": "string"}),
            "quantity(self).isGreaterThan(quantity('1Gi'))",
            json!("2Gi"),
            None,
            true,
        ),
        (
            json!({"type": "string"}),
            "duration(self) <= duration('1h')",
            json!("90m"),
            None,
            false,
        ),
        (
            json!({"type": "string"}),
            "isURL(self) && url(self).getScheme() == 's3'",
            json!("s3://b/p"),
            None,
            true,
        ),
        (
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}),
            "has(self.spec) && self.spec.replicas >= 1 && self.spec.replicas <= 20",
            json!({"spec": {"replicas": 21}}),
            None,
            false,
        ),
        (
            json!({"type": "object", "properties": {"my-key": {"type": "string"}, "namespace": {"type": "string"}}}),
            "self.my__dash__key == self.__namespace__",
            json!({"my-key": "a", "namespace": "a"}),
            None,
            true,
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            "self > timestamp('2026-01-01T00:00:00Z')",
            json!("2026-02-01T00:00:00Z"),
            None,
            true,
        ),
    ];
    for (mut schema, rule, value, old, passes) in rows {
        schema["x-kubernetes-validations"] = json!([{"rule": rule, "message": "failed"}]);
        let schema = Schema::from_value(schema).unwrap();
        let errors = validate(&schema, &value, old.as_ref());
        let details: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
        let expected: &[&str] = if passes { &[] } else { &["failed"] };
        assert_eq!(details, expected, "{rule}");
    }
}

/// Whatever users write must cost an answer, not the server's stack.
#[test]
fn deep_and_long_rules_are_refused_or_run() {
    let refused = [
        format!("{}1 > 0", "1+".repeat(4000)),
        format!("{}true", "true?true:".repeat(800)),
        format!("self{}", ".a".repeat(4000)),
        format!("self{}", "[0]".repeat(2600)),
        format!("self{}", ".f()".repeat(2000)),
        format!("{}true{}", "(".repeat(4000), ")".repeat(4000)),
        format!("{}1{}", "[".repeat(4000), "]".repeat(4000)),
    ];
    for rule in refused {
        let schema = Schema::from_value(with_rule(json!({"rule": rule}))).unwrap();
        assert_eq!(problems(&schema.properties["spec"]).len(), 1, "{rule:.40}");
        let errors = validate(&schema, &json!({"spec": {"replicas": 1}}), None);
        assert_eq!(errors.len(), 1, "{rule:.40}");
    }
    let run = [
        format!("{}1 > 0", "1+".repeat(240)),
        format!("{}true", "true && ".repeat(500)),
        format!("{}true{}", "(".repeat(20), ")".repeat(20)),
        format!("{}true{}", "[1].all(x, ".repeat(4), ")".repeat(4)),
    ];
    for rule in run {
        let schema = Schema::from_value(with_rule(json!({"rule": rule}))).unwrap();
        let errors = validate(&schema, &json!({"spec": {"replicas": 1}}), None);
        assert_eq!(errors, [], "{rule:.40}");
    }
    // Repeated signs are folded by the parser; it only matters that they do no harm.
    for sign in ["!", "-"] {
        let rule = format!("{}true", sign.repeat(8000));
        let schema = Schema::from_value(with_rule(json!({"rule": rule}))).unwrap();
        validate(&schema, &json!({"spec": {"replicas": 1}}), None);
    }
}
