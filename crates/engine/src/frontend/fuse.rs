//! A FUSE file under a loop device: a real block device on any Linux.
//!
//! The FUSE file system is one regular file: its root inode *is* the file, mounted on a file, so there
//! are no names and no directories. The loop device above it uses direct I/O, so a page is cached
//! once, above us, and requests come in parallel. The device's sectors have 4 KiB unless told otherwise: replicas
//! index blocks of 4 KiB, so smaller writes would read, merge and write; images that were
//! partitioned with sectors of 512 bytes need the smaller size.
//!
//! Death of the engine: the last descriptor of the channel closes, the kernel aborts the connection,
//! and users of the device get I/O errors. With a [keeper](super::keeper) the connection stays, users
//! wait, and the next engine takes it over and has the unanswered requests sent again.

mod abi;
mod channel;
mod custody;
mod device;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::keeper::{KeeperClient, Kept};
use super::{Endpoint, Frontend, FrontendOptions, FrontendState, OpenFrontendError, Resize};
use crate::io::{
    ByteRange, IoFault, Operation, Outcome, REQUEST_SPAN_BYTES_MAX, Request, RequestId,
};
use crate::poller::{Mailbox, Owner, Poller, Post, Readiness, Token};
use crate::transport::ChunkBuffer;
use abi::Body;
use channel::Channel;
use custody::{Custody, KEEPER, Search};
use device::Places;
pub use device::{clear_leftovers_of as clear_leftovers, mount_path};

const CHANNEL: Token = Token {
    owner: Owner::Frontend,
    index: 0,
};
const HELPER: Token = Token {
    owner: Owner::Frontend,
    index: 1,
};

/// Requests taken per turn of the loop: enough to fill a batch for the replicas, few enough that
/// replies do not wait long behind them.
const MESSAGES_PER_TURN_MAX: usize = 64;

/// Several of the largest requests fit into one chunk.
const CHUNK_BYTES: usize = 4 << 20;

pub struct FuseFrontend {
    poller: Arc<Poller>,
    places: Places,
    sector_bytes: u32,
    size_bytes: u64,
    channel: Option<Channel>,
    custody: Option<Custody>,
    mailbox: Mailbox<Report>,
    stage: Stage,
    input: ChunkBuffer,
    /// What the kernel awaits under each of our requests.
    awaited: HashMap<RequestId, Awaited>,
    /// How many requests of a split message are open, and whether one has failed.
    split: HashMap<u64, (usize, Option<IoFault>)>,
    request_next: u64,
    resize_running: bool,
    resize_wanted: bool,
    close_wanted: bool,
    /// Why the connection that a predecessor had could not be taken over.
    pub(super) made_anew: Option<String>,
}

/// ```text
/// Mounting ──> Attaching ──> Ready ──> Closing ──> Closed
///      └───────────┴───────────┴──────────> Failed
/// ```
enum Stage {
    Mounting,
    Attaching,
    Ready { device: File, endpoint: Endpoint },
    Closing,
    Closed,
    Failed(String),
}

/// What helper threads tell the loop.
enum Report {
    Mounted,
    Attached(File),
    /// Another keeper, after the first has ended.
    Keeper(Option<KeeperClient>),
    Resized(std::io::Result<()>),
    Closed,
    Failed {
        attempt: &'static str,
        error: std::io::Error,
    },
}

/// The shape of an answer.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Data { unique: u64 },
    WriteSize { unique: u64, length: u32 },
    Nothing { unique: u64 },
    Part { unique: u64 },
}

impl FuseFrontend {
    pub fn open(poller: &Arc<Poller>, options: FrontendOptions) -> Result<Self, OpenFrontendError> {
        let system = |attempt| move |source| OpenFrontendError::System { attempt, source };
        let places = Places::of(&options);
        let (custody, kept) = match options.keeper {
            None => (None, None),
            Some(path) => {
                let (custody, kept) =
                    Custody::open(path.clone(), &places.volume).map_err(|source| {
                        let attempt = "fetch the FUSE connection from the keeper at";
                        OpenFrontendError::Path {
                            attempt,
                            path,
                            source,
                        }
                    })?;
                (Some(custody), kept)
            }
        };
        let mailbox = Mailbox::new(poller, HELPER).map_err(system("make a mailbox"))?;
        let mut frontend = Self {
            poller: Arc::clone(poller),
            places,
            sector_bytes: options.sector_bytes,
            size_bytes: options.size_bytes,
            channel: None,
            custody,
            mailbox,
            stage: Stage::Mounting,
            input: ChunkBuffer::new(CHUNK_BYTES),
            awaited: HashMap::new(),
            split: HashMap::new(),
            request_next: 1,
            resize_running: false,
            resize_wanted: false,
            close_wanted: false,
            made_anew: None,
        };
        match kept {
            Some(kept) => frontend
                .take_over(kept)
                .map_err(system("take the FUSE connection over"))?,
            None => frontend
                .start_mounting()
                .map_err(system("open /dev/fuse"))?,
        }
        Ok(frontend)
    }

