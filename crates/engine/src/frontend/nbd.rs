//! An NBD server on a unix socket: for virtual machines, for tools, and for hosts without loop devices.
//!
//! Newstyle fixed handshake, structured replies, several connections at once, flush, forced unit
//! access, trim and write-zeroes. A volume that grows shows its new size to new connections: NBD
//! has no agreed message to tell an open one.

mod connection;
mod handshake;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::{Endpoint, Frontend, FrontendOptions, FrontendState, OpenFrontendError, Resize};
use crate::io::{IoFault, Outcome, Request, RequestId};
use crate::poller::{Owner, Poller, Readiness, Token};
use connection::{Connection, Context, Fate};
use handshake::Export;

/// Connections at once; more than any client opens, few enough to bound memory.
const CONNECTIONS_MAX: usize = 64;

/// How long clients may take to receive their last answers after a close was asked for. One that receives nothing would
/// hold up the engine's end for ever.
const CLOSE_GRACE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

const LISTENER: Token = Token {
    owner: Owner::Frontend,
    index: 0,
};
const GRACE: Token = Token {
    owner: Owner::Frontend,
    index: u32::MAX,
};

pub struct NbdFrontend {
    poller: Arc<Poller>,
    listener: Option<UnixListener>,
    path: PathBuf,
    export: Export,
    connections: BTreeMap<u32, Connection>,
    connection_next: u32,
    /// Which connection awaits a request's answer.
    owners: BTreeMap<RequestId, u32>,
    request_next: u64,
    closing: bool,
    /// Ends the time that clients have to leave.
    timer: Option<OwnedFd>,
}

impl NbdFrontend {
    pub fn open(poller: &Arc<Poller>, options: FrontendOptions) -> Result<Self, OpenFrontendError> {
        let path = options.runtime_dir.join(format!("{}.nbd", options.volume));
        let at = |attempt| {
            let path = path.clone();
            move |source| OpenFrontendError::Path {
                attempt,
                path,
                source,
            }
        };
        std::fs::create_dir_all(&options.runtime_dir).map_err(at("create the folder of"))?;
        // A predecessor that was killed leaves its socket behind; a live one holds the volume's
        // epoch, without which we would not be here.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at("remove the old socket")(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(at("listen on"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .map_err(at("restrict"))?;
        listener.set_nonblocking(true).map_err(at("listen on"))?;
        poller.watch(&listener, LISTENER).map_err(at("watch"))?;
        Ok(Self {
            poller: Arc::clone(poller),
            listener: Some(listener),
            path,
            export: Export {
                name: options.volume,
                size_bytes: options.size_bytes,
                sector_bytes: options.sector_bytes,
            },
            connections: BTreeMap::new(),
            connection_next: 1,
            owners: BTreeMap::new(),
            request_next: 1,
            closing: false,
            timer: None,
        })
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            let Ok((socket, _)) = listener.accept() else {
                return;
            };
            if self.connections.len() >= CONNECTIONS_MAX {
                tracing::warn!(volume.name = %self.export.name, "refused an NBD client: too many");
                continue;
            }
            let index = self.connection_next;
            self.connection_next = ((index + 1) % GRACE.index).max(1);
            let token = Token::new(Owner::Frontend, index);
            match Connection::start(socket, &self.poller, token) {
                Ok(connection) => {
                    self.connections.insert(index, connection);
                }
                Err(error) => {
                    tracing::warn!(volume.name = %self.export.name, %error, "lost an NBD client");
                }
            }
        }
    }

    fn start_grace(&mut self) -> io::Result<()> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: CLOSE_GRACE,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
        self.poller.watch(&timer, GRACE)?;
        self.timer = Some(timer);
        Ok(())
    }

    /// The time of those is over who have not taken their answers. Whoever waits for the engine's gets as long again.
    fn end_grace(&mut self) {
        if let Some(timer) = self.timer.take() {
            let _ = self.poller.forget(&timer);
        }
        self.hang_up(Connection::has_answers_to_take);
        self.begin_grace();
    }

    fn begin_grace(&mut self) {
        if !self.connections.is_empty()
            && let Err(error) = self.start_grace()
        {
            tracing::warn!(volume.name = %self.export.name, %error, "cannot wait for NBD clients to take their answers");
            self.hang_up(|_| true);
        }
    }

    fn hang_up(&mut self, whom: impl Fn(&Connection) -> bool) {
        let those = self.connections.iter().filter(|(_, it)| whom(it));
        let those: Vec<u32> = those.map(|(index, _)| *index).collect();
        for index in those {
            tracing::warn!(volume.name = %self.export.name, "hung up on an NBD client that had not taken its answers");
            self.drop_connection(index);
        }
    }

    fn drop_connection(&mut self, index: u32) {
        if let Some(connection) = self.connections.remove(&index) {
            connection.end(&self.poller);
            self.owners.retain(|_, owner| *owner != index);
        }
    }
}

