use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::patch::test_values::any_value;

type Path = Vec<PathElement>;

fn any_element() -> impl Strategy<Value = PathElement> {
    prop_oneof![
        4 => "[a-c.]".prop_map(PathElement::Field),
        2 => ("[ab]", 0..2_i64).prop_map(|(name, value)| PathElement::Key(vec![(name, json!(value))])),
        2 => prop_oneof![
            Just(json!("x")), Just(json!(1)), Just(json!(1.0)), Just(json!("<&>")), Just(json!(true)),
        ]
        .prop_map(PathElement::Value),
        1 => (0..2_i64).prop_map(PathElement::Index),
    ]
}

fn any_paths() -> impl Strategy<Value = BTreeSet<Path>> {
    prop::collection::btree_set(prop::collection::vec(any_element(), 1..4), 0..12)
}

fn as_set(paths: &BTreeSet<Path>) -> FieldSet {
    paths.iter().cloned().collect()
}

fn as_paths(set: &FieldSet) -> BTreeSet<Path> {
    set.paths().into_iter().collect()
}

proptest! {
    #[test]
    fn sets_of_fields_are_sets_of_paths(left in any_paths(), right in any_paths()) {
        let (left_set, right_set) = (as_set(&left), as_set(&right));
        prop_assert_eq!(as_paths(&left_set), left.clone());
        prop_assert_eq!(as_paths(&left_set.union(&right_set)), &left | &right);
        prop_assert_eq!(as_paths(&left_set.intersection(&right_set)), &left & &right);
        prop_assert_eq!(as_paths(&left_set.difference(&right_set)), &left - &right);
        // One tree per set: equality of trees is equality of sets.
        prop_assert_eq!(left_set.difference(&right_set), as_set(&(&left - &right)));
        prop_assert_eq!(left_set.intersection(&right_set), as_set(&(&left & &right)));
        prop_assert_eq!(left_set == right_set, left == right);
        prop_assert_eq!(left_set.is_empty(), left.is_empty());
        prop_assert_eq!(left_set.len(), left.len());
        let first: BTreeSet<Path> = left_set.first_paths(3, usize::MAX).into_iter().collect();
        prop_assert!(first.len() == left.len().min(3) && first.is_subset(&left));
        prop_assert_eq!(left_set.first_paths(9, 1).len(), left.len().min(1));
        for path in left.iter().chain(&right) {
            prop_assert_eq!(left_set.contains(path), left.contains(path));
        }
        prop_assert_eq!(parse_fields_v1(&serialize_fields_v1(&left_set)), Ok(left_set));
    }
}

/// A configuration over few names, so that managers meet.
fn any_config() -> impl Strategy<Value = Value> {
    let scalar = || "[12]";
    let data = prop::collection::btree_map("[a-c]", scalar(), 0..3);
    let env = prop::collection::btree_map("[A-B]", scalar(), 0..3);
    let container = (
        prop::option::of(scalar()),
        prop::option::of(env),
        prop::option::of(Just(["x"])),
    );
    let containers = prop::collection::btree_map("[a-c]", container, 0..3);
    let finalizers = prop::collection::btree_set("[f-h]", 0..3);
    (
        prop::option::of(data),
        prop::option::of(0..3_i64),
        prop::option::of(prop::collection::btree_map("[a-b]", scalar(), 1..2)),
        prop::option::of(containers),
        prop::option::of(finalizers),
        prop::option::of((prop::option::of(scalar()), prop::option::of(1..3_i64))),
    )
        .prop_map(
            |(data, replicas, selector, containers, finalizers, strategy)| {
                let containers = containers.map(|containers| {
                    let container = |(name, (image, env, args)): (String, _)| {
                        let env: Option<std::collections::BTreeMap<String, String>> = env;
                        let env = env.map(|env| {
                            env.into_iter()
                                .map(|(name, value)| json!({"name": name, "value": value}))
                                .collect::<Vec<_>>()
                        });
                        let (image, args): (Option<String>, Option<[&str; 1]>) = (image, args);
                        json!({"name": name, "image": image, "env": env, "args": args})
                    };
                    containers.into_iter().map(container).collect::<Vec<_>>()
                });
                let strategy = strategy.map(|(kind, surge)| json!({"type": kind, "surge": surge}));
                without_nulls(json!({
                    "metadata": {"finalizers": finalizers},
                    "data": data,
                    "spec": {
                        "replicas": replicas, "selector": selector,
                        "containers": containers, "strategy": strategy,
                    },
                }))
            },
        )
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        scalar => scalar,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Apply {
        manager: &'static str,
        config: Value,
        force: bool,
    },
    Update {
        manager: &'static str,
        config: Value,
    },
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let managers = || prop::sample::select(vec!["a", "b", "c"]);
    let apply = (managers(), any_config(), any::<bool>()).prop_map(|(manager, config, force)| {
        Step::Apply {
            manager,
            config,
            force,
        }
    });
    let update =
        (managers(), any_config()).prop_map(|(manager, config)| Step::Update { manager, config });
    prop::collection::vec(prop_oneof![3 => apply, 1 => update], 1..7)
}

