//! A ublk device: a block device that the kernel serves from our io_uring, without FUSE and loop in between.
//!
//! **It has never been run against a kernel with ublk**: only its structures and numbers are tested, and what it says where
//! ublk is missing. It wants Linux 6.9 (data copied by pread and pwrite, deletion that does not wait), and 6.16 to follow a
//! volume that grows.
//!
//! ```text
//! ADD_DEV, SET_PARAMS, a FETCH_REQ a tag ──> START_DEV (helper) ──> completions are requests,
//! COMMIT_AND_FETCH_REQ answers one and asks for the next ──> STOP_DEV (helper) ──> DEL_DEV (helper)
//! ```
//!
//! Starting and stopping wait for I/O that the loop answers, so they run on helper threads. All commands of the queue come
//! from the loop's thread, as the kernel demands.
//!
//! Death of the engine: the kernel ends the device and its users get I/O errors; the next engine deletes what is left of
//! it, which it knows by a mark of the volume's name. There is no keeper for it yet: ublk has a recovery of its own.

mod abi;
mod kernel;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Endpoint, Frontend, FrontendOptions, FrontendState, OpenFrontendError, Resize};
use crate::io::{Operation, Outcome, Request, RequestId};
use crate::poller::{Mailbox, Owner, Poller, Readiness, Token};
use abi::{DeviceInfo, QUEUE_DEPTH, Wanted};
use kernel::{Control, Queue};

const CONTROL_PATH: &str = "/dev/ublk-control";

const QUEUE: Token = Token {
    owner: Owner::Frontend,
    index: 0,
};
const HELPER: Token = Token {
    owner: Owner::Frontend,
    index: 1,
};

pub struct UblkFrontend {
    poller: Arc<Poller>,
    mailbox: Mailbox<Report>,
    volume: String,
    link: PathBuf,
    device: u32,
    queue: Option<Queue>,
    stage: Stage,
    /// Which tag awaits each of our requests, and what it asked for.
    awaited: HashMap<RequestId, (u16, Wanted)>,
    request_next: u64,
    completions: Vec<(u16, i32)>,
    close_wanted: bool,
}

/// ```text
/// Starting ──> Ready ──> Stopping ──> Closed
///      └─────────┴───────────┴──> Failed
/// ```
enum Stage {
    Starting,
    Ready,
    Stopping,
    Closed,
    Failed(String),
}

/// What helper threads tell the loop.
enum Report {
    Started,
    Stopped,
    Deleted,
    Resized(io::Result<()>),
    Failed {
        attempt: &'static str,
        error: io::Error,
    },
}

impl UblkFrontend {
    pub fn open(
        poller: &Arc<Poller>,
        options: &FrontendOptions,
    ) -> Result<Self, OpenFrontendError> {
        Self::open_at(poller, options, Path::new(CONTROL_PATH))
    }

    fn open_at(
        poller: &Arc<Poller>,
        options: &FrontendOptions,
        control: &Path,
    ) -> Result<Self, OpenFrontendError> {
        let system = |attempt| move |source| OpenFrontendError::System { attempt, source };
        let mut control = Control::open(control).map_err(OpenFrontendError::NoUblk)?;
        let link = options.device_dir.join(&options.volume);
        delete_leftover(&mut control, &link, &options.volume);
        let mut info = DeviceInfo::wanted(&options.volume).encode();
        control
            .command(abi::ADD_DEV, abi::ANY_DEVICE, 0, &mut info)
            .map_err(system("add a ublk device"))?;
        let info = DeviceInfo::decode(&info);
        let opened = Self::open_device(poller, options, &mut control, link, info);
        if opened.is_err() {
            let _ = control.command(abi::DEL_DEV_ASYNC, info.device, 0, &mut []);
        }
        opened
    }

