//! Whole answers, as people read them.

mod ages;
mod deleted;
mod mounts;

use expect_test::{Expect, expect};
use serde_json::json;

use crate::dump::Unread;
use crate::findings::Scope;
use crate::findings::world::{VOLUME, World, attachment, id, now, pod, ticket};
use crate::index::Index;
use crate::report::Report;
use crate::subject::{Subject, SubjectError};
use crate::text::{render_report, render_why};
use crate::why::why;

#[track_caller]
fn check(subject: &str, change: impl FnOnce(&mut World), expected: &Expect) {
    let mut world = World::healthy();
    change(&mut world);
    let dump = world.dump();
    let index = Index::new(&dump, now());
    let subject = Subject::resolve(&index, subject).expect("a subject");
    expected.assert_eq(&render_why(&why(&index, &subject), now()));
}

fn manual_in_the_way(world: &mut World) {
    world.remove("Pod app");
    world.remove(&format!("VolumeAttachment {}", id("node-1")));
    world.drop_ticket(&id("node-1"));
    world.edit("Node node-1", |node| {
        node["status"]["volumesInUse"] = json!([]);
    });
    world.edit("PersistentVolume pvc-1", |volume| {
        volume["metadata"]["annotations"] = json!({});
    });
    world.file(ticket("longhorn-ui", "longhorn-api", "node-1"));
    world.add(pod("app", "node-2", "Pending"));
    world.add(attachment("node-2", false));
    world.file(ticket(&id("node-2"), "csi-attacher", "node-2"));
}

fn dead_node(world: &mut World) {
    world.lose("node-1");
    world.remove("Pod app");
    world.add(pod("app", "node-2", "Pending"));
}

