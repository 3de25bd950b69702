//! The few system calls that no safe wrapper exists for: those of loop devices.
#![expect(
    unsafe_code,
    reason = "ioctl takes untyped pointers; each use below says why it is sound"
)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, ioctl};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const BLKGETSIZE64: Opcode = 0x8008_1272;

const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// The number of a loop device that is free now; another process may take it first.
pub fn loop_get_free(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers in its return value.
    let number = unsafe { ioctl(control, ReturnsNumber) }?;
    u32::try_from(number).map_err(io::Error::other)
}

/// Backs a loop device with `file`, using direct I/O. The device clears itself when the last
/// one who has it open, which includes us, closes it: an engine that is killed leaves none behind.
pub fn loop_configure(
    device: impl AsFd,
    file: impl AsFd,
    block_bytes: u32,
    label: &str,
) -> io::Result<()> {
    let mut file_name = [0u8; 64];
    let shown = &label.as_bytes()[..label.len().min(63)];
    file_name[..shown.len()].copy_from_slice(shown);
    let mut config = LoopConfig {
        fd: u32::try_from(file.as_fd().as_raw_fd()).map_err(io::Error::other)?,
        block_size: block_bytes,
        info: LoopInfo64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            sizelimit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_DIRECT_IO | LO_FLAGS_AUTOCLEAR,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, whose layout `LoopConfig` has
    // (304 bytes, asserted below), from a pointer that stays valid during the call.
    unsafe {
        ioctl(
            device,
            PassPointer {
                opcode: LOOP_CONFIGURE,
                value: &mut config,
            },
        )
    }?;
    Ok(())
}

const _: () = assert!(size_of::<LoopConfig>() == 304 && size_of::<LoopInfo64>() == 232);

/// Detaches the loop device from its file; while others have it open, this happens at their close.
pub fn loop_clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }?;
    Ok(())
}

/// Makes the loop device look at its file's size again.
pub fn loop_set_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }?;
    Ok(())
}

/// The size of a block device in bytes.
pub fn block_device_size(device: impl AsFd) -> io::Result<u64> {
    let mut size_bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64 to a pointer that stays valid during the call.
    unsafe {
        ioctl(
            device,
            PassPointer {
                opcode: BLKGETSIZE64,
                value: &mut size_bytes,
            },
        )
    }?;
    Ok(size_bytes)
}

/// An ioctl without argument that answers in its return value.
struct ReturnsNumber;

// SAFETY: the opcode takes no argument and writes no memory.
unsafe impl Ioctl for ReturnsNumber {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(output)
    }
}

/// An ioctl that is given a pointer to a value, and may change it.
struct PassPointer<'a, T> {
    opcode: Opcode,
    value: &'a mut T,
}

// SAFETY: the pointer is of a live, exclusive borrow; whoever builds one vouches for the opcode.
unsafe impl<T> Ioctl for PassPointer<'_, T> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.value).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}
