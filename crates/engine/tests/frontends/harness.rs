//! A volume in memory behind a front end, in its own loop on its own thread.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use engine::frontend::keeper::{Keeper, KeeperClient, Kept};
use engine::frontend::{Endpoint, Frontend, FrontendKind, FrontendOptions, FrontendState};
use engine::io::{IoFault, Operation, Outcome, Request};
use engine::poller::{Mailbox, Owner, Poller, Post, Token};
use rustix::fs::OFlags;

use crate::nbd_client::NbdClient;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub read_bytes: u64,
    pub flushes: u64,
    pub discarded_bytes: u64,
    pub zeroed_bytes: u64,
}

struct Volume {
    data: Vec<u8>,
    counts: Counts,
    fault: Option<IoFault>,
    hold: bool,
    held: Vec<Request>,
    state: FrontendState,
    made_anew: Option<String>,
}

enum Order {
    Resize(u64),
    Close,
    /// Ends the thread as a kill would: without closing anything.
    Die,
}

pub struct Harness {
    kind: FrontendKind,
    options: FrontendOptions,
    volume: Arc<Mutex<Volume>>,
    orders: Post<Order>,
    thread: Option<JoinHandle<()>>,
    folder: Arc<tempfile::TempDir>,
    keeper: Option<Arc<Keeper>>,
}

impl Harness {
    pub fn open(kind: FrontendKind, size_bytes: u64) -> Result<Self> {
        Self::open_in(kind, size_bytes, false)
    }

    pub fn open_with_keeper(kind: FrontendKind, size_bytes: u64) -> Result<Self> {
        Self::open_in(kind, size_bytes, true)
    }

