//! A line for every hop of a volume, until it is where it should be.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use api_types::names::label;
use api_types::{Engine, Volume, VolumeAttachment, VolumeState, condition};
use attach_core::{NodeName, TicketId};
use controllers::timeline::{self, Hop, Seen};
use futures::{Stream, StreamExt as _, stream};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, timeout_at};

use crate::exit::{Failure, Outcome};
use crate::inventory::inside;
use crate::output::tell;

/// Where the way ends.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Attached {
        ticket: TicketId,
        node: NodeName,
    },
    /// These nodes have let go of it, or keep it for somebody else.
    Released {
        nodes: Vec<NodeName>,
    },
}

enum News {
    Tickets(Option<Box<VolumeAttachment>>),
    Volume(Option<Box<Volume>>),
    Engine(Box<Engine>, bool),
}

/// Prints hops as they are seen. Ends when the target is reached; an error if that does not happen in time.
pub(crate) async fn follow(
    client: &Client,
    volume: &str,
    target: &Target,
    patience: Duration,
) -> Result<()> {
    let started = Instant::now();
    let mut news = watch(client, volume);
    let mut track = Track::new(volume, target);
    loop {
        let next = timeout_at(started + patience, news.next()).await;
        let Ok(Some(next)) = next else {
            return Err(track.unfinished(patience));
        };
        for line in track.take(&next) {
            tell!("  {:>6} ms  {line}", started.elapsed().as_millis());
        }
        if let Some(end) = track.end() {
            return end.map_err(Into::into).map(|said| tell!("{said}"));
        }
    }
}

fn watch(client: &Client, volume: &str) -> impl Stream<Item = News> + Unpin {
    let named = watcher::Config::default().fields(&format!("metadata.name={volume}"));
    let labelled = watcher::Config::default().labels(&format!("{}={volume}", label::VOLUME));
    let tickets: Api<VolumeAttachment> = inside(client);
    let tickets = changes(tickets, named.clone())
        .map(|(object, gone)| News::Tickets((!gone).then(|| Box::new(object))));
    let volumes: Api<Volume> = inside(client);
    let volumes = changes(volumes, named)
        .map(|(object, gone)| News::Volume((!gone).then(|| Box::new(object))));
    let engines: Api<Engine> = inside(client);
    let engines =
        changes(engines, labelled).map(|(object, gone)| News::Engine(Box::new(object), gone));
    stream::select_all([tickets.boxed(), volumes.boxed(), engines.boxed()])
}

/// Each version of each object, and whether it was its last.
fn changes<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = (K, bool)>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    watcher(api, config)
        .default_backoff()
        .filter_map(async |event| match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => Some((object, false)),
            Ok(Event::Delete(object)) => Some((object, true)),
            Ok(Event::Init | Event::InitDone) | Err(_) => None,
        })
}

/// What was seen, and what was told of it.
struct Track<'a> {
    name: &'a str,
    target: &'a Target,
    told: Vec<String>,
    tickets: Option<VolumeAttachment>,
    tickets_seen: bool,
    volume: Option<Volume>,
    volume_gone: bool,
    engines: BTreeMap<String, Engine>,
}

impl<'a> Track<'a> {
    fn new(name: &'a str, target: &'a Target) -> Self {
        Self {
            name,
            target,
            told: Vec::new(),
            tickets: None,
            tickets_seen: false,
            volume: None,
            volume_gone: false,
            engines: BTreeMap::new(),
        }
    }

