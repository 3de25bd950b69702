//! The parts themselves: agents, the manager, clocks, versions, leftovers.

use serde_json::json;

use super::super::world::{VOLUME, World, lease};
use super::{FRESH, OLD, check, repairs};

#[test]
fn lar_131_left_over() {
    check(
        |world| {
            world.edit("longhorn.Node node-3", |node| {
                node["status"]["agent"]["leftovers"] =
                    json!([{"kind": "mount", "volume": VOLUME, "path": "/x", "since": OLD}]);
            });
        },
        "131*",
    );
    check(
        |world| {
            world.edit("longhorn.Node node-3", |node| {
                node["status"]["agent"]["leftovers"] = json!([]);
            });
        },
        "",
    );
}

#[test]
fn what_is_left_over_is_put_away_up_to_the_newest() {
    let left =
        |since: &str| json!({"kind": "mount", "volume": VOLUME, "path": since, "since": since});
    let commands = repairs(|world| {
        world.edit("longhorn.Node node-3", |node| {
            node["status"]["agent"]["leftovers"] = json!([left(FRESH), left(OLD)]);
        });
    });
    let command = format!(
        "kubectl patch -n longhorn-system nodes.longhorn.io node-3 --type merge -p \
         '{{\"metadata\":{{\"annotations\":{{\"lariat.io/put-away\":\"{FRESH}\"}}}}}}'"
    );
    assert_eq!(commands, format!("{command}\n{command}"));
}

#[test]
fn lar_132_agent_not_running() {
    let seen = |at: &'static str| {
        move |world: &mut World| {
            world.remove("Lease lariat-node-node-3");
            world.add(lease("lariat-node-node-3", at, at));
        }
    };
    check(seen("2026-01-31T11:59:40Z"), "132");
    check(seen("2026-01-31T11:59:50Z"), "");
    check(|world| world.remove("Lease lariat-node-node-3"), "132");
    check(
        |world| {
            world.edit("Lease lariat-node-node-3", |lease| {
                lease["spec"]["holderIdentity"] = "".into();
            });
        },
        "132",
    );
}

#[test]
fn lar_133_manager_not_running() {
    check(|world| world.remove("Lease lariat-manager"), "133");
    let seen = |at: &'static str| {
        move |world: &mut World| {
            world.remove("Lease lariat-manager");
            world.add(lease("lariat-manager", at, at));
        }
    };
    check(seen("2026-01-31T11:59:40Z"), "133");
    check(seen("2026-01-31T11:59:50Z"), "");
}

#[test]
fn lar_134_versions_differ() {
    let version = |version: &'static str| {
        move |world: &mut World| {
            world.edit("longhorn.Node node-3", |node| {
                node["status"]["agent"]["version"] = version.into();
            });
        }
    };
    check(version("0.2.0"), "134");
    check(version("0.1.0"), "");
    // One that says nothing is older than the question.
    check(version(""), "");
    check(
        |world| {
            world.edit("Lease lariat-manager", |lease| {
                lease["metadata"]["annotations"] = json!({"lariat.io/version": "0.2.0"});
            });
        },
        "134",
    );
}

#[test]
fn lar_135_lease_flaps() {
    let lost = |count: i32, first: &'static str| {
        move |world: &mut World| {
            world.add(json!({
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "longhorn-system"},
                "involvedObject": {"apiVersion": "longhorn.io/v1beta2", "kind": "Node", "name": "node-3"},
                "reason": "Lost", "count": count, "firstTimestamp": first, "lastTimestamp": OLD,
            }));
        }
    };
    check(lost(3, "2026-01-31T11:30:00Z"), "135");
    check(lost(2, "2026-01-31T11:30:00Z"), "");
    // Three times since yesterday is another matter.
    check(lost(3, "2026-01-30T11:30:00Z"), "");
}

#[test]
fn lar_136_clock_skew() {
    let says = |at: &'static str| {
        move |world: &mut World| {
            world.edit("Lease lariat-node-node-2", |lease| {
                lease["spec"]["renewTime"] = at.into();
            });
        }
    };
    check(says("2026-01-31T12:00:09Z"), "136");
    check(says("2026-01-31T11:59:00Z"), "136");
    check(says("2026-01-31T12:00:03Z"), "");
}
