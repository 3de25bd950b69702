//! An attachment that was deleted and is in the way of the next one.

use expect_test::{Expect, expect};

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
