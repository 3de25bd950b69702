//! Whoever runs `lariat` in the manager's pod (`kubectl exec`) asks with the pod's account: it may read what answers are made of.

use diagnose::KINDS;
use serde_json::Value;

use crate::{base, list, text, words};

const ACCOUNT: &str = "lariat-manager";

/// What the path of a list names: group, namespace if it is of one alone, and plural.
fn parts(path: &str) -> (&str, Option<&str>, &str) {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["api", _, plural] => ("", None, plural),
        ["api", _, "namespaces", namespace, plural] => ("", Some(namespace), plural),
        ["apis", group, _, plural] => (group, None, plural),
        ["apis", group, _, "namespaces", namespace, plural] => (group, Some(namespace), plural),
        _ => panic!("{path} is no list"),
    }
}

/// The rules that hold for the account: in the whole cluster, and in this namespace as well if one is named.
fn rules<'a>(objects: &'a [Value], namespace: Option<&str>) -> Vec<&'a Value> {
    let binds = |object: &&Value| {
        let names = list(object, "/subjects");
        let is_ours = names.iter().any(|name| text(name, "/name") == ACCOUNT);
        let is_here = namespace == Some(text(object, "/metadata/namespace"));
        is_ours && (text(object, "/kind") == "ClusterRoleBinding" || is_here)
    };
    let is_bound = |role: &&Value, binding: &Value| {
        text(role, "/kind") == text(binding, "/roleRef/kind")
            && text(role, "/metadata/name") == text(binding, "/roleRef/name")
    };
    let bindings = objects.iter().filter(binds);
    let roles = bindings.filter_map(|binding| {
        let mut roles = objects.iter();
        roles.find(|role| is_bound(role, binding))
    });
    roles.flat_map(|role| list(role, "/rules")).collect()
}

#[test]
fn the_managers_account_may_list_all_that_diagnosis_reads() {
    let objects = base();
    let may_list = |path: &str| {
        let (group, namespace, plural) = parts(path);
        rules(&objects, namespace).iter().any(|rule| {
            words(rule, "/apiGroups").contains(&group)
                && words(rule, "/resources").contains(&plural)
                && words(rule, "/verbs").contains(&"list")
        })
    };
    for kind in KINDS {
        assert!(may_list(kind.path), "{ACCOUNT} may not list {}", kind.path);
    }
    // The check can fail.
    assert!(!may_list("/api/v1/secrets"));
    assert!(!may_list("/api/v1/events"), "only those of our namespace");
}
