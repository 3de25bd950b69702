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
//!
//! The kernel sends unanswered requests again when the successor asks for it, but not one that the
//! predecessor is just being handed. So nothing is given away before the predecessor's connection has ended, which
//! it does when the last of its threads has left the kernel: `fetch` waits for that, and is refused
//! (`{"kept":true,"busy":true}`, without descriptors) where an engine still lives.
//!
//! A keeper that dies takes nothing with it: the engine has its own descriptors, and leaves copies
//! with the next keeper at the same path as soon as there is one. Only an engine that dies in between is noticed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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

/// How long a fetch waits for the end of the engine before: it has been killed, or is not going to
/// end. Less than [`ANSWER_TIMEOUT`].
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(3);

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
    /// Another engine has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    busy: bool,
}

impl Told {
    const KEPT: Told = Told {
        kept: true,
        busy: false,
    };
    const NOT_KEPT: Told = Told {
        kept: false,
        busy: false,
    };
    const BUSY: Told = Told {
        kept: true,
        busy: true,
    };
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
        let (told, kept) = self.ask(Verb::Fetch, &[])?;
        if told.busy {
            return Err(another_engine());
        }
        if told.kept && kept.is_none() {
            return Err(io::Error::other("the keeper sent no descriptors"));
        }
        Ok(kept)
    }

    /// Leaves copies of both descriptors.
    pub fn keep(&mut self, channel: BorrowedFd<'_>, device: BorrowedFd<'_>) -> io::Result<()> {
        let (told, _) = self.ask(Verb::Keep, &[channel, device])?;
        match told {
            Told { busy: true, .. } => Err(another_engine()),
            Told { kept: true, .. } => Ok(()),
            Told { kept: false, .. } => Err(io::Error::other("the keeper did not take it")),
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

fn another_engine() -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        "another engine of this volume is connected to the keeper; end that one first",
    )
}

/// Readable when the keeper has hung up: it never speaks first.
impl AsFd for KeeperClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The keeper's side; threads of it end with the process.
pub struct Keeper {
    path: PathBuf,
    /// The socket's inode: a keeper that follows at the same path has another.
    inode: u64,
    shared: Arc<Shared>,
}

struct Shared {
    kept: Mutex<HashMap<String, Entry>>,
    /// A holder has gone.
    released: Condvar,
    grace: Duration,
}

struct Entry {
    kept: Kept,
    holder: Holder,
}

/// Connections are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Connection(u64),
    /// Nobody, since that connection has ended: who waits out its grace looks whether it still is that one.
    NobodySince(u64),
}

impl Entry {
    fn is_held_by_another_than(&self, number: u64) -> bool {
        matches!(self.holder, Holder::Connection(holder) if holder != number)
    }
}

