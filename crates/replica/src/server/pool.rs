//! A few threads for work that may wait for a device.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::or_abort;
use crate::store::lock;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    /// Unbounded, because each connection bounds what it has in here.
    sender: Mutex<Option<Sender<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    pub fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (sender, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |number| {
            let receiver = receiver.clone();
            std::thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || work(&receiver))
        };
        let threads = (0..threads).map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            sender: Mutex::new(Some(sender)),
            threads: Mutex::new(threads),
        })
    }

    /// Runs a job soon. After [`Pool::stop`], drops it: its connection is gone.
    pub fn run(&self, job: Job) {
        if let Some(sender) = &*lock(&self.sender) {
            let _ = sender.send(job);
        }
    }

    /// Finishes the jobs that are there and ends the threads.
    pub fn stop(&self) {
        lock(&self.sender).take();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(receiver: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting: whoever has it gets the next job.
        let Ok(job) = lock(receiver).recv() else {
            return;
        };
        or_abort(job);
    }
}