    /// Takes note, and says what is new in it.
    fn take(&mut self, news: &News) -> Vec<String> {
        let mut lines = Vec::new();
        match news {
            News::Tickets(object) => {
                self.tickets_seen = true;
                self.tickets = object.as_deref().cloned();
                if let Some(object) = object {
                    let (seen, _) = timeline::tickets(object, &BTreeMap::new());
                    lines.extend(self.hops(&seen));
                    lines.extend(self.waits(object));
                }
            }
            News::Volume(object) => {
                self.volume = object.as_deref().cloned();
                self.volume_gone = object.is_none();
                if let Some(object) = object {
                    lines.extend(self.hops(&timeline::volume(object)));
                }
            }
            News::Engine(object, gone) => {
                if *gone {
                    self.engines.remove(&object.name_any());
                } else {
                    self.engines
                        .insert(object.name_any(), object.as_ref().clone());
                }
                let (_, seen) = timeline::engine(object, *gone);
                lines.extend(self.hops(&seen));
            }
        }
        lines.retain(|line| !self.told.contains(line));
        self.told.extend(lines.iter().cloned());
        lines
    }

    /// The hops that belong to this way.
    fn hops(&self, seen: &[Seen]) -> Vec<String> {
        let concerns = |seen: &&Seen| match (self.target, seen.hop) {
            // The ticket was filed by whoever reads this.
            (Target::Attached { .. }, Hop::TicketFiled) => false,
            (Target::Attached { node, .. }, hop) => {
                is_attaching(hop) && seen.node.as_deref() == Some(node.as_str())
            }
            (Target::Released { nodes }, hop) => {
                !is_attaching(hop)
                    && seen
                        .node
                        .as_deref()
                        .is_none_or(|node| nodes.iter().any(|known| known.as_str() == node))
            }
        };
        seen.iter()
            .filter(concerns)
            .map(|seen| seen.hop.sentence().to_owned())
            .collect()
    }

    /// What our ticket waits for, in the controller's words.
    fn waits(&self, object: &VolumeAttachment) -> Option<String> {
        let Target::Attached { ticket, .. } = self.target else {
            return None;
        };
        let status = object.status.as_ref()?;
        let status = status.attachment_ticket_statuses.get(ticket.as_str())?;
        let found = condition::find(&status.conditions, api_types::SATISFIED_CONDITION)?;
        (!status.satisfied && !found.message.is_empty())
            .then(|| format!("waiting: {}", found.message))
    }

    /// Some when there is nothing more to wait for.
    fn end(&self) -> Option<Result<String, Failure>> {
        let name = self.name;
        if self.volume_gone {
            let message = format!(
                "volume {name} was deleted meanwhile; list those that are left with: lariat volume list"
            );
            return Some(Err(Failure::new(Outcome::Failed, message)));
        }
        match self.target {
            Target::Attached { ticket, node } => {
                if !self.tickets_seen {
                    return None;
                }
                let filed = self
                    .tickets
                    .as_ref()
                    .and_then(|object| object.spec.attachment_tickets.get(ticket.as_str()));
                let Some(filed) = filed else {
                    let message = format!(
                        "ticket {ticket} is gone: somebody or something removed it; look at `lariat volume history {name}`"
                    );
                    return Some(Err(Failure::new(Outcome::Failed, message)));
                };
                let status = self.tickets.as_ref()?.status.as_ref()?;
                if !status.satisfies(filed) {
                    return None;
                }
                let device = self
                    .engines
                    .values()
                    .filter(|engine| engine.spec.node_id == node.as_str())
                    .find_map(|engine| Some(engine.status.as_ref()?.endpoint.clone()))
                    .filter(|device| !device.is_empty());
                let device = device.map(|device| format!(" as {device}"));
                Some(Ok(format!(
                    "volume {name} is attached to node {node}{}",
                    device.unwrap_or_default()
                )))
            }
            Target::Released { nodes } => {
                let (volume, tickets) = (self.volume.as_ref()?, self.tickets.as_ref()?);
                let status = volume.status.clone().unwrap_or_default();
                let kept = nodes.iter().find(|node| {
                    let mut others = tickets.spec.attachment_tickets.values();
                    others.any(|other| other.node_id == node.as_str())
                });
                if let Some(node) = kept {
                    return Some(Ok(format!(
                        "volume {name} stays on node {node} for somebody else"
                    )));
                }
                let is_there = nodes.iter().any(|node| {
                    volume.spec.node_id == node.as_str() || status.current_node_id == node.as_str()
                });
                // Of the way out, its end; of a way to another node, its beginning is enough.
                let is_leaving = status.state == VolumeState::Detaching;
                (!is_there && !is_leaving)
                    .then(|| Ok(format!("volume {name} is {}", status.state.as_str())))
            }
        }
    }