    fn open_device(
        poller: &Arc<Poller>,
        options: &FrontendOptions,
        control: &mut Control,
        link: PathBuf,
        info: DeviceInfo,
    ) -> Result<Self, OpenFrontendError> {
        let system = |attempt| move |source| OpenFrontendError::System { attempt, source };
        if !info.has_user_copy() || info.queue_depth != QUEUE_DEPTH {
            let found = format!("it offers {info:?}");
            return Err(OpenFrontendError::NoUblk(io::Error::other(found)));
        }
        let mut parameters = abi::parameters(options.size_bytes, options.sector_bytes);
        control
            .command(abi::SET_PARAMS, info.device, 0, &mut parameters)
            .map_err(system("describe the ublk device"))?;
        let path = PathBuf::from(format!("/dev/ublkc{}", info.device));
        let at = |attempt| {
            let path = path.clone();
            move |source| OpenFrontendError::Path {
                attempt,
                path,
                source,
            }
        };
        let mut queue = Queue::open(&path).map_err(at("open and map"))?;
        for tag in 0..QUEUE_DEPTH {
            queue
                .push(abi::FETCH_REQ, tag, 0)
                .map_err(at("fetch requests from"))?;
        }
        queue.submit().map_err(at("fetch requests from"))?;
        poller.watch(&queue, QUEUE).map_err(at("watch"))?;
        let mailbox = Mailbox::new(poller, HELPER).map_err(system("make a mailbox"))?;
        let frontend = Self {
            poller: Arc::clone(poller),
            mailbox,
            volume: options.volume.clone(),
            link,
            device: info.device,
            queue: Some(queue),
            stage: Stage::Starting,
            awaited: HashMap::new(),
            request_next: 1,
            completions: Vec::new(),
            close_wanted: false,
        };
        let (link, device) = (frontend.link.clone(), info.device);
        frontend.help("start the ublk device", move |control| {
            let process = u64::from(std::process::id());
            control.command(abi::START_DEV, device, process, &mut [])?;
            link_device(&link, &block_device(device))?;
            Ok(Report::Started)
        });
        Ok(frontend)
    }

    /// Runs what may wait for our own answers on a thread of its own.
    fn help(
        &self,
        attempt: &'static str,
        work: impl FnOnce(&mut Control) -> io::Result<Report> + Send + 'static,
    ) {
        let post = self.mailbox.post();
        std::thread::spawn(move || {
            let report = Control::open(Path::new(CONTROL_PATH))
                .and_then(|mut control| work(&mut control))
                .unwrap_or_else(|error| Report::Failed { attempt, error });
            post.send(report);
        });
    }

    fn take_reports(&mut self) {
        let reports: Vec<Report> = self.mailbox.drain().collect();
        for report in reports {
            match report {
                Report::Started => self.stage = Stage::Ready,
                Report::Stopped => {
                    self.let_go();
                    let device = self.device;
                    self.help("delete the ublk device", move |control| {
                        control.command(abi::DEL_DEV_ASYNC, device, 0, &mut [])?;
                        Ok(Report::Deleted)
                    });
                }
                Report::Deleted => self.stage = Stage::Closed,
                Report::Resized(Ok(())) => {}
                Report::Resized(Err(error)) => tracing::warn!(
                    volume.name = %self.volume, %error,
                    "the ublk device did not follow the new size (Linux 6.16 can); detach and attach the volume"
                ),
                Report::Failed { attempt, error } => {
                    self.fail(format!("cannot {attempt}: {error}"));
                }
            }
        }
        if self.close_wanted {
            self.begin_close();
        }
    }

    /// Closes the queue, which ends the device for its users if it has not ended already.
    fn let_go(&mut self) {
        if let Some(queue) = self.queue.take() {
            let _ = self.poller.forget(&queue);
        }
        self.awaited.clear();
    }

    fn fail(&mut self, reason: String) {
        self.let_go();
        self.stage = Stage::Failed(reason);
        let _ = std::fs::remove_file(&self.link);
        delete(self.device);
    }

    fn take_requests(&mut self, requests: &mut Vec<Request>) {
        let mut completions = std::mem::take(&mut self.completions);
        if let Some(queue) = &mut self.queue {
            queue.completions(&mut completions);
        }
        for (tag, result) in completions.drain(..) {
            // Anything else says that the device is being stopped: this tag brings no more.
            if result == 0 {
                self.on_request(tag, requests);
            }
        }
        self.completions = completions;
    }

