//! `volumeattachments.longhorn.io`: every request to have a volume on a node, and what became of it.

use std::collections::BTreeMap;

use kube::CustomResource;

use crate::{
    condition::{self, Condition},
    wire::object,
};

/// The condition type that tells whether and why a ticket is satisfied or not.
pub const SATISFIED_CONDITION: &str = "Satisfied";

/// Names of ticket parameters.
pub mod ticket_parameter {
    /// Whether to attach without a device: `"true"`, `"false"` or `"any"`.
    pub const DISABLE_FRONTEND: &str = "disableFrontend";
    /// Who attached the volume by hand.
    pub const LAST_ATTACHED_BY: &str = "lastAttachedBy";
    /// The value of a parameter that fits whatever the volume has.
    pub const ANY: &str = "any";
}

object! {
    /// The requests for one volume. Every party owns the entries that it filed and no others.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "VolumeAttachment", namespaced,
        shortname = "lhva", status = "VolumeAttachmentStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "All requests to attach one volume. It has the volume's name.",
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    #[schemars(extend("required" = ["volume"]))]
    pub struct VolumeAttachmentSpec {
        /// The requests, by their id.
        pub attachment_tickets: BTreeMap<String, AttachmentTicket>,
        /// The volume. It cannot be changed.
        pub volume: String,
    }

    /// One party's request to have the volume on a node.
    pub struct AttachmentTicket {
        /// The key under which the ticket is filed.
        pub id: String,
        /// What kind of party filed it, such as `csi-attacher`.
        #[serde(rename = "type")]
        pub attacher_type: String,
        /// The node on which the party needs the volume.
        #[serde(rename = "nodeID")]
        pub node_id: String,
        /// How it needs it, such as `disableFrontend`.
        pub parameters: BTreeMap<String, String>,
        /// Counts the changes of the ticket, so that an answer to an older form is not taken for one to this.
        pub generation: i64,
    }

    /// What became of the requests. Written only by the attachment controller.
    pub struct VolumeAttachmentStatus {
        /// The answers, by the ticket's id.
        pub attachment_ticket_statuses: BTreeMap<String, AttachmentTicketStatus>,
    }

    /// The answer to one ticket.
    pub struct AttachmentTicketStatus {
        /// The ticket's id.
        pub id: String,
        /// Why it is satisfied or not: one condition of the type `Satisfied`.
        pub conditions: Vec<Condition>,
        /// The generation of the ticket that this answers.
        pub generation: i64,
        /// Whether the volume is where and how the ticket wants it.
        pub satisfied: bool,
    }
}

impl VolumeAttachmentStatus {
    /// Whether this ticket, in this generation, is satisfied.
    pub fn satisfies(&self, ticket: &AttachmentTicket) -> bool {
        self.attachment_ticket_statuses
            .get(&ticket.id)
            .is_some_and(|status| {
                status.satisfied
                    && status.generation == ticket.generation
                    && condition::is_true(&status.conditions, SATISFIED_CONDITION)
            })
    }
}
