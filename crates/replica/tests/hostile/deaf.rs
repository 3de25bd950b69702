//! Clients that ask and ask, and never take a reply: a server that is a process of its own holds no more for them than it says.

use std::io::Write;

use anyhow::{Result, ensure};
use block_core::Epoch;
use block_core::SnapshotName;
use block_core::wire::request::ExtentScope;
use block_core::wire::{Request, RequestId};
use replica::client::Client;

use crate::support::{BLOCK, ServerProcess};
use crate::{SIZE_BYTES, Server};

/// Of each kind.
const CLIENTS: usize = 4;
/// Their answers would take ten gigabytes.
const REQUESTS: usize = 100_000;
/// What others do meanwhile: by then a server without bounds has taken all requests.
const ROUNDS: usize = 300;
/// What the server says that it holds for one connection (16 MiB), and what it receives into and sends from.
const CONNECTION_BYTES_MAX: u64 = (16 << 20) + (4 << 20);
/// The program itself, its threads, and the index of a volume.
const OTHER_BYTES_MAX: u64 = 64 << 20;

/// A line on which requests wait.
struct Deaf {
    client: Client,
    unsent: Vec<u8>,
}

impl Deaf {
    fn new(server: &Server, request: Request) -> Result<Self> {
        let (mut client, _) = server.connect("asked")?;
        client.open(Epoch(1))?;
        client.stream().set_nonblocking(true)?;
        let frame = request.into_frame(RequestId(1), Epoch(1)).to_vec();
        Ok(Self {
            client,
            unsent: frame.repeat(REQUESTS),
        })
    }

    fn send_more(&mut self) {
        while !self.unsent.is_empty() {
            match { self.client.stream() }.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(_) => return,
            }
        }
    }
}

pub fn what_is_not_taken_takes_no_memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Server(ServerProcess::start(folder.path())?);
    let (mut filler, _) = server.connect("asked")?;
    filler.open(Epoch(1))?;
    // As many extents as there can be.
    for block in (0..SIZE_BYTES / BLOCK as u64).step_by(2) {
        filler.write(block * BLOCK as u64, vec![1; BLOCK])?;
    }
    let name = SnapshotName::new("s")?;
    filler.done(Request::SnapshotCreate {
        name: name.clone(),
        created_unix_ms: 1,
        user_created: true,
    })?;
    let (mut good, _) = server.connect("healthy")?;
    good.open(Epoch(1))?;
    let mut deaf = Vec::new();
    for _ in 0..CLIENTS {
        for request in [
            Request::Read {
                offset_bytes: 0,
                length_bytes: 1 << 20,
            },
            Request::LayerExtents {
                name: name.clone(),
                scope: ExtentScope::View,
                from_offset_bytes: 0,
            },
            Request::SnapshotDigest {
                name: name.clone(),
                recompute: true,
            },
            Request::Flush,
        ] {
            deaf.push(Deaf::new(&server, request)?);
        }
    }
    for round in 0..ROUNDS {
        deaf.iter_mut().for_each(Deaf::send_more);
        for client in [&mut good, &mut filler] {
            let data = vec![round as u8; BLOCK];
            client.write(0, data.clone())?;
            ensure!(client.read(0, BLOCK as u64)?[..] == data);
        }
    }
    good.flush()?;
    let peak_bytes = server.resident_bytes_peak()?;
    println!("the server held {} MiB", peak_bytes >> 20);
    let bytes_max = deaf.len() as u64 * CONNECTION_BYTES_MAX + OTHER_BYTES_MAX;
    ensure!(
        peak_bytes < bytes_max,
        "the server held {peak_bytes} bytes for those who take nothing"
    );
    Ok(())
}
