//! A disk in memory that forgets what was not synced, tears pages, runs full and fails on demand.
//!
//! A crash keeps all that was synced. Of the rest, each 4 KiB page of a file independently is as before, as written, or
//! (where it was allocated before) a mix of both by sectors; names change in order, but only up to some point.
//!
//! A sync that fails gives up what it was to write, as the kernel does: it is shown still, and no later sync writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Disk, DiskFile};

const PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: usize = 512;
type Page = Box<[u8; PAGE_BYTES as usize]>;

/// What the next operations meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The n-th operation from now and all later ones fail, as if the power went at that moment or the process were killed.
    /// Which of the two it was, [`FaultyDisk::restart`] or [`FaultyDisk::kill`] says.
    CrashAfter(u64),
    /// The n-th operation from now fails once with an input/output error.
    ErrorAt(u64),
}

#[derive(Clone, Default)]
struct Inode {
    pages: BTreeMap<u64, Page>,
    length_bytes: u64,
}

#[derive(Clone, Default)]
struct File {
    now: Inode,
    durable: Inode,
    touched: BTreeSet<u64>,
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Default)]
struct Contents {
    files: BTreeMap<u64, File>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    next_file: u64,
    pages_max: Option<u64>,
    fault: Option<Fault>,
    crashed: bool,
    operations: u64,
    fetched_ahead: Vec<(u64, u64)>,
    /// How many more syncs, and what happens right behind the last of them.
    after_sync: Option<(u64, Box<dyn FnOnce() + Send>)>,
}

#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<Contents>>);

pub struct FaultyFile {
    disk: FaultyDisk,
    file: u64,
}

impl FaultyDisk {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set_fault(&self, fault: Fault) {
        self.contents().fault = Some(fault);
    }

    /// The disk is full when this many pages are in use.
    pub fn set_pages_max(&self, pages_max: Option<u64>) {
        self.contents().pages_max = pages_max;
    }

    pub fn pages_used(&self) -> u64 {
        self.contents()
            .files
            .values()
            .map(|file| file.now.pages.len() as u64)
            .sum()
    }

    /// Lets something happen while somebody syncs: right behind the n-th sync of a file from now.
    pub fn after_sync(&self, nth: u64, happens: impl FnOnce() + Send + 'static) {
        self.contents().after_sync = Some((nth, Box::new(happens)));
    }

    fn synced(&self) {
        let due = {
            let mut contents = self.contents();
            if let Some((left, _)) = &mut contents.after_sync {
                *left = left.saturating_sub(1);
            }
            let is_due = matches!(contents.after_sync, Some((0, _)));
            is_due.then(|| contents.after_sync.take()).flatten()
        };
        if let Some((_, happens)) = due {
            happens();
        }
    }

    /// Whether a crash or an error is still to come.
    pub fn fault_is_set(&self) -> bool {
        let contents = self.contents();
        contents.crashed || !matches!(contents.fault, None | Some(Fault::None))
    }

    pub fn has_crashed(&self) -> bool {
        self.contents().crashed
    }

    pub fn operations(&self) -> u64 {
        self.contents().operations
    }

