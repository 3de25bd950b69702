//! Scripts over a small cluster: the attacher answers, kubelets mount, and commands break things.
//!
//! Attachments are shown as `pv@node`, with `?` while attaching and `~` while detaching.

mod flows;
mod properties;

use super::*;
use crate::access::AccessMode;
use crate::identity::ClaimKey;
use crate::view::{AttachmentSource, Claim, CsiNodeDriver, ErrorReport, Node, Pod, PodPhase};

const DRIVER: &str = "driver.longhorn.io";
const ROUNDS_MAX: usize = 20;

struct World {
    view: ClusterView,
    memory: Memory,
    now: Timestamp,
    plan: ClusterPlan,
    events: Vec<String>,
    /// The driver does not answer.
    stuck: bool,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            view: ClusterView::default(),
            memory: Memory::default(),
            now: Timestamp(1_000_000),
            plan: ClusterPlan::default(),
            events: Vec::new(),
            stuck: false,
        };
        world.run("node n1; node n2; node n3; pv pv1 RWO; pv pv2 RWX");
        world
    }

    fn run(&mut self, script: &str) {
        for command in script
            .split(';')
            .map(str::trim)
            .filter(|command| !command.is_empty())
        {
            self.command(&command.split_whitespace().collect::<Vec<_>>());
        }
    }

    fn step(&mut self) -> bool {
        let plan = decide(&self.view, &self.memory, self.now);
        self.check_plan(&plan);
        let before = (self.view.clone(), self.memory.clone());
        apply(&mut self.view, &plan, self.now);
        self.memory = plan.memory.clone();
        self.events
            .extend(plan.events.iter().map(|event| event.message.clone()));
        self.plan = plan;
        before != (self.view.clone(), self.memory.clone())
    }

    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let moved = self.step();
            if !self.act() && !moved {
                return;
            }
        }
        panic!("restless: {}", self.show());
    }

    /// What must hold for every plan.
    fn check_plan(&self, plan: &ClusterPlan) {
        assert_eq!(
            *plan,
            decide(&self.view, &self.memory, self.now),
            "deterministic"
        );
        for (name, new) in &plan.create {
            let volume = &self.view.volumes[&new.volume];
            assert!(!self.view.attachments.contains_key(name), "{name} exists");
            assert_eq!(*name, volume.unique_name().attachment_on(&new.node));
            if !allows_many_nodes(&volume.access_modes) {
                let elsewhere = self.view.attachments.values().any(|attachment| {
                    attachment.source.volume() == Some(&new.volume) && attachment.node != new.node
                });
                assert!(!elsewhere, "two nodes for {}", new.volume);
                let twice = plan
                    .create
                    .values()
                    .filter(|other| other.volume == new.volume)
                    .count();
                assert_eq!(twice, 1, "two nodes at once for {}", new.volume);
            }
        }
        for name in &plan.delete {
            let attachment = &self.view.attachments[name];
            let told = plan.node_status.get(&attachment.node);
            let volume = self.view.volume_of(name, attachment);
            let still_listed = match (told, self.view.nodes.get(&attachment.node), volume) {
                (Some(told), _, Some(volume)) => told.contains(&volume),
                (None, Some(node), Some(volume)) => {
                    node.managed && node.volumes_attached.contains(&volume)
                }
                _ => false,
            };
            assert!(
                !still_listed,
                "{name} is deleted while its node still relies on it"
            );
        }
        let mut after = self.view.clone();
        apply(&mut after, plan, self.now);
        let again = decide(&after, &plan.memory, self.now);
        assert!(
            again.create.is_empty() && again.delete.is_empty() && again.events.is_empty(),
            "idempotent: {again:?}"
        );
        assert!(
            again.node_status.is_empty(),
            "idempotent: {:?}",
            again.node_status
        );
    }

    /// The attacher and the kubelets; true if anything changed.
    fn act(&mut self) -> bool {
        let before = self.view.clone();
        if !self.stuck {
            self.view
                .attachments
                .retain(|_, attachment| !attachment.deleting);
            for attachment in self.view.attachments.values_mut() {
                attachment.attached = true;
                attachment.attach_error = None;
            }
        }
        let (desired, _) = desired_state(&self.view);
        let view = self.view.clone();
        for (name, node) in self.view.nodes.iter_mut().filter(|(_, node)| node.ready) {
            let is_mounted = |volume: &UniqueVolumeName| {
                let wanted = desired
                    .keys()
                    .any(|(pv, at)| at == name && view.volumes[pv].unique_name() == *volume);
                let attachment = view.attachments.get(&volume.attachment_on(name));
                wanted && attachment.is_some_and(|attachment| attachment.attached)
            };
            node.volumes_in_use = view
                .volumes
                .values()
                .map(PersistentVolume::unique_name)
                .filter(is_mounted)
                .collect();
        }
        before != self.view
    }

    fn show(&self) -> String {
        let show = |attachment: &VolumeAttachment| {
            let mark = match (attachment.attached, attachment.deleting) {
                (true, false) => "",
                (false, false) => "?",
                (_, true) => "~",
            };
            let volume = attachment.source.volume().map_or("inline", PvName::as_str);
            format!("{volume}@{}{mark}", attachment.node)
        };
        let mut shown: Vec<String> = self.view.attachments.values().map(show).collect();
        shown.sort();
        shown.join(" ")
    }

    fn command(&mut self, words: &[&str]) {
        match words {
            ["settle"] => self.settle(),
            ["step"] => drop(self.step()),
            ["act"] => drop(self.act()),
            ["tick", seconds] => self.now.0 += seconds.parse::<u64>().expect("seconds") * 1000,
            ["stuck"] => self.stuck = true,
            ["unstuck"] => self.stuck = false,
            ["restart"] => self.memory = Memory::default(),
            ["quiet"] => self.events.clear(),
            ["never-force"] => self.view.settings.never_force = true,

            ["node", name] => drop(self.view.nodes.insert((*name).into(), node())),
            ["unmanaged", name] => self.edit(name, |node| node.managed = false),
            ["lose", name] => self.edit(name, |node| node.ready = false),
            ["back", name] => self.edit(name, |node| {
                node.ready = true;
                node.out_of_service = false;
            }),
            ["off", name] => self.edit(name, |node| {
                node.ready = false;
                node.out_of_service = true;
            }),
            ["delete-node", name] => drop(self.view.nodes.remove(&NodeName::from(*name))),
            ["limit", name, count] => {
                let entry = CsiNodeDriver {
                    node_id: (*name).to_owned(),
                    volumes_max: count.parse().ok(),
                };
                self.view
                    .csi_nodes
                    .entry((*name).into())
                    .or_default()
                    .insert(DRIVER.into(), entry);
            }
            ["fence", volume, node] => {
                self.view.fences.insert((unique(volume), (*node).into()));
            }
            ["writer", volume, node] => {
                self.view.writers.insert(unique(volume), (*node).into());
            }

            ["pv", name, mode] => {
                self.view.volumes.insert((*name).into(), volume(name, mode));
                let claim = Claim {
                    uid: (*name).to_owned(),
                    volume: Some((*name).into()),
                };
                self.view.claims.insert(claim_key(name), claim);
            }
            ["delete-pv", name] => drop(self.view.volumes.remove(&PvName::from(*name))),
            ["unbind", name] => {
                self.view
                    .claims
                    .get_mut(&claim_key(name))
                    .expect("a claim")
                    .volume = None;
            }
            ["reclaim", name] => {
                self.view
                    .claims
                    .get_mut(&claim_key(name))
                    .expect("a claim")
                    .uid = "another".to_owned();
            }
            ["attachless"] => drop(self.view.attachless_drivers.insert(DRIVER.into())),

            ["pod", name, volume, node] => {
                let pod = Pod {
                    node: Some((*node).into()),
                    phase: PodPhase::Running,
                    created_at: Timestamp(self.now.0 + self.view.pods.len() as u64),
                    deleting: false,
                    has_running_container: true,
                    claims: vec![claim_key(volume)],
                };
                self.view.pods.insert(pod_key(name), pod);
            }
            ["terminate", name] => self.edit_pod(name, |pod| pod.deleting = true),
            ["stop-containers", name] => {
                self.edit_pod(name, |pod| pod.has_running_container = false);
            }
            ["finish", name] => self.edit_pod(name, |pod| pod.phase = PodPhase::Succeeded),
            ["delete-pod", name] => drop(self.view.pods.remove(&pod_key(name))),

            ["fail-attach", message] => {
                for attachment in self
                    .view
                    .attachments
                    .values_mut()
                    .filter(|attachment| !attachment.attached)
                {
                    let message = (*message).to_owned();
                    attachment.attach_error = Some(ErrorReport {
                        message,
                        at: Timestamp(0),
                        code: Some(13),
                    });
                }
            }
            ["fail-detach", message] => {
                for attachment in self
                    .view
                    .attachments
                    .values_mut()
                    .filter(|attachment| attachment.deleting)
                {
                    let message = (*message).to_owned();
                    attachment.detach_error = Some(ErrorReport {
                        message,
                        at: Timestamp(0),
                        code: None,
                    });
                }
            }
            ["delete-attachments"] => self
                .view
                .attachments
                .values_mut()
                .for_each(|attachment| attachment.deleting = true),
            ["lose-attachments"] => self.view.attachments.clear(),
            ["foreign-attachment", node] => {
                let foreign = VolumeAttachment {
                    source: AttachmentSource::Inline,
                    ..attachment("pv1", node, self.now)
                };
                self.view.attachments.insert("csi-foreign".into(), foreign);
            }
            other => panic!("unknown command {other:?}"),
        }
    }

    fn edit(&mut self, name: &str, edit: impl Fn(&mut Node)) {
        self.view.nodes.entry(name.into()).and_modify(edit);
    }

    fn edit_pod(&mut self, name: &str, edit: impl Fn(&mut Pod)) {
        self.view.pods.entry(pod_key(name)).and_modify(edit);
    }
}

