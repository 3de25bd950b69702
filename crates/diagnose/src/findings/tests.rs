//! Rows for every finding: what it takes to be found, and what comes close and is not.

mod finalizers;
mod golden;
mod parts;

use serde_json::{Value, json};

use super::world::{VOLUME, World, attachment, id, now, pod, ticket};
use super::{Scope, examine};
use crate::dump::ClusterDump;
use crate::index::Index;

/// Codes, worst first; `*` where there is a repair.
fn codes(dump: &ClusterDump) -> String {
    let findings = examine(&Index::new(dump, now()), &Scope::Everything);
    let codes: Vec<String> = findings
        .iter()
        .map(|finding| {
            let repair = if finding.repair.is_some() { "*" } else { "" };
            format!("{}{repair}", finding.code.number())
        })
        .collect();
    codes.join(" ")
}

#[track_caller]
fn check(change: impl FnOnce(&mut World), expected: &str) {
    let mut world = World::healthy();
    change(&mut world);
    let dump = world.dump();
    assert_eq!(codes(&dump), expected);
    golden::check(&examine(&Index::new(&dump, now()), &Scope::Everything));
}

/// The commands of all repairs.
#[track_caller]
fn repairs(change: impl FnOnce(&mut World)) -> String {
    let mut world = World::healthy();
    change(&mut world);
    let dump = world.dump();
    let findings = examine(&Index::new(&dump, now()), &Scope::Everything);
    let actions = findings
        .iter()
        .filter_map(|finding| finding.repair.as_ref());
    let commands = actions.flat_map(|repair| &repair.actions);
    commands
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

const TICKETS: &str = "longhorn.VolumeAttachment pvc-1";
const OLD: &str = "2026-01-31T11:50:00Z";
const FRESH: &str = "2026-01-31T11:59:50Z";

#[test]
fn a_cluster_in_which_all_is_well_has_no_findings() {
    check(|_| {}, "");
    check(World::detach, "");
}

#[test]
fn lar_101_orphan_csi_ticket() {
    let gone = |world: &mut World| {
        world.detach();
        world.file(ticket(&id("node-2"), "csi-attacher", "node-2"));
    };
    check(gone, "101*");
    assert_eq!(
        repairs(gone),
        format!(
            "kubectl patch -n longhorn-system volumeattachments.longhorn.io pvc-1 --type merge -p \
             '{{\"spec\":{{\"attachmentTickets\":{{\"{}\":null}}}}}}'",
            id("node-2")
        )
    );
    // Still mounted: no repair takes a disk from under somebody.
    check(
        |world| world.remove(&format!("VolumeAttachment {}", id("node-1"))),
        "101 115*",
    );
}

/// Whoever knows less finds and repairs less, never more: a kind that cannot be read, or one object of it, is not gone.
#[test]
fn what_was_not_read_is_not_gone() {
    let orphan = |world: &mut World| {
        world.remove(&format!("VolumeAttachment {}", id("node-1")));
    };
    let leaving = |world: &mut World| {
        world.edit(&format!("VolumeAttachment {}", id("node-1")), |object| {
            object["metadata"]["deletionTimestamp"] = OLD.into();
        });
    };
    let dead = |world: &mut World| {
        world.remove("Pod app");
        world.add(pod("app", "node-2", "Pending"));
        world.lose("node-1");
    };
    let troubles: [fn(&mut World); 7] = [
        |_| {},
        World::detach,
        orphan,
        leaving,
        dead,
        manual_in_the_way,
        faulted,
    ];
    for (place, trouble) in troubles.iter().enumerate() {
        let mut world = World::healthy();
        trouble(&mut world);
        let all = codes(&world.dump());
        for kind in crate::KINDS.iter().filter(|kind| !kind.optional) {
            for what in [kind.resource.to_owned(), format!("{} x", kind.resource)] {
                let mut world = world.clone();
                world.drop_kind(kind);
                let mut dump = world.dump();
                dump.unread.push(crate::Unread {
                    whole: what == kind.resource,
                    what,
                    why: "forbidden".to_owned(),
                });
                for code in codes(&dump).split_whitespace() {
                    assert!(
                        all.split_whitespace().any(|known| known == code),
                        "trouble {place} without {}: {code} is not among {all:?}",
                        kind.resource
                    );
                }
            }
        }
    }
}

/// A pod waits on node-2 while a manual ticket has the volume on node-1.
fn manual_in_the_way(world: &mut World) {
    world.detach();
    world.edit("Volume pvc-1", |volume| {
        volume["spec"]["nodeID"] = "node-1".into();
    });
    world.file(ticket("longhorn-ui", "longhorn-api", "node-1"));
    world.add(pod("app", "node-2", "Pending"));
    world.add(attachment("node-2", false));
    world.file(ticket(&id("node-2"), "csi-attacher", "node-2"));
}

#[test]
fn lar_102_unclaimed_manual_ticket() {
    check(manual_in_the_way, "102*");
    let in_use = |world: &mut World| {
        manual_in_the_way(world);
        world.edit("Node node-1", |node| {
            node["status"]["volumesInUse"] = json!(["kubernetes.io/csi/driver.longhorn.io^pvc-1"]);
        });
    };
    check(in_use, "102");
    // One with a deadline is answered for: the two merely want different things.
    let leased = |world: &mut World| {
        manual_in_the_way(world);
        world.edit(TICKETS, |object| {
            object["spec"]["attachmentTickets"]["longhorn-ui"]["parameters"]["lariat.io/deadline"] =
                "2026-01-31T13:00:00Z".into();
        });
    };
    check(leased, "105");
}

fn backup(state: &str, snapshot: &str) -> Value {
    json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Backup",
        "metadata": {"name": "b", "namespace": "longhorn-system", "uid": "uid-b", "creationTimestamp": OLD},
        "spec": {"snapshotName": snapshot}, "status": {"state": state, "volumeName": VOLUME},
    })
}

