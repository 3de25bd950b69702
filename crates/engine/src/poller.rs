//! Readiness of descriptors for the one loop that owns them all, and a mailbox that wakes it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Who a descriptor belongs to, and which of that owner's it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    pub owner: Owner,
    pub index: u32,
}

/// The parts of the engine that have descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    Frontend,
    Replica,
    Mailbox,
}

impl Token {
    #[must_use]
    pub fn new(owner: Owner, index: u32) -> Self {
        Self { owner, index }
    }

    fn encode(self) -> u64 {
        (self.owner as u64) << 32 | u64::from(self.index)
    }

    fn decode(raw: u64) -> Self {
        let owner = match raw >> 32 {
            0 => Owner::Frontend,
            1 => Owner::Replica,
            _ => Owner::Mailbox,
        };
        Self {
            owner,
            index: (raw & 0xffff_ffff) as u32,
        }
    }
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug)]
pub struct Readiness {
    pub token: Token,
    pub readable: bool,
    pub writable: bool,
}

/// A level-triggered epoll set. Errors and hang-ups count as readable: the read tells which.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    pub fn watch(&self, source: impl AsFd, token: Token) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.encode());
        Ok(epoll::add(
            &self.epoll,
            source,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    /// Asks for (or ends) reports that `source` takes more output.
    pub fn watch_writable(&self, source: impl AsFd, token: Token, wanted: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.encode());
        let mut flags = epoll::EventFlags::IN;
        if wanted {
            flags |= epoll::EventFlags::OUT;
        }
        Ok(epoll::modify(&self.epoll, source, data, flags)?)
    }

    /// The owner has no room for more input: asks for reports of output only, or of nothing.
    pub fn watch_no_input(&self, source: impl AsFd, token: Token, output: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.encode());
        let flags = if output {
            epoll::EventFlags::OUT
        } else {
            // That the other side is gone is reported all the same; once is enough.
            epoll::EventFlags::ET
        };
        Ok(epoll::modify(&self.epoll, source, data, flags)?)
    }

    pub fn forget(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Adds what is ready to `ready`; waits at most `timeout_us` (`None`: without limit).
    pub fn wait(&self, timeout_us: Option<u64>, ready: &mut Vec<Readiness>) -> io::Result<()> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let timeout = timeout_us.map(|us| Timespec {
            tv_sec: i64::try_from(us / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: (us % 1_000_000) as i64 * 1_000,
        });
        let count = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let inputs = epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        ready.extend(events[..count].iter().map(|event| {
            let flags = event.flags;
            let data = event.data;
            Readiness {
                token: Token::decode(data.u64()),
                readable: flags.intersects(inputs),
                writable: flags.contains(epoll::EventFlags::OUT),
            }
        }));
        Ok(())
    }
}

/// Values from other threads for the loop; sending one wakes it.
#[derive(Debug)]
pub struct Mailbox<T> {
    receiver: Receiver<T>,
    sender: Sender<T>,
    wake: Arc<OwnedFd>,
}

/// The sending end of a [`Mailbox`].
#[derive(Debug)]
pub struct Post<T> {
    sender: Sender<T>,
    wake: Arc<OwnedFd>,
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            wake: Arc::clone(&self.wake),
        }
    }
}

impl<T> Mailbox<T> {
    pub fn new(poller: &Poller, token: Token) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        poller.watch(&wake, token)?;
        let (sender, receiver) = channel();
        Ok(Self {
            receiver,
            sender,
            wake: Arc::new(wake),
        })
    }

    #[must_use]
    pub fn post(&self) -> Post<T> {
        Post {
            sender: self.sender.clone(),
            wake: Arc::clone(&self.wake),
        }
    }

    /// All that has arrived; the wake-up is taken back first, so that none is lost.
    pub fn drain(&self) -> impl Iterator<Item = T> + '_ {
        let mut counter = [0u8; 8];
        // It fails only where there was no wake-up to take back.
        let _ = rustix::io::read(&*self.wake, &mut counter);
        self.receiver.try_iter()
    }
}

impl<T> Post<T> {
    /// Sends a value; `false` when the loop has ended.
    pub fn send(&self, value: T) -> bool {
        let sent = self.sender.send(value).is_ok();
        // A full counter still wakes: the write's failure loses nothing.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        sent
    }
}
