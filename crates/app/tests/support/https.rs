//! The least HTTPS client: for requests that a well-behaved one would never send.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::PATIENCE;

pub struct Https(StreamOwned<ClientConnection, TcpStream>);

impl Https {
    /// Connects without any credentials, trusting the authority in this folder.
    pub fn connect(address: &str, folder: &Path) -> Self {
        let authority = CertificateDer::from_pem_file(folder.join("ca.crt")).expect("an authority");
        let mut roots = RootCertStore::empty();
        roots.add(authority).expect("a usable authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions that fit")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        let socket = TcpStream::connect(address).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        Self(StreamOwned::new(connection, socket))
    }

    /// Sends these bytes, and all that TLS needs to say before.
    pub fn send(&mut self, text: &str) {
        self.0
            .write_all(text.as_bytes())
            .expect("bytes can be sent");
        self.0.flush().expect("bytes can be sent");
    }

    /// The status code of a GET with these further header lines, each ending in CRLF.
    pub fn get(mut self, path: &str, headers: &str) -> u16 {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        ));
        let mut answer = Vec::new();
        // A server may close without a farewell; what it said before counts.
        self.0.read_to_end(&mut answer).ok();
        let answer = String::from_utf8_lossy(&answer);
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("GET {path}: no status in {answer:?}"))
    }
}
