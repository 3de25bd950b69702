//! Serving many replicas from one process.
//!
//! One thread accepts, one thread reads each connection. A reader does ordinary reads and writes itself, as many as came
//! with one receive, and sends their replies with one send: page-cache I/O is shorter than handing it over would be.
//! What may wait for a device (reads that miss the cache) goes to a small pool, flushes to another, what takes long (purges,
//! digests) gets a thread of its own; so replies come out of order. Everything a connection may hold is bounded, and a
//! reader that has reached its bounds stops reading: TCP tells the client.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block_core::VolumeName;
use block_core::wire::{ReplicaStatus, VolumeKey};

use crate::disk::real::RealDisk;
use crate::store::{METADATA_FILE, Replica, ReplicaSpec, SET_ASIDE_FILE, lock};

mod busy_poll;
mod connection;
mod handshake;
use handshake::Ending;
pub(crate) use handshake::random_nonce;
mod perform;
mod pool;
mod replies;
mod volumes;

#[cfg(test)]
mod slow_disk_tests;

pub use volumes::VolumeError;

use pool::Pool;
use volumes::Volumes;

/// Whose keys are right.
#[derive(Clone, Debug)]
pub enum KeyPolicy {
    /// Each replica's own, given when it was made.
    Stored,
    /// Derived from a shared secret, also for volumes that are not here yet.
    Derived {
        secret: Vec<u8>,
        /// Whether a client that proved its key may make the volume's replica.
        clients_may_create: bool,
    },
}

#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The folder in which each volume's replica has a folder of its own.
    pub root: PathBuf,
    pub listen: SocketAddr,
    pub keys: KeyPolicy,
    /// Whether lines that are not encrypted are refused. Encrypted ones are always taken.
    pub requires_tls: bool,
    /// Connections whose client has proved its key.
    pub connections_max: usize,
    /// Connections whose client has not yet. When there are more, the oldest is ended: whoever does nothing keeps nobody out.
    pub unproved_max: usize,
    /// What one connection may have waiting in the pool, requests and replies together.
    pub in_flight_bytes_max: u32,
    /// From the first byte of a connection to its proof.
    pub handshake_deadline: Duration,
    /// For the rest of a frame, once it was begun.
    pub frame_deadline: Duration,
    /// For a client to take replies.
    pub reply_deadline: Duration,
    /// How long to look for the next request before sleeping, while requests come that fast. Zero for never.
    pub busy_poll: Duration,
}

impl ServerConfig {
    /// The defaults: loopback, a free port, stored keys.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            keys: KeyPolicy::Stored,
            requires_tls: false,
            connections_max: 1024,
            // So many engines may come at the same moment, when a machine comes back.
            unproved_max: 256,
            in_flight_bytes_max: 16 << 20,
            handshake_deadline: Duration::from_secs(10),
            frame_deadline: Duration::from_secs(15),
            reply_deadline: Duration::from_secs(30),
            busy_poll: Duration::from_micros(20),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot use {} as the folder of replicas", folder.display())]
    Root { folder: PathBuf, source: io::Error },
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("cannot encrypt lines")]
    Tls(#[source] tls_line::TlsError),
}

/// What a server has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    pub connections_open: u64,
    pub connections_total: u64,
    /// Connections that this side ended because of what came over them.
    pub connections_refused: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub failures: u64,
}

/// A running server. Dropping it without [`ReplicaServer::shutdown`] stops it as well.
pub struct ReplicaServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// What all threads of a server see.
pub(crate) struct Shared {
    config: ServerConfig,
    volumes: Volumes,
    pool: Pool,
    /// For what waits for all that was written.
    syncs: Pool,
    acceptor: tls_line::Acceptor,
    counters: Counters,
    stopping: AtomicBool,
    connections: Mutex<HashMap<u64, OpenConnection>>,
}

/// What is needed to end a connection from outside.
struct OpenConnection {
    stream: TcpStream,
    thread: Option<JoinHandle<()>>,
    standing: Standing,
}

/// ```text
/// Unproved ──> Proved
///     └──────> GivenUp
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unproved,
    Proved,
    /// Others needed its place before it had proved anything; its thread is about to end.
    GivenUp,
}

#[derive(Default)]
pub(crate) struct Counters {
    connections_total: AtomicU64,
    connections_refused: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    failures: AtomicU64,
}

