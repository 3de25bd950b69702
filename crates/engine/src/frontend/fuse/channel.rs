//! The descriptor of a FUSE connection: requests come out of it, answers go into it.
//!
//! The kernel copies a request straight into its reader's memory, and an answer out of it. If a page of that
//! memory is not there at that moment, and the process is just being killed, the kernel does not bring the page in:
//! the copy fails, and the *request* is answered with an I/O error for ever; there is nothing left to send again.
//! Without a keeper that is of no interest, since a killed engine's requests all fail. With one it is what a keeper
//! is there to prevent. Then requests and answers go through pipes: splicing copies between pages that the kernel
//! has allocated itself, so it cannot be interrupted, and a request is either still pending, or unanswered and
//! sent again, or answered. It costs a system call and a copy more each way. If the kernel has no memory for that, an answer goes
//! the plain way: better than none.
//!
//! Rejected: a keeper that reads and writes on the engine's behalf, which costs two wake-ups a request; memory
//! that is touched or locked before, since pages still move when the kernel compacts memory; io_uring's
//! registered buffers, which `/dev/fuse` refuses; FUSE over io_uring, which saves a wake-up each way, but whose requests
//! belong to the ring of one process: the kernel sends again what was read from a descriptor, while what a killed
//! process had taken from its ring stays unanswered until the connection is aborted, and fails then (Linux 6.18).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::abi::CHANNEL_READ_BYTES;
use crate::io::{BLOCK_BYTES, REQUEST_DATA_BYTES_MAX};
use crate::transport::ChunkBuffer;

/// A pipe holds so many bytes in pages that are filled. Each page of a request takes a page of the pipe, however
/// little of it is used, and the largest request has a page of headers and may begin in the middle of one: twice its size
/// is enough, and the kernel rounds to a power of two anyway.
const PIPE_BYTES: usize = 2 * REQUEST_DATA_BYTES_MAX as usize;
const _: () = assert!(PIPE_BYTES >= CHANNEL_READ_BYTES + 2 * BLOCK_BYTES as usize);

/// One end of a FUSE connection.
#[derive(Debug)]
pub struct Channel {
    fuse: OwnedFd,
    pipes: Option<Pipes>,
}

/// Both are empty between calls.
#[derive(Debug)]
struct Pipes {
    requests: Pipe,
    answers: Pipe,
}

#[derive(Debug)]
struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
}

impl Channel {
    /// Copies between the kernel and our memory.
    pub fn direct(fuse: OwnedFd) -> Self {
        Self { fuse, pipes: None }
    }

    /// Copies through pipes, so that a kill never fails a request.
    pub fn kill_safe(fuse: OwnedFd) -> Self {
        let pipes = Pipe::new(PIPE_BYTES).and_then(|requests| {
            let answers = Pipe::new(PIPE_BYTES)?;
            Ok(Pipes { requests, answers })
        });
        let pipes = pipes
            .inspect_err(|error| {
                tracing::warn!(
                    %error,
                    "cannot make a pipe of {PIPE_BYTES} bytes: raise fs.pipe-max-size or give the engine \
                     CAP_SYS_RESOURCE; until then a kill of the engine may fail a request in spite of the keeper"
                );
            })
            .ok();
        Self { fuse, pipes }
    }

    /// The next request. `None`: there is none now.
    pub fn receive(&self, input: &mut ChunkBuffer) -> io::Result<Option<Bytes>> {
        input.reserve(CHANNEL_READ_BYTES);
        let Some(pipes) = &self.pipes else {
            let length = input.fill(&self.fuse)?;
            return Ok(length.map(|length| input.take(length)));
        };
        let pipe = &pipes.requests;
        let (flags, limit) = (SpliceFlags::NONBLOCK, CHANNEL_READ_BYTES);
        let length = match splice(&self.fuse, None, &pipe.input, None, limit, flags) {
            Ok(length) => length,
            // Without memory for it now, the kernel is asked again.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        while input.data().len() < length {
            match input.fill(&pipe.output)? {
                Some(1..) => {}
                Some(0) | None => return Err(io::Error::other("a pipe lost part of a request")),
            }
        }
        Ok(Some(input.take(length)))
    }

