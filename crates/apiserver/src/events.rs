//! The two faces of an Event: core `v1` and `events.k8s.io/v1` show the same stored objects under
//! other field names. Stored is the core form.

use serde_json::{Map, Value};

/// Core name, `events.k8s.io` name.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// From `events.k8s.io/v1` to core `v1`.
pub fn to_core(event: &mut Value) {
    rename(event, RENAMED.map(|(core, new)| (new, core)));
}

/// From core `v1` to `events.k8s.io/v1`.
pub fn from_core(event: &mut Value) {
    rename(event, RENAMED);
}

fn rename<const N: usize>(event: &mut Value, names: [(&str, &str); N]) {
    let Some(fields) = event.as_object_mut() else {
        return;
    };
    let mut renamed = Map::new();
    for (from, to) in names {
        if let Some(value) = fields.remove(from) {
            renamed.insert(to.to_owned(), value);
        }
    }
    fields.extend(renamed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_ways_is_the_identity() {
        let core =
            json!({"involvedObject": {"name": "v"}, "message": "m", "count": 2, "reason": "r"});
        let mut event = core.clone();
        from_core(&mut event);
        assert_eq!(
            event,
            json!({"regarding": {"name": "v"}, "note": "m", "deprecatedCount": 2, "reason": "r"})
        );
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