    fn start_mounting(&mut self) -> std::io::Result<()> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let channel = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let for_helper = channel.try_clone()?;
        self.channel = Some(match &self.custody {
            Some(_) => Channel::kill_safe(channel),
            None => Channel::direct(channel),
        });
        let places = self.places.clone();
        self.help("mount the FUSE file", move || {
            device::clear_leftovers(&places)?;
            device::mount_file(&places, for_helper.as_fd())?;
            Ok(Report::Mounted)
        });
        Ok(())
    }

    /// Goes on where a predecessor was killed.
    fn take_over(&mut self, kept: Kept) -> std::io::Result<()> {
        let channel = Channel::kill_safe(kept.channel);
        if let Err(error) = channel.notify(&abi::resend_notification()) {
            // Nobody would ever answer what the predecessor had taken, and its users would wait for ever.
            let why =
                format!("this kernel does not resend FUSE requests (Linux 6.9 does): {error}");
            tracing::error!(
                volume.name = %self.places.volume, why,
                "the device is made anew, and users of the old one get I/O errors"
            );
            self.made_anew = Some(why);
            self.custody.iter_mut().for_each(Custody::disinherit);
            return self.start_mounting();
        }
        tracing::info!(volume.name = %self.places.volume, "took the FUSE connection over");
        self.poller.watch(&channel, CHANNEL)?;
        self.channel = Some(channel);
        // It may have been killed between recording a larger size and showing it.
        self.resize_wanted = true;
        let device = kept.device;
        let places = self.places.clone();
        self.stage = Stage::Attaching;
        self.help("take the loop device over", move || {
            let path = device::loops_over(&places.mount_file)?
                .pop()
                .ok_or_else(|| std::io::Error::other("the loop device is gone"))?;
            device::link_device(&places, &path)?;
            Ok(Report::Attached(device))
        });
        Ok(())
    }

    /// Runs what may block on a thread of its own, and has its result reported to the loop.
    fn help(
        &self,
        attempt: &'static str,
        work: impl FnOnce() -> std::io::Result<Report> + Send + 'static,
    ) {
        let post: Post<Report> = self.mailbox.post();
        std::thread::spawn(move || {
            let report = work().unwrap_or_else(|error| Report::Failed { attempt, error });
            post.send(report);
        });
    }

    fn take_reports(&mut self) {
        let reports: Vec<Report> = self.mailbox.drain().collect();
        for report in reports {
            match report {
                Report::Mounted => self.on_mounted(),
                Report::Attached(device) => self.on_attached(device),
                Report::Keeper(keeper) => self.on_keeper(keeper),
                Report::Resized(result) => {
                    self.resize_running = false;
                    if let Err(error) = result {
                        tracing::warn!(volume.name = %self.places.volume, %error, "the device did not follow the new size");
                    }
                    self.refresh_size();
                }
                Report::Closed => {
                    self.take_back();
                    self.forget_channel();
                    self.stage = Stage::Closed;
                }
                Report::Failed { attempt, error } => self.fail(attempt, &error),
            }
        }
        if self.close_wanted {
            self.begin_close();
        }
    }

    fn fail(&mut self, attempt: &str, error: &std::io::Error) {
        let stage = std::mem::replace(
            &mut self.stage,
            Stage::Failed(format!("cannot {attempt}: {error}")),
        );
        let device = match stage {
            Stage::Ready { device, .. } => Some(device),
            _ => None,
        };
        self.take_back();
        self.forget_channel();
        let places = self.places.clone();
        // With the channel closed nothing in there waits for us; it is still not the loop's work.
        std::thread::spawn(move || device::tear_down(&places, device));
    }

    fn take_back(&mut self) {
        if let Some(custody) = &mut self.custody {
            custody.forget();
        }
    }

    fn forget_channel(&mut self) {
        if let Some(channel) = self.channel.take() {
            let _ = self.poller.forget(&channel);
        }
    }

    fn on_mounted(&mut self) {
        let channel = self.channel.as_ref().expect("open since the start");
        if let Err(error) = self.poller.watch(channel, CHANNEL) {
            self.fail("watch the FUSE connection", &error);
            return;
        }
        self.stage = Stage::Attaching;
        let (places, sector_bytes) = (self.places.clone(), self.sector_bytes);
        self.help("attach a loop device", move || {
            let (device, path) = device::attach_loop(&places, sector_bytes)?;
            device::link_device(&places, &path)?;
            Ok(Report::Attached(device))
        });
    }

    fn on_attached(&mut self, device: File) {
        let left = match (&mut self.custody, &self.channel) {
            (Some(custody), Some(channel)) => custody.leave(&self.poller, channel, &device),
            _ => Ok(()),
        };
        let endpoint = Endpoint::BlockDevice(self.places.link.clone());
        self.stage = Stage::Ready { device, endpoint };
        match left {
            Ok(()) => self.refresh_size(),
            Err(error) => self.fail("leave the FUSE connection with the keeper", &error),
        }
    }

    fn on_keeper(&mut self, keeper: Option<KeeperClient>) {
        if let (Some(keeper), Some(custody), Some(channel), Stage::Ready { device, .. }) =
            (keeper, &mut self.custody, &self.channel, &self.stage)
            && let Some(search) = custody.on_found(keeper, &self.poller, channel, device)
        {
            self.search_keeper(search);
        }
    }

    fn search_keeper(&self, search: Search) {
        self.help("find another keeper", move || {
            Ok(Report::Keeper(search.run()))
        });
    }

    fn refresh_size(&mut self) {
        let Stage::Ready { device, .. } = &self.stage else {
            return;
        };
        if !self.resize_wanted || self.resize_running {
            return;
        }
        self.resize_wanted = false;
        match device.try_clone() {
            Ok(device) => {
                self.resize_running = true;
                let places = self.places.clone();
                self.help("show the new size", move || {
                    Ok(Report::Resized(device::refresh_size(&places, &device)))
                });
            }
            Err(error) => {
                tracing::warn!(volume.name = %self.places.volume, %error, "cannot show the new size");
            }
        }
    }

    fn take_messages(&mut self, requests: &mut Vec<Request>) {
        for _ in 0..MESSAGES_PER_TURN_MAX {
            let Some(channel) = &self.channel else {
                return;
            };
            match channel.receive(&mut self.input) {
                Ok(None) => return,
                Ok(Some(raw)) => self.on_message(&raw, requests),
                // A request that was interrupted between our wake-up and our read.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                // The file system was unmounted or the connection aborted: nobody will ask again.
                Err(error) => {
                    if !matches!(self.stage, Stage::Closing | Stage::Closed) {
                        self.fail("go on: the FUSE connection has ended", &error);
                    } else {
                        self.forget_channel();
                    }
                    return;
                }
            }
        }
    }

    fn on_message(&mut self, raw: &Bytes, requests: &mut Vec<Request>) {
        let Some(message) = abi::parse(raw) else {
            tracing::error!(volume.name = %self.places.volume, bytes = raw.len(), "a malformed FUSE message");
            return;
        };
        let unique = message.unique;
        match message.body {
            Body::Init { minor, flags } => self.answer(unique, &abi::init_answer(minor, flags)),
            Body::GetAttributes => self.answer(unique, &abi::attributes_answer(self.size_bytes)),
            Body::Open => self.answer(unique, &abi::open_answer()),
            Body::StatFs => self.answer(unique, &abi::statfs_answer(self.size_bytes)),
            Body::Release => self.answer(unique, b""),
            Body::Silent => {}
            Body::Refused(error) => self.refuse(unique, error),
            Body::Read { offset, length } => {
                let range = ByteRange::new(offset, u64::from(length));
                let id = self.await_answer(Awaited::Data { unique });
                requests.push(Request {
                    id,
                    operation: Operation::Read { range },
                });
            }
            Body::Write { offset, data } => {
                let length = u32::try_from(data.len()).expect("at most 1 MiB");
                let id = self.await_answer(Awaited::WriteSize { unique, length });
                let operation = Operation::Write {
                    offset,
                    data,
                    durable: false,
                };
                requests.push(Request { id, operation });
            }
            Body::Sync => {
                let id = self.await_answer(Awaited::Nothing { unique });
                requests.push(Request {
                    id,
                    operation: Operation::Flush,
                });
            }
            Body::Punch { offset, length } => {
                let split = |range| Operation::Discard { range };
                self.split(unique, ByteRange::new(offset, length), split, requests);
            }
            Body::ZeroRange {
                offset,
                length,
                may_unmap,
            } => {
                let split = |range| Operation::WriteZeroes {
                    range,
                    may_unmap,
                    durable: false,
                };
                self.split(unique, ByteRange::new(offset, length), split, requests);
            }
        }
    }

    fn await_answer(&mut self, awaited: Awaited) -> RequestId {
        let id = RequestId(self.request_next);
        self.request_next += 1;
        self.awaited.insert(id, awaited);
        id
    }

    fn split(
        &mut self,
        unique: u64,
        range: ByteRange,
        operation: impl Fn(ByteRange) -> Operation,
        requests: &mut Vec<Request>,
    ) {
        if range.end().is_none_or(|end| end > self.size_bytes) {
            self.refuse(unique, abi::EINVAL);
            return;
        }
        if range.length == 0 {
            self.answer(unique, b"");
            return;
        }
        let mut parts = 0;
        for piece in range.pieces(REQUEST_SPAN_BYTES_MAX) {
            let id = self.await_answer(Awaited::Part { unique });
            requests.push(Request {
                id,
                operation: operation(piece),
            });
            parts += 1;
        }
        self.split.insert(unique, (parts, None));
    }

    fn answer(&self, unique: u64, payload: &[u8]) {
        if let Some(channel) = &self.channel {
            channel.answer(&abi::answer_header(unique, 0, payload.len()), payload);
        }
    }

    fn refuse(&self, unique: u64, error: i32) {
        if let Some(channel) = &self.channel {
            channel.answer(&abi::answer_header(unique, error, 0), b"");
        }
    }

    fn part_done(&mut self, unique: u64, fault: Option<IoFault>) {
        let Some((open, failed)) = self.split.get_mut(&unique) else {
            return;
        };
        *open -= 1;
        *failed = failed.or(fault);
        if *open == 0 {
            let (_, failed) = self.split.remove(&unique).expect("looked up above");
            match failed {
                None => self.answer(unique, b""),
                Some(fault) => self.refuse(unique, abi::error_number(fault)),
            }
        }
    }
}