    fn open_in(kind: FrontendKind, size_bytes: u64, with_keeper: bool) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let folder = Arc::new(tempfile::tempdir()?);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let keeper_path = folder.path().join("keeper");
        let keeper = if with_keeper {
            Some(Arc::new(Keeper::start(
                &keeper_path,
                Duration::from_secs(20),
            )?))
        } else {
            None
        };
        let options = FrontendOptions {
            volume: format!("conformance-{}-{number}", std::process::id()),
            size_bytes,
            runtime_dir: folder.path().join("run"),
            device_dir: folder.path().join("dev"),
            sector_bytes: 4096,
            keeper: with_keeper.then_some(keeper_path),
        };
        let data = vec![0; usize::try_from(size_bytes)?];
        Self::start(kind, options, data, folder, keeper)
    }

    fn start(
        kind: FrontendKind,
        options: FrontendOptions,
        data: Vec<u8>,
        folder: Arc<tempfile::TempDir>,
        keeper: Option<Arc<Keeper>>,
    ) -> Result<Self> {
        let volume = Arc::new(Mutex::new(Volume {
            data,
            counts: Counts::default(),
            fault: None,
            hold: false,
            held: Vec::new(),
            state: FrontendState::Opening,
            made_anew: None,
        }));
        let poller = Arc::new(Poller::new()?);
        let mailbox = Mailbox::new(&poller, Token::new(Owner::Mailbox, 0))?;
        let orders = mailbox.post();
        let frontend_options = options.clone();
        let shared = Arc::clone(&volume);
        let thread = std::thread::spawn(move || {
            let opened = kind
                .open(&poller, frontend_options)
                .expect("the front end opens");
            shared.lock().unwrap().made_anew = opened.made_anew;
            serve(&poller, &mailbox, opened.frontend, &shared);
        });
        let mut harness = Self {
            kind,
            options,
            volume,
            orders,
            thread: Some(thread),
            folder,
            keeper,
        };
        harness.await_state("ready", |state| {
            matches!(state, FrontendState::Ready { .. })
        })?;
        Ok(harness)
    }

    /// A successor with the same names and the same data.
    pub fn reopen(&mut self) -> Result<Harness> {
        let data = self.volume.lock().unwrap().data.clone();
        let folder = Arc::clone(&self.folder);
        Self::start(
            self.kind,
            self.options.clone(),
            data,
            folder,
            self.keeper.clone(),
        )
    }

    /// Puts a connection that cannot be asked to resend in the place of the kept one, and returns that, which stays open with it.
    pub fn spoil_what_is_kept(&self) -> Result<Kept> {
        let path = self.options.keeper.as_deref().context("a keeper")?;
        let mut client = KeeperClient::connect(path, &self.options.volume)?;
        let kept = client.fetch()?.context("a connection is kept")?;
        let unconnected = File::options().read(true).write(true).open("/dev/fuse")?;
        client.keep(unconnected.as_fd(), kept.device.as_fd())?;
        Ok(kept)
    }

    /// Why this one could not take over what its predecessor had.
    pub fn made_anew(&self) -> Option<String> {
        self.volume.lock().unwrap().made_anew.clone()
    }

    pub fn kind(&self) -> FrontendKind {
        self.kind
    }

    pub fn state(&self) -> FrontendState {
        self.volume.lock().unwrap().state.clone()
    }

    fn await_state(&mut self, what: &str, wanted: impl Fn(&FrontendState) -> bool) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if wanted(&state) {
                return Ok(());
            }
            if let FrontendState::Failed { reason } = state {
                bail!("the front end failed: {reason}");
            }
            ensure!(
                Instant::now() < give_up,
                "not {what} after {PATIENCE:?}: {:?}",
                self.state()
            );
            std::thread::yield_now();
        }
    }

    pub fn endpoint(&self) -> Result<Endpoint> {
        match self.state() {
            FrontendState::Ready { endpoint } => Ok(endpoint),
            other => bail!("not ready: {other:?}"),
        }
    }

    pub fn device(&self) -> Result<Box<dyn Device>> {
        Ok(match self.endpoint()? {
            Endpoint::BlockDevice(path) => Box::new(BlockDevice::open(&path)?),
            Endpoint::NbdSocket(path) => Box::new(NbdClient::connect(&path)?),
            Endpoint::Nowhere => bail!("this front end has no device"),
        })
    }

    pub fn peek(&self, offset: u64, length: u64) -> Vec<u8> {
        self.volume.lock().unwrap().data[offset as usize..(offset + length) as usize].to_vec()
    }

    pub fn counts(&self) -> Counts {
        self.volume.lock().unwrap().counts
    }

    pub fn fail_with(&self, fault: Option<IoFault>) {
        self.volume.lock().unwrap().fault = fault;
    }

    /// Keeps requests unanswered from now on, or answers them within a second.
    pub fn hold_answers(&self, hold: bool) {
        self.volume.lock().unwrap().hold = hold;
    }

    pub fn await_held(&self) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while self.volume.lock().unwrap().held.is_empty() {
            ensure!(Instant::now() < give_up, "no request came");
            std::thread::yield_now();
        }
        Ok(())
    }

    pub fn await_reads(&self, bytes: u64) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while self.counts().read_bytes < bytes {
            ensure!(Instant::now() < give_up, "not all reads came");
            std::thread::yield_now();
        }
        Ok(())
    }

    pub fn resize(&mut self, size_bytes: u64) -> Result<()> {
        self.volume
            .lock()
            .unwrap()
            .data
            .resize(usize::try_from(size_bytes)?, 0);
        self.orders.send(Order::Resize(size_bytes));
        let give_up = Instant::now() + PATIENCE;
        while self.device()?.size_bytes()? != size_bytes {
            ensure!(
                Instant::now() < give_up,
                "the device does not show its new size"
            );
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Asks for the end, and waits until that was heard.
    pub fn begin_close(&mut self) -> Result<()> {
        self.orders.send(Order::Close);
        self.await_state("closing", |state| *state == FrontendState::Closing)
    }

    pub fn close(&mut self) -> Result<()> {
        self.orders.send(Order::Close);
        self.await_state("closed", |state| *state == FrontendState::Closed)?;
        self.join();
        Ok(())
    }

    pub fn die(&mut self) {
        self.orders.send(Order::Die);
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the front end's loop does not panic");
        }
    }

    /// No loop device, mount, link or socket of this volume.
    pub fn ensure_nothing_is_left(&self) -> Result<()> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&self.options.volume), "a mount is left");
        for entry in std::fs::read_dir("/sys/block")? {
            let backing = entry?.path().join("loop/backing_file");
            if let Ok(file) = std::fs::read_to_string(backing) {
                ensure!(
                    !file.contains(&self.options.volume),
                    "a loop device is left"
                );
            }
        }
        for folder in [&self.options.runtime_dir, &self.options.device_dir] {
            if let Ok(entries) = std::fs::read_dir(folder) {
                let left: Vec<_> = entries
                    .filter_map(Result::ok)
                    .map(|entry| entry.path())
                    .collect();
                ensure!(left.is_empty(), "left behind: {left:?}");
            }
        }
        Ok(())
    }
}

impl Drop for Harness {
    /// Whatever a failed test leaves goes away.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.orders.send(Order::Die);
            self.join();
        }
        if self.kind == FrontendKind::Fuse && self.keeper.is_none() {
            let _ = engine::frontend::fuse::clear_leftovers(&self.options);
        }
    }
}