    fn unfinished(&self, patience: Duration) -> anyhow::Error {
        let name = self.name;
        let waits = self.tickets.as_ref().and_then(|object| self.waits(object));
        let message = format!(
            "volume {name}: not done after {} s{}; it goes on by itself, look at `lariat volume show {name}`",
            patience.as_secs(),
            waits.map(|waits| format!(", {waits}")).unwrap_or_default()
        );
        Failure::new(Outcome::Unfinished, message).into()
    }
}

fn is_attaching(hop: Hop) -> bool {
    hop < Hop::PodLeaving
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::golden;

    fn tickets(satisfied: bool) -> News {
        let status = if satisfied { "True" } else { "False" };
        let object = json!({
            "metadata": {"name": "v1"},
            "spec": {"volume": "v1", "attachmentTickets": {"t": {"id": "t", "nodeID": "n1", "type": "longhorn-api"}}},
            "status": {"attachmentTicketStatuses": {"t": {"id": "t", "satisfied": satisfied, "conditions": [
                {"type": "Satisfied", "status": status, "message": if satisfied { "" } else { "the volume is being attached" }},
            ]}}},
        });
        News::Tickets(Some(Box::new(serde_json::from_value(object).unwrap())))
    }

    fn volume(node: &str, state: &str) -> News {
        let object = json!({
            "metadata": {"name": "v1"}, "spec": {"nodeID": node},
            "status": {"state": state, "currentNodeID": if state == "attached" { "n1" } else { "" }},
        });
        News::Volume(Some(Box::new(serde_json::from_value(object).unwrap())))
    }

    #[test]
    fn an_attachment_is_told_hop_by_hop_and_once() {
        let target = Target::Attached {
            ticket: "t".into(),
            node: "n1".into(),
        };
        let mut track = Track::new("v1", &target);
        assert!(track.end().is_none());
        let mut lines = Vec::new();
        for news in [
            tickets(false),
            volume("n1", "attaching"),
            tickets(false),
            volume("n1", "attached"),
        ] {
            lines.extend(track.take(&news));
            assert!(track.end().is_none());
        }
        lines.extend(track.take(&tickets(true)));
        lines.push(ended(&track));
        track.take(&tickets(false));
        let patience = Duration::from_secs(120);
        lines.push(track.unfinished(patience).to_string());
        track.take(&News::Tickets(None));
        lines.push(ended(&track));
        track.take(&News::Volume(None));
        lines.push(ended(&track));
        golden::check("attach-progress", &(lines.join("\n") + "\n"));
    }

    fn ended(track: &Track<'_>) -> String {
        let end = track.end().expect("an end");
        end.unwrap_or_else(|failure| failure.to_string())
    }

    #[test]
    fn a_detachment_ends_when_the_node_has_let_go() {
        let target = Target::Released {
            nodes: vec!["n1".into()],
        };
        let mut track = Track::new("v1", &target);
        let mut lines = track.take(&volume("n1", "attached"));
        let empty = json!({"metadata": {"name": "v1"}, "spec": {"volume": "v1"}});
        let empty = News::Tickets(Some(Box::new(serde_json::from_value(empty).unwrap())));
        lines.extend(track.take(&empty));
        assert!(track.end().is_none());
        lines.extend(track.take(&volume("", "detached")));
        lines.push(ended(&track));
        track.take(&tickets(true));
        lines.push(ended(&track));
        golden::check("detach-progress", &(lines.join("\n") + "\n"));
    }
}
