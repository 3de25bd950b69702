//! Kubernetes VolumeAttachments that were deleted and cannot go.

use serde_json::json;

use super::{FRESH, OLD, check, repairs};
use crate::findings::world::{World, attachment, id};

#[test]
fn lar_111_stuck_finalizer() {
    let foreign = |since: &'static str| {
        move |world: &mut World| {
            let mut object = attachment("node-1", true);
            object["metadata"]["name"] = "csi-foreign".into();
            object["metadata"]["deletionTimestamp"] = since.into();
            object["metadata"]["finalizers"] =
                json!(["external-attacher/gone-example-com", "somebody/else"]);
            object["spec"]["attacher"] = "gone.example.com".into();
            object["spec"]["source"]["persistentVolumeName"] = "other".into();
            world.add(object);
        }
    };
    check(foreign(OLD), "111*");
    assert_eq!(
        repairs(foreign(OLD)),
        "kubectl patch volumeattachments.storage.k8s.io csi-foreign --type merge -p '{\"metadata\":{\"finalizers\":[\"somebody/else\"]}}'"
    );
    check(foreign(FRESH), "");
    let with_driver = |world: &mut World| {
        foreign(OLD)(world);
        world.add(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "gone.example.com"}, "spec": {}}));
    };
    check(with_driver, "111");
    // Ours, detached long ago: only the finalizer is left. And one that is still attached.
    let deleted = |world: &mut World| {
        let mut object = attachment("node-2", true);
        object["metadata"]["deletionTimestamp"] = OLD.into();
        world.add(object);
    };
    check(deleted, "111*");
    check(
        |world| {
            world.edit(&format!("VolumeAttachment {}", id("node-1")), |object| {
                object["metadata"]["deletionTimestamp"] = OLD.into();
            });
        },
        "111",
    );
    // Its PersistentVolume was not called like the volume, and is gone: the name alone says whose it is.
    let nameless = |world: &mut World, node: &str| {
        let mut object = attachment(node, true);
        object["metadata"]["deletionTimestamp"] = OLD.into();
        object["spec"]["source"]["persistentVolumeName"] = "archive".into();
        world.add(object);
    };
    check(
        |world| {
            world.remove(&format!("VolumeAttachment {}", id("node-1")));
            nameless(world, "node-1");
        },
        "111 115*",
    );
    check(|world| nameless(world, "node-2"), "111*");
    // A pod waits on that node for the volume, which it therefore calls in use; and one where it may really be.
    let waited_for = |world: &mut World| {
        world.detach();
        nameless(world, "node-2");
        world.edit("Node node-2", |node| {
            node["status"]["volumesInUse"] = json!(["kubernetes.io/csi/driver.longhorn.io^pvc-1"]);
        });
    };
    check(waited_for, "111*");
    check(
        |world| {
            waited_for(world);
            world.edit("Volume pvc-1", |volume| {
                volume["status"]["state"] = "detaching".into();
            });
        },
        "111",
    );
}
