//! Waiting for bytes, awake for a moment before asleep.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Looks for data without sleeping, for as long as that has been paying.
///
/// Waking a thread costs more than a small request does. So while requests come within the limit, the reader polls up to
/// the limit before it sleeps; a poll that was in vain stops that until a sleep turns out short. An idle connection
/// sleeps. Between two looks it lets others run: the engine that it waits for may need this very core.
pub(crate) struct BusyPoll {
    limit: Duration,
    pays: bool,
}

impl BusyPoll {
    pub fn new(limit: Duration) -> Self {
        Self { limit, pays: false }
    }

    pub fn receive(&mut self, stream: &TcpStream, space: &mut [u8]) -> Result<usize, Errno> {
        if self.pays {
            let begin = Instant::now();
            loop {
                match rustix::net::recv(stream, &mut *space, RecvFlags::DONTWAIT) {
                    Err(Errno::AGAIN) if begin.elapsed() < self.limit => {
                        rustix::thread::sched_yield();
                    }
                    Err(Errno::AGAIN) => break,
                    result => return result.map(|(count, _)| count),
                }
            }
            self.pays = false;
        }
        let begin = Instant::now();
        let result = rustix::net::recv(stream, space, RecvFlags::empty()).map(|(count, _)| count);
        self.pays = begin.elapsed() < self.limit;
        result
    }
}
