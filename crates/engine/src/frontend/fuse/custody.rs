//! An engine's dealings with its keeper: what it found there, what it leaves there, and what to do when the
//! keeper itself ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::channel::Channel;
use crate::frontend::keeper::{KeeperClient, Kept};
use crate::poller::{Owner, Poller, Token};

/// Ready when the keeper has hung up: it never speaks first.
pub const KEEPER: Token = Token {
    owner: Owner::Frontend,
    index: 2,
};

/// How often an engine whose keeper has ended looks for the next one.
const RETRY: Duration = Duration::from_secs(1);

/// ```text
/// Found ──> Left <──> Lost        each ──> Over
/// ```
enum Stage {
    /// Connected; the descriptors are not there yet, unless a predecessor has left them.
    Found(KeeperClient),
    Left(KeeperClient),
    /// The keeper has ended. Whoever looks for the next one stops when this is dropped.
    Lost {
        _wanted: Arc<()>,
    },
    Over,
}

/// Copies of the channel and of the device, in a keeper's hands.
pub struct Custody {
    volume: String,
    path: PathBuf,
    stage: Stage,
    inherited: bool,
}

impl Custody {
    /// Connects, and fetches what a predecessor has left.
    pub fn open(path: PathBuf, volume: &str) -> io::Result<(Self, Option<Kept>)> {
        let mut client = KeeperClient::connect(&path, volume)?;
        let kept = client.fetch()?;
        let custody = Self {
            volume: volume.to_owned(),
            path,
            stage: Stage::Found(client),
            inherited: kept.is_some(),
        };
        Ok((custody, kept))
    }

    /// Nothing can be done with what a predecessor has left: the keeper is to let go of it, and gets what is made anew.
    pub fn disinherit(&mut self) {
        if let Stage::Found(client) = &mut self.stage {
            client.forget();
        }
        self.inherited = false;
    }

    /// Leaves copies with the keeper, unless it has them from a predecessor.
    pub fn leave(&mut self, poller: &Poller, channel: &Channel, device: &File) -> io::Result<()> {
        let Stage::Found(client) = &mut self.stage else {
            return Ok(());
        };
        if !self.inherited {
            client.keep(channel.as_fd(), device.as_fd())?;
        }
        poller.watch(&*client, KEEPER)?;
        if let Stage::Found(client) = std::mem::replace(&mut self.stage, Stage::Over) {
            self.stage = Stage::Left(client);
        }
        Ok(())
    }

    /// The keeper has hung up. The device does not depend on it, only the next kill of this engine does: what is
    /// returned waits for another keeper at the same path, on a thread of its own.
    pub fn on_hang_up(&mut self, poller: &Poller) -> Option<Search> {
        let Stage::Left(client) = &self.stage else {
            return None;
        };
        let _ = poller.forget(client);
        tracing::warn!(
            volume.name = %self.volume, keeper = %self.path.display(),
            "the keeper has ended: until another one listens there, a kill of this engine fails its device"
        );
        Some(self.search())
    }

    fn search(&mut self) -> Search {
        let keep_looking = Arc::new(());
        let wanted = Arc::downgrade(&keep_looking);
        self.stage = Stage::Lost {
            _wanted: keep_looking,
        };
        Search {
            volume: self.volume.clone(),
            path: self.path.clone(),
            wanted,
        }
    }

    /// A search has found the next keeper; `Some` where it is to go on.
    pub fn on_found(
        &mut self,
        client: KeeperClient,
        poller: &Poller,
        channel: &Channel,
        device: &File,
    ) -> Option<Search> {
        if !matches!(self.stage, Stage::Lost { .. }) {
            return None;
        }
        self.stage = Stage::Found(client);
        self.inherited = false;
        match self.leave(poller, channel, device) {
            Ok(()) => {
                tracing::info!(volume.name = %self.volume, "another keeper has the device");
                None
            }
            Err(error) => {
                tracing::warn!(volume.name = %self.volume, %error, "the next keeper did not take the device");
                Some(self.search())
            }
        }
    }

    /// Takes the copies back: while the keeper has one, the device is not cleared.
    pub fn forget(&mut self) {
        if let Stage::Found(mut client) | Stage::Left(mut client) =
            std::mem::replace(&mut self.stage, Stage::Over)
        {
            client.forget();
        }
    }
}

/// Looks for a keeper until there is one, or until nobody wants it any more.
pub struct Search {
    volume: String,
    path: PathBuf,
    wanted: Weak<()>,
}

impl Search {
    pub fn run(&self) -> Option<KeeperClient> {
        while self.wanted.strong_count() > 0 {
            if let Ok(client) = KeeperClient::connect(&self.path, &self.volume) {
                return Some(client);
            }
            std::thread::sleep(RETRY);
        }
        None
    }
}
