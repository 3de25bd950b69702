use serde_json::{Value, json};

use super::*;

fn parse<T: serde::de::DeserializeOwned>(base: Value, more: &Value) -> T {
    let mut object = base;
    json_patch::merge(&mut object, more);
    serde_json::from_value(object).expect("a valid object")
}

fn node(name: &str, more: &Value) -> Node {
    let base = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    parse(base, more)
}

fn pod(more: &Value) -> Pod {
    parse(json!({"spec": {"containers": []}}), more)
}

fn unique(handle: &str) -> UniqueVolumeName {
    UniqueVolumeName {
        driver: "d".into(),
        handle: handle.into(),
    }
}

fn candidate<'a>(node: &'a Node, pods: usize, volumes: &[&str], volumes_max: u32) -> Candidate<'a> {
    let limit = (volumes_max > 0).then(|| ("d".to_owned(), volumes_max));
    Candidate {
        node,
        pods,
        volumes: volumes.iter().map(|handle| unique(handle)).collect(),
        volumes_max: limit.into_iter().collect(),
    }
}

fn check(pod: &Pod, luggage: &Luggage, candidates: &[Candidate<'_>], expected: &str) {
    let shown = match place(pod, luggage, candidates) {
        Ok(node) => node,
        Err(nowhere) => nowhere.to_string(),
    };
    assert_eq!(shown, expected);
}

#[test]
fn pods_spread_over_nodes_that_can_take_them() {
    let (n1, n2) = (node("n1", &json!({})), node("n2", &json!({})));
    let none = Luggage::default();
    let two = |a, b| [candidate(&n1, a, &[], 0), candidate(&n2, b, &[], 0)];
    check(&pod(&json!({})), &none, &two(3, 2), "n2");
    check(&pod(&json!({})), &none, &two(2, 2), "n1");
    check(
        &pod(&json!({})),
        &none,
        &[],
        "0/0 nodes are available: there are no nodes",
    );
    let selects = pod(&json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}}));
    check(&selects, &none, &two(9, 0), "n1");
    let term = |operator: &str| json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": operator, "values": ["n1"]}]});
    let affine = |operator: &str| {
        pod(&json!({"spec": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term(operator)]}}}}}))
    };
    check(&affine("In"), &none, &two(9, 0), "n1");
    check(&affine("NotIn"), &none, &two(0, 9), "n2");
}

#[test]
fn every_node_says_why_not() {
    let lost = node(
        "lost",
        &json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
    );
    let cordoned = node("cordoned", &json!({"spec": {"unschedulable": true}}));
    let taints = json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}});
    let tainted = node("tainted", &taints);
    let all = [
        candidate(&lost, 0, &[], 0),
        candidate(&cordoned, 0, &[], 0),
        candidate(&tainted, 0, &[], 0),
    ];
    let none = Luggage::default();
    check(
        &pod(&json!({})),
        &none,
        &all,
        "0/3 nodes are available: lost: it is not ready; cordoned: it is cordoned (kubectl uncordon); \
         tainted: the pod does not tolerate its taint k:NoSchedule",
    );
    for toleration in [
        json!({"key": "k", "value": "v"}),
        json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
    ] {
        let tolerant = pod(&json!({"spec": {"tolerations": [toleration]}}));
        check(&tolerant, &none, &all, "tainted");
    }
    let stranger = pod(&json!({"spec": {"tolerations": [{"key": "k", "value": "other"}]}}));
    assert!(place(&stranger, &none, &all).is_err());
}

#[test]
fn a_full_node_takes_what_it_has_already() {
    let (n1, n2) = (node("n1", &json!({})), node("n2", &json!({})));
    let volume = |handle: &str| Volume {
        name: unique(handle),
        terms: Vec::new(),
    };
    let nodes = [candidate(&n1, 0, &["a"], 1), candidate(&n2, 5, &["b"], 1)];
    let with = |handle| Luggage {
        volumes: vec![volume(handle)],
        ..Luggage::default()
    };
    let plain = pod(&json!({}));
    check(&plain, &with("b"), &nodes, "n2");
    check(
        &plain,
        &with("c"),
        &nodes,
        "0/2 nodes are available: n1: it would have 2 volumes of d, and 1 are allowed; \
         n2: it would have 2 volumes of d, and 1 are allowed",
    );
    let unmade = Luggage {
        unmade: vec!["d".to_owned()],
        ..Luggage::default()
    };
    assert!(place(&plain, &unmade, &nodes).is_err());
    let other = Luggage {
        unmade: vec!["x".to_owned()],
        ..Luggage::default()
    };
    check(&plain, &other, &nodes, "n1");
}

#[test]
fn a_volume_draws_the_pod_to_where_it_can_be_used() {
    let (n1, n2) = (node("n1", &json!({})), node("n2", &json!({})));
    let nodes = [candidate(&n1, 0, &[], 0), candidate(&n2, 5, &[], 0)];
    let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]});
    let bound = Luggage {
        volumes: vec![Volume {
            name: unique("a"),
            terms: vec![parse(term, &json!({}))],
        }],
        ..Luggage::default()
    };
    check(&pod(&json!({})), &bound, &nodes, "n2");
    let selected = Luggage {
        selected: Some("n2".to_owned()),
        ..Luggage::default()
    };
    check(&pod(&json!({})), &selected, &nodes, "n2");
}
