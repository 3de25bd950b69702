//! Lines that nobody else can read, and nobody can sit in the middle of.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Result;
use engine::inspect::Inspection;
use replica::{KeyPolicy, ReplicaServer, ServerConfig};

use crate::MIB;
use crate::cluster::Cluster;

const SECRET: &[u8] = b"encrypted";
const DEADLINE: Duration = Duration::from_secs(10);

fn server(folder: &std::path::Path, requires_tls: bool) -> Result<ReplicaServer> {
    let mut config = ServerConfig::new(folder.to_owned());
    config.requires_tls = requires_tls;
    config.keys = KeyPolicy::Derived {
        secret: SECRET.to_vec(),
        clients_may_create: true,
    };
    Ok(ReplicaServer::bind(config)?)
}

/// What only somebody is told who has proved the key.
const PROVED: &str = "there is no replica of volume v here yet";

/// How it ends when an engine asks for a volume that nobody has made yet.
fn ask(address: SocketAddr, secret: &[u8], tls: bool) -> String {
    let asked = Inspection::new("v", secret, tls, &[format!("r={address}")]);
    match asked.and_then(|asked| asked.salvage()) {
        Err(error) => format!("{:#}", anyhow::Error::from(error)),
        Ok(verdict) => format!("{verdict:?}"),
    }
}

#[test]
fn a_server_takes_encrypted_lines_and_others_only_if_it_may() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let either = server(&folder.path().join("either"), false)?;
    let strict = server(&folder.path().join("strict"), true)?;
    for (server, tls) in [(&either, false), (&either, true), (&strict, true)] {
        let asked = ask(server.local_addr(), SECRET, tls);
        assert!(asked.contains(PROVED), "{asked}");
        let wrong = ask(server.local_addr(), b"guessed", tls);
        assert!(wrong.contains("does not have this volume's key"), "{wrong}");
    }
    let refused = ask(strict.local_addr(), SECRET, false);
    assert!(refused.contains("only encrypted lines"), "{refused}");
    Ok(())
}

/// Takes the engine's line and makes one of its own to the replica: both are encrypted, and it reads everything.
#[test]
fn somebody_in_the_middle_cannot_pass_the_proofs_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = server(folder.path(), true)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (between, behind) = (listener.local_addr()?, server.local_addr());
    let middle = std::thread::spawn(move || -> Result<usize> {
        let engine = listener.accept()?.0;
        let engine = tls_line::Acceptor::new()?.accept(engine, DEADLINE)?.socket;
        let replica = tls_line::connect(TcpStream::connect(behind)?, DEADLINE)?.socket;
        let (from, to) = (engine.try_clone()?, replica.try_clone()?);
        let forth = std::thread::spawn(move || pass_on(&from, &to));
        let seen = pass_on(&replica, &engine)?;
        // Of the engine comes no proof any more: the replica's was wrong.
        forth.join().expect("no panic")?;
        Ok(seen)
    });
    let refused = ask(between, SECRET, true);
    assert!(
        refused.contains("the replica does not have this volume's key"),
        "{refused}"
    );
    let seen = middle.join().expect("no panic")?;
    assert!(seen > 0, "it was in the middle");
    let asked = ask(behind, SECRET, true);
    assert!(asked.contains(PROVED), "{asked}");
    Ok(())
}

/// A line takes less at once than is to be written, and what waits is sent when it takes more: no replica is given up meanwhile.
#[test]
fn more_than_an_encrypted_line_takes_at_once_is_written() -> Result<()> {
    let mut cluster = Cluster::start_encrypted(2, 64 * MIB)?;
    cluster.write_pattern(0, 64 * MIB, 1)?;
    cluster.check_pattern(0, 64 * MIB, 1)?;
    cluster.await_in_sync(&["r0", "r1"])?;
    cluster.shutdown()?;
    cluster.ensure_identical()
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream) -> Result<usize> {
    let (mut bytes, mut seen) = ([0; 4096], 0);
    while let count @ 1.. = from.read(&mut bytes)? {
        seen += count;
        to.write_all(&bytes[..count])?;
    }
    let _ = to.shutdown(Shutdown::Write);
    Ok(seen)
}
