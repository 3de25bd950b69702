//! kube-rs's own watcher and Controller, and leases as its users hold them, against `lariat up`,
//! with the server killed in the middle.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api_types::{Volume, VolumeSpec, VolumeState};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::Action;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{Controller, WatchStreamExt as _};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use support::{Cluster, PATIENCE};
use tokio::sync::watch;
use tokio::time::timeout;

const OBJECTS: usize = 10_000;
const CLIENTS: usize = 32;

async fn client(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.expect("a usable kubeconfig")).expect("a client")
}

fn config_map(name: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object
}

/// A minute of a server that does not answer, at the pause between two attempts.
const CREATE_ATTEMPTS_MAX: usize = 1200;

/// Creates one object even if the server goes away meanwhile. An object that is there already is the
/// one of an attempt whose answer was lost.
async fn create(api: &Api<ConfigMap>, name: &str) {
    for _ in 0..CREATE_ATTEMPTS_MAX {
        match api.create(&PostParams::default(), &config_map(name)).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.is_already_exists() => return,
            Err(kube::Error::Api(status)) => panic!("{name}: {status}"),
            // The server is down: there is nothing to wait on but the next attempt.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("{name}: no server after {CREATE_ATTEMPTS_MAX} attempts");
}

/// What a watcher has seen so far.
#[derive(Clone, Default)]
struct Seen {
    times_by_name: BTreeMap<String, usize>,
    restarts: usize,
}

/// Follows a watcher until its end, which never comes by itself.
fn observe(api: Api<ConfigMap>, config: watcher::Config) -> watch::Receiver<Seen> {
    let (sender, receiver) = watch::channel(Seen::default());
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher::watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            sender.send_modify(|seen| match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    *seen.times_by_name.entry(object.name_any()).or_default() += 1;
                }
                Ok(Event::Delete(object)) => panic!("{} was not deleted", object.name_any()),
                Ok(Event::Init) => seen.restarts += 1,
                // Errors are the server being away; the watcher goes on by itself.
                Ok(Event::InitDone) | Err(_) => {}
            });
        }
    });
    receiver
}