    fn on_request(&mut self, tag: u16, requests: &mut Vec<Request>) {
        let Some(queue) = &self.queue else {
            return;
        };
        let Some(wanted) = abi::descriptor(&queue.descriptor(tag)) else {
            self.commit(tag, -abi::EINVAL);
            return;
        };
        let operation = match wanted {
            Wanted::Read(range) => Operation::Read { range },
            Wanted::Write { range, durable } => {
                let mut data = vec![0; usize::try_from(range.length).expect("at most 1 MiB")];
                if let Err(error) = queue
                    .device()
                    .read_exact_at(&mut data, abi::data_offset(tag))
                {
                    tracing::error!(volume.name = %self.volume, %error, "cannot fetch a write's data");
                    self.commit(tag, abi::error_result(crate::io::IoFault::Failed));
                    return;
                }
                Operation::Write {
                    offset: range.offset,
                    data: Bytes::from(data),
                    durable,
                }
            }
            Wanted::Flush => Operation::Flush,
            Wanted::Discard(range) => Operation::Discard { range },
            Wanted::WriteZeroes {
                range,
                may_unmap,
                durable,
            } => Operation::WriteZeroes {
                range,
                may_unmap,
                durable,
            },
        };
        let id = RequestId(self.request_next);
        self.request_next += 1;
        self.awaited.insert(id, (tag, wanted));
        requests.push(Request { id, operation });
    }

    fn commit(&mut self, tag: u16, result: i32) {
        let Some(queue) = &mut self.queue else {
            return;
        };
        if let Err(error) = queue.push(abi::COMMIT_AND_FETCH_REQ, tag, result) {
            self.fail(format!("cannot answer a request: {error}"));
        }
    }

    /// What a request's answer is to the kernel: bytes done, or an error below zero.
    fn result_of(&self, tag: u16, wanted: Wanted, outcome: Outcome) -> i32 {
        let bytes = |length: u64| i32::try_from(length).expect("at most 1 MiB");
        match (wanted, outcome, &self.queue) {
            (_, Err(fault), _) => abi::error_result(fault),
            (Wanted::Read(range), Ok(data), Some(queue)) => {
                let given = queue.device().write_all_at(&data, abi::data_offset(tag));
                match given {
                    Ok(()) => bytes(range.length),
                    Err(error) => {
                        tracing::error!(volume.name = %self.volume, %error, "cannot hand a read's data over");
                        abi::error_result(crate::io::IoFault::Failed)
                    }
                }
            }
            (Wanted::Write { range, .. }, Ok(_), _) => bytes(range.length),
            (_, Ok(_), _) => 0,
        }
    }
}

impl Frontend for UblkFrontend {
    fn state(&self) -> FrontendState {
        match &self.stage {
            Stage::Starting => FrontendState::Opening,
            Stage::Ready => FrontendState::Ready {
                endpoint: Endpoint::BlockDevice(self.link.clone()),
            },
            Stage::Stopping => FrontendState::Closing,
            Stage::Closed => FrontendState::Closed,
            Stage::Failed(reason) => FrontendState::Failed {
                reason: reason.clone(),
            },
        }
    }

    fn ready(&mut self, readiness: Readiness, requests: &mut Vec<Request>) {
        if readiness.token == QUEUE {
            self.take_requests(requests);
        } else {
            self.take_reports();
        }
    }

    fn complete(&mut self, id: RequestId, outcome: Outcome) {
        if let Some((tag, wanted)) = self.awaited.remove(&id) {
            let result = self.result_of(tag, wanted, outcome);
            self.commit(tag, result);
        }
    }

    fn flush(&mut self) {
        if let Some(queue) = &mut self.queue
            && let Err(error) = queue.submit()
        {
            self.fail(format!("cannot answer requests: {error}"));
        }
    }

    fn begin_close(&mut self) {
        match self.stage {
            // The helper's report will bring us back here.
            Stage::Starting => self.close_wanted = true,
            Stage::Stopping | Stage::Closed | Stage::Failed(_) => {}
            Stage::Ready => {
                self.close_wanted = false;
                self.stage = Stage::Stopping;
                let _ = std::fs::remove_file(&self.link);
                let device = self.device;
                self.help("stop the ublk device", move |control| {
                    control.command(abi::STOP_DEV, device, 0, &mut [])?;
                    Ok(Report::Stopped)
                });
            }
        }
    }

