//! From documents to views: which objects play a part, and which belong together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::names::{NodeName, TicketId};
use crate::reasons::Reason;
use crate::ticket::{Defect, Ticket, TicketStatus};
use crate::view::{Engine, Engines, Node, Nodes, Settings, Sharing, View, Volume};
use crate::wire;

use super::Problem;
use super::attachment;
use super::documents::Document;
use super::kubernetes::KubernetesNode;

/// The objects that the decision depends on.
#[derive(Default)]
pub(super) struct Objects {
    volumes: BTreeMap<String, Volume>,
    attachments: BTreeMap<String, Attachment>,
    /// Volumes of which an essential part is in the input and cannot be read: explaining them would be guessing.
    unreadable: BTreeSet<String>,
    engines: BTreeMap<String, Vec<Engine>>,
    nodes: BTreeMap<NodeName, Node>,
    kubernetes_nodes: BTreeMap<NodeName, Node>,
    settings: Settings,
}

struct Attachment {
    document: String,
    object: api_types::VolumeAttachment,
    /// Tickets of which only the outline could be read, by their key.
    defects: BTreeMap<String, Defect>,
}

/// A document whose kind is known to matter.
struct Found<'p> {
    document: String,
    value: Value,
    problems: &'p mut Vec<Problem>,
}

