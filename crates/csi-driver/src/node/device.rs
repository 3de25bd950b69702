//! A volume's block device: where it is, how large it is, and whether it answers.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use tokio::time::Instant;
use tonic::Status;

use super::NodeService;
use super::effects::blocking;

/// A link appears without telling us: no watch covers a folder that may not exist yet. A look costs two system calls.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is read to see whether a device answers, and the alignment that direct reads need.
const PROBE_BYTES: usize = 4096;

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device itself, not a link to it.
    pub path: PathBuf,
    /// Major and minor number.
    pub number: (u32, u32),
}

impl Device {
    /// The device at a path, through links; None if nothing is there.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let path = match std::fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = std::fs::metadata(&path)?;
        if !found.file_type().is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a block device",
            ));
        }
        Ok(Some(Self {
            number: number_of(found.rdev()),
            path,
        }))
    }

    pub fn bytes(&self) -> io::Result<u64> {
        bytes(self.number)
    }
}

pub fn number_of(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// The size of a device; zero for one that was detached.
pub fn bytes((major, minor): (u32, u32)) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size"))?;
    let sectors: u64 = text
        .trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(sectors * 512)
}

/// Whether a device is gone or fails every read: it was detached, or its engine was fenced. Blocks if the device hangs.
pub fn is_dead(number: (u32, u32)) -> bool {
    if bytes(number).map_or(true, |bytes| bytes == 0) {
        return true;
    }
    let (major, minor) = number;
    let event = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent"));
    let name = event.ok().and_then(|event| {
        let name = event
            .lines()
            .find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(name.to_owned())
    });
    name.is_none_or(|name| read_directly(&Path::new("/dev").join(name)).is_err())
}

/// Whether a file system, or somebody else who wants no company, has a device.
pub fn is_claimed(path: &Path) -> bool {
    // Without creation, exclusive means that nobody else has claimed it.
    let flags = i32::try_from((OFlags::EXCL | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let opened = File::options().read(true).custom_flags(flags).open(path);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// Reads the first block from the device itself: the page cache would answer for a device that is long gone.
fn read_directly(path: &Path) -> io::Result<()> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let mut buffer = vec![0_u8; 2 * PROBE_BYTES];
    let start = buffer.as_ptr().align_offset(PROBE_BYTES).min(PROBE_BYTES);
    file.read_exact_at(&mut buffer[start..start + PROBE_BYTES], 0)
}

impl NodeService {
    /// The volume's device, which may take a moment to appear.
    pub(super) async fn device(&self, id: &str, deadline: Instant) -> Result<Device, Status> {
        let link = self.options.device_dir.join(id);
        // Two times: how long a device may take to appear, and how long the kernel may take to answer about it.
        let give_up = deadline.min(Instant::now() + self.options.device_wait);
        loop {
            let path = link.clone();
            let found = blocking("look for a device", deadline, move || Device::at(&path)).await?;
            match found {
                Ok(Some(device)) => return Ok(device),
                Ok(None) => {}
                Err(error) => {
                    return Err(Status::internal(format!(
                        "the device {} of volume {id} cannot be used: {error}",
                        link.display()
                    )));
                }
            }
            if Instant::now() + LOOK_EVERY > give_up {
                return Err(Status::not_found(format!(
                    "volume {id} has no device on node {}: {} does not exist; it must be published to this node first, and its engine run",
                    self.options.node,
                    link.display()
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
