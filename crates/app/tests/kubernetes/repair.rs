//! `lariat doctor --fix` by a person with few rights.

use serde_json::{Value, json};

use crate::control_plane::PERSON;
use crate::flow::pod;
use crate::installation::Installation;
use crate::support::eventually;

const NAMESPACE: &str = "longhorn-system";
const TICKETS: &str = "volumeattachments.longhorn.io";

impl Installation {
    /// Whoever looks after volumes reads everything, and writes tickets.
    fn give_rights_to_person(&self) {
        let version = "rbac.authorization.k8s.io/v1";
        self.create(&json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "looks-after-volumes"},
            "rules": [
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": ["longhorn.io"], "resources": ["volumeattachments"], "verbs": ["patch"]},
            ],
        }));
        self.create(&json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "looks-after-volumes"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "looks-after-volumes"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": PERSON}],
        }));
    }

    /// Waits until the person is told all of this.
    fn until_person_is_told(&self, arguments: &[&str], code: i32, parts: &[&str]) {
        let mut last = String::new();
        eventually(
            &format!("{arguments:?} to end with {code} and {parts:?}"),
            || {
                let (said, ended) = self.lariat_as_person(arguments);
                let is_it = ended == Some(code) && parts.iter().all(|part| said.contains(part));
                if !is_it && said != last {
                    eprintln!("not yet, {ended:?}: {said}");
                    last = said;
                }
                is_it
            },
        );
    }
}

/// LAR-102: somebody attached a claim's volume by hand and forgot it, so that a pod elsewhere waits. The pod runs at the end.
pub fn a_forgotten_ticket_is_found_and_removed(cluster: &Installation, claim: &str, name: &str) {
    let found = cluster.get(&["pvc", claim]).expect("the claim");
    let volume = found["spec"]["volumeName"].as_str().expect("a bound claim");
    let ticket = json!({"id": "longhorn-ui", "type": "longhorn-api", "nodeID": "node-1", "generation": 0, "parameters": {}});
    let patch = json!({"spec": {"attachmentTickets": {"longhorn-ui": ticket}}});
    let patch = [
        "-n",
        NAMESPACE,
        "patch",
        TICKETS,
        volume,
        "--type=merge",
        "-p",
        &patch.to_string(),
    ];
    cluster.kubectl(&patch);
    eventually("the volume to be attached by hand", || {
        let volume = cluster.get(&["-n", NAMESPACE, "volumes.longhorn.io", volume]);
        volume.is_some_and(|volume| {
            volume["status"]["currentNodeID"] == "node-1" && volume["status"]["state"] == "attached"
        })
    });
    cluster.create(&pod(name, claim, Some("node-2")));
    cluster.give_rights_to_person();
    let subject = format!("pod/{name}");
    let stuck = [
        "longhorn-ui",
        "nobody answers for this manual attachment",
        "LAR-102",
        "--fix",
    ];
    cluster.until_person_is_told(&["why", &subject], 4, &stuck);
    let (said, _) = cluster.lariat_as_person(&["doctor"]);
    assert!(said.contains("LAR-102"), "{said}");

    let (said, _) = cluster.lariat_as_person(&["doctor", &subject, "--fix"]);
    for words in ["LAR-102: repaired", "LAR-102: gone"] {
        assert!(said.contains(words), "{said}");
    }
    let tickets = cluster
        .get(&["-n", NAMESPACE, TICKETS, volume])
        .expect("its tickets");
    assert_eq!(
        tickets["spec"]["attachmentTickets"]["longhorn-ui"],
        Value::Null
    );
    cluster.running(name);
    cluster.until_person_is_told(&["why", &subject], 0, &["attached", "node-2"]);
    cluster.until_person_is_told(&["doctor"], 0, &["nothing is wrong"]);
    // On the record, with what was done.
    cluster.until_person_is_told(&["volume", "history", volume], 0, &["repaired LAR-102"]);
    let by_person = |event: &Value| event["user"]["username"] == PERSON && event["verb"] == "patch";
    let audited = cluster.plane.audited();
    assert!(
        audited.iter().any(by_person),
        "nothing was written by {PERSON}"
    );
}