impl Keeper {
    /// Serves at `path`, readable by its owner only. What an engine leaves is closed `grace` after its death.
    pub fn start(path: &Path, grace: Duration) -> io::Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let inode = std::fs::metadata(path)?.ino();
        let shared = Arc::new(Shared {
            kept: Mutex::default(),
            released: Condvar::new(),
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
            inode,
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
        if std::fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, number: u64, socket: &UnixStream) {
        while let Ok(Some((ask, kept))) = receive_line::<Ask>(socket) {
            if self.answer(number, socket, ask, kept).is_err() {
                break;
            }
        }
        let orphans = self.release(number);
        if !orphans.is_empty() {
            std::thread::sleep(self.grace);
            self.expire(number, &orphans);
        }
    }

    fn answer(
        &self,
        number: u64,
        socket: &UnixStream,
        ask: Ask,
        kept: Option<Kept>,
    ) -> io::Result<()> {
        let mut entries = self.lock();
        if ask.verb == Verb::Fetch {
            entries = self
                .released
                .wait_timeout_while(entries, PREDECESSOR_TIMEOUT, |entries| {
                    entries
                        .get(&ask.volume)
                        .is_some_and(|entry| entry.is_held_by_another_than(number))
                })
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let busy = entries
            .get(&ask.volume)
            .is_some_and(|entry| entry.is_held_by_another_than(number));
        if busy {
            return send_line(socket, &Told::BUSY, &[]);
        }
        match (ask.verb, kept) {
            (Verb::Keep, None) => send_line(socket, &Told::NOT_KEPT, &[]),
            (Verb::Keep, Some(kept)) => {
                let holder = Holder::Connection(number);
                entries.insert(ask.volume, Entry { kept, holder });
                send_line(socket, &Told::KEPT, &[])
            }
            (Verb::Fetch, _) => match entries.get_mut(&ask.volume) {
                Some(entry) => {
                    entry.holder = Holder::Connection(number);
                    let fds = [entry.kept.channel.as_fd(), entry.kept.device.as_fd()];
                    send_line(socket, &Told::KEPT, &fds)
                }
                None => send_line(socket, &Told::NOT_KEPT, &[]),
            },
            (Verb::Forget, _) => {
                entries.remove(&ask.volume);
                send_line(socket, &Told::NOT_KEPT, &[])
            }
        }
    }

    /// An engine that closed its device has taken its descriptors back before; what is left now belongs
    /// to one that was killed, and waits for a successor.
    fn release(&self, number: u64) -> Vec<String> {
        let mut orphans = Vec::new();
        for (volume, entry) in self.lock().iter_mut() {
            if entry.holder == Holder::Connection(number) {
                entry.holder = Holder::NobodySince(number);
                orphans.push(volume.clone());
            }
        }
        self.released.notify_all();
        orphans
    }

    /// Lets go of what nobody has fetched since connection `number` ended. A successor that was killed as well
    /// has a grace of its own.
    fn expire(&self, number: u64, orphans: &[String]) {
        let mut entries = self.lock();
        for volume in orphans {
            if entries
                .get(volume)
                .is_some_and(|entry| entry.holder == Holder::NobodySince(number))
            {
                tracing::warn!(volume.name = %volume, "no engine came back: its device fails now");
                entries.remove(volume);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(grace: Duration) -> (tempfile::TempDir, Keeper, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keeper");
        let keeper = Keeper::start(&path, grace).unwrap();
        (folder, keeper, path)
    }

    fn leave(client: &mut KeeperClient) {
        let file = File::open("/dev/null").unwrap();
        client.keep(file.as_fd(), file.as_fd()).unwrap();
    }

    #[test]
    fn a_successor_waits_for_the_end_of_its_predecessor_and_no_longer() {
        let (_folder, keeper, path) = keeper(Duration::from_secs(60));
        let mut first = KeeperClient::connect(&path, "v").unwrap();
        assert!(first.fetch().unwrap().is_none());
        leave(&mut first);
        let waiting = {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut second = KeeperClient::connect(&path, "v").unwrap();
                let kept = second.fetch();
                (second, kept)
            })
        };
        drop(first);
        let (mut second, kept) = waiting.join().unwrap();
        assert!(kept.unwrap().is_some());

        // The second lives: a third gets nothing, and cannot take anything away either.
        let mut third = KeeperClient::connect(&path, "v").unwrap();
        let refused = third.fetch().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy, "{refused}");
        third.forget();
        assert_eq!(keeper.volumes(), ["v"]);
        second.forget();
        assert!(keeper.volumes().is_empty());
    }

    #[test]
    fn a_keeper_that_ends_leaves_its_successors_socket() {
        let (_folder, first, path) = keeper(Duration::from_secs(60));
        let second = Keeper::start(&path, Duration::from_secs(60)).unwrap();
        drop(first);
        leave(&mut KeeperClient::connect(&path, "v").unwrap());
        assert_eq!(second.volumes(), ["v"]);
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn each_death_has_a_grace_of_its_own() {
        let (_folder, keeper, _) = keeper(Duration::from_secs(60));
        let shared = &keeper.shared;
        let file = || File::open("/dev/null").unwrap();
        let kept = Kept {
            channel: file().into(),
            device: file(),
        };
        let holder = Holder::Connection(7);
        shared.lock().insert("v".into(), Entry { kept, holder });
        let orphans = shared.release(7);
        assert_eq!(orphans, ["v"]);

        // The next engine fetches it and is killed before the first one's grace is over.
        shared.lock().get_mut("v").unwrap().holder = Holder::Connection(8);
        shared.expire(7, &orphans);
        assert_eq!(keeper.volumes(), ["v"], "in use");
        let orphans = shared.release(8);
        shared.expire(7, &orphans);
        assert_eq!(keeper.volumes(), ["v"], "within the second grace");
        shared.expire(8, &orphans);
        assert!(keeper.volumes().is_empty());
    }
}
