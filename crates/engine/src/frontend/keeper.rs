//! The keeper: a process that outlives engines holds their FUSE connections for their successors.
//!
//! A FUSE connection lives as long as one descriptor of it is open. The engine leaves copies of its
//! descriptors (the FUSE channel and the loop device) with the keeper; after a kill -9 the next engine
//! fetches them and goes on, and users of the device only notice a pause. When nobody fetches them
//! within the grace period the keeper closes them, and the kernel turns the pause into I/O errors.
//!
//! One unix socket, one connection per engine, one line of JSON per message; descriptors travel beside a
//! line as ancillary data:
//!
//! ```text
//! engine                                      keeper
//!   {"volume":"v","verb":"fetch"}               →
//!   ←   {"kept":true}  + channel, device
//!   {"volume":"v","verb":"keep"} + channel, device →
//!   ←   {"kept":true}
//!   {"volume":"v","verb":"forget"}              →
//!   ←   {"kept":false}
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Messages are one short line; more is no engine.
const LINE_BYTES_MAX: usize = 1024;

/// An engine that does not hear from its keeper in this time goes on without one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What is kept for one volume.
#[derive(Debug)]
pub struct Kept {
    pub channel: OwnedFd,
    pub device: File,
}

#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    volume: String,
    verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Fetch,
    Keep,
    Forget,
}

#[derive(Debug, Serialize, Deserialize)]
struct Told {
    kept: bool,
}

/// An engine's side. The connection stays open: its end tells the keeper that the engine is gone.
pub struct KeeperClient {
    socket: UnixStream,
    volume: String,
}

impl KeeperClient {
    pub fn connect(path: &Path, volume: &str) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self {
            socket,
            volume: volume.to_owned(),
        })
    }

    /// What a predecessor has left, if it has.
    pub fn fetch(&mut self) -> io::Result<Option<Kept>> {
        self.ask(Verb::Fetch, &[]).map(|(_, kept)| kept)
    }

    /// Leaves copies of both descriptors.
    pub fn keep(&mut self, channel: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
        let (told, _) = self.ask(Verb::Keep, &[channel, device])?;
        if told.kept {
            Ok(())
        } else {
            Err(io::Error::other("the keeper did not take it"))
        }
    }

    /// Takes the copies back: the device is being detached.
    pub fn forget(&mut self) {
        if let Err(error) = self.ask(Verb::Forget, &[]) {
            tracing::warn!(volume.name = %self.volume, %error, "the keeper did not let go");
        }
    }

    fn ask(&mut self, verb: Verb, fds: &[BorrowedFd<'_>]) -> io::Result<(Told, Option<Kept>)> {
        send_line(
            &self.socket,
            &Ask {
                volume: self.volume.clone(),
                verb,
            },
            fds,
        )?;
        let (told, kept) = receive_line(&self.socket)?
            .ok_or_else(|| io::Error::other("the keeper has hung up"))?;
        Ok((told, kept))
    }
}

/// The keeper's side; threads of it end with the process.
pub struct Keeper {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    kept: Mutex<HashMap<String, Entry>>,
    grace: Duration,
}

struct Entry {
    kept: Kept,
    /// Which connection is using it, if one is: counts up with every connection.
    holder: Option<u64>,
}

impl Keeper {
    /// Serves at `path`, readable by its owner only. What an engine leaves is closed `grace` after its death.
    pub fn start(path: &Path, grace: Duration) -> io::Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let shared = Arc::new(Shared {
            kept: Mutex::default(),
            grace,
        });
        let serving = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("keeper".into())
            .spawn(move || {
                for (number, socket) in (1u64..).zip(listener.incoming()) {
                    let Ok(socket) = socket else { continue };
                    let serving = Arc::clone(&serving);
                    std::thread::spawn(move || serving.serve(number, &socket));
                }
            })?;
        Ok(Self {
            path: path.to_owned(),
            shared,
        })
    }

    /// The volumes that are kept.
    #[must_use]
    pub fn volumes(&self) -> Vec<String> {
        let mut names: Vec<_> = self.shared.lock().keys().cloned().collect();
        names.sort();
        names
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.kept
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn serve(&self, number: u64, socket: &UnixStream) {
        while let Ok(Some((ask, kept))) = receive_line::<Ask>(socket) {
            if self.answer(number, socket, ask, kept).is_err() {
                break;
            }
        }
        self.engine_gone(number);
    }

    fn answer(
        &self,
        number: u64,
        socket: &UnixStream,
        ask: Ask,
        kept: Option<Kept>,
    ) -> io::Result<()> {
        let mut entries = self.lock();
        match ask.verb {
            Verb::Keep => {
                let taken = kept.is_some();
                if let Some(kept) = kept {
                    entries.insert(
                        ask.volume,
                        Entry {
                            kept,
                            holder: Some(number),
                        },
                    );
                }
                send_line(socket, &Told { kept: taken }, &[])
            }
            Verb::Fetch => match entries.get_mut(&ask.volume) {
                Some(entry) => {
                    entry.holder = Some(number);
                    let fds = [entry.kept.channel.as_fd(), entry.kept.device.as_fd()];
                    send_line(socket, &Told { kept: true }, &fds)
                }
                None => send_line(socket, &Told { kept: false }, &[]),
            },
            Verb::Forget => {
                entries.remove(&ask.volume);
                send_line(socket, &Told { kept: false }, &[])
            }
        }
    }

    /// An engine that closed its device has taken its descriptors back before; what is left now belongs
    /// to one that was killed, and waits for a successor.
    fn engine_gone(&self, number: u64) {
        let mut orphans = Vec::new();
        for (volume, entry) in self.lock().iter_mut() {
            if entry.holder == Some(number) {
                entry.holder = None;
                orphans.push(volume.clone());
            }
        }
        if orphans.is_empty() {
            return;
        }
        std::thread::sleep(self.grace);
        let mut entries = self.lock();
        for volume in orphans {
            if entries
                .get(&volume)
                .is_some_and(|entry| entry.holder.is_none())
            {
                tracing::warn!(volume.name = %volume, "no engine came back: its device fails now");
                entries.remove(&volume);
            }
        }
    }
}

fn send_line<T: Serialize>(
    socket: &UnixStream,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&line)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent == line.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// One message and the two descriptors beside it, if they came. `None`: the end.
fn receive_line<T: serde::de::DeserializeOwned>(
    socket: &UnixStream,
) -> io::Result<Option<(T, Option<Kept>)>> {
    let mut line = Vec::new();
    let mut fds: Vec<OwnedFd> = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut buffer = [0u8; LINE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(&mut buffer)];
        let received = recvmsg(socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        line.extend_from_slice(&buffer[..received.bytes]);
        if line.len() > LINE_BYTES_MAX {
            return Err(io::Error::other("a line without end"));
        }
    }
    let mut fds = fds.into_iter();
    let kept = match (fds.next(), fds.next()) {
        (Some(channel), Some(device)) => Some(Kept {
            channel,
            device: File::from(device),
        }),
        _ => None,
    };
    Ok(Some((serde_json::from_slice(&line)?, kept)))
}