    /// The ranges, offset and length, that were to be fetched since this was last asked.
    pub fn take_fetched_ahead(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.contents().fetched_ahead)
    }

    /// Changes one durable byte of a file, as a failing disk would.
    pub fn rot(&self, name: &str, offset_bytes: u64) {
        let mut contents = self.contents();
        let file = contents.names[name];
        let file = contents.files.get_mut(&file).expect("a file");
        for inode in [&mut file.now, &mut file.durable] {
            if let Some(page) = inode.pages.get_mut(&(offset_bytes / PAGE_BYTES)) {
                page[(offset_bytes % PAGE_BYTES) as usize] ^= 0xff;
            }
        }
    }

    /// The power goes and comes back: what survives of unsynced changes is drawn from `random`.
    pub fn restart(&self, mut random: impl FnMut() -> u64) {
        let mut contents = self.contents();
        let kept = random() as usize % (contents.name_changes.len() + 1);
        let changes: Vec<NameChange> = contents.name_changes.drain(..).take(kept).collect();
        let mut names = std::mem::take(&mut contents.durable_names);
        for change in changes {
            apply(&mut names, change);
        }
        let used: BTreeSet<u64> = names.values().copied().collect();
        contents.names = names.clone();
        contents.durable_names = names;
        contents.files.retain(|file, _| used.contains(file));
        for file in contents.files.values_mut() {
            survive(file, &mut random);
        }
        contents.fault = None;
        contents.crashed = false;
    }

    /// Only the process ends, at the fault that is set or now: the next one finds all that was written, durable or not.
    pub fn kill(&self) {
        let mut contents = self.contents();
        contents.fault = None;
        contents.crashed = false;
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().expect("no test panicked in here")
    }

    /// Counts an operation and meets the fault that is set.
    fn begin(&self) -> io::Result<MutexGuard<'_, Contents>> {
        let mut contents = self.contents();
        contents.operations += 1;
        if contents.crashed {
            return Err(io::Error::other("the power is off"));
        }
        match contents.fault {
            Some(Fault::CrashAfter(0)) => {
                contents.crashed = true;
                Err(io::Error::other("the power went"))
            }
            Some(Fault::CrashAfter(left)) => {
                contents.fault = Some(Fault::CrashAfter(left - 1));
                Ok(contents)
            }
            Some(Fault::ErrorAt(0)) => {
                contents.fault = None;
                Err(io::Error::from_raw_os_error(5))
            }
            Some(Fault::ErrorAt(left)) => {
                contents.fault = Some(Fault::ErrorAt(left - 1));
                Ok(contents)
            }
            Some(Fault::None) | None => Ok(contents),
        }
    }
}

fn apply(names: &mut BTreeMap<String, u64>, change: NameChange) {
    match change {
        NameChange::Set(name, file) => drop(names.insert(name, file)),
        NameChange::Rename(from, to) => {
            if let Some(file) = names.remove(&from) {
                names.insert(to, file);
            }
        }
        NameChange::Remove(name) => drop(names.remove(&name)),
    }
}

fn survive(file: &mut File, random: &mut impl FnMut() -> u64) {
    // The length is journalled; half of the time its change was.
    if random().is_multiple_of(2) {
        file.durable.length_bytes = file.now.length_bytes;
    }
    for at in std::mem::take(&mut file.touched) {
        let (now, before) = (
            file.now.pages.get(&at).cloned(),
            file.durable.pages.get(&at).cloned(),
        );
        let survivor = match (random() % 3, now, before) {
            (0, now, _) => now,
            (1, _, before) => before,
            (_, Some(now), Some(before)) => {
                let mut torn = before;
                for sector in 0..PAGE_BYTES as usize / SECTOR_BYTES {
                    if random().is_multiple_of(2) {
                        let bytes = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                        torn[bytes.clone()].copy_from_slice(&now[bytes]);
                    }
                }
                Some(torn)
            }
            // Extents appear and vanish as a whole.
            (_, now, None) => now,
            (_, None, before) => before,
        };
        match survivor {
            Some(page) => drop(file.durable.pages.insert(at, page)),
            None => drop(file.durable.pages.remove(&at)),
        }
    }
    file.now = file.durable.clone();
}