impl ReplicaServer {
    pub fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        let folder = config.root.clone();
        std::fs::create_dir_all(&folder).map_err(|source| ServerError::Root { folder, source })?;
        let listener = TcpListener::bind(config.listen).map_err(|source| ServerError::Listen {
            address: config.listen,
            source,
        })?;
        let address = listener
            .local_addr()
            .map_err(|source| ServerError::Listen {
                address: config.listen,
                source,
            })?;
        let shared = Arc::new(Shared {
            volumes: Volumes::new(config.root.clone()),
            pool: Pool::start("replica-io", POOL_THREADS).map_err(ServerError::Thread)?,
            syncs: Pool::start("replica-sync", SYNC_THREADS).map_err(ServerError::Thread)?,
            acceptor: tls_line::Acceptor::new().map_err(ServerError::Tls)?,
            config,
            counters: Counters::default(),
            stopping: AtomicBool::new(false),
            connections: Mutex::new(HashMap::new()),
        });
        let acceptor = {
            let shared = shared.clone();
            let run = move || accept_all(&shared, &listener);
            std::thread::Builder::new()
                .name("replica-accept".to_owned())
                .spawn(run)
        };
        Ok(Self {
            shared,
            address,
            acceptor: Some(acceptor.map_err(ServerError::Thread)?),
        })
    }

    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Makes an empty replica of a volume.
    pub fn create_volume(&self, spec: &ReplicaSpec) -> Result<(), VolumeError> {
        self.shared.volumes.create(spec).map(drop)
    }

    /// Removes a volume's replica for ever. Requests that come for it later are refused.
    pub fn delete_volume(&self, volume: &VolumeName) -> Result<(), VolumeError> {
        self.shared.volumes.delete(volume)
    }

    /// The volumes that have a replica here.
    pub fn volumes(&self) -> io::Result<Vec<VolumeName>> {
        list_volumes(&self.shared.config.root)
    }

    pub fn status(&self, volume: &VolumeName) -> Result<ReplicaStatus, VolumeError> {
        let replica = self.replica(volume)?;
        replica.status().map_err(|source| VolumeError::Status {
            volume: volume.clone(),
            source,
        })
    }

    /// The replica itself, for use in this process without a socket.
    pub fn replica(&self, volume: &VolumeName) -> Result<Arc<Replica<RealDisk>>, VolumeError> {
        self.shared.volumes.get(volume)
    }

    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let counters = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerStats {
            connections_open: lock(&self.shared.connections).len() as u64,
            connections_total: get(&counters.connections_total),
            connections_refused: get(&counters.connections_refused),
            reads: get(&counters.reads),
            read_bytes: get(&counters.read_bytes),
            writes: get(&counters.writes),
            write_bytes: get(&counters.write_bytes),
            flushes: get(&counters.flushes),
            failures: get(&counters.failures),
        }
    }

    /// Waits until the server ends, which it does only on a failure of its own. For the command line.
    pub fn wait(mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }

    /// Ends all connections, waits for what is under way, and closes all replicas.
    pub fn shutdown(self) {
        // The work is in `drop`, so that forgetting this call stops the server, too.
    }

    fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the acceptor: there is no other way out of accept(2) that is portable.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let connections: Vec<_> = std::mem::take(&mut *lock(&self.shared.connections))
            .into_values()
            .collect();
        // Purges and the like give up between two steps; the next open takes them up again.
        self.shared.volumes.retire_all();
        // Readers wake up, say goodbye and end; who is stuck with a client that takes nothing is cut off.
        for connection in &connections {
            let _ = connection.stream.shutdown(Shutdown::Read);
        }
        let until = Instant::now() + GOODBYE_TIME;
        let is_finished = |connection: &OpenConnection| {
            connection
                .thread
                .as_ref()
                .is_none_or(JoinHandle::is_finished)
        };
        while !connections.iter().all(is_finished) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        for connection in connections {
            let _ = connection.stream.shutdown(Shutdown::Both);
            let _ = connection.thread.map(JoinHandle::join);
        }
        self.shared.pool.stop();
        self.shared.syncs.stop();
    }
}

impl Drop for ReplicaServer {
    fn drop(&mut self) {
        if self.acceptor.is_some() {
            self.stop();
        }
    }
}

/// Enough for a fast device's queue; more only wait for the same two or so cores.
const POOL_THREADS: usize = 8;
/// As many volumes can flush at the same time; the disk is the same for all.
const SYNC_THREADS: usize = 8;

/// What clients get to take their last replies when the server stops.
const GOODBYE_TIME: Duration = Duration::from_millis(500);

/// What `lariat replica serve` does: serves until the process ends. `started` is told when clients can come.
pub fn serve(
    config: ServerConfig,
    started: impl FnOnce(&ReplicaServer),
) -> Result<(), ServerError> {
    let server = ReplicaServer::bind(config)?;
    started(&server);
    server.wait();
    Ok(())
}