#[test]
fn lar_103_hopeless_backup() {
    let waits_for = |state: &'static str, snapshot: &'static str| {
        move |world: &mut World| {
            world.file(ticket("backup-controller-b", "backup-controller", "node-1"));
            world.add(backup(state, snapshot));
        }
    };
    check(waits_for("Pending", "gone"), "103*");
    assert_eq!(
        repairs(waits_for("Pending", "gone")),
        "kubectl delete -n longhorn-system backups.longhorn.io b",
        "the backup, not its ticket: that would be filed again"
    );
    check(waits_for("InProgress", "gone"), "");
    check(waits_for("Completed", "gone"), "103*");
    check(
        |world| {
            waits_for("Pending", "s")(world);
            world.add(json!({
                "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot",
                "metadata": {"name": "s", "namespace": "longhorn-system"}, "spec": {"volume": VOLUME},
            }));
        },
        "",
    );
    // A snapshot that is gone, with its ticket left.
    check(
        |world| {
            world.file(ticket(
                "snapshot-controller-s",
                "snapshot-controller",
                "node-1",
            ));
        },
        "103*",
    );
}

#[test]
fn lar_104_ticket_to_a_missing_node() {
    let to = |node: &'static str| {
        move |world: &mut World| {
            world.file(ticket("mine", "longhorn-api", node));
            world.edit(TICKETS, |object| {
                object["spec"]["attachmentTickets"]["mine"]["parameters"]["lariat.io/deadline"] =
                    "2026-01-31T13:00:00Z".into();
            });
        }
    };
    check(to("node-9"), "104*");
    check(to("node-1"), "");
}

#[test]
fn lar_105_conflicting_tickets() {
    let second = |world: &mut World| {
        world.add(attachment("node-2", false));
        world.file(ticket(&id("node-2"), "csi-attacher", "node-2"));
    };
    check(second, "105");
    // Shared volumes may be wanted everywhere.
    check(
        |world| {
            second(world);
            world.edit("Volume pvc-1", |volume| {
                volume["spec"]["accessMode"] = "rwx".into();
            });
        },
        "",
    );
}

#[test]
fn lar_106_incompatible_parameters() {
    let wants = |value: &'static str| {
        move |world: &mut World| {
            let mut filed = ticket("mine", "longhorn-api", "node-1");
            filed["parameters"] =
                json!({"disableFrontend": value, "lariat.io/deadline": "2026-01-31T13:00:00Z"});
            world.file(filed);
        }
    };
    check(wants("true"), "106");
    check(wants("any"), "");
}

#[test]
fn lar_107_dead_migration() {
    let two_tickets = |world: &mut World| {
        world.detach();
        world.edit("Volume pvc-1", |volume| {
            volume["spec"]["accessMode"] = "rwx".into();
            volume["spec"]["migratable"] = true.into();
        });
        for node in ["node-1", "node-2"] {
            world.add(attachment(node, false));
            world.file(ticket(&id(node), "csi-attacher", node));
        }
    };
    check(two_tickets, "107");
    check(
        |world| {
            two_tickets(world);
            world.add(pod("app", "node-2", "Pending"));
        },
        "107*",
    );
    check(
        |world| {
            two_tickets(world);
            world.drop_ticket(&id("node-1"));
            world.remove(&format!("VolumeAttachment {}", id("node-1")));
        },
        "",
    );
}

