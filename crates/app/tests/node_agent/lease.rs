//! A node's sign of life, as whoever judges it sees it.

use std::time::Duration;

use api_types::names;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::watcher;
use tokio::time::timeout;

use crate::bench::Bench;
use crate::support::PATIENCE;

const RENEWALS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_renews_its_lease_each_second() {
    let mut bench = Bench::start("lease").await;
    bench.start_agent(0);
    let leases: Api<Lease> = Api::namespaced(bench.client.clone(), names::NAMESPACE);
    let name = format!("lariat-node-{}", Bench::node(0));
    let mut versions = std::pin::pin!(watcher::watch_object(leases, &name));
    let mut renewed: Vec<Timestamp> = Vec::new();
    let watching = async {
        while renewed.len() < RENEWALS {
            let version = versions.next().await.expect("a watch does not end");
            let Ok(Some(lease)) = version else { continue };
            let spec = lease.spec.expect("a spec");
            // As long as a node may be silent before it is lost.
            assert_eq!(spec.lease_duration_seconds, Some(4));
            assert_ne!(spec.holder_identity.unwrap_or_default(), "");
            let at = spec.renew_time.expect("a time").0;
            if renewed.last() != Some(&at) {
                renewed.push(at);
            }
        }
    };
    let watched = timeout(PATIENCE, watching).await;
    watched.expect("the lease is renewed again and again");
    let steps: Vec<Duration> = renewed
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).unsigned_abs())
        .collect();
    // A machine that has much to do makes steps longer. None is shorter than what is meant, and some is as short.
    let shortest = steps.iter().min().expect("a step");
    let meant = Duration::from_millis(500)..Duration::from_millis(1500);
    assert!(meant.contains(shortest), "{steps:?}");
    bench.stop_agent(0);
}
