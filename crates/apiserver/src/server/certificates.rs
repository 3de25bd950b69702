//! The server's own certificate authority: who the server is, and which clients it believes.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use rustls::server::WebPkiClientVerifier;

const AUTHORITY_NAME: &str = "lariat";
const AUTHORITY_YEARS: i64 = 10;
const LEAF_YEARS: i64 = 1;

/// Why certificates cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot read or write {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot make or read a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("a certificate or key is not valid PEM: {0}")]
    Pem(String),
    #[error("TLS does not accept the certificate")]
    Tls(#[from] rustls::Error),
    #[error("client certificates cannot be checked: {0}")]
    Verifier(String),
}

/// A certificate and its private key, as PEM.
pub struct Leaf {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// The authority that signs the server's and its clients' certificates.
pub struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The authority kept in this folder, made if there is none.
    pub fn open(folder: &Path) -> Result<Self, CertificateError> {
        let (certificate_path, key_path) = (folder.join("ca.crt"), folder.join("ca.key"));
        if certificate_path.exists() && key_path.exists() {
            let certificate_pem = read(&certificate_path)?;
            let key = KeyPair::from_pem(&read(&key_path)?)?;
            return Ok(Self {
                certificate_pem,
                issuer: Issuer::new(authority_parameters()?, key),
            });
        }
        let key = KeyPair::generate()?;
        let parameters = authority_parameters()?;
        let certificate_pem = parameters.self_signed(&key)?.pem();
        // The key first: a certificate without its key would be taken for a whole authority.
        write_private(&key_path, key.serialize_pem().as_bytes())?;
        write_private(&certificate_path, certificate_pem.as_bytes())?;
        Ok(Self {
            certificate_pem,
            issuer: Issuer::new(parameters, key),
        })
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A certificate for a server that is reached under these names and addresses.
    pub fn server_identity(&self, names: &[String]) -> Result<Identity, CertificateError> {
        let mut parameters = CertificateParams::new(names)?;
        parameters
            .distinguished_name
            .push(DnType::CommonName, "lariat-apiserver");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let leaf = self.sign(parameters)?;
        Ok(Identity {
            leaf,
            authority_pem: self.certificate_pem.clone(),
        })
    }

    /// A certificate for a client of this name.
    pub fn client(&self, name: &str, organization: &str) -> Result<Leaf, CertificateError> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters
            .distinguished_name
            .push(DnType::OrganizationName, organization);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(parameters)
    }

    fn sign(&self, mut parameters: CertificateParams) -> Result<Leaf, CertificateError> {
        set_validity(&mut parameters, LEAF_YEARS);
        parameters.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        Ok(Leaf {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// The same each time: a signature names its authority by these, so they must not change while the
/// key stays.
fn authority_parameters() -> Result<CertificateParams, CertificateError> {
    let mut parameters = CertificateParams::new(Vec::<String>::new())?;
    parameters
        .distinguished_name
        .push(DnType::CommonName, AUTHORITY_NAME);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut parameters, AUTHORITY_YEARS);
    Ok(parameters)
}

/// From yesterday on, so that a clock that is a little behind does not lock its owner out.
fn set_validity(parameters: &mut CertificateParams, years: i64) {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let day = |date: jiff::civil::Date| {
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    parameters.not_before = day(today.saturating_sub(1.day()));
    parameters.not_after = day(today.saturating_add(years.years()));
}

/// What a server needs to be believed, and to tell which clients to believe.
pub struct Identity {
    leaf: Leaf,
    authority_pem: String,
}

impl Identity {
    /// TLS 1.2 or newer; a client certificate is checked if there is one, and else a token must do.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, CertificateError> {
        let pem = |error: rustls::pki_types::pem::Error| CertificateError::Pem(error.to_string());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority_pem.as_bytes()).map_err(pem)?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .map_err(|error| CertificateError::Verifier(error.to_string()))?;
        let certificate =
            CertificateDer::from_pem_slice(self.leaf.certificate_pem.as_bytes()).map_err(pem)?;
        let key = PrivateKeyDer::from_pem_slice(self.leaf.key_pem.as_bytes()).map_err(pem)?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read(path: &Path) -> Result<String, CertificateError> {
    fs::read_to_string(path).map_err(|source| CertificateError::File {
        path: path.to_owned(),
        source,
    })
}

/// Nobody but the owner may read keys; written beside and renamed, so that none is ever half there.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), CertificateError> {
    let fail = |source| CertificateError::File {
        path: path.to_owned(),
        source,
    };
    let temporary = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&temporary).map_err(fail)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(fail)?;
    fs::rename(&temporary, path).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let first = Authority::open(folder.path()).unwrap();
        let client = first.client("ann", "admins").unwrap();
        let second = Authority::open(folder.path()).unwrap();
        assert_eq!(first.certificate_pem(), second.certificate_pem());
        // A certificate of the first is believed by a server of the second.
        let identity = second.server_identity(&["localhost".to_owned()]).unwrap();
        identity.server_config().unwrap();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(second.certificate_pem().as_bytes()).unwrap())
            .unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
        )
        .build()
        .unwrap();
        let leaf = CertificateDer::from_pem_slice(client.certificate_pem.as_bytes()).unwrap();
        verifier
            .verify_client_cert(&leaf, &[], rustls::pki_types::UnixTime::now())
            .unwrap();

        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(folder.path().join("ca.key"))
                .unwrap()
                .permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    }
}