#[test]
fn lar_108_unusable_ticket() {
    let filed = |change: fn(&mut Value)| {
        move |world: &mut World| {
            world.file(ticket("mine", "backing-job", "node-1"));
            world.edit(TICKETS, |object| {
                object["spec"]["attachmentTickets"]["mine"]["type"] = "bim-ds-controller".into();
                change(&mut object["spec"]["attachmentTickets"]["mine"]);
            });
        }
    };
    check(filed(|_| {}), "");
    check(filed(|ticket| ticket["type"] = "teleporter".into()), "108");
    check(
        filed(|ticket| ticket["parameters"]["disableFrontend"] = "maybe".into()),
        "108",
    );
    check(filed(|ticket| ticket["id"] = "other".into()), "108*");
}

#[test]
fn lar_109_expired_ticket() {
    let until = |deadline: &'static str| {
        move |world: &mut World| {
            let mut filed = ticket("mine", "longhorn-api", "node-2");
            filed["parameters"]["lariat.io/deadline"] = deadline.into();
            world.detach();
            world.file(filed);
        }
    };
    check(until(OLD), "109*");
    check(until("2026-01-31T12:00:01Z"), "");
}

#[test]
fn lar_112_attached_in_kubernetes_only() {
    check(|world| world.drop_ticket(&id("node-1")), "112*");
    let without_engine = |since: &'static str| {
        move |world: &mut World| {
            world.edit(TICKETS, |object| {
                object["status"]["attachmentTicketStatuses"][id("node-1")] =
                    super::world::satisfied(&id("node-1"), false, since);
            });
            world.edit("longhorn.Engine pvc-1-e-1", |engine| {
                engine["status"]["currentState"] = "starting".into();
            });
        }
    };
    check(without_engine(OLD), "112");
    check(without_engine(FRESH), "");
}

#[test]
fn lar_113_attached_in_engine_only() {
    let told = |attached: bool, error: bool| {
        move |world: &mut World| {
            world.edit(&format!("VolumeAttachment {}", id("node-1")), |object| {
                object["status"]["attached"] = attached.into();
                if error {
                    object["status"]["attachError"] = json!({"message": "busy", "time": OLD});
                }
            });
        }
    };
    check(told(false, false), "113");
    check(told(false, true), "");
    check(told(true, false), "");
    check(
        |world| {
            world.edit("Volume pvc-1", |volume| {
                volume["status"]["state"] = "detached".into();
            });
        },
        "113",
    );
}

#[test]
fn lar_114_waits_for_a_dead_node() {
    let moved = |world: &mut World| {
        world.remove("Pod app");
        world.add(pod("app", "node-2", "Pending"));
    };
    let dead = |world: &mut World| {
        moved(world);
        world.lose("node-1");
    };
    check(dead, "114 132");
    // A node that answers gives the volume back by itself.
    check(moved, "");
}

#[test]
fn lar_115_stale_annotation() {
    let says = |node: &'static str| {
        move |world: &mut World| {
            world.edit("PersistentVolume pvc-1", |volume| {
                volume["metadata"]["annotations"]["driver.longhorn.io/attached-node"] = node.into();
            });
        }
    };
    check(says("node-3"), "115*");
    assert!(repairs(says("node-3")).contains("\"driver.longhorn.io/attached-node\":\"node-1\""));
    check(says(""), "");
}

#[test]
fn lar_116_full_node() {
    let limit = |count: i64| {
        move |world: &mut World| {
            world.detach();
            world.add(pod("app", "node-2", "Pending"));
            let mut other = attachment("node-2", false);
            other["metadata"]["name"] = "csi-other".into();
            other["spec"]["source"]["persistentVolumeName"] = "other".into();
            world.add(other);
            world.edit("CSINode node-2", |node| {
                node["spec"]["drivers"][0]["allocatable"]["count"] = count.into();
            });
        }
    };
    check(limit(1), "116");
    check(limit(2), "");
}

#[test]
fn lar_121_two_engines() {
    let second = |migrating: bool| {
        move |world: &mut World| {
            world.add(json!({
                "apiVersion": "longhorn.io/v1beta2", "kind": "Engine",
                "metadata": {"name": "pvc-1-e-0", "namespace": "longhorn-system"},
                "spec": {"volumeName": VOLUME, "nodeID": "node-2", "desireState": "stopped", "epoch": 0},
                "status": {"currentState": "running", "ownerID": "node-2"},
            }));
            if migrating {
                world.edit("Volume pvc-1", |volume| {
                    volume["status"]["currentMigrationNodeID"] = "node-2".into();
                });
            }
        }
    };
    check(second(false), "121");
    check(second(true), "");
    // Shut out by a fence, after which another engine was started.
    let fenced = |world: &mut World| {
        second(false)(world);
        world.edit("longhorn.Engine pvc-1-e-1", |engine| {
            engine["spec"]["epoch"] = 2.into();
        });
        world.edit("Volume pvc-1", |volume| {
            volume["status"]["epoch"] = 2.into();
            volume["status"]["fenceProof"] = json!({
                "epoch": 1, "formerNodeID": "node-2", "replicas": ["pvc-1-r-00000000"], "time": OLD,
            });
        });
    };
    check(fenced, "121");
}

