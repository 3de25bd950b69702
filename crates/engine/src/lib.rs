//! One volume's engine: an event loop over its replicas, a control socket, and block front ends.
//!
//! ```text
//!   front end (fuse, nbd, none)          control socket
//!        │ requests  ▲ outcomes            │ commands  ▲ answers, events, proposals
//!        v           │                     v           │
//!   ┌──────────────────── shell: one thread, one epoll set ───────────────────┐
//!   │   events ──>  core: apply(now, event) -> actions, no I/O  ──> actions   │
//!   └──────────────────────────────────────────────────────────────────────────┘
//!        │ frames    ▲ replies
//!        v           │
//!   replicas, over TCP
//! ```
//!
//! [`core`] decides and never waits ([`standby`] in its place before a hand-over, [`brain`] says which); [`shell`] waits and never decides; [`frontend`] and [`link`] turn bytes into requests and
//! requests into bytes; [`run`] and, for what needs no engine, [`inspect`] are what a command line calls, and `docs/engine.md` what a person reads first. This
//! crate knows nothing of Kubernetes, and of replicas only their protocol.

pub mod brain;
pub mod control;
pub mod core;
pub mod frontend;
pub mod inspect;
pub mod io;
pub mod link;
pub mod poller;
pub mod run;
pub mod shell;
pub mod standby;
pub mod state_file;
pub mod sys;
pub mod transport;
