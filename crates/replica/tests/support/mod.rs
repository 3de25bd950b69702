//! A server in a temporary folder, and frames to break.

// Each test target uses its own part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use block_core::wire::{
    Frame, FrameDecoder, GoodbyeReason, HEADER_BYTES, Header, Hello, Kind, Reply, Request,
    RequestId, StatusCode, VolumeKey,
};
use block_core::{Epoch, VolumeName};
use replica::client::{Client, ClientError};
use replica::{KeyPolicy, ReplicaServer, ReplicaSpec, ServerConfig};
use tempfile::TempDir;

pub const BLOCK: usize = 4096;
pub const SIZE_BYTES: u64 = 64 << 20;

pub struct Fixture {
    folder: TempDir,
    config: ServerConfig,
    server: Option<ReplicaServer>,
}

/// A server that is a process of its own: this program, started again as `serve FOLDER`.
pub struct ServerProcess {
    child: Child,
    pub address: SocketAddr,
}

impl ServerProcess {
    pub fn start(folder: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line.trim().parse().context("the server's address")?;
        Ok(Self { child, address })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn key() -> VolumeKey {
    VolumeKey::from_bytes([7; 32])
}

pub fn volume() -> VolumeName {
    VolumeName::new("vol").expect("a name")
}

impl Fixture {
    pub fn new() -> Result<Self> {
        Self::with(|_| ())
    }

    /// A server with one volume named `vol`.
    pub fn with(change: impl FnOnce(&mut ServerConfig)) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut config = ServerConfig::new(folder.path().join("replicas"));
        change(&mut config);
        let server = ReplicaServer::bind(config.clone())?;
        server.create_volume(&ReplicaSpec {
            volume: volume(),
            key: key(),
            size_bytes: SIZE_BYTES,
        })?;
        Ok(Self {
            folder,
            config,
            server: Some(server),
        })
    }

    /// A server without volumes that lets clients make them.
    pub fn derived() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut config = ServerConfig::new(folder.path().join("replicas"));
        config.keys = KeyPolicy::Derived {
            secret: b"site secret".to_vec(),
            clients_may_create: true,
        };
        let server = ReplicaServer::bind(config.clone())?;
        Ok(Self {
            folder,
            config,
            server: Some(server),
        })
    }

    pub fn server(&self) -> &ReplicaServer {
        self.server.as_ref().expect("it runs between restarts")
    }

    pub fn restart(&mut self) -> Result<()> {
        self.server = None;
        self.server = Some(ReplicaServer::bind(self.config.clone())?);
        Ok(())
    }

    pub fn address(&self) -> SocketAddr {
        self.server().local_addr()
    }

    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(self.address(), &volume(), &key(), Duration::from_secs(20))
    }

    pub fn open(&self, epoch: u64) -> Result<Client, ClientError> {
        let mut client = self.connect()?;
        client.open(Epoch(epoch))?;
        Ok(client)
    }
}

pub fn refused_with(result: Result<(), ClientError>, wanted: StatusCode) -> bool {
    match result {
        Err(ClientError::Refused(failure)) if failure.code == wanted => true,
        other => {
            eprintln!("{other:?} instead of {wanted:?}");
            false
        }
    }
}

pub fn frame(request: Request, epoch: Epoch) -> Vec<u8> {
    request.into_frame(RequestId(1), epoch).to_vec()
}

pub fn reply_frame() -> Vec<u8> {
    Reply::Done
        .into_frame(
            &Header::request(Kind::Flush, RequestId(1), Epoch(1)),
            Epoch(1),
        )
        .to_vec()
}

pub fn hello(volume: &str) -> Vec<u8> {
    let volume = VolumeName::new(volume).expect("a name");
    frame(
        Request::Hello(Hello {
            versions: (1, 1),
            volume,
            nonce: [3; 32],
        }),
        Epoch::NONE,
    )
}

/// Reads until the other side says goodbye, or closes.
pub fn goodbye_of(stream: &mut TcpStream) -> Result<Option<GoodbyeReason>> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut decoder = FrameDecoder::new();
    let mut bytes = [0; 4096];
    loop {
        while let Some(Frame { header, payload }) = decoder.next_frame()? {
            if let Kind::Goodbye = header.kind {
                let Request::Goodbye { reason, .. } = Request::from_frame(&header, &payload)?
                else {
                    return Ok(None);
                };
                return Ok(Some(reason));
            }
        }
        match stream.read(&mut bytes).context("waiting for a goodbye")? {
            0 => return Ok(None),
            count => decoder.push(&bytes[..count]),
        }
    }
}

pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Valid frames of many kinds, to be mutated. None that would change the volume in a way that the tests look at.
pub fn conversations() -> Vec<Vec<u8>> {
    let of = |request| frame(request, Epoch::NONE);
    let data = vec![6; 512];
    vec![
        hello("vol"),
        of(Request::Prove([1; 32])),
        of(Request::Status),
        of(Request::ListLayers),
        of(Request::Read {
            offset_bytes: 0,
            length_bytes: 4096,
        }),
        of(Request::Write {
            offset_bytes: 0,
            data: data.into(),
            flags: block_core::wire::Flags::NONE,
        }),
        [
            of(Request::Status),
            of(Request::ListLayers),
            of(Request::Flush),
        ]
        .concat(),
        of(Request::Goodbye {
            reason: GoodbyeReason::Finished,
            text: "bye".to_owned(),
        }),
        of(Request::Expand {
            size_bytes: 1 << 30,
        }),
    ]
}

/// Makes the first frame's checksums right again, so that what is behind them is reached.
pub fn repair_header(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let payload_crc = crc32c::crc32c(&bytes[HEADER_BYTES..]);
    bytes[44..48].copy_from_slice(&payload_crc.to_le_bytes());
    let header_crc = crc32c::crc32c(&bytes[..52]);
    bytes[52..56].copy_from_slice(&header_crc.to_le_bytes());
}