/// The volumes that have a replica under `root`, also one that was set aside, for tools that look without a server.
pub fn list_volumes(root: &Path) -> io::Result<Vec<VolumeName>> {
    let mut volumes = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let name = entry
            .file_name()
            .into_string()
            .ok()
            .and_then(|name| VolumeName::new(&name).ok());
        let has = |file| entry.path().join(file).exists();
        if let Some(name) = name
            && (has(METADATA_FILE) || has(SET_ASIDE_FILE))
        {
            volumes.push(name);
        }
    }
    volumes.sort();
    Ok(volumes)
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    for number in 0_u64.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: connections that end will free some.
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot accept a connection"
                );
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        shared
            .counters
            .connections_total
            .fetch_add(1, Ordering::Relaxed);
        if let Err(error) = start_connection(shared, number, stream) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot serve a connection"
            );
        }
    }
}

fn start_connection(shared: &Arc<Shared>, number: u64, stream: TcpStream) -> io::Result<()> {
    let mut connections = lock(&shared.connections);
    // Threads that are about to end count as well: there may be as many as were given up just now.
    let config = &shared.config;
    if connections.len() >= config.connections_max + 2 * config.unproved_max {
        drop(connections);
        connection::refuse(&stream, shared);
        return Ok(());
    }
    make_room(&mut connections, config.unproved_max);
    connections.insert(
        number,
        OpenConnection {
            stream: stream.try_clone()?,
            thread: None,
            standing: Standing::Unproved,
        },
    );
    let run = {
        let shared = shared.clone();
        move || {
            or_abort(|| connection::run(&shared, number, &stream));
            lock(&shared.connections).remove(&number);
        }
    };
    // The entry is there before the thread can remove it: the lock is held until the handle is in.
    match std::thread::Builder::new()
        .name("replica-conn".to_owned())
        .spawn(run)
    {
        Ok(thread) => {
            connections
                .entry(number)
                .and_modify(|entry| entry.thread = Some(thread));
            Ok(())
        }
        Err(error) => {
            connections.remove(&number);
            Err(error)
        }
    }
}

/// Gives the oldest of those up that have not proved anything, if there are too many for one more.
fn make_room(connections: &mut HashMap<u64, OpenConnection>, unproved_max: usize) {
    let unproved = || {
        connections
            .iter()
            .filter(|(_, connection)| connection.standing == Standing::Unproved)
            .map(|(number, _)| *number)
    };
    if unproved().count() < unproved_max {
        return;
    }
    let oldest = unproved().min();
    if let Some(oldest) = oldest.and_then(|number| connections.get_mut(&number)) {
        oldest.standing = Standing::GivenUp;
        // Its thread wakes up and tells the client why.
        let _ = oldest.stream.shutdown(Shutdown::Read);
    }
}

/// Runs a part of the server. A panic means that an invariant of stored data is broken: the process ends before anything
/// builds on that. Replicas are made to be killed; engines go on with the others.
pub(crate) fn or_abort(run: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
        tracing::error!("a replica server's thread panicked; the process ends");
        std::process::abort();
    }
}

impl Shared {
    /// A client has proved its key: is there a place for it?
    fn admit(&self, number: u64) -> Result<(), Ending> {
        let mut connections = lock(&self.connections);
        let is_proved = |it: &&OpenConnection| it.standing == Standing::Proved;
        let is_full = connections.values().filter(is_proved).count() >= self.config.connections_max;
        match connections.get_mut(&number) {
            Some(connection) if !is_full && connection.standing == Standing::Unproved => {
                connection.standing = Standing::Proved;
                Ok(())
            }
            // The server stops, and has taken the list: this connection will hear of it.
            None => Ok(()),
            Some(_) => Err(Ending::too_many()),
        }
    }

    fn is_given_up(&self, number: u64) -> bool {
        let connections = lock(&self.connections);
        let found = connections.get(&number);
        found.is_some_and(|connection| connection.standing == Standing::GivenUp)
    }

    /// The key that a client of this volume must prove, if the volume may be talked about at all.
    fn key_of(&self, volume: &VolumeName) -> Option<VolumeKey> {
        match &self.config.keys {
            KeyPolicy::Derived {
                secret,
                clients_may_create,
            } => {
                let known = *clients_may_create || self.volumes.exists(volume);
                known.then(|| VolumeKey::derive(secret, volume))
            }
            KeyPolicy::Stored => self
                .volumes
                .get(volume)
                .ok()
                .map(|replica| replica.key().clone()),
        }
    }
}
