//! Tickets are written and removed, and their answers waited for.

use std::time::Duration;

use csi_driver::csi::v1::*;
use k8s_openapi::api::storage::v1::{CSINode, VolumeNodeResources};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tonic::Code;

use crate::driver::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_publish_writes_one_ticket_and_waits_for_its_answer() {
    let driver = Driver::start().await;
    driver.create("pvc-1").await;
    refused(
        driver.publish("missing", "n1").await,
        Code::NotFound,
        "volume missing does not exist",
    );
    refused(
        driver.publish("No/Object", "n1").await,
        Code::NotFound,
        "does not exist",
    );
    refused(
        driver.publish("pvc-1", "n9").await,
        Code::NotFound,
        "node n9 is not known",
    );

    // Nobody answers: the caller's deadline ends the wait, and the ticket stays for the next call.
    let id = ticket_id("pvc-1", "n1");
    let request = with_timeout(publish_request("pvc-1", "n1"), Duration::from_secs(5));
    let silent = driver
        .client
        .clone()
        .controller_publish_volume(request)
        .await;
    let status = silent.expect_err("nobody answers");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let attachment = driver
        .cluster
        .attachments()
        .get("pvc-1")
        .await
        .expect("an attachment");
    let ticket = &attachment.spec.attachment_tickets[&id];
    assert_eq!(
        (ticket.node_id.as_str(), ticket.attacher_type.as_str()),
        ("n1", "csi-attacher")
    );
    assert_eq!(ticket.parameters["disableFrontend"], "false");
    assert_eq!((ticket.id.as_str(), ticket.generation), (id.as_str(), 0));

    // A reason is passed on.
    let reason = "waits for volume pvc-1 to be scheduled";
    driver
        .cluster
        .patch_attachment_status("pvc-1", json!({ &id: waiting(&id, 0, reason) }))
        .await;
    let request = with_timeout(publish_request("pvc-1", "n1"), Duration::from_secs(5));
    let waited = driver
        .client
        .clone()
        .controller_publish_volume(request)
        .await;
    refused(waited, Code::DeadlineExceeded, reason);

    // The answer to another generation is none.
    let waiting_call = {
        let (mut client, request) = (driver.client.clone(), publish_request("pvc-1", "n1"));
        tokio::spawn(async move { client.controller_publish_volume(request).await.map(drop) })
    };
    driver
        .cluster
        .patch_attachment_status("pvc-1", json!({ &id: satisfied(&id, 7) }))
        .await;
    assert!(!waiting_call.is_finished());
    driver
        .cluster
        .patch_attachment_status("pvc-1", json!({ &id: satisfied(&id, 0) }))
        .await;
    waiting_call.await.expect("no panic").expect("published");
    driver
        .publish("pvc-1", "n1")
        .await
        .expect("published already");

    // It is somewhere else, and that node is not shut out.
    refused(
        driver.publish("pvc-1", "n2").await,
        Code::FailedPrecondition,
        "published to node n1",
    );
    refused(
        driver.delete("pvc-1").await,
        Code::FailedPrecondition,
        "on node n1",
    );
    let attachment = driver
        .cluster
        .attachments()
        .get("pvc-1")
        .await
        .expect("an attachment");
    assert_eq!(attachment.spec.attachment_tickets.len(), 1);

    let listed = driver
        .client
        .clone()
        .list_volumes(ListVolumesRequest::default())
        .await;
    let entries = listed.expect("a list").into_inner().entries;
    assert_eq!(
        entries[0]
            .status
            .as_ref()
            .expect("a status")
            .published_node_ids,
        ["n1"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_node_does_not_hold_a_volume() {
    let driver = Driver::start().await;
    driver.create("pvc-1").await;
    let controller = driver.cluster.play_attachment_controller();
    driver.publish("pvc-1", "n1").await.expect("published");
    let running = json!({"ownerID": "n1", "currentState": "running", "endpoint": "/dev/loop0"});
    driver
        .cluster
        .create_engine("pvc-1", "n1", 1, running)
        .await;
    refused(
        driver.publish("pvc-1", "n2").await,
        Code::FailedPrecondition,
        "published to node n1",
    );
    let proof = json!({"epoch": 2, "replicas": ["r"], "time": "2026-01-01T00:00:00Z", "formerNodeID": "n1"});
    driver
        .cluster
        .patch_volume_status("pvc-1", json!({ "fenceProof": proof }))
        .await;
    // The silent node's engine still claims to run; the proof counts.
    driver.unpublish("pvc-1", "n1").await.expect("fenced");
    driver.publish("pvc-1", "n2").await.expect("published");
    controller.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_stays_elsewhere_is_no_matter_of_time() {
    let driver = Driver::start().await;
    driver.create("pvc-1").await;
    // Its ticket is gone, its engine is not: it may be on its way out, so that it is waited for, but not for ever.
    let running = json!({"ownerID": "n1", "currentState": "running", "endpoint": "/dev/loop0"});
    driver
        .cluster
        .create_engine("pvc-1", "n1", 1, running)
        .await;
    let request = with_timeout(publish_request("pvc-1", "n2"), Duration::from_secs(5));
    let waited = driver
        .client
        .clone()
        .controller_publish_volume(request)
        .await;
    refused(
        waited,
        Code::FailedPrecondition,
        "on node n1, where its engine still offers its device and is not fenced",
    );

    // A person has it: no deadline helps, so none is waited for.
    driver.create("pvc-2").await;
    let by_hand = json!({"id": "ui", "type": "longhorn-api", "nodeID": "n1", "generation": 0});
    let patch = json!({"spec": {"attachmentTickets": {"ui": by_hand}}});
    driver
        .cluster
        .attachments()
        .patch("pvc-2", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .expect("patched");
    let waiting_call = {
        let (mut client, request) = (driver.client.clone(), publish_request("pvc-2", "n2"));
        tokio::spawn(async move { client.controller_publish_volume(request).await.map(drop) })
    };
    let id = ticket_id("pvc-2", "n2");
    driver
        .cluster
        .attachment_until("pvc-2", |object| {
            object.spec.attachment_tickets.contains_key(&id)
        })
        .await;
    let answer = json!({ &id: waiting(&id, 0, "held there") });
    driver
        .cluster
        .patch_attachment_status("pvc-2", answer)
        .await;
    refused(
        waiting_call.await.expect("no panic"),
        Code::FailedPrecondition,
        "by hand to node n1 by ticket ui",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpublish_waits_until_the_device_is_gone() {
    let driver = Driver::start().await;
    driver.create("pvc-1").await;
    driver
        .unpublish("missing", "n1")
        .await
        .expect("nothing to do");
    driver
        .unpublish("pvc-1", "n1")
        .await
        .expect("nothing to do");
    let controller = driver.cluster.play_attachment_controller();
    driver.publish("pvc-1", "n1").await.expect("published");
    driver
        .cluster
        .patch_volume("pvc-1", json!({ "spec": { "nodeID": "n1" } }))
        .await;
    driver
        .cluster
        .patch_volume_status("pvc-1", json!({"state": "attached", "currentNodeID": "n1"}))
        .await;
    let running = json!({"ownerID": "n1", "currentState": "running", "endpoint": "/dev/loop0"});
    let engine = driver
        .cluster
        .create_engine("pvc-1", "n1", 1, running)
        .await;

    let waiting = {
        let mut client = driver.client.clone();
        let request = ControllerUnpublishVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            ..Default::default()
        };
        tokio::spawn(async move { client.controller_unpublish_volume(request).await.map(drop) })
    };
    let id = ticket_id("pvc-1", "n1");
    driver
        .cluster
        .attachment_until("pvc-1", |object| {
            !object.spec.attachment_tickets.contains_key(&id)
        })
        .await;
    assert!(!waiting.is_finished());
    // While it waits, the volume is taken.
    refused(
        driver.publish("pvc-1", "n1").await,
        Code::Aborted,
        "operation already in progress",
    );
    driver
        .cluster
        .patch_volume("pvc-1", json!({ "spec": { "nodeID": "" } }))
        .await;
    driver
        .cluster
        .patch_engine_status(&engine, json!({"currentState": "stopping", "endpoint": ""}))
        .await;
    assert!(!waiting.is_finished());
    driver
        .cluster
        .patch_volume_status("pvc-1", json!({"state": "detached", "currentNodeID": ""}))
        .await;
    assert!(!waiting.is_finished());
    driver
        .cluster
        .patch_engine_status(&engine, json!({"currentState": "stopped"}))
        .await;
    waiting.await.expect("no panic").expect("unpublished");
    controller.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_learns_why_a_detach_takes_long() {
    let driver = Driver::start().await;
    driver.create("pvc-1").await;
    let controller = driver.cluster.play_attachment_controller();
    driver.publish("pvc-1", "n1").await.expect("published");
    let running = json!({"ownerID": "n1", "currentState": "running", "endpoint": "/dev/loop0"});
    driver
        .cluster
        .create_engine("pvc-1", "n1", 1, running)
        .await;
    let request = ControllerUnpublishVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        node_id: "n1".to_owned(),
        ..Default::default()
    };
    let request = with_timeout(request, Duration::from_secs(5));
    let waited = driver
        .client
        .clone()
        .controller_unpublish_volume(request)
        .await;
    refused(
        waited,
        Code::DeadlineExceeded,
        "engine pvc-1-e-1 on node n1 still offers its device",
    );
    controller.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_volumes_are_published_at_once() {
    const COUNT: usize = 200;
    let driver = Driver::start().await;
    let controller = driver.cluster.play_attachment_controller();
    let name = |number: usize| format!("pvc-{number}");
    let all = (0..COUNT).map(|number| {
        let driver = &driver;
        async move {
            driver.create(&name(number)).await;
            driver
                .publish(&name(number), if number % 2 == 0 { "n1" } else { "n2" })
                .await
        }
    });
    for published in futures::future::join_all(all).await {
        published.expect("published");
    }
    let listed = driver
        .client
        .clone()
        .list_volumes(ListVolumesRequest::default())
        .await;
    let entries = listed.expect("a list").into_inner().entries;
    assert_eq!(entries.len(), COUNT);
    for entry in entries {
        assert_eq!(entry.status.expect("a status").published_node_ids.len(), 1);
    }
    let all = (0..COUNT).map(|number| {
        let driver = &driver;
        async move { driver.unpublish(&name(number), "").await }
    });
    for unpublished in futures::future::join_all(all).await {
        unpublished.expect("unpublished");
    }
    controller.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_takes_no_more() {
    let driver = Driver::start().await;
    let controller = driver.cluster.play_attachment_controller();
    driver.cluster.limit_volumes("n1", 2).await;
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        driver.create(name).await;
    }
    for name in ["pvc-1", "pvc-2"] {
        driver.publish(name, "n1").await.expect("published");
    }
    let publish_again = async || {
        let again = driver.publish("pvc-1", "n1").await;
        again.expect("still published");
    };
    publish_again().await;
    let full = driver.publish("pvc-3", "n1").await;
    refused(
        full,
        Code::ResourceExhausted,
        "node n1 has 2 volumes and takes 2",
    );

    // What the node has stays, also where it would not be taken any more.
    lower_limit(&driver, "n1", 1).await;
    publish_again().await;
    let full = driver.publish("pvc-3", "n1").await;
    refused(
        full,
        Code::ResourceExhausted,
        "node n1 has 2 volumes and takes 1",
    );
    driver.publish("pvc-3", "n2").await.expect("published");
    controller.abort();
}

/// As a driver does that registers again with another limit.
async fn lower_limit(driver: &Driver, node: &str, count: i32) {
    let api: Api<CSINode> = Api::all(driver.cluster.client.clone());
    let mut object = api.get(node).await.expect("a CSINode");
    // Of a driver that is registered nothing else may change.
    object.spec.drivers[0].allocatable = Some(VolumeNodeResources { count: Some(count) });
    let replaced = api.replace(node, &PostParams::default(), &object).await;
    replaced.expect("a CSINode with another limit");
}
