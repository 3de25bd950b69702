//! The kubeconfig that `lariat up` writes.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// What a client needs to reach and be believed by the server.
pub(crate) struct Access<'a> {
    pub address: SocketAddr,
    pub authority_pem: &'a str,
    pub client_certificate_pem: &'a str,
    pub client_key_pem: &'a str,
}

/// A kubeconfig with everything inside, so that the file alone is enough. JSON is YAML: every client
/// that reads kubeconfigs reads this.
pub(crate) fn render(access: &Access<'_>) -> String {
    let data = |pem: &str| Value::from(STANDARD.encode(pem));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lariat", "cluster": {
            "server": format!("https://{}", reachable(access.address)),
            "certificate-authority-data": data(access.authority_pem),
        }}],
        "users": [{"name": "lariat-admin", "user": {
            "client-certificate-data": data(access.client_certificate_pem),
            "client-key-data": data(access.client_key_pem),
        }}],
        "contexts": [{"name": "lariat", "context": {
            "cluster": "lariat", "user": "lariat-admin", "namespace": "default",
        }}],
        "current-context": "lariat",
    });
    format!("{config:#}\n")
}

/// An address that listens everywhere is reached on this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            ([0, 0, 0, 0, 0, 0, 0, 1], v6.port()).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_everything_a_client_needs() {
        let text = render(&Access {
            address: "0.0.0.0:7443".parse().unwrap(),
            authority_pem: "CA",
            client_certificate_pem: "CERT",
            client_key_pem: "KEY",
        });
        let config: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            config["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:7443"
        );
        assert_eq!(
            config["users"][0]["user"]["client-key-data"],
            STANDARD.encode("KEY")
        );
    }
}
