//! What ublk needs of the kernel that no safe wrapper offers: commands through io_uring, and the mapped descriptors.
#![expect(
    unsafe_code,
    reason = "io_uring entries and a mapping of the device; each use below says why it is sound"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::abi::{self, DESCRIPTOR_BYTES, QUEUE_DEPTH};

/// A whole number of pages for all descriptors.
const DESCRIPTORS_BYTES: usize = (QUEUE_DEPTH as usize * DESCRIPTOR_BYTES).next_multiple_of(4096);

/// The control device. Commands wait for their end.
pub struct Control {
    device: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    pub fn open(path: &Path) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(path)?;
        let ring = IoUring::builder().build(2)?;
        Ok(Self { device, ring })
    }

    /// Carries a command out on `device`. The kernel reads `buffer` and may change it.
    pub fn command(
        &mut self,
        operation: u32,
        device: u32,
        data: u64,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let length = u16::try_from(buffer.len()).map_err(io::Error::other)?;
        let address = if buffer.is_empty() {
            0
        } else {
            buffer.as_mut_ptr() as u64
        };
        let command = abi::control_command(device, data, address, length);
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, operation).cmd(command).build();
        // SAFETY: the entry's only pointer is to `buffer`, which is borrowed exclusively until this function
        // returns, and it returns only when the command's completion has been seen.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let result = loop {
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                // Nothing but a broken ring gets here: the command may still run, and `buffer` must outlive it.
                panic!("an io_uring of our own cannot be waited on: {error}");
            }
            if let Some(completion) = self.ring.completion().next() {
                break completion.result();
            }
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }
}

/// One queue of a device: requests come as completions, and are described in shared memory.
pub struct Queue {
    device: File,
    ring: IoUring,
    descriptors: NonNull<u8>,
}

// SAFETY: the mapping belongs to this value alone and is only read; nothing in here is tied to a thread. (The kernel wants
// commands from the thread that issued the first one; it refuses others, which is an error and not unsound.)
unsafe impl Send for Queue {}

impl Queue {
    pub fn open(path: &Path) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(path)?;
        let ring = IoUring::new(u32::from(QUEUE_DEPTH))?;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing of ours; the kernel writes to
        // it, so it is only ever read by volatile reads.
        let descriptors = unsafe {
            mmap(
                std::ptr::null_mut(),
                DESCRIPTORS_BYTES,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                &device,
                0,
            )
        }?;
        let descriptors = NonNull::new(descriptors.cast())
            .ok_or_else(|| io::Error::other("the descriptors are mapped nowhere"))?;
        Ok(Self {
            device,
            ring,
            descriptors,
        })
    }

    /// The device, whose reads and writes move requests' data.
    pub fn device(&self) -> &File {
        &self.device
    }

    /// A request's descriptor: the kernel has written it before it completed the command of this tag, and leaves it
    /// alone until the next one is issued.
    pub fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        assert!(tag < QUEUE_DEPTH, "tag {tag} is not of this queue");
        let mut out = [0; DESCRIPTOR_BYTES];
        for (at, byte) in out.iter_mut().enumerate() {
            // SAFETY: the tag is below the depth for which DESCRIPTORS_BYTES were mapped, and they stay mapped until
            // this value is dropped.
            *byte = unsafe {
                let first = self.descriptors.add(usize::from(tag) * DESCRIPTOR_BYTES);
                first.add(at).read_volatile()
            };
        }
        out
    }

    /// Queues a command for [`Self::submit`].
    pub fn push(&mut self, operation: u32, tag: u16, result: i32) -> io::Result<()> {
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, operation)
            .cmd(abi::io_command(tag, result))
            .build()
            .user_data(u64::from(tag));
        if self.ring.submission().is_full() {
            self.ring.submit()?;
        }
        // SAFETY: the entry has no pointers, and the ring is dropped before the descriptor that it names is closed
        // for good, since the kernel holds the file of a command under way.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.ring.submit().map(|_| ())
    }

    /// The tags whose commands have completed, with their results.
    pub fn completions(&mut self, out: &mut Vec<(u16, i32)>) {
        let completed = self.ring.completion();
        out.extend(completed.map(|entry| (entry.user_data() as u16, entry.result())));
    }
}

/// Readable when commands have completed.
impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open for as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length, and nothing refers to it any more. Unmapping fails only for
        // what is not mapped.
        let _ = unsafe { munmap(self.descriptors.as_ptr().cast(), DESCRIPTORS_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stands for a device that takes no commands: what comes back has been through a real ring.
    const NO_UBLK: &str = "/dev/zero";
    const EOPNOTSUPP: i32 = 95;

    /// `None` where this machine forbids io_uring, as containers often do.
    fn unless_forbidden<T>(opened: io::Result<T>) -> Option<T> {
        match opened {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            opened => Some(opened.expect("a ring opens")),
        }
    }

    #[test]
    fn a_control_command_brings_the_kernels_verdict() {
        let Some(mut control) = unless_forbidden(Control::open(Path::new(NO_UBLK))) else {
            return;
        };
        for _ in 0..3 {
            let mut buffer = [0; abi::DEVICE_INFO_BYTES];
            let refused = control.command(abi::GET_DEV_INFO, 0, 0, &mut buffer);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(EOPNOTSUPP));
        }
    }

    #[test]
    fn every_tag_of_a_queue_completes() {
        let Some(mut queue) = unless_forbidden(Queue::open(Path::new(NO_UBLK))) else {
            return;
        };
        for tag in 0..QUEUE_DEPTH {
            assert_eq!(queue.descriptor(tag), [0; DESCRIPTOR_BYTES]);
            queue.push(abi::FETCH_REQ, tag, 0).unwrap();
        }
        queue.submit().unwrap();
        let mut completed = Vec::new();
        queue.completions(&mut completed);
        completed.sort_unstable();
        let expected: Vec<_> = (0..QUEUE_DEPTH).map(|tag| (tag, -EOPNOTSUPP)).collect();
        assert_eq!(completed, expected);
    }
}