fn serve(
    poller: &Poller,
    mailbox: &Mailbox<Order>,
    mut frontend: Box<dyn Frontend>,
    volume: &Mutex<Volume>,
) {
    let mut ready = Vec::new();
    let mut requests: Vec<Request> = Vec::new();
    loop {
        volume.lock().unwrap().state = frontend.state();
        if frontend.state() == FrontendState::Closed {
            return;
        }
        ready.clear();
        poller
            .wait(Some(1_000_000), &mut ready)
            .expect("epoll works");
        for readiness in &ready {
            match readiness.token.owner {
                Owner::Frontend => frontend.ready(*readiness, &mut requests),
                Owner::Replica => unreachable!("there are no replicas here"),
                Owner::Mailbox => {
                    let orders: Vec<Order> = mailbox.drain().collect();
                    for order in orders {
                        match order {
                            Order::Resize(size) => {
                                if let Some(resize) = frontend.resize() {
                                    resize.set_size(size);
                                }
                            }
                            Order::Close => frontend.begin_close(),
                            Order::Die => {
                                engine::frontend::abandon(frontend);
                                return;
                            }
                        }
                    }
                }
            }
        }
        let mut volume = volume.lock().unwrap();
        if volume.hold {
            volume.held.append(&mut requests);
            continue;
        }
        requests.append(&mut volume.held);
        // The last one first: a front end must not rely on any order.
        for request in requests.drain(..).rev() {
            let outcome = volume.execute(&request.operation);
            frontend.complete(request.id, outcome);
        }
        frontend.flush();
    }
}

impl Volume {
    fn execute(&mut self, operation: &Operation) -> Outcome {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let range = operation.range();
        let bytes = match range {
            Some(range) if range.end().is_none_or(|end| end > self.data.len() as u64) => {
                return Err(IoFault::Invalid);
            }
            Some(range) => range.offset as usize..(range.offset + range.length) as usize,
            None => 0..0,
        };
        match operation {
            Operation::Read { range } => {
                self.counts.read_bytes += range.length;
                return Ok(Bytes::copy_from_slice(&self.data[bytes]));
            }
            Operation::Write { data, .. } => self.data[bytes].copy_from_slice(data),
            Operation::WriteZeroes { range, .. } => {
                self.data[bytes].fill(0);
                self.counts.zeroed_bytes += range.length;
            }
            Operation::Discard { range } => {
                self.data[bytes].fill(0);
                self.counts.discarded_bytes += range.length;
            }
            Operation::Flush => self.counts.flushes += 1,
        }
        Ok(Bytes::new())
    }
}

/// A user of the volume.
pub trait Device: Send {
    fn size_bytes(&mut self) -> Result<u64>;
    fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>>;
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<()>;
    fn discard(&mut self, offset: u64, length: u64) -> Result<()>;
    fn flush(&mut self) -> Result<()>;
}

/// A block device, used with direct I/O.
struct BlockDevice {
    file: File,
    path: PathBuf,
}

impl BlockDevice {
    fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }
}

/// Calls `with` on a buffer that begins at a page, as direct I/O wants.
fn aligned<T>(length: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut memory = vec![0u8; length + 4096];
    let start = memory.as_ptr().align_offset(4096);
    with(&mut memory[start..start + length])
}

impl Device for BlockDevice {
    fn size_bytes(&mut self) -> Result<u64> {
        Ok(engine::sys::block_device_size(&self.file)?)
    }

    fn read(&mut self, offset: u64, length: u64) -> Result<Vec<u8>> {
        aligned(length as usize, |buffer| {
            self.file.read_exact_at(buffer, offset)?;
            Ok(buffer.to_vec())
        })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        aligned(data.len(), |buffer| {
            buffer.copy_from_slice(data);
            Ok(self.file.write_all_at(buffer, offset)?)
        })
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<()> {
        self.blkdiscard(&["--zeroout"], offset, length)
    }

    fn discard(&mut self, offset: u64, length: u64) -> Result<()> {
        self.blkdiscard(&["--force"], offset, length)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }
}

impl BlockDevice {
    fn blkdiscard(&self, mode: &[&str], offset: u64, length: u64) -> Result<()> {
        let status = Command::new("blkdiscard")
            .args(mode)
            .args([
                "--offset",
                &offset.to_string(),
                "--length",
                &length.to_string(),
            ])
            .arg(&self.path)
            .status()
            .context("blkdiscard cannot be run; install util-linux")?;
        ensure!(status.success(), "blkdiscard ended with {status}");
        Ok(())
    }
}

/// A mounted file system that goes away even when a test fails.
pub struct MountGuard(PathBuf);

impl MountGuard {
    pub fn mount(device: &str, kind: &str, at: &Path) -> Result<Self> {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(device, at, kind, flags, None::<&std::ffi::CStr>)
            .with_context(|| format!("cannot mount {device}"))?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::empty());
    }
}