/// Writes a plan as the shell would.
fn apply(view: &mut ClusterView, plan: &ClusterPlan, now: Timestamp) {
    for (name, volumes) in &plan.node_status {
        view.nodes
            .get_mut(name)
            .expect("a node that exists")
            .volumes_attached
            .clone_from(volumes);
    }
    for name in &plan.delete {
        view.attachments
            .get_mut(name)
            .expect("an attachment that exists")
            .deleting = true;
    }
    for (name, new) in &plan.create {
        view.attachments.insert(
            name.clone(),
            attachment(new.volume.as_str(), new.node.as_str(), now),
        );
    }
}

fn attachment(volume: &str, node: &str, now: Timestamp) -> VolumeAttachment {
    VolumeAttachment {
        driver: DRIVER.into(),
        source: AttachmentSource::Volume(volume.into()),
        node: node.into(),
        created_at: now,
        deleting: false,
        finalizers: vec!["external-attacher/driver-longhorn-io".to_owned()],
        annotations: BTreeMap::new(),
        attached: false,
        attach_error: None,
        detach_error: None,
    }
}

fn node() -> Node {
    Node {
        ready: true,
        out_of_service: false,
        managed: true,
        volumes_in_use: BTreeSet::new(),
        volumes_attached: BTreeSet::new(),
    }
}

fn volume(name: &str, mode: &str) -> PersistentVolume {
    let mode = match mode {
        "RWO" => AccessMode::ReadWriteOnce,
        "ROX" => AccessMode::ReadOnlyMany,
        "RWX" => AccessMode::ReadWriteMany,
        "RWOP" => AccessMode::ReadWriteOncePod,
        other => panic!("unknown mode {other}"),
    };
    PersistentVolume {
        driver: DRIVER.into(),
        handle: name.into(),
        access_modes: [mode].into(),
        claim_uid: Some(name.to_owned()),
        deleting: false,
        finalizers: Vec::new(),
        annotations: BTreeMap::new(),
        read_only: false,
        fs_type: None,
        is_block: false,
        publish_secret: None,
        attributes: BTreeMap::new(),
    }
}

fn unique(volume: &str) -> UniqueVolumeName {
    UniqueVolumeName {
        driver: DRIVER.into(),
        handle: volume.into(),
    }
}

fn claim_key(name: &str) -> ClaimKey {
    ClaimKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

fn pod_key(name: &str) -> PodKey {
    PodKey {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
    }
}
