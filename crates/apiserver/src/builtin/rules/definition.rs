//! CustomResourceDefinitions. Most of what they must be is in [`structural`].

use serde_json::Value;

use super::{KindRules, child_object, default_field, text};
use crate::schema::structural;

pub(super) static RULES: [KindRules; 1] = [KindRules {
    default: default_definition,
    object: |definition, errors| errors.extend(structural::validate_definition(definition)),
    change: |old, new, errors| errors.extend(structural::validate_definition_change(old, new)),
    ..KindRules::cluster_wide("apiextensions.k8s.io", "CustomResourceDefinition")
}];

fn default_definition(definition: &mut Value) {
    let kind = text(definition, "/spec/names/kind").to_owned();
    let Some(spec) = child_object(definition, "spec") else {
        return;
    };
    if let Some(conversion) = child_object(spec, "conversion") {
        default_field(conversion, "strategy", "None");
    }
    if let Some(names) = child_object(spec, "names")
        && !kind.is_empty()
    {
        default_field(names, "singular", kind.to_lowercase());
        default_field(names, "listKind", format!("{kind}List"));
    }
}