impl Objects {
    pub fn collect(documents: Vec<Document>, problems: &mut Vec<Problem>) -> Self {
        let mut objects = Self::default();
        for Document { name, value } in documents {
            let text = |key: &str| {
                value
                    .get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let (api_version, kind) = (text("apiVersion"), text("kind"));
            let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
            let document = describe(name, &kind, &value);
            if kind.is_empty() {
                let message = "not a Kubernetes object: it has no kind".to_owned();
                problems.push(Problem {
                    document,
                    field: "kind".to_owned(),
                    message,
                });
                continue;
            }
            let found = Found {
                document,
                value,
                problems,
            };
            match (group, kind.as_str()) {
                ("longhorn.io", "Volume") => objects.add_volume(found),
                ("longhorn.io", "VolumeAttachment") => objects.add_attachment(found),
                ("longhorn.io", "Engine") => objects.add_engine(found),
                ("longhorn.io", "Node") => objects.add_node(found),
                ("longhorn.io", "Setting") => objects.add_setting(found),
                ("", "Node") => objects.add_kubernetes_node(found),
                _ => {}
            }
        }
        objects
    }

    fn add_volume(&mut self, mut found: Found<'_>) {
        let name = found.text("/metadata/name");
        let Some(object) = found.parse::<api_types::Volume>() else {
            self.unreadable.insert(name);
            return;
        };
        let (volume, complaints) = match wire::volume(&object) {
            Ok(read) => read,
            Err(error) => {
                self.unreadable.insert(name);
                return found.complain(error.field, error.message);
            }
        };
        for complaint in complaints {
            found.complain(complaint.field, complaint.message);
        }
        match self.volumes.entry(name) {
            Entry::Vacant(entry) => _ = entry.insert(volume),
            Entry::Occupied(_) => found.complain_twice(),
        }
    }

    fn add_attachment(&mut self, mut found: Found<'_>) {
        let volume = found.text("/spec/volume");
        let defects = attachment::outline_unreadable_tickets(&mut found.value);
        let Some(object) = found.parse::<api_types::VolumeAttachment>() else {
            if !volume.is_empty() {
                found.complain(
                    "",
                    format!("without it volume {volume:?} cannot be explained"),
                );
                self.unreadable.insert(volume);
            }
            return;
        };
        if volume.is_empty() {
            return found.complain(
                "spec.volume",
                "the VolumeAttachment does not say which volume it is about",
            );
        }
        for (key, wire) in &object.spec.attachment_tickets {
            if let Some(defect) = defects
                .get(key)
                .cloned()
                .or_else(|| wire::ticket(key, wire).defect)
            {
                let field = format!("spec.attachmentTickets[{key}].{}", defect.field());
                found.complain(field, format!("the ticket cannot be served: {defect}"));
            }
        }
        match self.attachments.entry(volume) {
            Entry::Vacant(entry) => {
                entry.insert(Attachment {
                    document: found.document,
                    object,
                    defects,
                });
            }
            Entry::Occupied(_) => found.complain_twice(),
        }
    }

    fn add_engine(&mut self, mut found: Found<'_>) {
        let Some(object) = found.parse::<api_types::Engine>() else {
            return;
        };
        let engines = self
            .engines
            .entry(object.spec.volume_name.clone())
            .or_default();
        engines.extend(wire::engine(&object));
    }

    fn add_node(&mut self, mut found: Found<'_>) {
        let Some(object) = found.parse::<api_types::Node>() else {
            return;
        };
        match object
            .metadata
            .name
            .as_deref()
            .and_then(NodeName::from_wire)
        {
            Some(name) => drop(self.nodes.insert(name, wire::node(&object))),
            None => found.complain("metadata.name", "the node has no name"),
        }
    }

    fn add_kubernetes_node(&mut self, mut found: Found<'_>) {
        let Some(object) = found.parse::<KubernetesNode>() else {
            return;
        };
        let node = Node {
            ready: object.is_ready(),
            cordoned: object.spec.unschedulable,
        };
        match NodeName::from_wire(&object.metadata.name) {
            Some(name) => drop(self.kubernetes_nodes.insert(name, node)),
            None => found.complain("metadata.name", "the node has no name"),
        }
    }

    fn add_setting(&mut self, mut found: Found<'_>) {
        let Some(object) = found.parse::<api_types::Setting>() else {
            return;
        };
        if object.metadata.name.as_deref() != Some(wire::DETACH_MANUAL_WHEN_CORDONED) {
            return;
        }
        match object.value() {
            "true" => self.settings.detach_manual_when_cordoned = true,
            "false" => self.settings.detach_manual_when_cordoned = false,
            other => found.complain("value", format!("{other:?} is neither true nor false")),
        }
    }

    /// A view for each volume, with what must be said about the input itself.
    pub fn views(
        mut self,
        now: Timestamp,
        problems: &mut Vec<Problem>,
    ) -> Vec<(View, Vec<Reason>)> {
        let nodes = self.join_nodes();
        let nodes_shown = nodes.complete;
        let engines_shown = !self.engines.is_empty();
        let mut views = Vec::new();
        for (name, volume) in self.volumes {
            if self.unreadable.contains(&name) {
                continue;
            }
            let attachment = self.attachments.remove(&name);
            let mut remarks = Vec::new();
            if attachment.is_none() {
                remarks.push(Reason::NoVolumeAttachment);
            }
            if !nodes_shown && volume.sharing == Sharing::Migratable {
                remarks.push(Reason::NodesNotShown);
            }
            let (tickets, statuses) = attachment.map(Attachment::read).unwrap_or_default();
            let engines = self.engines.remove(&name).unwrap_or_default();
            let view = View {
                now,
                tickets,
                statuses,
                nodes: nodes.clone(),
                engines: Engines {
                    complete: engines_shown,
                    listed: engines,
                },
                settings: self.settings.clone(),
                volume,
            };
            views.push((view, remarks));
        }
        self.attachments
            .retain(|volume, _| !self.unreadable.contains(volume));
        for (volume, Attachment { document, .. }) in self.attachments {
            let message = format!(
                "volume {volume:?} is not in the input, so its tickets cannot be explained; add the output of \
                 `kubectl -n longhorn-system get volumes.longhorn.io {volume} -o yaml`"
            );
            problems.push(Problem {
                document,
                field: "spec.volume".to_owned(),
                message,
            });
        }
        views
    }

    /// Longhorn's nodes decide what is ready, Kubernetes' nodes what is cordoned. A dump with only the latter still
    /// says something.
    fn join_nodes(&mut self) -> Nodes {
        let complete = !self.nodes.is_empty();
        let mut listed = std::mem::take(&mut self.nodes);
        for (name, kubernetes) in std::mem::take(&mut self.kubernetes_nodes) {
            match listed.entry(name) {
                Entry::Occupied(mut entry) => entry.get_mut().cordoned |= kubernetes.cordoned,
                Entry::Vacant(entry) if !complete => _ = entry.insert(kubernetes),
                Entry::Vacant(_) => {}
            }
        }
        Nodes { complete, listed }
    }
}

impl Attachment {
    fn read(self) -> (BTreeMap<TicketId, Ticket>, BTreeMap<TicketId, TicketStatus>) {
        let mut tickets = wire::tickets(&self.object);
        for (key, defect) in self.defects {
            if let Some(ticket) = tickets.get_mut(key.as_str()) {
                ticket.defect = Some(defect);
            }
        }
        (tickets, wire::statuses(&self.object))
    }
}

fn describe(document: String, kind: &str, value: &Value) -> String {
    match value.pointer("/metadata/name").and_then(Value::as_str) {
        Some(name) => format!("{document} ({kind} {name})"),
        None => document,
    }
}

impl Found<'_> {
    fn text(&self, pointer: &str) -> String {
        self.value
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    }

    fn parse<T: DeserializeOwned>(&mut self) -> Option<T> {
        match serde_path_to_error::deserialize(std::mem::take(&mut self.value)) {
            Ok(object) => Some(object),
            Err(error) => {
                let field = error.path().to_string();
                self.complain(
                    if field == "." { String::new() } else { field },
                    error.into_inner().to_string(),
                );
                None
            }
        }
    }

    fn complain(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem {
            document: self.document.clone(),
            field: field.into(),
            message: message.into(),
        });
    }

    fn complain_twice(&mut self) {
        self.complain(
            "metadata.name",
            "the same object was in the input before; the first one is used",
        );
    }
}
