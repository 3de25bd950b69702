//! Tickets: who gets a volume, who waits, who is interrupted, and why.
//!
//! Every party that needs a volume files a ticket. [`decide()`] reads one volume's tickets and state and yields a
//! [`Plan`]: the values to write next, and a typed [`Reason`] for each. [`reaper`] says which tickets nobody needs
//! any more, [`holders`] which tickets the operations of the system need, and [`explain`] shows all of it
//! for a dump of any cluster.
//!
//! What is not here: no clock, no randomness, no I/O and no async. Time is part of the view. API types are read in
//! [`wire`] and go no further.

pub mod attacher;
pub mod breaker;
mod decide;
pub mod explain;
pub mod holders;
pub mod lease;
pub mod migration;
pub mod names;
pub mod plan;
pub mod reaper;
pub mod reasons;
pub mod ticket;
pub mod view;
pub mod wire;

pub use attacher::{Attacher, AttacherKind};
pub use decide::decide;
pub use names::{Generation, NodeName, TicketId, VolumeName};
pub use plan::{Action, Judgement, Plan, Verdict};
pub use reasons::Reason;
pub use ticket::{Frontend, Ticket, TicketStatus};
pub use view::View;
