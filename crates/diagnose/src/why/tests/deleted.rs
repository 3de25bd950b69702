//! What was deleted and does not go: an attachment that is in the way of the next one, a volume.

use expect_test::{Expect, expect};
use serde_json::json;

use super::check;
use crate::findings::world::{World, attachment, pod};

fn check_since(deleted: &'static str, expected: &Expect) {
    let change = |world: &mut World| {
        world.detach();
        let mut object = attachment("node-2", true);
        object["metadata"]["deletionTimestamp"] = deleted.into();
        world.add(object);
        world.add(pod("app", "node-2", "Pending"));
    };
    check("app", change, expected);
}

#[test]
fn one_that_goes_is_waited_for_and_one_that_cannot_is_not() {
    check_since(
        "2026-01-31T11:59:50Z",
        &expect![[r#"
        pod default/app: progressing (volume pvc-1)
          … pod        pod default/app is to run on node node-2
                         pods/default/app status.phase=Pending, for 10m
          claim        claim default/data is bound to volume pvc-1
                         persistentvolumeclaims/default/data status.phase=Bound
          … attachment the attachment to node node-2 is being deleted; a new one follows
                         volumeattachments.storage.k8s.io/csi-631d123e71aaefbdc10bbfad0201b49f6a87331e3cc44f440e99de570724a6dc metadata.deletionTimestamp=2026-01-31T11:59:50Z, for 10s
          ticket       nobody asks for the volume, and it is attached nowhere
                         volumes.longhorn.io/pvc-1 status.state=detached
          By itself    a new attachment is made when this one is gone
    "#]],
    );
    check_since(
        "2026-01-31T11:50:00Z",
        &expect![[r#"
        pod default/app: stuck (volume pvc-1)
          … pod        pod default/app is to run on node node-2
                         pods/default/app status.phase=Pending, for 10m
          claim        claim default/data is bound to volume pvc-1
                         persistentvolumeclaims/default/data status.phase=Bound
          ! attachment the old attachment to node node-2 was deleted and does not go
                         volumeattachments.storage.k8s.io/csi-631d123e71aaefbdc10bbfad0201b49f6a87331e3cc44f440e99de570724a6dc metadata.deletionTimestamp=2026-01-31T11:50:00Z, for 10m
          ticket       nobody asks for the volume, and it is attached nowhere
                         volumes.longhorn.io/pvc-1 status.state=detached
          By itself    a new attachment is made when this one is gone
          To do        lariat doctor pvc-1 --fix    # LAR-111: take the finalizer external-attacher/driver-longhorn-io off
          Findings     LAR-111: VolumeAttachment csi-631d123e… to node node-2 was deleted and cannot go: nothing of the volume is left on the node, so that only the finalizer keeps it
    "#]],
    );
}

#[test]
fn a_volume_that_a_dead_disk_keeps() {
    let change = |world: &mut World| {
        world.detach();
        let deleted = json!("2026-01-31T11:50:00Z");
        world.edit("Volume pvc-1", |volume| {
            volume["metadata"]["deletionTimestamp"] = deleted.clone();
            volume["status"]["state"] = "deleting".into();
        });
        for name in ["pvc-1-r-00000000", "pvc-1-r-00000002"] {
            world.remove(&format!("longhorn.Replica {name}"));
        }
        world.edit("longhorn.Replica pvc-1-r-00000001", |replica| {
            replica["metadata"]["deletionTimestamp"] = deleted;
            replica["status"]["currentState"] = "unknown".into();
            replica["status"]["message"] = "disk default is not served: /d is gone".into();
        });
        world.edit("longhorn.Node node-2", |node| {
            node["status"]["diskStatus"]["default"]["conditions"][0]["status"] = "False".into();
        });
    };
    check(
        "pvc-1",
        change,
        &expect![[r#"
        volume pvc-1: stuck
          … volume     volume pvc-1 is deleting, robustness unknown
                         volumes.longhorn.io/pvc-1 status.state=deleting
          … engine     the volume is being deleted
          ! replica    replica pvc-1-r-00000001 cannot be deleted while disk default of node node-2 is not served: mount the disk again, or give it up with `lariat disk remove node-2 default --dead`
                         replicas.longhorn.io/pvc-1-r-00000001 status.currentState=unknown on node node-2: disk default is not served: /d is gone
          By itself    nothing
          To do        on node node-2: mount disk default again; or, if it is dead: lariat disk remove node-2 default --dead
    "#]],
    );
}
