//! The thread between a plain socket and an encrypted connection.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::{Connection, IoState};

/// Moved at once, in each direction.
const CHUNK_BYTES: usize = 128 << 10;

/// How long the other side may take to hang up, once this side has.
const LINGER: Duration = Duration::from_secs(5);

/// Starts moving bytes, until both sides have hung up or one fails. What one side does not take, the other is not asked for: the
/// back-pressure of TCP goes through.
pub fn start(mut session: Connection, line: TcpStream, plain: UnixStream) -> io::Result<()> {
    // Bounded by a chunk: more is taken only when all of it is sent.
    session.set_buffer_limit(None);
    line.set_nonblocking(true)?;
    plain.set_nonblocking(true)?;
    let relay = Relay {
        session,
        line,
        plain,
        scratch: vec![0; CHUNK_BYTES],
        received: Received::default(),
        line_ended: false,
        plain_ended: false,
    };
    std::thread::Builder::new()
        .name("tls-line".to_owned())
        .spawn(move || relay.run())
        .map(drop)
}

struct Relay {
    session: Connection,
    /// Where encrypted bytes come from and go to.
    line: TcpStream,
    plain: UnixStream,
    scratch: Vec<u8>,
    /// Decrypted, and not yet taken by `plain`.
    received: Received,
    line_ended: bool,
    plain_ended: bool,
}

#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    taken: usize,
}

impl Relay {
    fn run(mut self) {
        if let Err(error) = self.relay() {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "an encrypted line has ended"
            );
        }
        // Whoever holds the other end of the pair sees the end of the line, as without TLS.
        let _ = self.plain.shutdown(Shutdown::Both);
        let _ = self.line.shutdown(Shutdown::Both);
    }

    fn relay(&mut self) -> io::Result<()> {
        // What came with the end of the handshake: no poll tells of it.
        let state = self.session.process_new_packets();
        let state = state.map_err(io::Error::other)?;
        self.received.read_from(&mut self.session, &state)?;
        self.line_ended = state.peer_has_closed();
        loop {
            self.send()?;
            self.deliver()?;
            let is_sent = !self.session.wants_write();
            let is_delivered = self.received.rest().is_empty();
            if self.line_ended && self.plain_ended && is_sent && is_delivered {
                return Ok(());
            }
            let flags = |read: bool, write: bool| {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, read);
                flags.set(PollFlags::OUT, write);
                flags
            };
            let of_line = flags(is_delivered && !self.line_ended, !is_sent);
            let of_plain = flags(is_sent && !self.plain_ended, !is_delivered);
            let (line_ready, plain_ready) = self.wait(of_line, of_plain)?;
            if line_ready && of_line.contains(PollFlags::IN) {
                self.receive()?;
            }
            if plain_ready && of_plain.contains(PollFlags::IN) {
                self.take()?;
            }
        }
    }

    /// Which of the two has news. One of whom nothing is wanted is left out: its hanging up would be told for ever.
    fn wait(&self, of_line: PollFlags, of_plain: PollFlags) -> io::Result<(bool, bool)> {
        let mut waiting = [
            PollFd::new(&self.line, of_line),
            PollFd::new(&self.plain, of_plain),
        ];
        let first = usize::from(of_line.is_empty());
        let last = if of_plain.is_empty() { 1 } else { 2 };
        let linger = Timespec::try_from(LINGER).expect("seconds");
        let until = self.plain_ended.then_some(&linger);
        match poll(&mut waiting[first..last], until) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok((
                !waiting[0].revents().is_empty(),
                !waiting[1].revents().is_empty(),
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what is encrypted, as far as the connection takes it.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.line) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.plain_ended {
            // Fails where the other side is gone already, which is what it says.
            let _ = self.line.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Gives what was decrypted, as far as it is taken.
    fn deliver(&mut self) -> io::Result<()> {
        while !self.received.rest().is_empty() {
            match self.plain.write(self.received.rest()) {
                Ok(count) => self.received.taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.line_ended {
            let _ = self.plain.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Takes what the connection has, and decrypts it.
    fn receive(&mut self) -> io::Result<()> {
        let count = match self.line.read(&mut self.scratch) {
            Ok(count) => count,
            Err(error) if is_nothing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        // An end without a word is one, too: a frame that was cut off is noticed by whoever reads frames.
        self.line_ended = count == 0;
        self.received.clear();
        let mut encrypted = &self.scratch[..count];
        while !encrypted.is_empty() {
            self.session.read_tls(&mut encrypted)?;
            let state = self.session.process_new_packets();
            let state = state.map_err(io::Error::other)?;
            self.received.read_from(&mut self.session, &state)?;
            self.line_ended |= state.peer_has_closed();
        }
        Ok(())
    }

    /// Takes what is to be sent, and encrypts it.
    fn take(&mut self) -> io::Result<()> {
        match self.plain.read(&mut self.scratch) {
            Ok(0) => {
                self.plain_ended = true;
                self.session.send_close_notify();
                Ok(())
            }
            Ok(count) => self.session.writer().write_all(&self.scratch[..count]),
            Err(error) if is_nothing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Received {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }

    fn read_from(&mut self, session: &mut Connection, state: &IoState) -> io::Result<()> {
        let begin = self.bytes.len();
        self.bytes
            .resize(begin + state.plaintext_bytes_to_read(), 0);
        session.reader().read_exact(&mut self.bytes[begin..])
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
