//! TLS 1.3 on the line between an engine and a replica, without certificates that anybody would have to look after.
//!
//! The replica's certificate is made when its server starts, and nobody checks whose it is. Who is at the other end
//! is proved by the protocol's own handshake, whose proofs cover [`Binding`]: a value that only the two ends of one TLS session can
//! compute (RFC 5705, as RFC 9266 uses it). Whoever sits in between has two sessions, and no proof fits the other.
//!
//! Both ends of the protocol go on to use a plain socket: the near end of a pair that never leaves the process. A thread
//! encrypts and decrypts between that and the connection. A line without TLS costs nothing for it.

mod relay;

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig,
    ServerConnection, SignatureScheme,
};
use thiserror::Error;

/// What every line that is encrypted begins with: the type of a TLS handshake record.
pub const FIRST_BYTE: u8 = 22;

/// Known to the two ends of one TLS session and to nobody else.
pub type Binding = [u8; 32];

/// The name in the certificate, which is not looked at.
const NAME: &str = "replica.lariat.invalid";
const BINDING_LABEL: &[u8] = b"EXPORTER-lariat-replica-line";

/// A line that is encrypted from here on.
#[derive(Debug)]
pub struct Secured {
    /// Takes and gives plain bytes.
    pub socket: TcpStream,
    pub binding: Binding,
}

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("the line broke while it was being encrypted")]
    Line(#[source] io::Error),
    #[error("the other side did not answer in time while the line was being encrypted")]
    TooSlow,
    #[error("the other side does not speak TLS as it should")]
    Protocol(#[from] rustls::Error),
    #[error("no certificate can be made")]
    Certificate(#[from] rcgen::Error),
}

/// Encrypts a connection as the one who made it. Blocks, no longer than `deadline`.
pub fn connect(line: TcpStream, deadline: Duration) -> Result<Secured, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let anyone = Arc::new(Anyone(Arc::clone(&provider)));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(anyone)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    let name = ServerName::try_from(NAME).expect("a name");
    let session = ClientConnection::new(Arc::new(config), name)?;
    secure(session.into(), line, deadline)
}

/// The side that is connected to.
#[derive(Clone, Debug)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    pub fn new() -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_protocol_versions(&[&TLS13])?
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.into()], key.into())?;
        // Every line has a binding of its own.
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
        })
    }

    /// Encrypts a connection that was accepted. Blocks, no longer than `deadline`.
    pub fn accept(&self, line: TcpStream, deadline: Duration) -> Result<Secured, TlsError> {
        let session = ServerConnection::new(Arc::clone(&self.config))?;
        secure(session.into(), line, deadline)
    }
}

fn secure(
    mut session: Connection,
    line: TcpStream,
    deadline: Duration,
) -> Result<Secured, TlsError> {
    shake_hands(&mut session, &line, Instant::now() + deadline)?;
    let binding = match &session {
        Connection::Client(session) => {
            session.export_keying_material(Binding::default(), BINDING_LABEL, None)
        }
        Connection::Server(session) => {
            session.export_keying_material(Binding::default(), BINDING_LABEL, None)
        }
    }?;
    let (near, far) = UnixStream::pair().map_err(TlsError::Line)?;
    relay::start(session, line, far).map_err(TlsError::Line)?;
    // Everything that is asked of the socket, sending, receiving, deadlines and shutting down, is the same for both kinds.
    let socket = TcpStream::from(OwnedFd::from(near));
    Ok(Secured { socket, binding })
}

fn shake_hands(session: &mut Connection, line: &TcpStream, until: Instant) -> Result<(), TlsError> {
    let mut line = line;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => TlsError::TooSlow,
        _ => TlsError::Line(error),
    };
    while session.is_handshaking() || session.wants_write() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TlsError::TooSlow);
        }
        line.set_read_timeout(Some(left)).map_err(TlsError::Line)?;
        line.set_write_timeout(Some(left)).map_err(TlsError::Line)?;
        if session.wants_write() {
            session.write_tls(&mut line).map_err(failed)?;
            continue;
        }
        if session.read_tls(&mut line).map_err(failed)? == 0 {
            return Err(TlsError::Line(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Err(error) = session.process_new_packets() {
            // The other side is told what was wrong, as far as the line takes it.
            let _ = session.write_tls(&mut line);
            return Err(error.into());
        }
    }
    Ok(())
}

/// Takes any certificate whose holder has its key. Who that is, the proofs over [`Binding`] tell.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Older than 1.3 is not offered, and has no binding that could be relied on.
        Err(rustls::Error::General(
            "only TLS 1.3 is spoken here".to_owned(),
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
