//! The scripts' vocabulary.

use std::time::Duration;

use volume_core::{
    AntiAffinity, DataLocality, DataSource, EngineObserved, Epoch, JobProgress, NodeHealth,
    NodeName, ReplicaObserved, ReplicaVersion,
};

use super::{World, node};

impl World {
    pub(super) fn command(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["settle"] => self.settle(),
            ["step"] => drop(self.step()),
            ["act"] => drop(self.act()),
            ["freeze"] => self.frozen = true,
            ["thaw"] => self.frozen = false,
            ["tick", seconds] => self.advance(Duration::from_secs(number(seconds))),

            ["nodes", names @ ..] => {
                self.view.nodes = names
                    .iter()
                    .map(|text| {
                        let (name, zone) = text
                            .split_once(':')
                            .map_or((*text, None), |(n, z)| (n, Some(z)));
                        (NodeName::from(name), node(zone))
                    })
                    .collect();
            }
            ["lose", name] => self.health(name, NodeHealth::Lost { since: self.now }),
            ["off", name] => self.health(name, NodeHealth::OutOfService),
            ["back", name] => self.health(name, NodeHealth::Ready),
            ["delete-node", name] => drop(self.view.nodes.remove(&NodeName::from(*name))),
            ["evict", name] => self.edit_disk(name, |disk| {
                disk.eviction_requested = true;
                disk.allow_scheduling = false;
            }),
            ["evict-node", name] => self.edit_node(name, |node| node.eviction_requested = true),
            ["cordon", name] => self.edit_node(name, |node| node.allow_scheduling = false),
            ["uncordon", name] => self.edit_node(name, |node| node.allow_scheduling = true),
            ["fill", name] => {
                self.edit_disk(name, |disk| disk.scheduled_bytes = disk.maximum_bytes);
            }
            ["busy", name] => self.edit_node(name, |node| node.rebuilds = 5),
            ["break-disk", name] => self.edit_disk(name, |disk| disk.ready = false),
            ["mend-disk", name] => self.edit_disk(name, |disk| disk.ready = true),
            // A person takes it from the node, which reports it for the replicas that are on it.
            ["unlist-disk", name] => self.edit_disk(name, |disk| {
                disk.listed = false;
                disk.eviction_requested = true;
                disk.allow_scheduling = false;
            }),
            ["remove-disk", name] => self.edit_node(name, |node| node.disks.clear()),

            ["replicas", count] => {
                self.view.volume.replicas_wanted = usize::try_from(number(count)).expect("small");
            }
            ["size", bytes] => self.view.volume.size_bytes = number(bytes),
            ["attach", name] => {
                self.view.volume.node = Some(NodeName::from(*name));
                self.view.volume.migration_node = None;
            }
            ["detach"] => {
                self.view.volume.node = None;
                self.view.volume.migration_node = None;
            }
            ["migrate", name] => self.view.volume.migration_node = Some(NodeName::from(*name)),
            ["roll-back"] => self.view.volume.migration_node = None,
            ["no-frontend"] => self.view.volume.disable_frontend = true,
            ["frontend"] => self.view.volume.disable_frontend = false,
            ["delete"] => self.view.volume.deleting = true,
            ["soft-node"] => self.view.volume.node_anti_affinity = AntiAffinity::Soft,
            ["best-effort"] => self.view.volume.data_locality = DataLocality::BestEffort,
            ["strict-local"] => self.view.volume.data_locality = DataLocality::StrictLocal,
            ["clone-of", volume] => {
                self.view.volume.source = DataSource::Clone {
                    volume: (*volume).into(),
                    snapshot: "s".into(),
                };
            }
            ["restore-of", backup] => {
                self.view.volume.source = DataSource::Restore {
                    backup: (*backup).to_owned(),
                };
            }
            ["salvage-from", ordinals @ ..] => {
                self.view.volume.salvage_from = ordinals
                    .iter()
                    .map(|ordinal| self.replica(number(ordinal)))
                    .collect();
            }
            ["no-auto-salvage"] => self.view.settings.auto_salvage = false,
            ["no-degraded"] => self.view.settings.allow_degraded_creation = false,
            ["fence-after", seconds] => {
                self.view.settings.fence_after = Duration::from_secs(number(seconds));
            }

            ["crash-engine"] => self.each_running_engine(|observed| {
                *observed = EngineObserved::Failed {
                    message: "killed".to_owned(),
                };
            }),
            ["crash-engine", name] => {
                let name = NodeName::from(*name);
                let engines = self.view.engines.values_mut();
                for engine in engines.filter(|engine| engine.spec.node == name) {
                    engine.observed = EngineObserved::Failed {
                        message: "killed".to_owned(),
                    };
                }
            }
            ["fail-job"] => self.each_running_engine(|observed| {
                if let EngineObserved::Running(running) = observed {
                    running.job = Some(JobProgress::Failed {
                        message: "no space".to_owned(),
                    });
                }
            }),
            ["write-at", name] => {
                let name = NodeName::from(*name);
                for engine in self
                    .view
                    .engines
                    .values_mut()
                    .filter(|engine| engine.spec.node == name)
                {
                    if let EngineObserved::Running(running) = &mut engine.observed {
                        running.wants_take_over = true;
                    }
                }
            }
            ["fail", ordinal] => self.observe(
                ordinal,
                ReplicaObserved::Failed {
                    message: "I/O error".to_owned(),
                },
            ),
            // It blinks: its agent serves it no more, and then again.
            ["close", ordinal] => self.observe(ordinal, ReplicaObserved::Stopped),
            ["serve", ordinal] => self.observe(ordinal, ReplicaObserved::Running),
            ["launch-engine"] => {
                for engine in self.view.engines.values_mut() {
                    assert_eq!(engine.observed, EngineObserved::Pending, "it has begun");
                    engine.observed = EngineObserved::Starting;
                }
            }
            ["remove-replica", ordinal] => {
                let name = self.replica(number(ordinal));
                self.view.replicas.remove(&name);
            }
            ["expect-answer"] => {
                assert!(!self.is_waiting_for_an_answer(), "{}", self.show());
            }
            // Until the engine asks for the replica to be recorded as one with all the data.
            ["until-proposed", ordinal] => {
                let name = self.replica(number(ordinal));
                for _ in 0..10 {
                    if self.is_proposed(&name) {
                        return;
                    }
                    self.step();
                    self.act();
                }
                panic!("{name} is never proposed: {}", self.show());
            }
            ["mend", ordinal] => self.observe(ordinal, ReplicaObserved::Stopped),
            ["content", ordinal, version] => {
                let numbers: Vec<u64> = version.split('.').map(number).collect();
                let name = self.replica(number(ordinal));
                let replica = self.view.replicas.get_mut(&name).expect("a replica");
                replica.content = Some(ReplicaVersion {
                    epoch: Epoch(numbers[0]),
                    revision: numbers[1],
                    size_bytes: 100,
                    snapshots: Vec::new(),
                    digest: numbers[2],
                });
            }
            ["no-content", ordinal] => {
                let name = self.replica(number(ordinal));
                self.view
                    .replicas
                    .get_mut(&name)
                    .expect("a replica")
                    .content = None;
            }
            ["lose-objects"] => self.view.replicas.clear(),
            other => panic!("unknown command {other:?}"),
        }
    }

    fn health(&mut self, name: &str, health: NodeHealth) {
        self.edit_node(name, |node| node.health = health);
    }

    fn edit_node(&mut self, name: &str, edit: impl Fn(&mut volume_core::Node)) {
        if let Some(node) = self.view.nodes.get_mut(&NodeName::from(name)) {
            edit(node);
        }
    }

    fn edit_disk(&mut self, node: &str, edit: impl Fn(&mut volume_core::Disk)) {
        self.edit_node(node, |node| node.disks.values_mut().for_each(&edit));
    }

    fn observe(&mut self, ordinal: &str, observed: ReplicaObserved) {
        let name = self.replica(number(ordinal));
        if let Some(replica) = self.view.replicas.get_mut(&name) {
            replica.observed = observed;
        }
    }

    fn each_running_engine(&mut self, edit: impl Fn(&mut EngineObserved)) {
        for engine in self.view.engines.values_mut() {
            if matches!(engine.observed, EngineObserved::Running(_)) {
                edit(&mut engine.observed);
            }
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is not a number"))
}
