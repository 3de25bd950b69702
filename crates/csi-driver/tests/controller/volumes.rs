//! Volumes are created, listed, judged, grown and deleted.

use std::time::Duration;

use csi_driver::csi::v1::identity_client::IdentityClient;
use csi_driver::csi::v1::volume_capability::access_mode::Mode;
use csi_driver::csi::v1::*;
use csi_driver::{CallTimes, ControllerOptions, serve_controller};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::driver::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_says_what_it_is() {
    use std::os::unix::fs::PermissionsExt as _;
    let driver = Driver::start().await;
    let mut identity = IdentityClient::new(driver.channel.clone());
    let info = identity
        .get_plugin_info(GetPluginInfoRequest {})
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(info.name, "driver.longhorn.io");
    driver.create("pvc-1").await;
    let probe = identity
        .probe(ProbeRequest {})
        .await
        .expect("an answer")
        .into_inner();
    assert_eq!(probe.ready, Some(true));
    let found = std::fs::metadata(&driver.socket).expect("a socket");
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    // A second server leaves the first one alone.
    let calls = CallTimes::default();
    let second = serve_controller(
        driver.cluster.client.clone(),
        &driver.socket,
        ControllerOptions::default(),
        &calls,
        CancellationToken::new(),
    );
    let error = second.await.expect_err("it is served");
    assert!(
        error.to_string().contains("served by another process"),
        "{error}"
    );
    driver.create("pvc-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_created_once() {
    let driver = Driver::start().await;
    let mut client = driver.client.clone();
    let mut request = create_request("pvc-1");
    request.parameters = [
        ("numberOfReplicas".to_owned(), "2".to_owned()),
        ("fsType".to_owned(), "xfs".to_owned()),
        ("csi.storage.k8s.io/pvc/name".to_owned(), "claim".to_owned()),
    ]
    .into();
    let first = client
        .create_volume(request.clone())
        .await
        .expect("a volume")
        .into_inner();
    let again = client
        .create_volume(request.clone())
        .await
        .expect("the same")
        .into_inner();
    assert_eq!(first, again);
    let volume = first.volume.expect("a volume");
    assert_eq!(
        (volume.volume_id.as_str(), volume.capacity_bytes),
        ("pvc-1", GIB)
    );
    assert_eq!(volume.volume_context["fsType"], "xfs");

    let object = driver
        .cluster
        .volumes()
        .get("pvc-1")
        .await
        .expect("an object");
    assert_eq!(object.spec.number_of_replicas, 2);
    assert_eq!(object.spec.size.bytes(), GIB);
    assert_eq!(
        object.metadata.finalizers.as_deref(),
        Some(&["longhorn.io".to_owned()][..])
    );
    let attachment = driver
        .cluster
        .attachments()
        .get("pvc-1")
        .await
        .expect("an attachment");
    assert_eq!(attachment.spec.volume, "pvc-1");
    let owner = &attachment.metadata.owner_references.expect("an owner")[0];
    assert_eq!(
        (owner.kind.as_str(), Some(&owner.uid)),
        ("Volume", object.metadata.uid.as_ref())
    );

    let mut larger = request.clone();
    larger.capacity_range = Some(CapacityRange {
        required_bytes: 2 * GIB,
        limit_bytes: 0,
    });
    refused(
        client.create_volume(larger).await,
        Code::AlreadyExists,
        "another size",
    );
    for (parameter, value) in [
        ("numberOfReplicas", "3"),
        ("fsType", "ext4"),
        ("dataLocality", "best-effort"),
        ("replicaSoftAntiAffinity", "enabled"),
        ("replicaZoneSoftAntiAffinity", "disabled"),
        ("replicaDiskSoftAntiAffinity", "enabled"),
        ("unmapMarkSnapChainRemoved", "enabled"),
    ] {
        let mut other = request.clone();
        other
            .parameters
            .insert(parameter.to_owned(), value.to_owned());
        refused(
            client.create_volume(other).await,
            Code::AlreadyExists,
            &format!("another {parameter}"),
        );
    }
    let mut unsaid = request.clone();
    unsaid.parameters.remove("fsType");
    refused(
        client.create_volume(unsaid.clone()).await,
        Code::AlreadyExists,
        "another fsType",
    );
    // The same wish in the other place where callers put it, and none at all.
    for same in [mounted("xfs"), block(Mode::SingleNodeWriter)] {
        unsaid.volume_capabilities = vec![same];
        let repeated = client.create_volume(unsaid.clone()).await;
        repeated.expect("the same");
    }
    let mut single = request.clone();
    single.volume_capabilities[0].access_mode = block(Mode::SingleNodeSingleWriter).access_mode;
    refused(
        client.create_volume(single).await,
        Code::AlreadyExists,
        "another access mode",
    );

    // A name that no object may have, as long as CSI allows.
    let long = driver.create(&"X".repeat(128)).await;
    assert!(long.volume_id.starts_with("vol-"), "{}", long.volume_id);
    assert_eq!(driver.create(&"X".repeat(128)).await, long);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_by_field() {
    let driver = Driver::start().await;
    let mut client = driver.client.clone();
    let mut check = async |change: fn(&mut CreateVolumeRequest), code: Code, part: &str| {
        let mut request = create_request("pvc-1");
        change(&mut request);
        refused(client.create_volume(request).await, code, part);
    };
    use Code::{InvalidArgument, OutOfRange};
    check(
        |request| request.name.clear(),
        InvalidArgument,
        "name is missing",
    )
    .await;
    check(
        |request| request.name = "x".repeat(129),
        InvalidArgument,
        "name has 129 bytes",
    )
    .await;
    check(
        |request| request.volume_capabilities.clear(),
        InvalidArgument,
        "volume_capabilities is missing",
    )
    .await;
    check(
        |request| request.volume_capabilities[0].access_type = None,
        InvalidArgument,
        "access_type",
    )
    .await;
    check(
        |request| request.volume_capabilities = vec![block(Mode::MultiNodeReaderOnly)],
        InvalidArgument,
        "MULTI_NODE_READER_ONLY",
    )
    .await;
    check(
        |request| request.volume_capabilities = vec![block(Mode::MultiNodeMultiWriter)],
        InvalidArgument,
        "migratable",
    )
    .await;
    check(
        |request| {
            drop(
                request
                    .parameters
                    .insert("replicas".to_owned(), "2".to_owned()),
            );
        },
        InvalidArgument,
        "\"replicas\" is not known",
    )
    .await;
    check(
        |request| {
            drop(
                request
                    .parameters
                    .insert("nodeSelector".to_owned(), "x".repeat(4096)),
            );
        },
        InvalidArgument,
        "parameters has",
    )
    .await;
    check(
        |request| {
            drop(
                request
                    .secrets
                    .insert("key".to_owned(), "hidden".repeat(1000)),
            );
        },
        InvalidArgument,
        "secrets has 6003 bytes",
    )
    .await;
    check(
        |request| {
            request.capacity_range = Some(CapacityRange {
                required_bytes: i64::MAX,
                limit_bytes: 0,
            });
        },
        OutOfRange,
        "at most",
    )
    .await;
    check(
        |request| {
            request.capacity_range = Some(CapacityRange {
                required_bytes: GIB + 1,
                limit_bytes: GIB + 2,
            });
        },
        OutOfRange,
        "multiples",
    )
    .await;
    check(
        |request| request.volume_content_source = Some(VolumeContentSource::default()),
        InvalidArgument,
        "volume_content_source is not supported",
    )
    .await;
    refused(
        driver.publish("", "n1").await,
        InvalidArgument,
        "volume_id is missing",
    );
    refused(
        driver.publish("pvc-1", "").await,
        InvalidArgument,
        "node_id is missing",
    );
    refused(
        driver.unpublish("", "n1").await,
        InvalidArgument,
        "volume_id is missing",
    );
    refused(
        driver.delete("").await,
        InvalidArgument,
        "volume_id is missing",
    );
    let mut request = publish_request("pvc-1", "n1");
    request.volume_capability = None;
    let mut client = driver.client.clone();
    refused(
        client.controller_publish_volume(request).await,
        InvalidArgument,
        "volume_capability is missing",
    );
    assert!(
        driver
            .cluster
            .volumes()
            .list(&Default::default())
            .await
            .expect("a list")
            .items
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_is_waited_for() {
    let driver = Driver::start().await;
    driver.delete("missing").await.expect("nothing to do");
    driver.delete("No/Object").await.expect("nothing to do");
    driver.create("pvc-1").await;
    let request = DeleteVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        ..Default::default()
    };
    let request = with_timeout(request, Duration::from_secs(5));
    let waited = driver.client.clone().delete_volume(request).await;
    assert_eq!(
        waited.expect_err("its finalizer holds it").code(),
        Code::DeadlineExceeded
    );
    refused(
        driver
            .client
            .clone()
            .create_volume(create_request("pvc-1"))
            .await,
        Code::Aborted,
        "still being deleted",
    );
    refused(
        driver.publish("pvc-1", "n1").await,
        Code::FailedPrecondition,
        "is being deleted",
    );
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": Value::Null } }));
    driver
        .cluster
        .volumes()
        .patch("pvc-1", &PatchParams::default(), &patch)
        .await
        .expect("a patch");
    driver.delete("pvc-1").await.expect("gone");
    driver.delete("pvc-1").await.expect("still gone");
    let listed = driver
        .client
        .clone()
        .list_volumes(ListVolumesRequest::default())
        .await;
    assert!(listed.expect("a list").into_inner().entries.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages() {
    let driver = Driver::start().await;
    for name in ["pvc-c", "pvc-a", "pvc-b"] {
        driver.create(name).await;
    }
    let mut client = driver.client.clone();
    let mut token = String::new();
    let mut pages = Vec::new();
    for _ in 0..3 {
        let request = ListVolumesRequest {
            max_entries: 2,
            starting_token: token,
        };
        let page = client
            .list_volumes(request)
            .await
            .expect("a page")
            .into_inner();
        let names = page
            .entries
            .into_iter()
            .map(|entry| entry.volume.expect("a volume").volume_id);
        pages.push(names.collect::<Vec<_>>());
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [vec!["pvc-a", "pvc-b"], vec!["pvc-c"]]);
    let check = async |max_entries: i32, starting_token: &str, code: Code| {
        let request = ListVolumesRequest {
            max_entries,
            starting_token: starting_token.to_owned(),
        };
        let answer = driver.client.clone().list_volumes(request).await;
        assert_eq!(answer.expect_err("refused").code(), code);
    };
    check(0, "invalid-token", Code::Aborted).await;
    check(-1, "", Code::InvalidArgument).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_judged_and_grown() {
    let driver = Driver::start().await;
    driver.create("pvc-1").await;
    let mut client = driver.client.clone();
    let mut validate = async |capability: VolumeCapability| {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: "pvc-1".to_owned(),
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        let answer = client.validate_volume_capabilities(request).await;
        answer.expect("an answer").into_inner().confirmed.is_some()
    };
    assert!(validate(mounted("xfs")).await);
    assert!(validate(block(Mode::SingleNodeWriter)).await);
    assert!(!validate(block(Mode::MultiNodeMultiWriter)).await);
    assert!(!validate(mounted("ntfs")).await);

    driver
        .cluster
        .patch_volume_status(
            "pvc-1",
            json!({"state": "attached", "robustness": "degraded", "currentSize": GIB.to_string()}),
        )
        .await;
    let mut client = driver.client.clone();
    let expand = ControllerExpandVolumeRequest {
        volume_id: "pvc-1".to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: 2 * GIB,
            limit_bytes: 0,
        }),
        volume_capability: Some(mounted("ext4")),
        ..Default::default()
    };
    let growing = {
        let (mut client, request) = (driver.client.clone(), expand.clone());
        tokio::spawn(async move { client.controller_expand_volume(request).await })
    };
    driver
        .cluster
        .patch_volume_status("pvc-1", json!({"currentSize": (2 * GIB).to_string()}))
        .await;
    let grown = growing
        .await
        .expect("no panic")
        .expect("grown")
        .into_inner();
    assert_eq!(
        (grown.capacity_bytes, grown.node_expansion_required),
        (2 * GIB, true)
    );
    let object = driver
        .cluster
        .volumes()
        .get("pvc-1")
        .await
        .expect("a volume");
    assert_eq!(object.spec.size.bytes(), 2 * GIB);
    // The service has seen the size, and therefore what was written before it.
    let request = ControllerGetVolumeHealthRequest {
        volume_id: "pvc-1".to_owned(),
        ..Default::default()
    };
    let health = client
        .controller_get_volume_health(request)
        .await
        .expect("an answer")
        .into_inner();
    let entries = health.volume_health.expect("health").health_statuses;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].reason, "Degraded");
    let missing = ControllerExpandVolumeRequest {
        volume_id: "missing".to_owned(),
        ..expand
    };
    refused(
        client.controller_expand_volume(missing).await,
        Code::NotFound,
        "missing",
    );
    let capacity = client
        .get_capacity(GetCapacityRequest::default())
        .await
        .expect("an answer");
    // No node is ready, so that nothing can be placed.
    assert_eq!(capacity.into_inner().available_capacity, 0);
}
