//! Leases.

use serde_json::Value;

use super::KindRules;
use crate::field_error::FieldError;

pub(super) static RULES: [KindRules; 1] = [KindRules {
    object,
    ..KindRules::new("coordination.k8s.io", "Lease")
}];

fn object(lease: &Value, errors: &mut Vec<FieldError>) {
    let number = |pointer: &str| lease.pointer(pointer).and_then(Value::as_i64);
    if let Some(seconds) = number("/spec/leaseDurationSeconds")
        && seconds <= 0
    {
        let path = "spec.leaseDurationSeconds";
        let problem = "must be greater than 0";
        errors.push(FieldError::invalid(path, seconds.into(), problem));
    }
    if let Some(transitions) = number("/spec/leaseTransitions")
        && transitions < 0
    {
        let path = "spec.leaseTransitions";
        let problem = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(path, transitions.into(), problem));
    }
}
