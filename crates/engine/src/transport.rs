//! Buffers between the loop and its sockets: input in recycled chunks, output gathered.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;

/// Chunks kept for reuse per owner; more in flight than this are allocated and freed.
const CHUNKS_RETAINED_MAX: usize = 4;

/// Slices handed to one gathering write; the kernel's own limit is 1024.
const SLICES_PER_WRITE_MAX: usize = 256;

/// Memory for input. Payloads are handed out as [`Bytes`] that share a chunk with their
/// neighbours, without a copy; a chunk is reused once all of them are dropped.
#[derive(Debug)]
pub struct ChunkBuffer {
    current: BytesMut,
    retired: VecDeque<BytesMut>,
    chunk_bytes: usize,
}

impl ChunkBuffer {
    #[must_use]
    pub fn new(chunk_bytes: usize) -> Self {
        Self {
            current: touched(chunk_bytes),
            retired: VecDeque::new(),
            chunk_bytes,
        }
    }

    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.current
    }

    /// Hands out the first `length` bytes.
    pub fn take(&mut self, length: usize) -> Bytes {
        self.current.split_to(length).freeze()
    }

    /// Drops the first `length` bytes.
    pub fn skip(&mut self, length: usize) {
        let _ = self.current.split_to(length);
    }

    /// Makes room for `wanted` more bytes behind those that are there.
    pub fn reserve(&mut self, wanted: usize) {
        if self.current.capacity() - self.current.len() >= wanted {
            return;
        }
        let needed = self.current.len() + wanted;
        let mut next = self
            .recycled(needed)
            .unwrap_or_else(|| touched(needed.max(self.chunk_bytes)));
        next.extend_from_slice(&self.current);
        self.current.clear();
        let retired = std::mem::replace(&mut self.current, next);
        if self.retired.len() < CHUNKS_RETAINED_MAX {
            self.retired.push_back(retired);
        }
    }

    fn recycled(&mut self, needed: usize) -> Option<BytesMut> {
        let target = needed.max(self.chunk_bytes);
        let index = self
            .retired
            .iter_mut()
            .position(|chunk| chunk.try_reclaim(target))?;
        self.retired.remove(index)
    }

    /// One read into the free room. `Ok(None)`: nothing there now; `Ok(Some(0))`: the end.
    pub fn fill(&mut self, source: impl AsFd) -> io::Result<Option<usize>> {
        read_into(source, &mut self.current)
    }
}

/// A chunk whose every page is there already.
///
/// The kernel answers a FUSE request with an I/O error when it cannot copy it to its reader, and it cannot
/// bring in a page for a process that is being killed. With all pages there, a `kill -9` in the middle of a
/// read leaves the request unanswered instead, and the next engine gets it again.
fn touched(bytes: usize) -> BytesMut {
    let mut chunk = BytesMut::with_capacity(bytes);
    chunk.resize(bytes, 0);
    chunk.clear();
    chunk
}

/// One read into a buffer's spare capacity. `Ok(None)`: nothing there now; `Ok(Some(0))`: the end.
#[expect(
    unsafe_code,
    reason = "the kernel fills memory that was not initialised"
)]
pub fn read_into(source: impl AsFd, buffer: &mut BytesMut) -> io::Result<Option<usize>> {
    let count = match rustix::io::read(source, buffer.spare_capacity_mut()) {
        Ok((filled, _)) => filled.len(),
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let length = buffer.len() + count;
    // SAFETY: the kernel has initialised `count` bytes of the spare capacity, which
    // begins at the old length, so all bytes below the new length are initialised.
    unsafe { buffer.set_len(length) };
    Ok(Some(count))
}

/// Output that waits for a descriptor to take it, in order.
#[derive(Debug, Default)]
pub struct OutQueue {
    segments: VecDeque<Bytes>,
    queued_bytes: usize,
}

impl OutQueue {
    pub fn push(&mut self, segment: Bytes) {
        if !segment.is_empty() {
            self.queued_bytes += segment.len();
            self.segments.push_back(segment);
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub fn clear(&mut self) {
        self.segments.clear();
        self.queued_bytes = 0;
    }

    /// Writes as much as `sink` takes now. `Ok(true)`: nothing is left.
    pub fn flush(&mut self, sink: impl AsFd) -> io::Result<bool> {
        let sink = sink.as_fd();
        while !self.segments.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE_MAX];
            let count = self.segments.len().min(SLICES_PER_WRITE_MAX);
            for (slice, segment) in slices.iter_mut().zip(&self.segments) {
                *slice = IoSlice::new(segment);
            }
            match rustix::io::writev(sink, &slices[..count]) {
                Ok(written) => self.advance(written),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, mut written: usize) {
        self.queued_bytes -= written;
        while written > 0 {
            let first = self
                .segments
                .front_mut()
                .expect("wrote no more than was queued");
            if first.len() > written {
                let _ = first.split_to(written);
                return;
            }
            written -= first.len();
            self.segments.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn what_goes_in_comes_out_across_chunks_and_partial_writes() {
        let (left, right) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut queue = OutQueue::default();
        let mut expected = Vec::new();
        for index in 0..2000u32 {
            let segment: Vec<u8> = (0..(index % 977))
                .map(|byte| (byte ^ index) as u8)
                .collect();
            expected.extend_from_slice(&segment);
            queue.push(Bytes::from(segment));
        }
        let mut buffer = ChunkBuffer::new(64 << 10);
        let mut held = Vec::new();
        let mut received = Vec::new();
        while received.len() < expected.len() {
            queue.flush(&left).unwrap();
            buffer.reserve(8 << 10);
            if buffer.fill(&right).unwrap().is_some() {
                let part = buffer.take(buffer.data().len());
                received.extend_from_slice(&part);
                held.push(part);
                if held.len() > 20 {
                    held.clear();
                }
            }
        }
        assert!(queue.is_empty() && queue.queued_bytes() == 0);
        assert_eq!(received, expected);
    }
}
