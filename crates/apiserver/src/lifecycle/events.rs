//! Events are kept for an hour.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use revision_store::Range;

use crate::core::{Core, read_stored};
use crate::object;
use crate::verbs::DeleteOptions;

/// As long as the real server keeps them.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);

pub(super) async fn sweep(core: &Arc<Core>) {
    let resource = core.catalog().find("", "v1", "events").expect("built in");
    let Ok(page) = core.store.range(&Range::prefix(&resource.key_prefix())) else {
        return;
    };
    let now = core.clock();
    for stored in &page.objects {
        let event = read_stored(&resource, stored);
        let last = ["lastTimestamp", "eventTime"]
            .iter()
            .find_map(|field| event[*field].as_str());
        let created = event["metadata"]["creationTimestamp"].as_str();
        let newest = [last, created]
            .into_iter()
            .flatten()
            .filter_map(|time| time.parse::<Timestamp>().ok())
            .max();
        if newest.is_some_and(|time| now.duration_since(time) > EVENT_TTL) {
            let (namespace, name) = (object::namespace(&event), object::name(&event));
            let deleted =
                super::delete(core, &resource, namespace, name, &DeleteOptions::default()).await;
            if let Err(error) = deleted {
                tracing::warn!(event.name = name, %error, "cannot delete an old event");
                return;
            }
        }
    }
}
