//! What the API holds in the end, to be compared between runs.

use std::time::Duration;

use api_types::{Engine, Volume, VolumeAttachment, names};
use kube::{Client, Resource};
use serde_json::Value;
use tokio::time::timeout;

use super::{Cluster, PATIENCE};

/// What no two runs have in common; managed fields name owners by uid.
const OF_ONE_RUN: [&str; 5] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
];

impl Cluster {
    /// Every volume, attachment and engine, once the garbage collector has done its part, without what differs from run to run.
    pub async fn objects(&self) -> Vec<Value> {
        let collected = async {
            loop {
                let mut objects = list::<Volume>(&self.client).await;
                objects.extend(list::<VolumeAttachment>(&self.client).await);
                objects.extend(list::<Engine>(&self.client).await);
                if objects
                    .iter()
                    .all(|object| has_its_owners(object, &objects))
                {
                    return objects;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let mut objects = timeout(PATIENCE, collected)
            .await
            .expect("what belongs to a deleted volume goes with it");
        objects.iter_mut().for_each(forget_the_run);
        objects
    }
}

async fn list<K: Resource<DynamicType = ()>>(client: &Client) -> Vec<Value> {
    let request = http::Request::get(K::url_path(&(), Some(names::NAMESPACE)));
    let request = request.body(Vec::new()).expect("a request");
    let mut list: Value = client.request(request).await.expect("a list");
    let Value::Array(items) = list["items"].take() else {
        panic!("a list has items: {list}");
    };
    items
}

fn has_its_owners(object: &Value, objects: &[Value]) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().all(|owner| {
        let mut uids = objects.iter().map(|object| &object["metadata"]["uid"]);
        uids.any(|uid| *uid == owner["uid"])
    })
}

fn forget_the_run(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if OF_ONE_RUN.contains(&name.as_str()) {
                    *field = Value::Null;
                } else {
                    forget_the_run(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(forget_the_run),
        _ => {}
    }
}