/// Every replica has failed; the files of the first can be read.
fn faulted(world: &mut World) {
    world.detach();
    for name in ["pvc-1-r-00000000", "pvc-1-r-00000001", "pvc-1-r-00000002"] {
        world.edit(&format!("longhorn.Replica {name}"), |replica| {
            replica["spec"]["failedAt"] = OLD.into();
            if name != "pvc-1-r-00000000" {
                replica["status"]["currentState"] = "error".into();
                replica["status"]["message"] = "torn".into();
            }
        });
    }
    world.edit("Volume pvc-1", |volume| {
        volume["status"]["robustness"] = "faulted".into();
    });
    world.add(json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Setting",
        "metadata": {"name": "auto-salvage", "namespace": "longhorn-system"}, "value": "false",
    }));
}

#[test]
fn lar_122_salvageable() {
    check(faulted, "122*");
    assert!(repairs(faulted).contains("{\"lariat.io/salvage-from\":\"pvc-1-r-00000000\"}"));
    let stale = |world: &mut World| {
        faulted(world);
        world.edit("Volume pvc-1", |volume| {
            volume["status"]["inSyncReplicas"] = json!(["pvc-1-r-00000001", "pvc-1-r-00000002"]);
        });
    };
    // Only one that was left behind: a person may take it, no repair does.
    check(stale, "122");
    let nothing_left = |world: &mut World| {
        faulted(world);
        world.edit("longhorn.Replica pvc-1-r-00000000", |replica| {
            replica["status"]["currentState"] = "error".into();
        });
    };
    check(nothing_left, "");
    let automatic = |world: &mut World| {
        faulted(world);
        world.remove("longhorn.Setting auto-salvage");
    };
    check(automatic, "");
}

#[test]
fn lar_123_no_schedulable_disk() {
    let wants = |replicas: i64| {
        move |world: &mut World| {
            world.edit("Volume pvc-1", |volume| {
                volume["spec"]["numberOfReplicas"] = replicas.into();
            });
        }
    };
    check(wants(4), "123");
    check(wants(3), "");
    let young = |world: &mut World| {
        wants(4)(world);
        world.edit("Volume pvc-1", |volume| {
            volume["metadata"]["creationTimestamp"] = FRESH.into();
        });
    };
    check(young, "");
}

#[test]
fn lar_124_attaching_is_held() {
    let failed = |times: u32| {
        move |world: &mut World| {
            world.detach();
            world.add(pod("app", "node-1", "Pending"));
            world.add(attachment("node-1", false));
            world.file(ticket(&id("node-1"), "csi-attacher", "node-1"));
            let dump = world.dump();
            let index = Index::new(&dump, now());
            let case = index.case(VOLUME).expect("the volume");
            let (view, _) = case.tickets.as_ref().expect("a decision");
            // Another one would mean that something has changed since it failed, and that it is tried again.
            let fingerprint = attach_core::breaker::fingerprint(view);
            world.edit("Volume pvc-1", |volume| {
                let failure = json!({"at": OLD, "node": "node-1", "reason": "no port"});
                let record =
                    json!({"failures": times, "lastFailure": failure, "fingerprint": fingerprint});
                volume["metadata"]["annotations"] =
                    json!({"lariat.io/attach-record": record.to_string()});
            });
        }
    };
    check(failed(6), "124*");
    check(failed(5), "");
}

#[test]
fn one_volume_can_be_looked_at_alone() {
    let mut world = World::healthy();
    manual_in_the_way(&mut world);
    let dump = world.dump();
    let index = Index::new(&dump, now());
    let of = |name: &str| examine(&index, &Scope::Volumes([name.to_owned()].into()));
    assert_eq!(of(VOLUME).len(), 1);
    assert_eq!(of("pvc-2"), []);
    // What is of no volume at all is nobody's; a part that is away is everybody's.
    world.edit("longhorn.Node node-3", |node| {
        node["status"]["agent"]["leftovers"] =
            json!([{"kind": "mount", "volume": "gone", "path": "/x", "since": OLD}]);
    });
    world.remove("Lease lariat-manager");
    let dump = world.dump();
    let index = Index::new(&dump, now());
    let of_another = examine(&index, &Scope::Volumes(["pvc-2".to_owned()].into()));
    let codes: Vec<u16> = of_another.iter().map(|found| found.code.number()).collect();
    assert_eq!(codes, [133]);
    assert!(self::codes(&dump).contains("131*"));
}
