//! The CSI services through which a container orchestrator uses volumes: Identity, Controller and Node.
//!
//! The Controller service writes API objects (a Volume, a ticket) and waits on watches for what the controllers make of
//! them. The Node service mounts what an engine offers as a block device. Neither knows how a volume is stored, and neither
//! remembers anything: every call looks, does what is missing, and can be repeated.

mod calls;
pub mod capability;
pub mod controller;
pub mod deadline;
pub mod identity;
pub mod in_flight;
pub mod limits;
pub mod node;
mod server;

pub use calls::CallTimes;
pub use controller::{ControllerOptions, ControllerService};
pub use identity::IdentityService;
pub use node::{NodeOptions, NodeService, NotesOnVolumes, VolumeNotes};
pub use server::{ServeError, serve_controller, serve_node};

/// The CSI protocol's messages, clients and servers.
pub mod csi {
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}
