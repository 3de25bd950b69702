//! The cluster's secret of the replica protocol, as an object that all nodes read.

use anyhow::{Context as _, Result};
use api_types::names::NAMESPACE;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use node_agent::agent::{REPLICA_KEY, REPLICA_KEY_SECRET};

/// What engines and replicas know each other by: made once, and never written anywhere else.
pub(crate) async fn ensure(client: &Client) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let shown = format!("secret {NAMESPACE}/{REPLICA_KEY_SECRET}");
    let found = secrets.get_opt(REPLICA_KEY_SECRET).await;
    if found
        .with_context(|| format!("cannot read {shown}"))?
        .is_some()
    {
        return Ok(());
    }
    // Two random UUIDs: 244 bits from the system's generator.
    let key = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()].map(uuid::Uuid::into_bytes);
    let mut secret = Secret::default();
    secret.metadata.name = Some(REPLICA_KEY_SECRET.to_owned());
    secret.data = Some([(REPLICA_KEY.to_owned(), ByteString(key.concat()))].into());
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(()),
        // Another manager was faster: its key is the cluster's.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot create {shown}")),
    }
}
