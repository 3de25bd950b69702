//! The sending side of a connection, shared by its reader and the workers that answer for it.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use block_core::Epoch;
use block_core::wire::{Frame, GoodbyeReason, Request, RequestId};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::store::lock;

pub(crate) struct Replies {
    stream: TcpStream,
    line: Mutex<Line>,
    line_is_free: Condvar,
    in_flight: Mutex<InFlight>,
    changed: Condvar,
    in_flight_bytes_max: usize,
    /// Why nothing can be sent any more.
    broken: OnceLock<io::Error>,
}

/// Who sends, and what waits behind it: frames must not mix, and workers do not wait for each other's.
#[derive(Default)]
struct Line {
    taken: bool,
    waiting: VecDeque<Waiting>,
}

/// The reply to a job, and what the job counts for until it is sent.
struct Waiting {
    frame: Vec<u8>,
    sent: usize,
    job_bytes: usize,
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
            line: Mutex::new(Line::default()),
            line_is_free: Condvar::new(),
            in_flight: Mutex::new(InFlight::default()),
            changed: Condvar::new(),
            in_flight_bytes_max: in_flight_bytes_max as usize,
            broken: OnceLock::new(),
        }
    }

    /// Sends bytes that are whole frames, and what waits before and behind them. A client that does not take them in time
    /// has its connection closed, which also ends its reader.
    pub fn send(&self, frames: &[u8]) -> io::Result<()> {
        let guard = lock(&self.line);
        let mut line = self
            .line_is_free
            .wait_while(guard, |line| line.taken)
            .unwrap_or_else(PoisonError::into_inner);
        line.taken = true;
        drop(line);
        let sent = self.write_waiting().and_then(|()| self.write(frames));
        self.write_waiting_and_leave().and(sent)
    }

    /// Sends the reply to a job, for a worker who has other connections to work for: what the line does not take at once is
    /// left to whoever sends already, or to a thread of its own. The job counts until its reply is sent.
    fn send_for_job(self: &Arc<Self>, frame: Vec<u8>, job_bytes: usize) {
        let mut line = lock(&self.line);
        line.waiting.push_back(Waiting {
            frame,
            sent: 0,
            job_bytes,
        });
        if line.taken {
            return;
        }
        line.taken = true;
        drop(line);
        while self.write_what_is_taken() {
            if self.leave_line() {
                return;
            }
        }
        let replies = self.clone();
        let patient = move || {
            let _ = replies.write_waiting_and_leave();
        };
        let started = std::thread::Builder::new()
            .name("replica-late".to_owned())
            .spawn(patient);
        if started.is_err() {
            let _ = self.write_waiting_and_leave();
        }
    }

    /// Sends what waits, as far as the line takes it without waiting. Only for who has taken the line. Whether all is sent.
    fn write_what_is_taken(&self) -> bool {
        while let Some(mut next) = self.next_waiting() {
            while next.sent < next.frame.len() {
                let rest = &next.frame[next.sent..];
                match rustix::net::send(
                    &self.stream,
                    rest,
                    SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                ) {
                    Ok(count) => next.sent += count,
                    Err(Errno::INTR) => {}
                    // Errors are for the patient one to find.
                    Err(_) => {
                        lock(&self.line).waiting.push_front(next);
                        return false;
                    }
                }
            }
            self.end_job(next.job_bytes);
        }
        true
    }

    /// Sends what waits, however long the client takes. Only for who has taken the line.
    fn write_waiting(&self) -> io::Result<()> {
        let mut result = Ok(());
        while let Some(next) = self.next_waiting() {
            // Behind an error nothing is sent any more, and nothing counts any more.
            if result.is_ok() {
                result = self.write(&next.frame[next.sent..]);
            }
            self.end_job(next.job_bytes);
        }
        result
    }

    fn next_waiting(&self) -> Option<Waiting> {
        lock(&self.line).waiting.pop_front()
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(bytes).inspect_err(|error| {
            let _ = self.broken.set(error.kind().into());
            let _ = self.stream.shutdown(Shutdown::Both);
        })
    }

    /// Why the client gets no more replies, if it does not: whoever found that out, and for whichever reply.
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.get()
    }

    fn write_waiting_and_leave(&self) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            result = self.write_waiting().and(result);
            if self.leave_line() {
                return result;
            }
        }
    }

    /// Gives the line to the next, unless something came to wait behind us just now.
    fn leave_line(&self) -> bool {
        let mut line = lock(&self.line);
        if !line.waiting.is_empty() {
            return false;
        }
        line.taken = false;
        self.line_is_free.notify_one();
        true
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
            .unwrap_or_else(PoisonError::into_inner);
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
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// What came of a job, and whether the connection ends with it.
pub(crate) struct Answer {
    pub frame: Frame,
    pub ending: Option<GoodbyeReason>,
}

impl Answer {
    /// For a worker of the pool, whose job counts for this much.
    pub fn send_for_job(self, replies: &Arc<Replies>, job_bytes: usize) {
        if self.ending.is_none() {
            replies.send_for_job(self.frame.to_vec(), job_bytes);
        } else {
            self.send(replies);
            replies.end_job(job_bytes);
        }
    }

    pub fn send(self, replies: &Replies) {
        if replies.send_frame(&self.frame).is_ok()
            && let Some(reason) = self.ending
        {
            replies.goodbye(reason, "a newer engine or connection was accepted");
            let _ = replies.stream.shutdown(Shutdown::Read);
        }
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