fn managers(cluster: &Cluster) -> Managers {
    Managers::of(cluster.live()).expect("our own managedFields")
}

/// Everything that is there, structs, elements and maps included.
fn present(object: &Value, schema: &Schema) -> FieldSet {
    Comparison::of(&json!({}), object, Node::root(schema)).set()
}

/// Does the step, and judges what it did by itself.
fn take(cluster: &mut Cluster, step: &Step) -> Result<(), TestCaseError> {
    let before = cluster.clone();
    let before_managers = managers(&before);
    match step {
        Step::Update { manager, config } => {
            let mut after = named(config);
            after["metadata"]["managedFields"] = before.live()["metadata"]["managedFields"].clone();
            cluster.update(manager, &after);
            if before.object.is_some() && before_managers.is_empty() {
                prop_assert!(managers(cluster).is_empty());
                return Ok(());
            }
            let change = changes(
                before.object.as_ref(),
                cluster.live(),
                Node::root(&cluster.schema),
            );
            let changed = as_paths(&change.set().difference(&unowned()));
            let removed = as_paths(&change.removed);
            let id = ManagerId::updater(manager, "v1", None);
            let mut owners = managers(cluster);
            let updater = owners
                .0
                .remove(&id)
                .map(|share| as_paths(&share.fields))
                .unwrap_or_default();
            prop_assert!(changed.is_subset(&updater), "who changes a field owns it");
            for (id, share) in &owners.0 {
                let old = before_managers
                    .0
                    .get(id)
                    .map(|share| as_paths(&share.fields));
                let expected = &(&old.unwrap_or_default() - &changed) - &removed;
                prop_assert_eq!(
                    as_paths(&share.fields),
                    expected,
                    "the others keep the rest"
                );
            }
        }
        Step::Apply {
            manager,
            config,
            force,
        } => {
            match cluster.try_apply(manager, config, *force) {
                Err(ApplyError::Conflicts { listed, .. }) => {
                    prop_assert!(!force);
                    // Of an untracked object, everything is `before-first-apply`'s.
                    let tracked = !before_managers.is_empty();
                    for conflict in listed.into_iter().filter(|_| tracked) {
                        let owner = before_managers.0.get(&conflict.owner);
                        prop_assert!(
                            owner.is_some_and(|share| share.fields.contains(&conflict.path))
                        );
                    }
                    prop_assert_eq!(&cluster.object, &before.object);
                    return Ok(());
                }
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
                Ok(()) => {}
            }
            let node = Node::root(&cluster.schema);
            let applied = named(config);
            prop_assert_eq!(
                merge::merge(cluster.live(), &applied, node),
                cluster.live().clone(),
                "what was applied is in the result",
            );
            let id = ManagerId::applier(manager, None);
            let owned = managers(cluster)
                .0
                .remove(&id)
                .map(|share| share.fields)
                .unwrap_or_default();
            prop_assert_eq!(owned, field_set(&applied, node).difference(&unowned()));

            let once = cluster.object.clone();
            cluster.apply(manager, config.clone());
            prop_assert_eq!(&cluster.object, &once, "applying twice is applying once");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_step_keeps_the_rules(steps in any_steps()) {
        let mut cluster = Cluster::new();
        for step in &steps {
            take(&mut cluster, step)?;
            let present = present(cluster.live(), &cluster.schema);
            for (id, share) in &managers(&cluster).0 {
                let missing = share.fields.difference(&present);
                prop_assert!(missing.is_empty(), "{id:?} owns what is not there: {:?}", missing.paths());
            }
        }
    }

    #[test]
    fn what_somebody_applied_stays_until_somebody_takes_it(
        config in any_config(),
        others in prop::collection::vec((prop::sample::select(vec!["b", "c"]), any_config()), 0..5),
    ) {
        let mut cluster = Cluster::new();
        cluster.apply("a", config.clone());
        for (manager, other) in others {
            // Refusals are fine: without force nobody can take anything.
            let _ = cluster.try_apply(manager, &other, false);
        }
        let node = Node::root(&cluster.schema);
        let merged = merge::merge(cluster.live(), &named(&config), node);
        // Nobody owns the order of a list.
        prop_assert_eq!(Comparison::of(cluster.live(), &merged, node), Comparison::default());
    }

    #[test]
    fn applying_nothing_removes_exactly_what_nobody_else_owns(steps in any_steps()) {
        let mut cluster = Cluster::new();
        for step in &steps {
            take(&mut cluster, step)?;
        }
        let node_schema = cluster.schema.clone();
        let node = Node::root(&node_schema);
        let before = managers(&cluster);
        let id = ManagerId::applier("a", None);
        let Some(mine) = before.0.get(&id) else {
            return Ok(());
        };
        let implied = |set: &FieldSet| as_paths(&set.with_named_parents(node));
        let mine = implied(&mine.fields);
        let names = field_set(&named(&json!({})), node);
        let theirs: BTreeSet<Path> = before.0.iter()
            .filter(|(other, _)| **other != id)
            .flat_map(|(_, share)| implied(&share.fields))
            .chain(implied(&names))
            .collect();
        let content = |cluster: &Cluster| {
            as_paths(&present(&without_managed_fields(cluster.live()), &node_schema))
        };
        let all = content(&cluster);
        cluster.apply("a", json!({}));
        let left = content(&cluster);
        for path in &all {
            let doomed = (1..=path.len())
                .any(|length| mine.contains(&path[..length]) && !theirs.contains(&path[..length]));
            prop_assert_eq!(left.contains(path), !doomed, "{}", path_text(path));
        }
        prop_assert!(left.is_subset(&all), "nothing appears");
    }

    #[test]
    fn never_panics(live in any_value(), applied in any_value(), managed in any_value(), force: bool) {
        let schema = schema();
        let mut object = named(&json!({"spec": live, "data": live, "status": {"conditions": live}}));
        object["metadata"]["managedFields"] = managed;
        let config = named(&json!({"spec": {"anything": applied, "containers": applied}, "data": applied}));
        for (live, applied) in [(&object, &config), (&live, &applied), (&object, &applied)] {
            let request = ApplyRequest {
                live: Some(live), applied, manager: "kubectl", force,
                subresource: None, now: "2026-01-01T00:00:00Z", schema: &schema,
            };
            let _ = apply(request);
            let _ = apply(ApplyRequest { live: None, ..request });
            let mut after = applied.clone();
            crate::patch::managed::track_update(
                Some(live), &mut after, "m", "v1", None, "2026-01-01T00:00:00Z", &schema,
            );
        }
        let _ = parse_fields_v1(&live);
    }
}