    /// Sends an answer. It fails for a request that was aborted meanwhile: nobody is left to be told.
    pub fn answer(&self, header: &[u8], payload: &[u8]) {
        let slices = [IoSlice::new(header), IoSlice::new(payload)];
        if let Some(pipes) = &self.pipes
            && pipes.answers.pass_on(&slices, &self.fuse)
        {
            return;
        }
        // Without an answer the request would wait for ever. Of one that the kernel had taken, or did not want, it only says so again.
        let _ = rustix::io::writev(&self.fuse, &slices);
    }

    /// Sends a notification, which is short enough to be there or not.
    pub fn notify(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fuse, message)?;
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fuse.as_fd()
    }
}

impl Pipe {
    fn new(size_bytes: usize) -> io::Result<Self> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        fcntl_setpipe_size(&input, size_bytes)?;
        Ok(Self { output, input })
    }

    /// Sends a message through the pipe to `target`, in one piece. `false`: the kernel had no memory for it, or did not want it.
    fn pass_on(&self, slices: &[IoSlice<'_>], target: &OwnedFd) -> bool {
        let length = slices.iter().map(|slice| slice.len()).sum();
        let sent = match rustix::io::writev(&self.input, slices) {
            Ok(written) if written == length => {
                let flags = SpliceFlags::NONBLOCK;
                splice(&self.output, None, target, None, length, flags)
            }
            Ok(_) => Err(Errno::AGAIN),
            Err(error) => Err(error),
        };
        if sent == Ok(length) {
            return true;
        }
        self.empty();
        false
    }

    /// Throws away what is left of a message.
    fn empty(&self) {
        let mut scratch = vec![0; 64 << 10];
        while let Ok(1..) = rustix::io::read(&self.output, &mut scratch) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const PAGE_BYTES: usize = 4096;

    /// In the place of the kernel's end is a socket that takes a message with each call, as that does.
    fn channel() -> (Channel, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (fuse, kernel) = pair.expect("a pair of sockets");
        // The smallest that there is. As large as they should be not everybody may make them.
        let pipe = || Pipe::new(PAGE_BYTES).expect("a pipe");
        let (requests, answers) = (pipe(), pipe());
        let pipes = Some(Pipes { requests, answers });
        (Channel { fuse, pipes }, kernel)
    }

    /// What arrives of an answer with this many bytes, in one message and once.
    fn check(channel: &Channel, kernel: &OwnedFd, payload_bytes: usize) {
        let (header, payload) = ([1; 16], vec![2; payload_bytes]);
        channel.answer(&header, &payload);
        let mut arrived = vec![0; 64 << 10];
        let count = rustix::io::read(kernel, &mut arrived).expect("an answer");
        assert!(arrived[..count] == [&header[..], &payload].concat());
        let more = rustix::io::read(kernel, &mut arrived);
        assert_eq!(more, Err(Errno::AGAIN), "once");
    }

    #[test]
    fn an_answer_for_which_the_pipe_has_no_room_arrives_all_the_same() {
        let (channel, kernel) = channel();
        check(&channel, &kernel, 100);
        // More than a page: the rest of it finds no room.
        check(&channel, &kernel, 2 * PAGE_BYTES);
        check(&channel, &kernel, 100);
        // None of it does.
        let pipes = channel.pipes.as_ref().expect("made above");
        let filled = rustix::io::write(&pipes.answers.input, &[9; PAGE_BYTES]);
        assert_eq!(filled, Ok(PAGE_BYTES));
        check(&channel, &kernel, 100);
        check(&channel, &kernel, 100);
    }
}
