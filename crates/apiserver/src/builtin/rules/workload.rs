//! StatefulSets: the one workload that the embedded mode runs.

use serde_json::{Map, Value, json};

use super::{KindRules, child_object, default_field, items, object, one_of, pod, same, text};
use crate::field_error::FieldError;

pub(super) static RULES: [KindRules; 1] = [KindRules {
    default: default_stateful_set,
    object: stateful_set,
    change,
    ..KindRules::new("apps", "StatefulSet")
}];

/// What of a spec may change; pods and claims were made from the rest.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn default_stateful_set(set: &mut Value) {
    let Some(spec) = child_object(set, "spec") else {
        return;
    };
    default_field(spec, "replicas", 1);
    default_field(spec, "podManagementPolicy", "OrderedReady");
    default_field(spec, "revisionHistoryLimit", 10);
    default_field(
        spec,
        "persistentVolumeClaimRetentionPolicy",
        json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
    );
    if let Some(strategy) = child_object(spec, "updateStrategy") {
        default_field(strategy, "type", "RollingUpdate");
        if text(strategy, "/type") == "RollingUpdate"
            && let Some(rolling) = child_object(strategy, "rollingUpdate")
        {
            default_field(rolling, "partition", 0);
        }
    }
    if let Some(template) = spec.get_mut("template") {
        pod::default_template(template);
    }
    if let Some(Value::Array(claims)) = spec.get_mut("volumeClaimTemplates") {
        for claim in claims {
            default_field(claim, "apiVersion", "v1");
            default_field(claim, "kind", "PersistentVolumeClaim");
            if let Some(spec) = child_object(claim, "spec") {
                default_field(spec, "volumeMode", "Filesystem");
            }
            if let Some(status) = child_object(claim, "status") {
                default_field(status, "phase", "Pending");
            }
        }
    }
    if let Some(status) = child_object(set, "status") {
        default_field(status, "replicas", 0);
        default_field(status, "availableReplicas", 0);
    }
}

fn stateful_set(set: &Value, errors: &mut Vec<FieldError>) {
    if let Some(replicas) = set.pointer("/spec/replicas").and_then(Value::as_i64)
        && replicas < 0
    {
        let problem = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(
            "spec.replicas",
            replicas.into(),
            problem,
        ));
    }
    let policy = text(set, "/spec/podManagementPolicy");
    let policies = ["OrderedReady", "Parallel"];
    one_of(policy, &policies, "spec.podManagementPolicy", errors);
    let strategy = text(set, "/spec/updateStrategy/type");
    let strategies = ["RollingUpdate", "OnDelete"];
    one_of(strategy, &strategies, "spec.updateStrategy.type", errors);
    let nothing = Map::new();
    let labels = object(set, "/spec/template/metadata/labels").unwrap_or(&nothing);
    let selected = object(set, "/spec/selector/matchLabels").unwrap_or(&nothing);
    let expressions = items(set, "/spec/selector/matchExpressions");
    if selected.is_empty() && expressions.is_empty() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if selected
        .iter()
        .any(|(key, value)| labels.get(key) != Some(value))
    {
        let shown = Value::Object(labels.clone());
        let problem = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            shown,
            problem,
        ));
    }
    if let Some(template) = set.pointer("/spec/template") {
        // Pods find the volumes of claim templates under the templates' names.
        let mut template = template.clone();
        if let Some(Value::Array(volumes)) = template
            .get_mut("spec")
            .and_then(|spec| child_array(spec, "volumes"))
        {
            for claim in items(set, "/spec/volumeClaimTemplates") {
                let name = text(claim, "/metadata/name");
                volumes.retain(|volume| text(volume, "/name") != name);
                volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
            }
        }
        pod::template(&template, "spec.template", errors);
        match text(&template, "/spec/restartPolicy") {
            "Always" => {}
            other => one_of(
                other,
                &["Always"],
                "spec.template.spec.restartPolicy",
                errors,
            ),
        }
    }
}

fn child_array<'a>(parent: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    default_field(parent, name, Vec::<Value>::new());
    parent.get_mut(name)
}

fn change(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let fixed = |set: &Value| {
        let mut spec = object(set, "/spec").cloned().unwrap_or_default();
        spec.retain(|name, _| !MUTABLE.contains(&name.as_str()));
        Value::Object(spec)
    };
    if !same(Some(&fixed(old)), Some(&fixed(new))) {
        errors.push(FieldError::forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
             'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ));
    }
}