    fn resize(&mut self) -> Option<&mut dyn Resize> {
        Some(self)
    }

    fn abandon(mut self: Box<Self>) {
        self.let_go();
        self.stage = Stage::Closed;
    }
}

impl Resize for UblkFrontend {
    fn set_size(&mut self, size_bytes: u64) {
        let (device, sectors) = (self.device, abi::size_in_sectors(size_bytes));
        self.help("show the new size", move |control| {
            let resized = control.command(abi::UPDATE_SIZE, device, sectors, &mut []);
            Ok(Report::Resized(resized))
        });
    }
}

impl Drop for UblkFrontend {
    /// The last resort of an engine that ends without having closed its device.
    fn drop(&mut self) {
        self.let_go();
        if !matches!(self.stage, Stage::Closed | Stage::Failed(_)) {
            let _ = std::fs::remove_file(&self.link);
            delete(self.device);
        }
    }
}

fn block_device(device: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{device}"))
}

/// The number in a link to a ublk device.
fn device_number(target: &Path) -> Option<u32> {
    let number = target.to_str()?.strip_prefix("/dev/ublkb")?;
    number.parse().ok()
}

/// Deletes a device of ours whose queue is closed; it has ended, and this only frees its number.
fn delete(device: u32) {
    let deleted = Control::open(Path::new(CONTROL_PATH))
        .and_then(|mut control| control.command(abi::DEL_DEV_ASYNC, device, 0, &mut []));
    if let Err(error) = deleted {
        tracing::warn!(device, %error, "the ublk device is left behind; `ublk del -n {device}` deletes it");
    }
}

/// Deletes what a predecessor that was killed has left. A device of that number may be another's by now: only one
/// with our volume's mark is touched.
fn delete_leftover(control: &mut Control, link: &Path, volume: &str) {
    let Some(device) = std::fs::read_link(link)
        .ok()
        .and_then(|target| device_number(&target))
    else {
        return;
    };
    let _ = std::fs::remove_file(link);
    let mut info = [0; abi::DEVICE_INFO_BYTES];
    let asked = control.command(abi::GET_DEV_INFO, device, 0, &mut info);
    if asked.is_err() || DeviceInfo::decode(&info).mark != abi::mark_of(volume) {
        return;
    }
    // It has ended with its engine; where it has not yet, this ends it.
    let _ = control.command(abi::STOP_DEV, device, 0, &mut []);
    match control.command(abi::DEL_DEV_ASYNC, device, 0, &mut []) {
        Ok(()) => tracing::info!(volume.name = %volume, device, "deleted a leftover ublk device"),
        Err(error) => {
            tracing::warn!(volume.name = %volume, device, %error, "cannot delete a leftover ublk device");
        }
    }
}

fn link_device(link: &Path, device: &Path) -> io::Result<()> {
    if let Some(folder) = link.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let _ = std::fs::remove_file(link);
    std::os::unix::fs::symlink(device, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_ublk_is_named_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let poller = Arc::new(Poller::new().unwrap());
        let options = FrontendOptions {
            volume: "data".into(),
            size_bytes: 1 << 20,
            runtime_dir: folder.path().join("run"),
            device_dir: folder.path().join("dev"),
            sector_bytes: 4096,
            keeper: None,
        };
        let missing = folder.path().join("ublk-control");
        let Err(error) = UblkFrontend::open_at(&poller, &options, &missing) else {
            panic!("there is no such device");
        };
        assert_eq!(
            error.to_string(),
            "this kernel has no ublk that can be used (CONFIG_BLK_DEV_UBLK, Linux 6.9; try `modprobe ublk_drv`): \
             use --frontend fuse"
        );
        assert!(!options.device_dir.exists(), "nothing was made");
    }

    #[test]
    fn only_links_to_ublk_devices_have_a_number() {
        for (target, expected) in [
            ("/dev/ublkb7", Some(7)),
            ("/dev/ublkb", None),
            ("/dev/loop7", None),
            ("/dev/ublkb-1", None),
            ("/dev/ublkb99999999999", None),
        ] {
            assert_eq!(device_number(Path::new(target)), expected, "{target}");
        }
    }
}