async fn wait_for(receiver: &mut watch::Receiver<Seen>, count: usize) -> Seen {
    let waiting = receiver.wait_for(|seen| seen.times_by_name.len() >= count);
    if let Ok(seen) = timeout(2 * PATIENCE, waiting).await {
        return seen.expect("the watcher runs").clone();
    }
    let seen = receiver.borrow().times_by_name.len();
    panic!("only {seen} of {count} objects were seen");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_is_lost_or_doubled_though_the_server_is_killed() {
    let mut cluster = Cluster::start();
    let client = client(&cluster).await;
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let before = api.list(&Default::default()).await.expect("a list");
    let start = before.metadata.resource_version.expect("a version");

    let mut watchers = [
        observe(api.clone(), watcher::Config::default()),
        observe(api.clone(), watcher::Config::default().streaming_lists()),
    ];
    for watcher in &mut watchers {
        let begun = timeout(PATIENCE, watcher.wait_for(|seen| seen.restarts == 1)).await;
        begun
            .expect("the watcher begins")
            .expect("the watcher runs");
    }
    let writer = tokio::spawn({
        let api = api.clone();
        async move {
            futures::stream::iter(0..OBJECTS)
                .map(|number| {
                    let api = api.clone();
                    async move { create(&api, &format!("object-{number:05}")).await }
                })
                .buffer_unordered(CLIENTS)
                .collect::<()>()
                .await;
        }
    });
    for watcher in &mut watchers {
        wait_for(watcher, OBJECTS / 3).await;
    }
    tokio::task::block_in_place(|| {
        cluster.kill();
        cluster.start_again();
    });
    timeout(2 * PATIENCE, writer)
        .await
        .expect("all objects are created")
        .expect("the writer does not fail");

    for watcher in &mut watchers {
        let seen = wait_for(watcher, OBJECTS).await;
        let doubled: Vec<_> = seen
            .times_by_name
            .iter()
            .filter(|(_, times)| **times != 1)
            .collect();
        // It resumed where it was and did not list everything again.
        assert_eq!(seen.restarts, 1);
        assert!(doubled.is_empty(), "{doubled:?}");
    }
    check_history(&api, &start).await;
}

/// Reads the whole history in pieces, each from where the one before was broken off.
async fn check_history(api: &Api<ConfigMap>, start: &str) {
    const PIECE: usize = 3_000;
    let mut version = start.to_owned();
    let mut history: Vec<(u64, String)> = Vec::new();
    while history.len() < OBJECTS {
        let watch = api.watch(&WatchParams::default(), &version).await;
        let piece = watch
            .expect("a watch")
            .take(PIECE.min(OBJECTS - history.len()));
        let piece: Vec<_> = timeout(PATIENCE, piece.try_collect())
            .await
            .expect("events that were promised")
            .expect("no error on the way");
        for event in piece {
            match event {
                WatchEvent::Added(object) => {
                    version = object.resource_version().expect("a version");
                    let number = version.parse().expect("a number");
                    history.push((number, object.name_any()));
                }
                WatchEvent::Bookmark(_) => {}
                other => panic!("nothing else happened: {other:?}"),
            }
        }
    }
    let versions: Vec<u64> = history.iter().map(|(version, _)| *version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "events out of order");
    let mut names: Vec<String> = history.into_iter().map(|(_, name)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), OBJECTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_brings_every_object_to_its_status() {
    const VOLUMES: usize = 200;
    let mut cluster = Cluster::start();
    let api: Api<Volume> = Api::namespaced(client(&cluster).await, "longhorn-system");
    let running = tokio::spawn(
        Controller::new(api.clone(), watcher::Config::default())
            .run(
                detach,
                |_, _, _| Action::requeue(Duration::from_millis(100)),
                Arc::new(api.clone()),
            )
            .for_each(|_| futures::future::ready(())),
    );
    let make = async |names: std::ops::Range<usize>| {
        futures::stream::iter(names)
            .for_each_concurrent(CLIENTS, async |number| {
                let spec = VolumeSpec {
                    number_of_replicas: 2,
                    ..VolumeSpec::default()
                };
                let volume = Volume::new(&format!("vol-{number}"), spec);
                api.create(&PostParams::default(), &volume)
                    .await
                    .expect("a volume");
            })
            .await;
    };
    make(0..VOLUMES).await;
    wait_until_detached(&api, VOLUMES).await;

    tokio::task::block_in_place(|| {
        cluster.kill();
        cluster.start_again();
    });
    make(VOLUMES..VOLUMES + 20).await;
    wait_until_detached(&api, VOLUMES + 20).await;
    running.abort();
}

/// The least reconciler: a volume that nobody wants is detached.
async fn detach(volume: Arc<Volume>, api: Arc<Api<Volume>>) -> Result<Action, kube::Error> {
    if is_detached(&volume) {
        return Ok(Action::await_change());
    }
    let status = json!({"status": {"state": "detached", "robustness": "unknown"}});
    api.patch_status(
        &volume.name_any(),
        &PatchParams::default(),
        &Patch::Merge(status),
    )
    .await?;
    Ok(Action::await_change())
}

fn is_detached(volume: &Volume) -> bool {
    let status = volume.status.as_ref();
    status.is_some_and(|status| status.state == VolumeState::Detached)
}

async fn wait_until_detached(api: &Api<Volume>, count: usize) {
    let all = async {
        let mut detached = BTreeMap::new();
        let mut events = std::pin::pin!(
            watcher::watcher(api.clone(), watcher::Config::default())
                .default_backoff()
                .touched_objects()
        );
        while let Some(Ok(volume)) = events.next().await {
            detached.insert(volume.name_any(), is_detached(&volume));
            if detached.len() == count && detached.values().all(|is_detached| *is_detached) {
                return;
            }
        }
    };
    timeout(PATIENCE, all)
        .await
        .expect("the controller reaches every volume");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_one_holder_at_a_time() {
    const ROUNDS: i32 = 40;
    let cluster = Cluster::start();
    let client = client(&cluster).await;
    let api: Api<Lease> = Api::namespaced(client, "kube-system");
    let mut lease = Lease::default();
    lease.metadata.name = Some("leader".to_owned());
    api.create(&PostParams::default(), &lease)
        .await
        .expect("a lease");

    let mut wins: BTreeMap<&str, i32> = BTreeMap::new();
    for round in 1..=ROUNDS {
        // Both see that it is free, both take it: the version decides.
        let seen = api.get("leader").await.expect("the lease");
        let (left, right) = tokio::join!(take(&api, &seen, "left"), take(&api, &seen, "right"));
        let (winner, held) = match (left, right) {
            (Ok(held), Err(refused)) if is_conflict(&refused) => ("left", held),
            (Err(refused), Ok(held)) if is_conflict(&refused) => ("right", held),
            other => panic!("round {round}: not exactly one got it: {other:?}"),
        };
        *wins.entry(winner).or_default() += 1;
        let spec = held.spec.clone().expect("a spec");
        assert_eq!(spec.holder_identity.as_deref(), Some(winner));
        assert_eq!(spec.lease_transitions, Some(round));

        // The holder renews, so what the other one read is old.
        let renewed = take(&api, &held, winner)
            .await
            .expect("the holder may renew");
        let late = take(&api, &held, "late").await.expect_err("an old version");
        assert!(is_conflict(&late), "{late}");
        // It lets go; the next round finds it free.
        let mut free = renewed;
        let spec = free.spec.as_mut().expect("a spec");
        spec.holder_identity = None;
        spec.lease_transitions = Some(round);
        api.replace("leader", &PostParams::default(), &free)
            .await
            .expect("it lets go");
    }
    assert_eq!(wins.values().sum::<i32>(), ROUNDS);
}

/// Takes the lease on the strength of what was read, and of that version only.
async fn take(api: &Api<Lease>, seen: &Lease, who: &str) -> Result<Lease, kube::Error> {
    let mut wanted = seen.clone();
    let spec = wanted.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(who.to_owned());
    spec.lease_duration_seconds = Some(15);
    spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + 1);
    api.replace("leader", &PostParams::default(), &wanted).await
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict())
}
