//! The attach-detach decision: detaches first, then attaches, then what nodes are told.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::access::allows_many_nodes;
use crate::actual::{ActualState, Attached, VolumeKey, actual_state};
use crate::desired::{Desired, desired_state};
use crate::event::Event;
use crate::identity::{AttachmentName, DriverName, NodeName, PodKey, PvName, Timestamp};
use crate::limits::Occupancy;
use crate::names::UniqueVolumeName;
use crate::reason::Reason;
use crate::release::{Release, Situation, may_release};
use crate::view::{ClusterView, PersistentVolume, VolumeAttachment};

/// What should be written, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterPlan {
    /// New `status.volumesAttached` of nodes where it changes. Written before anything is deleted: a node
    /// must stop relying on a volume before it is taken away.
    pub node_status: BTreeMap<NodeName, BTreeSet<UniqueVolumeName>>,
    pub delete: BTreeSet<AttachmentName>,
    pub create: BTreeMap<AttachmentName, NewAttachment>,
    pub events: Vec<Event>,
    pub reasons: Vec<Reason>,
    /// Decide again after this long even if nothing changes.
    pub recheck_after: Option<Duration>,
    /// To be passed to the next decision.
    pub memory: Memory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAttachment {
    pub driver: DriverName,
    pub volume: PvName,
    pub node: NodeName,
}

/// What one decision tells the next. Losing it in a restart costs patience and repeats events; it never
/// costs safety.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Since when nobody has wanted an attachment that exists.
    pub unwanted_since: BTreeMap<AttachmentName, Timestamp>,
    /// Attachments whose success was told, with their volume and node.
    pub told_attached: BTreeMap<AttachmentName, (PvName, NodeName)>,
    /// Problems that were told, so that each is told once.
    pub told_problems: BTreeSet<Told>,
}

/// A problem that was told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// To a pod. Once per wait, whoever holds the volume meanwhile.
    MultiAttach { pod: PodKey, volume: PvName },
    /// The same to the volume, for a node that does not get it.
    Refused { volume: PvName, wanted: NodeName },
    /// Once per text: another error is news.
    Failure(Event),
}

/// What should be attached and detached now.
pub fn decide(view: &ClusterView, memory: &Memory, now: Timestamp) -> ClusterPlan {
    let (desired, left_out) = desired_state(view);
    let mut draft = Draft {
        view,
        memory,
        now,
        actual: actual_state(view),
        desired,
        plan: ClusterPlan::default(),
    };
    for (pod, why) in left_out {
        draft.plan.reasons.push(Reason::PodLeftOut { pod, why });
    }
    draft.detach_unwanted();
    draft.attach_wanted();
    draft.report();
    draft.tell_nodes();
    draft.plan
}

struct Draft<'a> {
    view: &'a ClusterView,
    memory: &'a Memory,
    now: Timestamp,
    actual: BTreeMap<(VolumeKey, NodeName), Attached>,
    desired: Desired,
    plan: ClusterPlan,
}

