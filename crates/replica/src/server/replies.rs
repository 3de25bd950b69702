//! The sending side of a connection, shared by its reader and the workers that answer for it.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex};

use block_core::Epoch;
use block_core::wire::{Frame, GoodbyeReason, Request, RequestId};

use crate::store::lock;

pub(crate) struct Replies {
    stream: TcpStream,
    /// Held while sending: frames must not mix.
    sending: Mutex<()>,
    in_flight: Mutex<InFlight>,
    changed: Condvar,
    in_flight_bytes_max: usize,
}

#[derive(Default)]
struct InFlight {
    jobs: usize,
    bytes: usize,
    long_jobs: usize,
}

/// Requests of one connection that may wait in the pool, whatever their size.
const JOBS_MAX: usize = 256;
/// Requests of one connection that may have a thread of their own.
const LONG_JOBS_MAX: usize = 8;

impl Replies {
    pub fn new(stream: TcpStream, in_flight_bytes_max: u32) -> Self {
        Self {
            stream,
            sending: Mutex::new(()),
            in_flight: Mutex::new(InFlight::default()),
            changed: Condvar::new(),
            in_flight_bytes_max: in_flight_bytes_max as usize,
        }
    }

    /// Sends bytes that are whole frames. A client that does not take them in time has its connection closed, which
    /// also ends its reader.
    pub fn send(&self, frames: &[u8]) -> io::Result<()> {
        let _sending = lock(&self.sending);
        (&self.stream).write_all(frames).inspect_err(|_| {
            let _ = self.stream.shutdown(Shutdown::Both);
        })
    }

    pub fn send_frame(&self, frame: &Frame) -> io::Result<()> {
        self.send(&frame.to_vec())
    }

    /// Says why the connection ends, as far as the line still allows, and ends it.
    pub fn goodbye(&self, reason: GoodbyeReason, text: &str) {
        let request = Request::Goodbye {
            reason,
            text: text.to_owned(),
        };
        let _ = self.send_frame(&request.into_frame(RequestId(0), Epoch::NONE));
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits until the connection may have one more job of this size in the pool.
    pub fn begin_job(&self, bytes: usize) {
        let is_full = |now: &mut InFlight| {
            now.jobs > 0 && (now.jobs >= JOBS_MAX || now.bytes + bytes > self.in_flight_bytes_max)
        };
        let guard = lock(&self.in_flight);
        let mut now = self
            .changed
            .wait_while(guard, is_full)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        now.jobs += 1;
        now.bytes += bytes;
    }

    pub fn end_job(&self, bytes: usize) {
        let mut now = lock(&self.in_flight);
        now.jobs -= 1;
        now.bytes -= bytes;
        self.changed.notify_all();
    }

    /// Whether one more long job may start.
    pub fn begin_long_job(&self) -> bool {
        let mut now = lock(&self.in_flight);
        let free = now.long_jobs < LONG_JOBS_MAX;
        now.long_jobs += usize::from(free);
        free
    }

    pub fn end_long_job(&self) {
        lock(&self.in_flight).long_jobs -= 1;
        self.changed.notify_all();
    }

    /// Waits for all jobs, so that none outlives its connection.
    pub fn wait_for_jobs(&self) {
        let guard = lock(&self.in_flight);
        let busy = |now: &mut InFlight| now.jobs + now.long_jobs > 0;
        drop(
            self.changed
                .wait_while(guard, busy)
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// Reply frames that wait to be sent together. Its memory is used again without being zeroed again, so that data can be
/// read straight into it; it never grows past what is sent at once and one frame of the largest size.
#[derive(Default)]
pub(crate) struct OutBuffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl OutBuffer {
    /// Room for one more frame, with undefined content. It counts only once it is kept.
    pub fn space(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.filled + bytes;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.filled..end]
    }

    /// Adds what was put into [`OutBuffer::space`].
    pub fn keep(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.keep(bytes.len());
    }

    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub fn clear(&mut self) {
        self.filled = 0;
    }
}
