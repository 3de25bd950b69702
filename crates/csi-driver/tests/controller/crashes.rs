//! The process dies at each of a call's writes, and another one, which knows nothing of it, is asked for the same.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use csi_driver::csi::v1::*;
use serde_json::json;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use crate::driver::*;
use crate::support::cut::{Cut, Fate};
use crate::support::*;

/// A cluster with those who answer the driver, and with what a call finds.
struct World {
    cluster: Arc<Cluster>,
    players: [JoinHandle<()>; 2],
}

impl World {
    async fn prepared(prepare: &impl AsyncFn(&Driver)) -> Self {
        let cluster = Arc::new(Cluster::start().await);
        let world = Self {
            players: [
                cluster.play_attachment_controller(),
                cluster.play_volume_remover(),
            ],
            cluster,
        };
        prepare(&world.new_driver().await).await;
        world
    }

    /// A process that knows nothing.
    async fn new_driver(&self) -> Driver {
        Driver::start_with(Arc::clone(&self.cluster), self.cluster.client.clone()).await
    }

    /// A process that dies at a write.
    async fn dying_driver(&self, cut: &Arc<Cut>) -> Driver {
        let client = cut.client(&self.cluster.client);
        Driver::start_with(Arc::clone(&self.cluster), client).await
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for player in &self.players {
            player.abort();
        }
    }
}

/// Makes a call in a new world for each of its writes, and lets the process die there. The call made again must end as one does that
/// nobody disturbed: with the same answer and the same objects. `writes_min`: so that this does not pass by cutting nothing.
async fn survives_a_crash_at_each_write<T: PartialEq + Debug>(
    writes_min: usize,
    prepare: impl AsyncFn(&Driver),
    call: impl AsyncFn(&Driver) -> Result<T, Status>,
) {
    let world = World::prepared(&prepare).await;
    let undisturbed = call(&world.new_driver().await).await.expect("an answer");
    let objects = world.cluster.objects().await;
    for fate in Fate::ALL {
        let mut crashes = 0;
        loop {
            let world = World::prepared(&prepare).await;
            let cut = Cut::new(crashes + 1, fate);
            let dying = world.dying_driver(&cut).await;
            let answer = call(&dying).await;
            drop(dying);
            if !cut.has_happened() {
                assert_eq!(answer.expect("an answer"), undisturbed);
                break;
            }
            crashes += 1;
            let place = format!("write {crashes}, {fate:?}");
            assert!(answer.is_err(), "{place}: {answer:?}");
            let again = call(&world.new_driver().await).await;
            let again = again.unwrap_or_else(|status| panic!("{place}: {status}"));
            assert_eq!(again, undisturbed, "{place}");
            cut.deliver_what_is_late(&world.cluster.client).await;
            assert_eq!(world.cluster.objects().await, objects, "{place}");
        }
        assert!(crashes >= writes_min, "{fate:?}: {crashes} writes were cut");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn create_volume_survives_a_crash_at_each_write() {
    let mut odd = create_request(&"X".repeat(128));
    odd.parameters = [("numberOfReplicas", "2"), ("fsType", "xfs")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    for request in [create_request("pvc-1"), odd] {
        // The volume and its attachment.
        survives_a_crash_at_each_write(
            2,
            async |_| {},
            async |driver| {
                let mut client = driver.client.clone();
                let created = client.create_volume(request.clone()).await;
                created.map(tonic::Response::into_inner)
            },
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_volume_survives_a_crash_at_its_write() {
    survives_a_crash_at_each_write(
        1,
        async |driver| {
            driver.create("pvc-1").await;
            driver.create("pvc-2").await;
        },
        async |driver| driver.delete("pvc-1").await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_publish_survives_a_crash_at_each_write() {
    survives_a_crash_at_each_write(
        1,
        async |driver| {
            driver.create("pvc-1").await;
        },
        async |driver| driver.publish("pvc-1", "n1").await,
    )
    .await;
    // A volume that was made by other means: its attachment, and the ticket.
    survives_a_crash_at_each_write(
        2,
        async |driver| driver.cluster.create_volume("pvc-1", "").await,
        async |driver| driver.publish("pvc-1", "n1").await,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_unpublish_survives_a_crash_at_its_write() {
    for node in ["n1", ""] {
        survives_a_crash_at_each_write(
            1,
            async |driver| {
                driver.create("pvc-1").await;
                driver.publish("pvc-1", "n1").await.expect("published");
            },
            async |driver| driver.unpublish("pvc-1", node).await,
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_expand_survives_a_crash_at_its_write() {
    let request = ControllerExpandVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: 2 * GIB,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    survives_a_crash_at_each_write(
        1,
        async |driver| {
            driver.create("pvc-1").await;
        },
        async |driver| {
            let mut client = driver.client.clone();
            let expanded = client.controller_expand_volume(request.clone()).await;
            expanded.map(tonic::Response::into_inner)
        },
    )
    .await;
}

/// Who finds no ticket any more has not detached anything yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_unpublish_that_is_made_again_waits_for_the_device_as_well() {
    let world = World::prepared(&async |driver: &Driver| {
        driver.create("pvc-1").await;
        driver.publish("pvc-1", "n1").await.expect("published");
    })
    .await;
    let running = json!({"ownerID": "n1", "currentState": "running", "endpoint": "/dev/loop0"});
    let engine = world.cluster.create_engine("pvc-1", "n1", 1, running).await;
    let cut = Cut::new(1, Fate::Unanswered);
    let dying = world.dying_driver(&cut).await;
    refused(
        dying.unpublish("pvc-1", "n1").await,
        Code::Unavailable,
        "the process is dead",
    );
    let attachment = world.cluster.attachments().get("pvc-1").await;
    let tickets = attachment.expect("an attachment").spec.attachment_tickets;
    assert!(tickets.is_empty(), "the ticket went: {tickets:?}");

    let driver = world.new_driver().await;
    for node in ["n1", ""] {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let request = with_timeout(request, Duration::from_secs(5));
        let mut client = driver.client.clone();
        refused(
            client.controller_unpublish_volume(request).await,
            Code::DeadlineExceeded,
            "still offers its device",
        );
    }
    let stopped = json!({"currentState": "stopped", "endpoint": ""});
    world.cluster.patch_engine_status(&engine, stopped).await;
    driver.unpublish("pvc-1", "n1").await.expect("unpublished");
}