impl Draft<'_> {
    fn detach_unwanted(&mut self) {
        for (name, attachment) in &self.view.attachments {
            if attachment.deleting {
                let (attachment_name, node) = (name.clone(), attachment.node.clone());
                self.plan.reasons.push(Reason::DetachPending {
                    attachment: attachment_name,
                    node,
                });
                continue;
            }
            if self.is_wanted(attachment) || !self.is_ours(attachment) {
                continue;
            }
            let unwanted_since = *self.memory.unwanted_since.get(name).unwrap_or(&self.now);
            self.plan
                .memory
                .unwanted_since
                .insert(name.clone(), unwanted_since);
            let volume = attachment.source.volume().cloned();
            let (attachment_name, node) = (name.clone(), attachment.node.clone());
            match may_release(
                self.situation(name, attachment, unwanted_since),
                &self.view.settings,
                self.now,
            ) {
                Ok(release) => {
                    self.announce_force(volume.as_ref(), &node, release);
                    self.plan.delete.insert(name.clone());
                    self.plan.reasons.push(Reason::Detaching {
                        volume,
                        attachment: attachment_name,
                        node,
                        release,
                    });
                }
                Err(hold) => {
                    if let Some(wait) = hold.wait() {
                        self.recheck(wait);
                    }
                    self.plan.reasons.push(Reason::DetachHeld {
                        volume,
                        attachment: attachment_name,
                        node,
                        hold,
                    });
                }
            }
        }
    }

    fn is_wanted(&self, attachment: &VolumeAttachment) -> bool {
        attachment.source.volume().is_some_and(|volume| {
            self.desired
                .contains_key(&(volume.clone(), attachment.node.clone()))
        })
    }

    /// Inline and malformed attachments were made by somebody else, for a reason we do not know; so were
    /// those of nodes that attach by themselves.
    fn is_ours(&self, attachment: &VolumeAttachment) -> bool {
        attachment.source.volume().is_some()
            && self
                .view
                .nodes
                .get(&attachment.node)
                .is_none_or(|node| node.managed)
    }

    fn situation(
        &self,
        name: &AttachmentName,
        attachment: &VolumeAttachment,
        unwanted_since: Timestamp,
    ) -> Situation<'_> {
        let node = self.view.nodes.get(&attachment.node);
        let volume = self.view.volume_of(name, attachment);
        let in_use = match (&volume, node) {
            (Some(volume), Some(node)) => node.volumes_in_use.contains(volume),
            // Not even the node's list has a volume with this attachment's hash.
            (None, Some(_)) => false,
            (_, None) => true,
        };
        let elsewhere = volume
            .as_ref()
            .and_then(|volume| self.view.writers.get(volume))
            .is_some_and(|writer| *writer != attachment.node);
        let fenced = volume.is_some_and(|volume| {
            self.view
                .fences
                .contains(&(volume, attachment.node.clone()))
        });
        Situation {
            node,
            in_use,
            fenced,
            elsewhere,
            unwanted_since,
        }
    }

    fn announce_force(&mut self, volume: Option<&PvName>, node: &NodeName, release: Release) {
        if let Some(volume) = volume.filter(|_| release.is_forced()) {
            self.plan.events.push(Event::forced(volume, node, release));
        }
    }

    fn attach_wanted(&mut self) {
        let desired = self.desired.clone();
        let mut occupancy = Occupancy::of(self.view);
        for ((volume_name, node), pods) in &desired {
            let Some(volume) = self.view.volumes.get(volume_name) else {
                continue;
            };
            let attachment = volume.unique_name().attachment_on(node);
            if let Some(existing) = self.view.attachments.get(&attachment) {
                if existing.deleting {
                    let node = node.clone();
                    self.plan
                        .reasons
                        .push(Reason::WaitingForDeletion { attachment, node });
                }
                continue;
            }
            if self.must_wait(volume_name, volume, node, pods) {
                continue;
            }
            let (volume_name, driver) = (volume_name.clone(), volume.driver.clone());
            if let Err(full) = occupancy.take(&volume.driver, node) {
                let reason = Reason::NodeFull {
                    volume: volume_name.clone(),
                    node: node.clone(),
                    driver,
                    full,
                };
                for pod in pods {
                    self.tell_failure(Event::attach_failed(pod, &volume_name, &reason.to_string()));
                }
                self.tell_failure(Event::refused(&volume_name, &reason));
                self.plan.reasons.push(reason);
                continue;
            }
            self.plan.reasons.push(Reason::Attaching {
                volume: volume_name.clone(),
                node: node.clone(),
            });
            let new = NewAttachment {
                driver,
                volume: volume_name,
                node: node.clone(),
            };
            self.plan.create.insert(attachment, new);
        }
    }

    /// One node at a time for volumes that cannot be shared, doubt included.
    fn must_wait(
        &mut self,
        name: &PvName,
        volume: &PersistentVolume,
        wanted: &NodeName,
        pods: &BTreeSet<PodKey>,
    ) -> bool {
        if allows_many_nodes(&volume.access_modes) {
            return false;
        }
        let key = VolumeKey::Known(volume.unique_name());
        let first = (key.clone(), NodeName::from(""));
        let holder = self
            .actual
            .range(first..)
            .take_while(|((volume, _), _)| *volume == key)
            .find(|((volume, node), attached)| {
                node != wanted && !self.is_harmless(volume, node, attached)
            })
            .map(|((_, node), attached)| (node.clone(), attached.state));
        if let Some((holder, state)) = holder {
            self.tell_multi_attach(name, &holder, pods);
            let reason = Reason::WaitingForDetach {
                volume: name.clone(),
                wanted: wanted.clone(),
                holder,
                state,
            };
            self.refuse(name, wanted, reason);
            return true;
        }
        let first = self.first_in_line(name);
        if first != *wanted {
            self.tell_multi_attach(name, &first, pods);
            let reason = Reason::WaitingForTurn {
                volume: name.clone(),
                wanted: wanted.clone(),
                first,
            };
            self.refuse(name, wanted, reason);
            return true;
        }
        false
    }

    /// The pods are told in Kubernetes' words; all others in the reason's.
    fn refuse(&mut self, volume: &PvName, wanted: &NodeName, reason: Reason) {
        let told = Told::Refused {
            volume: volume.clone(),
            wanted: wanted.clone(),
        };
        self.tell(told, Event::refused(volume, &reason));
        self.plan.reasons.push(reason);
    }

    fn tell_multi_attach(&mut self, volume: &PvName, holder: &NodeName, pods: &BTreeSet<PodKey>) {
        let users = self.users(volume, holder);
        for pod in pods {
            let event = Event::multi_attach(pod, volume, &users.iter().collect::<Vec<_>>());
            self.tell(
                Told::MultiAttach {
                    pod: pod.clone(),
                    volume: volume.clone(),
                },
                event,
            );
        }
    }

    /// A mere "in use" without an attachment counts only from a node that is well. What a silent node
    /// said last is old: its attachment has been released in one of the ways that [`may_release`] has,
    /// or removed by hand as the last resort.
    fn is_harmless(&self, volume: &VolumeKey, node: &NodeName, attached: &Attached) -> bool {
        let (VolumeKey::Known(volume), None) = (volume, &attached.attachment) else {
            return false;
        };
        let fenced = self.view.fences.contains(&(volume.clone(), node.clone()));
        fenced
            || self
                .view
                .nodes
                .get(node)
                .is_none_or(|node| !node.ready || node.out_of_service)
    }

    fn users(&self, volume: &PvName, node: &NodeName) -> Vec<PodKey> {
        self.desired
            .get(&(volume.clone(), node.clone()))
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Of several nodes that want an unattached volume, the one with the oldest pod.
    fn first_in_line(&self, volume: &PvName) -> NodeName {
        let age = |pods: &BTreeSet<PodKey>| {
            pods.iter()
                .filter_map(|key| Some((self.view.pods.get(key)?.created_at, key.clone())))
                .min()
        };
        let mut candidates: Vec<_> = self
            .desired
            .range((volume.clone(), NodeName::from(""))..)
            .take_while(|((other, _), _)| other == volume)
            .map(|((_, node), pods)| (age(pods), node.clone()))
            .collect();
        candidates.sort();
        candidates
            .into_iter()
            .next()
            .map_or_else(|| NodeName::from(""), |(_, node)| node)
    }

    /// Tells pods of success, volumes of their detach, and both of failure, once each.
    fn report(&mut self) {
        for (name, attachment) in &self.view.attachments {
            let Some(volume) = attachment.source.volume() else {
                continue;
            };
            let pods = self.users(volume, &attachment.node);
            let node = attachment.node.clone();
            if attachment.deleting
                && let Some(error) = &attachment.detach_error
            {
                self.tell_failure(Event::detach_failed(volume, &node, &error.message));
            }
            if attachment.attached {
                let told = self.memory.told_attached.contains_key(name);
                if !told && !attachment.deleting {
                    self.plan
                        .events
                        .extend(pods.iter().map(|pod| Event::attached(pod, volume)));
                }
                if told || !attachment.deleting {
                    self.plan
                        .memory
                        .told_attached
                        .insert(name.clone(), (volume.clone(), node));
                }
            } else if !attachment.deleting && self.is_wanted(attachment) {
                match &attachment.attach_error {
                    Some(error) => {
                        for pod in &pods {
                            self.tell_failure(Event::attach_failed(pod, volume, &error.message));
                        }
                        let message = error.message.clone();
                        let reason = Reason::AttachFailing {
                            volume: volume.clone(),
                            node,
                            message,
                        };
                        self.tell_failure(Event::refused(volume, &reason));
                        self.plan.reasons.push(reason);
                    }
                    None => self.plan.reasons.push(Reason::AttachPending {
                        volume: volume.clone(),
                        node,
                    }),
                }
            } else if let Some(told) = self.memory.told_attached.get(name) {
                // The status says detached before the object is gone; the event waits for the object.
                self.plan
                    .memory
                    .told_attached
                    .insert(name.clone(), told.clone());
            }
        }
        for (name, (volume, node)) in &self.memory.told_attached {
            if !self.view.attachments.contains_key(name) {
                self.plan.events.push(Event::detached(volume, node));
            }
        }
    }

    /// `volumesAttached` follows the attachments; what is about to be deleted has left already.
    fn tell_nodes(&mut self) {
        let mut wanted: BTreeMap<&NodeName, BTreeSet<UniqueVolumeName>> = BTreeMap::new();
        for ((volume, node), attached) in &self.actual {
            let (VolumeKey::Known(volume), Some(name)) = (volume, &attached.attachment) else {
                continue;
            };
            if attached.state == ActualState::Attached && !self.plan.delete.contains(name) {
                wanted.entry(node).or_default().insert(volume.clone());
            }
        }
        let deleted = self.plan.delete.iter();
        let losing: BTreeSet<&NodeName> = deleted
            .filter_map(|name| self.view.attachments.get(name))
            .map(|attachment| &attachment.node)
            .collect();
        for (name, node) in &self.view.nodes {
            let attached = wanted.remove(name).unwrap_or_default();
            // A node is told before something is taken from it, also where nothing seems to be left to tell: what was written last
            // may not have come back yet.
            if node.managed && (attached != node.volumes_attached || losing.contains(name)) {
                self.plan.node_status.insert(name.clone(), attached);
            }
        }
    }

    fn tell_failure(&mut self, event: Event) {
        self.tell(Told::Failure(event.clone()), event);
    }

    fn tell(&mut self, told: Told, event: Event) {
        if !self.memory.told_problems.contains(&told) {
            self.plan.events.push(event);
        }
        self.plan.memory.told_problems.insert(told);
    }

    fn recheck(&mut self, wait: Duration) {
        self.plan.recheck_after = Some(
            self.plan
                .recheck_after
                .map_or(wait, |other| other.min(wait)),
        );
    }
}
