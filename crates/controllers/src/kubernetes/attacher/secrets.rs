//! The secret that a PersistentVolume names for calls of its driver.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::kubernetes::csi::Secrets;

/// What became of reading the secret that a PersistentVolume names.
pub(super) enum SecretsFound {
    /// Also where none is named.
    Present(Secrets),
    Missing,
    /// With the API's sentence.
    Refused(String),
}

impl SecretsFound {
    /// Fails only if the API does not answer.
    pub(super) async fn read(
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<Self, kube::Error> {
        match read_secret(client, namespace, name).await {
            Ok(Some(secrets)) => Ok(Self::Present(secrets)),
            Ok(None) => Ok(Self::Missing),
            Err(kube::Error::Api(status)) => Ok(Self::Refused(status.message)),
            Err(error) => Err(error),
        }
    }

    /// What a call that asks for this secret gets; one that asks for none gets none.
    pub(super) fn for_call(self, asked: Option<&(String, String)>) -> Secrets {
        match (self, asked) {
            (Self::Present(secrets), Some(_)) => secrets,
            _ => Secrets::default(),
        }
    }
}

/// A secret's content, or None if there is no such secret.
pub(crate) async fn read_secret(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Secrets>, kube::Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let Some(secret) = api.get_opt(name).await? else {
        return Ok(None);
    };
    let data = secret.data.unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let secrets = data
        .into_iter()
        .map(|(key, value)| (key, text(value.0)))
        .collect();
    Ok(Some(Secrets(secrets)))
}
