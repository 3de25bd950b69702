//! This node's sign of life: a Lease that changes every second.

use std::sync::Arc;
use std::time::Duration;

use api_types::names;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use super::{AgentError, Context};

const RENEW_EVERY: Duration = Duration::from_secs(1);

/// A renewal that takes longer than this is given up, so that the next one can come.
const RENEW_PATIENCE: Duration = Duration::from_secs(3);

/// Written into the Lease for readers of it; whoever judges this node uses its own clock.
const LEASE_SECONDS: i32 = 4;

#[must_use]
pub fn lease_name(node: &str) -> String {
    format!("lariat-node-{node}")
}

/// Renews until told to stop, then lets go.
pub(super) async fn run(
    context: Arc<Context>,
    client: Client,
    identity: String,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let api: Api<Lease> = Api::namespaced(client, names::NAMESPACE);
    let name = lease_name(&context.node);
    let mut every = tokio::time::interval(RENEW_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        let renewal = renew(&api, &name, &identity);
        match tokio::time::timeout(RENEW_PATIENCE, renewal).await {
            Ok(Ok(())) => context.metrics.lease_renewed(),
            Ok(Err(error)) => {
                context.metrics.lease_failed();
                tracing::warn!(lease.name = %name, error = &error as &dyn std::error::Error, "cannot renew the node's lease");
            }
            Err(_) => {
                context.metrics.lease_failed();
                tracing::warn!(lease.name = %name, "the API did not answer in time");
            }
        }
    }
    let released = json!({"spec": {"holderIdentity": "", "renewTime": now()}});
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(&released));
    let release = api.patch(&name, &parameters, &patch);
    if !matches!(
        tokio::time::timeout(RENEW_PATIENCE, release).await,
        Ok(Ok(_))
    ) {
        tracing::warn!(lease.name = %name, "cannot release the node's lease; it runs out by itself");
    }
    Ok(())
}

async fn renew(api: &Api<Lease>, name: &str, identity: &str) -> Result<(), kube::Error> {
    let spec = LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        renew_time: Some(now()),
        ..LeaseSpec::default()
    };
    let patch = json!({"spec": &spec});
    match api
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Err(kube::Error::Api(status)) if status.is_not_found() => {
            let mut lease = Lease {
                spec: Some(spec),
                ..Lease::default()
            };
            lease.metadata.name = Some(name.to_owned());
            api.create(&PostParams::default(), &lease).await.map(drop)
        }
        other => other.map(drop),
    }
}

fn now() -> MicroTime {
    MicroTime(jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_each_second_that_it_lives_and_may_fail_once() {
        assert_eq!(RENEW_EVERY, Duration::from_secs(1));
        // A renewal that is given up leaves time for another before the lease is over.
        let lease = Duration::from_secs(LEASE_SECONDS.unsigned_abs().into());
        assert!(RENEW_EVERY + RENEW_PATIENCE <= lease, "{lease:?}");
        assert_eq!(lease_name("node-1"), "lariat-node-node-1");
    }
}