impl Frontend for NbdFrontend {
    fn state(&self) -> FrontendState {
        match (self.closing, self.connections.is_empty()) {
            (false, _) => FrontendState::Ready {
                endpoint: Endpoint::NbdSocket(self.path.clone()),
            },
            (true, false) => FrontendState::Closing,
            (true, true) => FrontendState::Closed,
        }
    }

    fn ready(&mut self, readiness: Readiness, requests: &mut Vec<Request>) {
        if readiness.token == LISTENER {
            self.accept();
            return;
        }
        if readiness.token == GRACE {
            self.end_grace();
            return;
        }
        let index = readiness.token.index;
        let Some(connection) = self.connections.get_mut(&index) else {
            return;
        };
        let first_new = requests.len();
        let mut context = Context {
            poller: &self.poller,
            export: &self.export,
            requests,
            request_next: &mut self.request_next,
        };
        let fate = connection.ready(readiness, &mut context);
        for request in &requests[first_new..] {
            self.owners.insert(request.id, index);
        }
        if let Fate::Ended(reason) = fate {
            tracing::debug!(volume.name = %self.export.name, reason, "an NBD client left");
            self.drop_connection(index);
        }
    }

    fn complete(&mut self, id: RequestId, outcome: Outcome) {
        let Some(index) = self.owners.remove(&id) else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&index) {
            connection.complete(id, outcome);
        }
    }

    fn flush(&mut self) {
        let ended: Vec<u32> = self
            .connections
            .iter_mut()
            .filter_map(|(index, connection)| {
                let fate = connection.flush(&self.poller);
                matches!(fate, Fate::Ended(_)).then_some(*index)
            })
            .collect();
        for index in ended {
            self.drop_connection(index);
        }
    }

    fn begin_close(&mut self) {
        if self.closing {
            return;
        }
        self.closing = true;
        if let Some(listener) = self.listener.take() {
            // Both fail only for what is gone already.
            let _ = self.poller.forget(&listener);
            let _ = std::fs::remove_file(&self.path);
        }
        // NBD has no way for a server to ask clients to leave: hang up once they have their answers.
        for connection in self.connections.values_mut() {
            connection.begin_close();
        }
        self.flush();
        self.begin_grace();
    }

    fn resize(&mut self) -> Option<&mut dyn Resize> {
        Some(self)
    }

    fn abandon(mut self: Box<Self>) {
        self.listener = None;
        self.connections.clear();
        self.owners.clear();
    }
}

impl Resize for NbdFrontend {
    fn set_size(&mut self, size_bytes: u64) {
        self.export.size_bytes = size_bytes;
    }
}

impl Drop for NbdFrontend {
    fn drop(&mut self) {
        self.begin_close();
        let ids: Vec<RequestId> = self.owners.keys().copied().collect();
        for id in ids {
            self.complete(id, Err(IoFault::ShuttingDown));
        }
        self.flush();
    }
}