impl Frontend for FuseFrontend {
    fn state(&self) -> FrontendState {
        match &self.stage {
            Stage::Mounting | Stage::Attaching => FrontendState::Opening,
            Stage::Ready { endpoint, .. } => FrontendState::Ready {
                endpoint: endpoint.clone(),
            },
            Stage::Closing => FrontendState::Closing,
            Stage::Closed => FrontendState::Closed,
            Stage::Failed(reason) => FrontendState::Failed {
                reason: reason.clone(),
            },
        }
    }

    fn ready(&mut self, readiness: Readiness, requests: &mut Vec<Request>) {
        match readiness.token {
            CHANNEL => self.take_messages(requests),
            KEEPER => {
                let custody = self.custody.as_mut();
                if let Some(search) = custody.and_then(|it| it.on_hang_up(&self.poller)) {
                    self.search_keeper(search);
                }
            }
            _ => self.take_reports(),
        }
    }

    fn complete(&mut self, id: RequestId, outcome: Outcome) {
        let Some(awaited) = self.awaited.remove(&id) else {
            return;
        };
        match (awaited, outcome) {
            (Awaited::Data { unique }, Ok(data)) => self.answer(unique, &data),
            (Awaited::WriteSize { unique, length }, Ok(_)) => {
                self.answer(unique, &abi::write_answer(length));
            }
            (Awaited::Nothing { unique }, Ok(_)) => self.answer(unique, b""),
            (Awaited::Part { unique }, outcome) => self.part_done(unique, outcome.err()),
            (
                Awaited::Data { unique }
                | Awaited::WriteSize { unique, .. }
                | Awaited::Nothing { unique },
                Err(fault),
            ) => self.refuse(unique, abi::error_number(fault)),
        }
    }