impl Disk for FaultyDisk {
    type File = FaultyFile;

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        let mut contents = self.begin()?;
        let file = contents.next_file;
        contents.next_file += 1;
        contents.files.insert(file, File::default());
        contents.names.insert(name.to_owned(), file);
        contents
            .name_changes
            .push(NameChange::Set(name.to_owned(), file));
        Ok(FaultyFile {
            disk: self.clone(),
            file,
        })
    }

    fn open(&self, name: &str) -> io::Result<FaultyFile> {
        let contents = self.begin()?;
        let file = *contents
            .names
            .get(name)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(FaultyFile {
            disk: self.clone(),
            file,
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut contents = self.begin()?;
        let change = NameChange::Rename(from.to_owned(), to.to_owned());
        apply(&mut contents.names, change.clone());
        contents.name_changes.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut contents = self.begin()?;
        contents.names.remove(name);
        contents
            .name_changes
            .push(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.begin()?.names.keys().cloned().collect())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut contents = self.begin()?;
        contents.name_changes.clear();
        contents.durable_names = contents.names.clone();
        Ok(())
    }
}

impl FaultyFile {
    fn change<T>(&self, change: impl FnOnce(&mut File) -> T) -> io::Result<T> {
        let mut contents = self.disk.begin()?;
        Ok(change(
            contents
                .files
                .get_mut(&self.file)
                .expect("open files are kept"),
        ))
    }

    fn give_up_writes(&self) {
        let mut contents = self.disk.contents();
        // What a loss of power leaves, the restart says.
        if !contents.crashed {
            let file = contents.files.get_mut(&self.file);
            file.expect("open files are kept").touched.clear();
        }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.change(|file| {
            let (mut at, mut rest) = (offset_bytes, buffer);
            while !rest.is_empty() {
                let within = (at % PAGE_BYTES) as usize;
                let length = rest.len().min(PAGE_BYTES as usize - within);
                let (piece, behind) = rest.split_at_mut(length);
                match file.now.pages.get(&(at / PAGE_BYTES)) {
                    Some(page) => piece.copy_from_slice(&page[within..within + length]),
                    None => piece.fill(0),
                }
                at += length as u64;
                rest = behind;
            }
        })
    }

    fn read_at_without_waiting(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<bool> {
        // Odd blocks are "not in memory", so that both ways are walked.
        if (offset_bytes / PAGE_BYTES).is_multiple_of(2) {
            self.read_at(buffer, offset_bytes)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        let mut contents = self.disk.begin()?;
        let mut pages_free = contents.pages_max.map_or(u64::MAX, |pages_max| {
            let used: usize = contents
                .files
                .values()
                .map(|file| file.now.pages.len())
                .sum();
            pages_max.saturating_sub(used as u64)
        });
        let file = contents
            .files
            .get_mut(&self.file)
            .expect("open files are kept");
        let (mut at, mut rest) = (offset_bytes, data);
        while !rest.is_empty() {
            let (number, within) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let (piece, behind) = rest.split_at(rest.len().min(PAGE_BYTES as usize - within));
            if !file.now.pages.contains_key(&number) {
                if pages_free == 0 {
                    return Err(io::Error::from_raw_os_error(28));
                }
                pages_free -= 1;
            }
            let page = file
                .now
                .pages
                .entry(number)
                .or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
            page[within..within + piece.len()].copy_from_slice(piece);
            file.touched.insert(number);
            at += piece.len() as u64;
            rest = behind;
        }
        file.now.length_bytes = file.now.length_bytes.max(offset_bytes + data.len() as u64);
        Ok(())
    }

    fn punch(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        assert!(offset_bytes.is_multiple_of(PAGE_BYTES) && length_bytes.is_multiple_of(PAGE_BYTES));
        self.change(|file| {
            for number in offset_bytes / PAGE_BYTES..(offset_bytes + length_bytes) / PAGE_BYTES {
                if file.now.pages.remove(&number).is_some() {
                    file.touched.insert(number);
                }
            }
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.change(|file| {
            for at in std::mem::take(&mut file.touched) {
                match file.now.pages.get(&at) {
                    Some(page) => drop(file.durable.pages.insert(at, page.clone())),
                    None => drop(file.durable.pages.remove(&at)),
                }
            }
            file.durable.length_bytes = file.now.length_bytes;
        });
        match synced {
            Ok(()) => self.disk.synced(),
            Err(_) => self.give_up_writes(),
        }
        synced
    }

    fn set_len(&self, length_bytes: u64) -> io::Result<()> {
        self.change(|file| file.now.length_bytes = length_bytes)
    }

    fn length_bytes(&self) -> io::Result<u64> {
        self.change(|file| file.now.length_bytes)
    }

    fn next_data(&self, from_bytes: u64) -> io::Result<Option<(u64, u64)>> {
        self.change(|file| {
            let (first, _) = file.now.pages.range(from_bytes / PAGE_BYTES..).next()?;
            let mut end = *first;
            while file.now.pages.contains_key(&end) {
                end += 1;
            }
            Some(((first * PAGE_BYTES).max(from_bytes), end * PAGE_BYTES))
        })
    }

    fn fetch_ahead(&self, offset_bytes: u64, length_bytes: u64) {
        let mut contents = self.disk.contents();
        contents.fetched_ahead.push((offset_bytes, length_bytes));
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.change(|file| file.now.pages.len() as u64 * PAGE_BYTES)
    }

    fn forget_cached(&self) -> io::Result<()> {
        self.change(|file| {
            let mut pages = file.durable.pages.clone();
            // What is still to be written stays.
            for at in &file.touched {
                match file.now.pages.get(at) {
                    Some(page) => drop(pages.insert(*at, page.clone())),
                    None => drop(pages.remove(at)),
                }
            }
            file.now.pages = pages;
        })
    }
}
