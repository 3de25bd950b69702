//! Pods on an embedded node: the test plays binder, scheduler, attacher and volume controller.

use std::path::PathBuf;

use api_types::{ByteSize, EngineStatus, InstanceState, Volume, VolumeFrontend, VolumeSpec, names};
use cluster_core::names::{UniqueVolumeName, attachment_name};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bench::{Bench, SIZE_BYTES, eventually};

const NODE: &str = "node-0";

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

/// The bench's volume as an object, attached to the node: who makes its file system notes that there.
async fn attach(bench: &Bench) {
    let volume = Volume::new(
        &bench.volume,
        VolumeSpec {
            size: ByteSize(SIZE_BYTES),
            number_of_replicas: 1,
            frontend: VolumeFrontend::BlockDevice,
            node_id: NODE.to_owned(),
            ..VolumeSpec::default()
        },
    );
    let volumes: Api<Volume> = Api::namespaced(bench.client.clone(), names::NAMESPACE);
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .expect("a volume object");
}

/// A claim that is bound to a PersistentVolume of the bench's volume.
async fn claim(bench: &Bench) {
    let volume = &bench.volume;
    let capacity = json!({"storage": "64Mi"});
    let pv: PersistentVolume = object(json!({
        "metadata": {"name": volume},
        "spec": {
            "capacity": capacity, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": names::DRIVER, "volumeHandle": volume, "fsType": "ext4"},
        },
    }));
    let pvs: Api<PersistentVolume> = Api::all(bench.client.clone());
    pvs.create(&PostParams::default(), &pv)
        .await
        .expect("a volume");
    let claim: PersistentVolumeClaim = object(json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeName": volume, "storageClassName": "",
            "resources": {"requests": capacity},
        },
    }));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(bench.client.clone(), "default");
    claims
        .create(&PostParams::default(), &claim)
        .await
        .expect("a claim");
}

fn pods(bench: &Bench) -> Api<Pod> {
    Api::namespaced(bench.client.clone(), "default")
}

async fn create_pod(bench: &Bench, name: &str, volumes: &Value) {
    let pod: Pod = object(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "image": "registry.example.com/main:1"}],
            "volumes": volumes,
        },
    }));
    pods(bench)
        .create(&PostParams::default(), &pod)
        .await
        .expect("a pod");
}

fn data() -> Value {
    json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
}

/// Waits until the pod runs, and returns where its volume is.
async fn running(bench: &Bench, name: &str) -> PathBuf {
    eventually(&format!("pod {name} to run"), || async {
        let pod = pods(bench).get(name).await.expect("an answer");
        let status = pod.status.as_ref()?;
        let mut conditions = status.conditions.as_ref()?.iter();
        let ready = conditions
            .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
        if status.phase.as_deref() != Some("Running") {
            return None;
        }
        // To whoever wonders where its containers are.
        let told = "its volumes are mounted; this node runs no containers";
        assert_eq!(ready.message.as_deref(), Some(told), "{name}");
        let mounts = pod.annotations().get(names::annotation::MOUNTS);
        let mounts = mounts.map_or("{}", String::as_str);
        let mounts: Value = serde_json::from_str(mounts).expect("JSON");
        Some(PathBuf::from(mounts["data"].as_str().unwrap_or_default()))
    })
    .await
}

async fn gone(bench: &Bench, name: &str) {
    eventually(&format!("pod {name} to be gone"), || async {
        let found = pods(bench).get_opt(name).await.expect("an answer");
        found.is_none().then_some(())
    })
    .await;
}

async fn in_use(bench: &Bench) -> Vec<String> {
    let nodes: Api<Node> = Api::all(bench.client.clone());
    let node = nodes.get_opt(NODE).await.expect("an answer");
    let status = node.and_then(|node| node.status);
    status
        .and_then(|status| status.volumes_in_use)
        .unwrap_or_default()
}