    /// Answers go to the kernel as they come: it takes one per call.
    fn flush(&mut self) {}

    fn begin_close(&mut self) {
        match &self.stage {
            // The helper's report will bring us back here.
            Stage::Mounting | Stage::Attaching => {
                self.close_wanted = true;
                return;
            }
            Stage::Closing | Stage::Closed | Stage::Failed(_) => return,
            Stage::Ready { .. } => {}
        }
        self.close_wanted = false;
        let Stage::Ready { device, .. } = std::mem::replace(&mut self.stage, Stage::Closing) else {
            unreachable!("matched above");
        };
        self.take_back();
        let places = self.places.clone();
        self.help("detach the device", move || {
            device::detach(&places, Some(device))?;
            Ok(Report::Closed)
        });
    }

    fn resize(&mut self) -> Option<&mut dyn Resize> {
        Some(self)
    }

    fn abandon(mut self: Box<Self>) {
        // Dropping the keeper's connection tells it that we are gone; it keeps what it has.
        self.custody = None;
        self.forget_channel();
        self.stage = Stage::Closed;
    }
}

impl Resize for FuseFrontend {
    fn set_size(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
        self.resize_wanted = true;
        self.refresh_size();
    }
}

impl Drop for FuseFrontend {
    /// The last resort of an engine that ends without having closed its device.
    fn drop(&mut self) {
        self.forget_channel();
        let device = match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Closed | Stage::Failed(_) => return,
            Stage::Ready { device, .. } => Some(device),
            Stage::Mounting | Stage::Attaching | Stage::Closing => None,
        };
        self.take_back();
        device::tear_down(&self.places, device);
    }
}
