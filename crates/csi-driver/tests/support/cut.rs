//! A client whose process dies at one of its writes.

use std::io;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;

/// What becomes of the write at which the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It never reaches the server.
    Lost,
    /// It reaches the server, and nobody is left to hear the answer.
    Unanswered,
    /// It reaches the server when another process has long made the call again.
    Late,
}

impl Fate {
    pub const ALL: [Self; 3] = [Self::Lost, Self::Unanswered, Self::Late];
}

/// Lets requests through up to a write, and nothing from there on.
pub struct Cut {
    at_write: usize,
    fate: Fate,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    writes: usize,
    is_dead: bool,
    late: Option<Request<Body>>,
}

enum Verdict {
    Passes(Request<Body>),
    Unanswered(Request<Body>),
    Dropped,
}

impl Cut {
    /// Cuts at the write of this number; the first one is 1.
    pub fn new(at_write: usize, fate: Fate) -> Arc<Self> {
        Arc::new(Self {
            at_write,
            fate,
            progress: Mutex::default(),
        })
    }

    /// The client of the process that dies.
    pub fn client(self: &Arc<Self>, api: &Client) -> Client {
        let (cut, api) = (Arc::clone(self), api.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (cut, api) = (Arc::clone(&cut), api.clone());
            async move { cut.pass(&api, request).await }
        });
        Client::new(service, "default")
    }

    /// Whether it came to the write at which the process dies.
    pub fn has_happened(&self) -> bool {
        self.progress.lock().expect("no panic").is_dead
    }

    /// What was under way when the process died reaches the server now. The server may refuse it.
    pub async fn deliver_what_is_late(&self, api: &Client) {
        let late = self.progress.lock().expect("no panic").late.take();
        assert_eq!(late.is_some(), self.fate == Fate::Late);
        if let Some(request) = late {
            api.send(request).await.expect("an answer of the server");
        }
    }

    async fn pass(&self, api: &Client, request: Request<Body>) -> kube::Result<Response<Body>> {
        match self.judge(request) {
            Verdict::Passes(request) => return api.send(request).await,
            Verdict::Unanswered(request) => {
                api.send(request).await?;
            }
            Verdict::Dropped => {}
        }
        let died = io::Error::other("the process is dead");
        Err(kube::Error::Service(died.into()))
    }

    fn judge(&self, request: Request<Body>) -> Verdict {
        let mut progress = self.progress.lock().expect("no panic");
        if progress.is_dead {
            return Verdict::Dropped;
        }
        if *request.method() == Method::GET {
            return Verdict::Passes(request);
        }
        progress.writes += 1;
        if progress.writes < self.at_write {
            return Verdict::Passes(request);
        }
        progress.is_dead = true;
        match self.fate {
            Fate::Lost => Verdict::Dropped,
            Fate::Unanswered => Verdict::Unanswered(request),
            Fate::Late => {
                progress.late = Some(request);
                Verdict::Dropped
            }
        }
    }
}