fn mounts_below(bench: &Bench) -> Vec<String> {
    let folder = bench.folder(0).join("kubelet").display().to_string();
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table");
    table
        .lines()
        .filter(|line| line.contains(&folder))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_have_their_volumes_and_leave_nothing() {
    let mut bench = Bench::start("pvc").await;
    bench.start_agent_with(0, &["--embedded"]);
    attach(&bench).await;
    let replica = bench.replica(0, 1).await;
    let engine = bench.engine(0, 1, 1, &[&replica]).await;
    let serves = |status: &EngineStatus| status.current_state == InstanceState::Running;
    bench.until(&engine, "running", serves).await;

    // A pod without volumes runs at once; the node and its driver are known.
    create_pod(&bench, "plain", &json!([])).await;
    running(&bench, "plain").await;
    let csi_nodes: Api<CSINode> = Api::all(bench.client.clone());
    let drivers = csi_nodes.get(NODE).await.expect("a CSINode").spec.drivers;
    assert_eq!(
        (drivers[0].name.as_str(), drivers[0].node_id.as_str()),
        (names::DRIVER, NODE)
    );

    // The volume is announced as used before it is attached, and mounted only after.
    claim(&bench).await;
    create_pod(&bench, "first", &data()).await;
    let unique = UniqueVolumeName {
        driver: names::DRIVER.into(),
        handle: bench.volume.as_str().into(),
    };
    eventually("the volume in use", || async {
        (in_use(&bench).await == [unique.to_string()]).then_some(())
    })
    .await;
    assert_eq!(mounts_below(&bench), Vec::<String>::new());
    let events: Api<Event> = Api::namespaced(bench.client.clone(), "default");
    let attachments: Api<VolumeAttachment> = Api::all(bench.client.clone());
    let name = attachment_name(&unique.handle, &unique.driver, &NODE.into());
    let attachment: VolumeAttachment = object(json!({
        "metadata": {"name": name.as_str()},
        "spec": {"attacher": names::DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": bench.volume}},
    }));
    attachments
        .create(&PostParams::default(), &attachment)
        .await
        .expect("an attachment");
    let attached = json!({"status": {"attached": true}});
    attachments
        .patch_status(
            name.as_str(),
            &PatchParams::default(),
            &Patch::Merge(&attached),
        )
        .await
        .expect("a patch");
    // An attachment that is about to be given up says attached as well; the node's list has lost it by then.
    eventually("an event that says what is waited for", || async {
        let recorded = events.list(&ListParams::default()).await.expect("events");
        recorded
            .iter()
            .filter_map(|event| event.message.as_deref())
            .any(|message| message.contains("the node does not list it yet"))
            .then_some(())
    })
    .await;
    assert_eq!(mounts_below(&bench), Vec::<String>::new());
    let nodes: Api<Node> = Api::all(bench.client.clone());
    let listed =
        json!({"status": {"volumesAttached": [{"name": unique.to_string(), "devicePath": ""}]}});
    nodes
        .patch_status(NODE, &PatchParams::default(), &Patch::Merge(&listed))
        .await
        .expect("a patch");
    let path = running(&bench, "first").await;
    std::fs::write(path.join("greeting"), "hello").expect("a write");
    let recorded = events.list(&ListParams::default()).await.expect("events");
    let reasons: Vec<_> = recorded
        .iter()
        .filter_map(|event| event.reason.as_deref())
        .collect();
    assert!(reasons.contains(&"SuccessfulMountVolume"), "{reasons:?}");

    // A second pod shares it; the first one goes, with its agent killed meanwhile.
    create_pod(&bench, "second", &data()).await;
    let shared = running(&bench, "second").await;
    assert_ne!(shared, path);
    bench.kill_agent(0);
    pods(&bench)
        .delete("first", &DeleteParams::default())
        .await
        .expect("a deletion");
    bench.start_agent_with(0, &["--embedded"]);
    gone(&bench, "first").await;
    let greeting = std::fs::read_to_string(shared.join("greeting")).expect("a read");
    assert_eq!(greeting, "hello");
    assert_eq!(in_use(&bench).await, [unique.to_string()]);
    assert!(!path.exists());

    // The last one is removed by force while no agent looks: the next agent clears up after it.
    bench.kill_agent(0);
    let force = DeleteParams::default().grace_period(0);
    pods(&bench)
        .delete("second", &force)
        .await
        .expect("a deletion");
    bench.start_agent_with(0, &["--embedded"]);
    eventually("no mounts and nothing in use", || async {
        (mounts_below(&bench).is_empty() && in_use(&bench).await.is_empty()).then_some(())
    })
    .await;

    // An orderly end takes mounts and engines away, and keeps the pod.
    create_pod(&bench, "third", &data()).await;
    let path = running(&bench, "third").await;
    assert_eq!(
        std::fs::read_to_string(path.join("greeting")).expect("a read"),
        "hello"
    );
    bench.stop_agent(0);
    bench.assert_nothing_left();
    assert_eq!(in_use(&bench).await, Vec::<String>::new());
    assert!(
        pods(&bench)
            .get_opt("third")
            .await
            .expect("an answer")
            .is_some()
    );
}