#[test]
fn a_pod_that_has_its_volume() {
    check(
        "app",
        |_| {},
        &expect![[r#"
            pod default/app: attached (volume pvc-1)
              pod          pod default/app runs on node node-1
                             pods/default/app status.phase=Running, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              attachment   for Kubernetes it is attached to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=true, for 120m
              ticket       csi-attacher ticket "csi-76ed8a23…" has the volume on node node-1
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              engine       its engine runs there
                             engines.longhorn.io/pvc-1-e-1 status.currentState=running on node node-1, for 10m
              replica      3 of 3 replicas have all the data
                             volumes.longhorn.io/pvc-1 status.robustness=healthy
        "#]],
    );
}

#[test]
fn a_pod_whose_node_does_not_answer() {
    check(
        "app",
        |world| world.lose("node-1"),
        &expect![[r#"
            pod default/app: progressing (volume pvc-1)
              pod          pod default/app runs on node node-1
                             pods/default/app status.phase=Running, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              attachment   for Kubernetes it is attached to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=true, for 120m
              ticket       csi-attacher ticket "csi-76ed8a23…" has the volume on node node-1
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              … volume     volume pvc-1 is attached, node node-1, robustness healthy
                             volumes.longhorn.io/pvc-1 status.state=attached, for 10m
              … node       node node-1 does not answer, so engine epoch 1 may still be running there
                             nodes/node-1 status.conditions[Ready]=Unknown, for 10m
                             nodes.longhorn.io/node-1 status.conditions[Ready]=False (LeaseExpired), for 10m
              … engine     the engine on node node-1 is superseded by epoch 2; waiting until it is accepted by pvc-1-r-00000001, pvc-1-r-00000002
                             volumes.longhorn.io/pvc-1 status.epoch=1
              By itself    volumes of the node are fenced and attached elsewhere when their pods are; replicas there are rebuilt
              To do        on node node-1: see whether `lariat node run --name node-1` runs, and read its log; if the node is gone for good: kubectl delete node node-1, then kubectl -n longhorn-system delete nodes.longhorn.io node-1
              Findings     LAR-132: the agent of node node-1 does not renew its lease
        "#]],
    );
    check(
        "app",
        |world| {
            world.lose("node-1");
            world.lose("node-2");
            world.lose("node-3");
        },
        &expect![[r#"
            pod default/app: stuck (volume pvc-1)
              pod          pod default/app runs on node node-1
                             pods/default/app status.phase=Running, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              attachment   for Kubernetes it is attached to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=true, for 120m
              ticket       csi-attacher ticket "csi-76ed8a23…" has the volume on node node-1
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              … volume     volume pvc-1 is attached, node node-1, robustness healthy
                             volumes.longhorn.io/pvc-1 status.state=attached, for 10m
              … node       node node-1 does not answer, so engine epoch 1 may still be running there
                             nodes/node-1 status.conditions[Ready]=Unknown, for 10m
                             nodes.longhorn.io/node-1 status.conditions[Ready]=False (LeaseExpired), for 10m
              ! engine     no in-sync replica outside node node-1 can be reached, so its engine cannot be fenced
                             nodes/node-1 status.conditions[Ready]=Unknown, for 10m
                             nodes.longhorn.io/node-1 status.conditions[Ready]=False (LeaseExpired), for 10m
              By itself    the engine is fenced as soon as a node with an in-sync replica answers
              To do        bring back a node that has one of the replicas: kubectl -n longhorn-system get replicas.longhorn.io -l longhornvolume=pvc-1
                           on node node-1: see whether `lariat node run --name node-1` runs, and read its log; if the node is gone for good: kubectl delete node node-1, then kubectl -n longhorn-system delete nodes.longhorn.io node-1
              Findings     LAR-132: the agent of node node-1 does not renew its lease
        "#]],
    );
}

#[test]
fn a_manual_ticket_is_in_the_way() {
    check(
        "app",
        manual_in_the_way,
        &expect![[r#"
            pod default/app: stuck (volume pvc-1)
              … pod        pod default/app is to run on node node-2
                             pods/default/app status.phase=Pending, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              … attachment Kubernetes waits until the driver has attached it to node node-2
                             volumeattachments.storage.k8s.io/csi-631d123e71aaefbdc10bbfad0201b49f6a87331e3cc44f440e99de570724a6dc status.attached=false, for 10m
              … ticket     csi-attacher ticket "csi-631d123e…" for node node-2 waits: the volume is attached to node node-1, held there by longhorn-api ticket "longhorn-ui"
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-631d123e71aaefbdc10bbfad0201b49f6a87331e3cc44f440e99de570724a6dc]=csi-attacher for node node-2, for 10m
              ! ticket     nobody needs longhorn-api ticket "longhorn-ui" on node node-1: nobody answers for this manual attachment, and "csi-631d123e…" waits for the volume on node node-2
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[longhorn-ui]=longhorn-api for node node-1, for 10m
              By itself    the manager removes the ticket when it has kept a workload waiting for 24 h
              To do        lariat doctor pvc-1 --fix    # LAR-102: take ticket "longhorn-ui" out of volume pvc-1
              Findings     LAR-102: longhorn-api ticket "longhorn-ui" on volume pvc-1 is not needed by anybody: nobody answers for this manual attachment, and "csi-631d123e…" waits for the volume on node node-2
        "#]],
    );
}

#[test]
fn a_backup_that_can_never_be_made_holds_the_volume_back() {
    check(
        "default/data",
        |world| {
            manual_in_the_way(world);
            world.drop_ticket("longhorn-ui");
            world.file(ticket("backup-controller-b", "backup-controller", "node-1"));
            world.add(json!({
                "apiVersion": "longhorn.io/v1beta2", "kind": "Backup",
                "metadata": {"name": "b", "namespace": "longhorn-system", "uid": "uid-b", "creationTimestamp": "2026-01-31T11:00:00Z"},
                "spec": {"snapshotName": "gone"},
                "status": {"state": "Pending", "message": "Failed to get the Snapshot gone: not found"},
            }));
        },
        &expect![[r#"
            claim default/data: progressing (volume pvc-1)
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              … attachment Kubernetes waits until the driver has attached it to node node-2
                             volumeattachments.storage.k8s.io/csi-631d123e71aaefbdc10bbfad0201b49f6a87331e3cc44f440e99de570724a6dc status.attached=false, for 10m
              … ticket     csi-attacher ticket "csi-631d123e…" for node node-2 waits: the volume is being detached from node node-1
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-631d123e71aaefbdc10bbfad0201b49f6a87331e3cc44f440e99de570724a6dc]=csi-attacher for node node-2, for 10m
              … volume     volume pvc-1 is attached, node node-1, robustness healthy
                             volumes.longhorn.io/pvc-1 status.state=attached, for 10m
              By itself    the manager removes the ticket when it has looked abandoned for 2 min
              To do        lariat doctor pvc-1 --fix    # LAR-103: remove backup b, which can never be made; its ticket goes with it
              Findings     LAR-103: backup-controller ticket "backup-controller-b" on volume pvc-1 is not needed by anybody: the backup "b" that it was filed for can never be done: its snapshot "gone" does not exist
        "#]],
    );
}

#[test]
fn the_node_that_has_it_is_dead() {
    check(
        "app",
        dead_node,
        &expect![[r#"
            pod default/app: progressing (volume pvc-1)
              … pod        pod default/app is to run on node node-2
                             pods/default/app status.phase=Pending, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              … attachment volume pvc-1 waits for node node-2: it is attached to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=true, for 120m
              … node       volume pvc-1 is not detached from node node-1 yet: the node does not answer; released in 360 s, or at once with a fence proof
                             nodes/node-1 status.conditions[Ready]=Unknown, for 10m
                             nodes.longhorn.io/node-1 status.conditions[Ready]=False (LeaseExpired), for 10m
              … engine     node node-1 does not answer, so engine epoch 1 may still be running there
              … engine     the engine on node node-1 is superseded by epoch 2; waiting until it is accepted by pvc-1-r-00000001, pvc-1-r-00000002
              By itself    the volume is released within 360 s, or as soon as it is fenced
              To do        when node node-1 is certainly powered off: kubectl taint node node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute
                           on node node-1: see whether `lariat node run --name node-1` runs, and read its log; if the node is gone for good: kubectl delete node node-1, then kubectl -n longhorn-system delete nodes.longhorn.io node-1
              Findings     LAR-114: volume pvc-1 waits for node node-2: it is attached to node node-1, which does not answer; not fenced yet: the engine on node node-1 is superseded by epoch 2; waiting until it is accepted by pvc-1-r-00000001, pvc-1-r-00000002
                           LAR-132: the agent of node node-1 does not renew its lease
        "#]],
    );
}

#[test]
fn another_pod_has_it() {
    check(
        "second",
        |world| {
            let mut second = pod("second", "node-2", "Pending");
            second["metadata"]["creationTimestamp"] = "2026-01-31T11:55:00Z".into();
            world.add(second);
        },
        &expect![[r#"
            pod default/second: stuck (volume pvc-1)
              … pod        pod default/second is to run on node node-2
                             pods/default/second status.phase=Pending, for 5m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              … attachment volume pvc-1 waits for node node-2: it is attached to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=true, for 120m
              ! pod        pod default/app uses it on node node-1
                             pods/default/app spec.nodeName=node-1, for 10m
              By itself    nothing
              To do        kubectl delete -n default pods app    # if it need not run there
        "#]],
    );
}

#[test]
fn a_person_waits_for_a_pod() {
    check(
        VOLUME,
        |world| {
            let mut filed = ticket("person", "longhorn-api", "node-2");
            filed["parameters"]["lariat.io/deadline"] = "2026-01-31T13:00:00Z".into();
            world.file(filed);
        },
        &expect![[r#"
            volume pvc-1: stuck
              … ticket     longhorn-api ticket "person" for node node-2 waits: the volume is attached to node node-1, held there by csi-attacher ticket "csi-76ed8a23…"
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[person]=longhorn-api for node node-2, for 10m
              ! ticket     csi-attacher ticket "csi-76ed8a23…" holds it on node node-1 for pod default/app
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              By itself    the ones that wait get the volume when those before them are removed
              To do        stop the pod on node node-1, or let it finish; its ticket goes with it
              Findings     LAR-105: volume pvc-1 can be on one node only, and is wanted on several: csi-attacher ticket "csi-76ed8a23…" on node node-1, longhorn-api ticket "person" on node node-2
        "#]],
    );
}

fn fail_every_replica(world: &mut World) {
    for name in ["pvc-1-r-00000000", "pvc-1-r-00000001", "pvc-1-r-00000002"] {
        world.edit(&format!("longhorn.Replica {name}"), |replica| {
            replica["spec"]["failedAt"] = "2026-01-31T11:50:00Z".into();
            replica["status"]["currentState"] = "error".into();
            replica["status"]["message"] = "the disk has failed".into();
        });
    }
    world.edit("Volume pvc-1", |volume| {
        volume["status"]["robustness"] = "faulted".into();
    });
}

#[test]
fn every_replica_has_failed() {
    check(
        VOLUME,
        |world| {
            world.detach();
            world.add(pod("app", "node-1", "Pending"));
            world.add(attachment("node-1", false));
            world.file(ticket(&id("node-1"), "csi-attacher", "node-1"));
            fail_every_replica(world);
        },
        &expect![[r#"
            volume pvc-1: stuck
              … attachment Kubernetes waits until the driver has attached it to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=false, for 10m
              ! ticket     csi-attacher ticket "csi-76ed8a23…" for node node-1 waits: volume pvc-1 is faulted: no replica of it can be used
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              … volume     volume pvc-1 is detached, robustness faulted
                             volumes.longhorn.io/pvc-1 status.state=detached
              ! replica    every in-sync replica has failed
              ! replica    not salvaged: no in-sync replica can be read: pvc-1-r-00000000, pvc-1-r-00000001, pvc-1-r-00000002 would have the newest data; replicas left behind earlier: none
                             replicas.longhorn.io/pvc-1-r-00000000 status.currentState=error on node node-1: the disk has failed, for 10m
                             replicas.longhorn.io/pvc-1-r-00000001 status.currentState=error on node node-2: the disk has failed, for 10m
                             replicas.longhorn.io/pvc-1-r-00000002 status.currentState=error on node node-3: the disk has failed, for 10m
              By itself    nothing
              To do        look at the volume's replicas (`kubectl -n longhorn-system get replicas.longhorn.io`): bring back the node or disk that has the newest one, or restore a backup
        "#]],
    );
}

#[test]
fn a_faulted_volume_that_nobody_asks_for() {
    check(
        VOLUME,
        |world| {
            world.detach();
            fail_every_replica(world);
        },
        &expect![[r#"
            volume pvc-1: stuck
              ticket       nobody asks for the volume, and it is attached nowhere
                             volumes.longhorn.io/pvc-1 status.state=detached
              … volume     volume pvc-1 is detached, robustness faulted
                             volumes.longhorn.io/pvc-1 status.state=detached
              ! replica    every in-sync replica has failed
              ! replica    not salvaged: no in-sync replica can be read: pvc-1-r-00000000, pvc-1-r-00000001, pvc-1-r-00000002 would have the newest data; replicas left behind earlier: none
                             replicas.longhorn.io/pvc-1-r-00000000 status.currentState=error on node node-1: the disk has failed, for 10m
                             replicas.longhorn.io/pvc-1-r-00000001 status.currentState=error on node node-2: the disk has failed, for 10m
                             replicas.longhorn.io/pvc-1-r-00000002 status.currentState=error on node node-3: the disk has failed, for 10m
              By itself    nothing
              To do        lariat doctor pvc-1
        "#]],
    );
}

#[test]
fn no_manager_is_at_work() {
    check(
        "app",
        |world| {
            world.remove("Lease lariat-manager");
            world.detach();
            world.add(pod("app", "node-1", "Pending"));
            world.add(attachment("node-1", false));
            world.file(ticket(&id("node-1"), "csi-attacher", "node-1"));
            world.edit("Volume pvc-1", |volume| {
                volume["spec"]["nodeID"] = "node-1".into();
            });
        },
        &expect![[r#"
            pod default/app: stuck (volume pvc-1)
              … pod        pod default/app is to run on node node-1
                             pods/default/app status.phase=Pending, for 10m
              claim        claim default/data is bound to volume pvc-1
                             persistentvolumeclaims/default/data status.phase=Bound
              … attachment Kubernetes waits until the driver has attached it to node node-1
                             volumeattachments.storage.k8s.io/csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a status.attached=false, for 10m
              … ticket     csi-attacher ticket "csi-76ed8a23…" for node node-1 waits: the volume is being attached to node node-1
                             volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[csi-76ed8a2352c7837587e14441782ed9b4db65098984db2ba71e86e3408356380a]=csi-attacher for node node-1, for 10m
              … volume     volume pvc-1 is detached, node node-1, robustness unknown
                             volumes.longhorn.io/pvc-1 status.state=detached
              … replica    waiting for replicas to start: pvc-1-r-00000000, pvc-1-r-00000001, pvc-1-r-00000002
                             replicas.longhorn.io/pvc-1-r-00000000 status.currentState=stopped on node node-1
                             replicas.longhorn.io/pvc-1-r-00000001 status.currentState=stopped on node node-2
                             replicas.longhorn.io/pvc-1-r-00000002 status.currentState=stopped on node node-3
              ! manager    no manager is at work, so that nothing moves
                             leases.coordination.k8s.io/lariat-manager spec.renewTime=not renewed
              By itself    nothing: no manager is at work
              To do        start one: `lariat manager`, or `lariat up` for the cluster on this machine
              Findings     LAR-133: no manager is at work: whoever led has never taken its lease. No ticket is served and no volume moves until one is
        "#]],
    );
}

#[test]
fn nobody_wants_it() {
    check(
        VOLUME,
        World::detach,
        &expect![[r#"
            volume pvc-1: idle
              ticket       nobody asks for the volume, and it is attached nowhere
                             volumes.longhorn.io/pvc-1 status.state=detached
        "#]],
    );
}

#[test]
fn a_pod_without_a_node_and_a_claim_without_a_volume() {
    check(
        "app",
        |world| {
            world.edit("Pod app", |pod| {
                pod["spec"]["nodeName"] = "".into();
                pod["status"] = json!({"phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 node(s) exceed max volume count",
                    "lastTransitionTime": "2026-01-31T11:55:00Z",
                }]});
            });
            world.edit("PersistentVolumeClaim data", |claim| {
                claim["spec"] = json!({});
                claim["status"]["phase"] = "Pending".into();
            });
        },
        &expect![[r#"
            pod default/app: stuck
              ! pod        pod default/app has no node: 0/3 nodes are available: 3 node(s) exceed max volume count
                             pods/default/app status.conditions[PodScheduled]=0/3 nodes are available: 3 node(s) exceed max volume count, for 5m
              ! claim      claim default/data has no volume yet
                             persistentvolumeclaims/default/data status.phase=Pending, for 120m
              By itself    nothing
              To do        kubectl describe -n default pods app
                           kubectl describe -n default persistentvolumeclaims data
                           kubectl get storageclass    # is there one of that name?
        "#]],
    );
}

#[test]
fn findings_are_shown_with_their_repair() {
    let mut world = World::healthy();
    manual_in_the_way(&mut world);
    let dump = world.dump();
    let index = Index::new(&dump, now());
    let mut report = Report::new(&index, &Scope::Everything, Vec::new());
    expect![[r#"
        LAR-102 error: longhorn-api ticket "longhorn-ui" on volume pvc-1 is not needed by anybody: nobody answers for this manual attachment, and "csi-631d123e…" waits for the volume on node node-2
                       volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[longhorn-ui]=longhorn-api for node node-1, for 10m
                       volumeattachments.longhorn.io/pvc-1 spec.attachmentTickets[longhorn-ui].parameters=no owner, no deadline, no heartbeat
          By itself    the manager removes the ticket when it has kept a workload waiting for 24 h
          Repair       take ticket "longhorn-ui" out of volume pvc-1
                       kubectl patch -n longhorn-system volumeattachments.longhorn.io pvc-1 --type merge -p '{"spec":{"attachmentTickets":{"longhorn-ui":null}}}'
        1 error; `lariat doctor --fix` repairs 1; `lariat doctor explain CODE` explains
    "#]].assert_eq(&render_report(&report, now()));
    report.findings.clear();
    expect!["nothing is wrong\n"].assert_eq(&render_report(&report, now()));
}

#[test]
fn what_could_not_be_read_is_said_and_not_taken_for_well() {
    let mut dump = World::healthy().dump();
    for what in [
        "pods",
        "backups.longhorn.io",
        "engines.longhorn.io pvc-1-e-1",
    ] {
        dump.unread.push(Unread {
            what: what.to_owned(),
            why: "no".to_owned(),
            whole: !what.contains(' '),
        });
    }
    let index = Index::new(&dump, now());
    let claim = Subject::resolve(&index, "pvc/data").expect("the claim");
    let mut report = Report::new(&index, &Scope::Everything, vec![claim.clone()]);
    expect![[r#"
          No volume    claim default/data has no volume yet: `lariat why pvc/default/data` says why
          Not read     pods: no
                       engines.longhorn.io pvc-1-e-1: no
        nothing was found, but not everything could be looked at
    "#]]
    .assert_eq(&render_report(&report, now()));
    report.unread.clear();
    expect![[r#"
          No volume    claim default/data has no volume yet: `lariat why pvc/default/data` says why
        nothing else is known to be wrong
    "#]]
    .assert_eq(&render_report(&report, now()));
    let text = render_why(&why(&index, &claim), now());
    assert!(text.contains("Not read     pods: no\n"), "{text}");
}

#[test]
fn names_are_found_and_near_ones_suggested() {
    let mut world = World::healthy();
    let mut twin = pod("data", "node-1", "Running");
    twin["spec"]["volumes"] = json!([]);
    world.add(twin);
    let dump = world.dump();
    let index = Index::new(&dump, now());
    let resolve = |text: &str| Subject::resolve(&index, text).map(|subject| subject.to_string());
    assert_eq!(resolve("pvc-1").as_deref(), Ok("volume pvc-1"));
    assert_eq!(resolve("default/app").as_deref(), Ok("pod default/app"));
    assert_eq!(resolve("pvc/data").as_deref(), Ok("claim default/data"));
    assert_eq!(
        resolve("data"),
        Err(SubjectError::Ambiguous {
            text: "data".to_owned(),
            meant: vec!["pvc/default/data".to_owned(), "pod/default/data".to_owned()],
        })
    );
    let error = resolve("pvc-2").expect_err("no such volume").to_string();
    assert_eq!(
        error,
        "there is no volume, claim or pod \"pvc-2\". Did you mean volume/pvc-1?"
    );
    let subject = Subject::resolve(&index, "app").expect("the pod");
    assert_eq!(subject.volumes(&index), ["pvc-1"]);
}

#[test]
fn what_takes_too_long_is_stuck() {
    let verdict = |since: &'static str| {
        let mut world = World::healthy();
        world.detach();
        world.add(attachment("node-1", false));
        world.file(ticket(&id("node-1"), "csi-attacher", "node-1"));
        world.edit("Volume pvc-1", |volume| {
            volume["spec"]["nodeID"] = "node-1".into();
        });
        world.edit("longhorn.VolumeAttachment pvc-1", |object| {
            object["status"]["attachmentTicketStatuses"][id("node-1")] =
                crate::findings::world::satisfied(&id("node-1"), false, since);
        });
        let dump = world.dump();
        let index = Index::new(&dump, now());
        let subject = Subject::resolve(&index, "pvc-1").expect("the volume");
        why(&index, &subject).verdict
    };
    assert_eq!(verdict("2026-01-31T11:50:00Z"), crate::Verdict::Progressing);
    assert_eq!(verdict("2026-01-31T11:40:00Z"), crate::Verdict::Stuck);
}

#[test]
fn an_attachment_that_takes_too_long_is_stuck() {
    let verdict = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut world = World::healthy();
        world.edit("Pod app", |pod| pod["status"]["phase"] = "Pending".into());
        world.edit(&format!("VolumeAttachment {}", id("node-1")), change);
        let dump = world.dump();
        let index = Index::new(&dump, now());
        let subject = Subject::resolve(&index, "app").expect("the pod");
        why(&index, &subject).verdict
    };
    // Deleted, and it does not go.
    let deleted = |since: &'static str| {
        move |object: &mut serde_json::Value| {
            object["metadata"]["deletionTimestamp"] = since.into();
        }
    };
    let (recent, old) = ("2026-01-31T11:50:00Z", "2026-01-31T11:40:00Z");
    assert_eq!(verdict(&deleted(recent)), crate::Verdict::Progressing);
    assert_eq!(verdict(&deleted(old)), crate::Verdict::Stuck);
    // The engine has it, and Kubernetes was never told; each new error of the attacher is as good as none.
    let untold = |since: &'static str| {
        move |object: &mut serde_json::Value| {
            object["metadata"]["creationTimestamp"] = since.into();
            object["status"] =
                json!({"attached": false, "attachError": {"message": "busy", "time": recent}});
        }
    };
    assert_eq!(verdict(&untold(recent)), crate::Verdict::Progressing);
    assert_eq!(verdict(&untold(old)), crate::Verdict::Stuck);
}

#[test]
fn whoever_is_in_the_way_may_have_been_there_for_long() {
    let mut world = World::healthy();
    world.remove("Pod app");
    world.add(pod("app", "node-2", "Pending"));
    world.edit("Pod app", |pod| {
        pod["metadata"]["creationTimestamp"] = "2026-01-31T11:59:55Z".into();
    });
    // It has let go of a volume that it had for two hours.
    world.edit("Node node-1", |node| {
        node["status"]["volumesInUse"] = json!([]);
    });
    let dump = world.dump();
    let index = Index::new(&dump, now());
    let subject = Subject::resolve(&index, "app").expect("the pod");
    assert_eq!(why(&index, &subject).verdict, crate::Verdict::Progressing);
}

#[test]
fn the_exit_code_follows_the_verdict() {
    let code = |change: fn(&mut World)| {
        let mut world = World::healthy();
        change(&mut world);
        let dump = world.dump();
        let index = Index::new(&dump, now());
        let subject = Subject::resolve(&index, "pvc-1").expect("the volume");
        why(&index, &subject).verdict.exit_code()
    };
    assert_eq!(code(|_| {}), 0);
    assert_eq!(code(World::detach), 0);
    assert_eq!(code(dead_node), 3);
    assert_eq!(code(manual_in_the_way), 4);
}
