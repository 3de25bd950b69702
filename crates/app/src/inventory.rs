//! The objects that an answer is made of, read from the API at one moment.

use std::collections::HashMap;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use api_types::names::{NAMESPACE, label};
use api_types::settings::Settings;
use api_types::{Backup, Engine, Node, Replica, Setting, Snapshot, Volume, VolumeAttachment};
use attach_core::view::{self, View};
use attach_core::{Plan, wire};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment as KubernetesAttachment;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::client::root_cause;
use crate::suggest;

/// What was read; a kind that was not asked for is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inventory {
    pub volumes: Vec<Volume>,
    pub attachments: Vec<VolumeAttachment>,
    pub engines: Vec<Engine>,
    pub replicas: Vec<Replica>,
    pub nodes: Vec<Node>,
    pub settings: Vec<Setting>,
    pub snapshots: Vec<Snapshot>,
    pub backups: Vec<Backup>,
    pub kubernetes_attachments: Vec<KubernetesAttachment>,
    pub persistent_volumes: Vec<PersistentVolume>,
    pub pods: Vec<Pod>,
    index: OnceLock<Index>,
}

/// Where things are in the lists, made at the first question: ten thousand volumes are looked up many times.
#[derive(Clone, Debug, Default)]
struct Index {
    volumes: HashMap<String, usize>,
    attachments: HashMap<String, usize>,
    engines: HashMap<String, Vec<usize>>,
    replicas: HashMap<String, Vec<usize>>,
    settings: Settings,
}

impl Index {
    fn new(inventory: &Inventory) -> Self {
        let mut index = Self {
            settings: Settings::read(&inventory.settings).0,
            ..Self::default()
        };
        for (place, object) in inventory.volumes.iter().enumerate() {
            index.volumes.insert(object.name_any(), place);
        }
        for (place, object) in inventory.attachments.iter().enumerate() {
            index.attachments.insert(object.name_any(), place);
        }
        for (place, object) in inventory.engines.iter().enumerate() {
            let of_volume = index.engines.entry(object.spec.volume_name.clone());
            of_volume.or_default().push(place);
        }
        for (place, object) in inventory.replicas.iter().enumerate() {
            let of_volume = index.replicas.entry(object.spec.volume_name.clone());
            of_volume.or_default().push(place);
        }
        index
    }
}

impl Inventory {
    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::new(self))
    }

    /// All volumes, and what they are made of.
    pub(crate) async fn of_volumes(client: &Client) -> Result<Self> {
        let (volumes, attachments, engines, replicas, nodes, settings) = futures::try_join!(
            list(inside(client), "volumes", None),
            list(inside(client), "attachments of volumes", None),
            list(inside(client), "engines", None),
            list(inside(client), "replicas", None),
            list(inside(client), "nodes", None),
            list(inside(client), "settings", None),
        )?;
        Ok(Self {
            volumes,
            attachments,
            engines,
            replicas,
            nodes,
            settings,
            ..Self::default()
        })
    }

    /// Everything that says who needs a volume. Tickets are read first: whatever a ticket was filed for was there before it,
    /// and so what is not found afterwards is gone.
    pub(crate) async fn of_everything(client: &Client) -> Result<Self> {
        let inventory = Self::of_volumes(client).await?;
        let everywhere = || client.clone();
        let (nodes, snapshots, backups, attachments, volumes, pods) = futures::try_join!(
            list(inside(client), "nodes", None),
            list(inside(client), "snapshots", None),
            list(inside(client), "backups", None),
            list(Api::all(everywhere()), "Kubernetes VolumeAttachments", None),
            list(Api::all(everywhere()), "PersistentVolumes", None),
            list(Api::all(everywhere()), "pods", None),
        )?;
        Ok(Self {
            nodes,
            snapshots,
            backups,
            kubernetes_attachments: attachments,
            persistent_volumes: volumes,
            pods,
            ..inventory
        })
    }

    /// One volume with its parts, and all nodes. An unknown name is an error that suggests near ones.
    pub(crate) async fn of_volume(client: &Client, name: &str) -> Result<Self> {
        let volumes: Api<Volume> = inside(client);
        let found = volumes.get_opt(name).await;
        let found = found.map_err(|error| api_error(error, "read volume", name))?;
        let Some(volume) = found else {
            return Err(unknown_volume(client, name).await);
        };
        let selector = format!("{}={name}", label::VOLUME);
        let attachments: Api<VolumeAttachment> = inside(client);
        let attachment = async {
            let found = attachments.get_opt(name).await;
            found.map_err(|error| api_error(error, "read the tickets of volume", name))
        };
        let (attachment, engines, replicas, nodes, settings) = futures::try_join!(
            attachment,
            list(inside(client), "engines", Some(&selector)),
            list(inside(client), "replicas", Some(&selector)),
            list(inside(client), "nodes", None),
            list(inside(client), "settings", None),
        )?;
        Ok(Self {
            volumes: vec![volume],
            attachments: attachment.into_iter().collect(),
            engines,
            replicas,
            nodes,
            settings,
            ..Self::default()
        })
    }

    pub(crate) fn volume(&self, name: &str) -> Option<&Volume> {
        let place = self.index().volumes.get(name);
        place.and_then(|&place| self.volumes.get(place))
    }

    pub(crate) fn attachment(&self, volume: &str) -> Option<&VolumeAttachment> {
        let place = self.index().attachments.get(volume);
        place.and_then(|&place| self.attachments.get(place))
    }

    pub(crate) fn engines_of(&self, volume: &str) -> impl Iterator<Item = &Engine> {
        let places = self.index().engines.get(volume).into_iter().flatten();
        places.filter_map(|&place| self.engines.get(place))
    }

    pub(crate) fn replicas_of(&self, volume: &str) -> impl Iterator<Item = &Replica> {
        let places = self.index().replicas.get(volume).into_iter().flatten();
        places.filter_map(|&place| self.replicas.get(place))
    }

    /// The node of that name, or an error that suggests near ones.
    pub(crate) fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name_any() == name);
        found.ok_or_else(|| {
            let names: Vec<String> = self.nodes.iter().map(ResourceExt::name_any).collect();
            let names = names.iter().map(String::as_str);
            suggest::unknown("node", name, names, "lariat node list")
        })
    }

    /// The settings in force. One that makes no sense counts as not set.
    pub(crate) fn settings(&self) -> &Settings {
        &self.index().settings
    }

    /// What the attachment controller sees of a volume.
    pub(crate) fn view(&self, volume: &Volume, now: Timestamp) -> Result<View> {
        let name = volume.name_any();
        let (read, _) =
            wire::volume(volume).with_context(|| format!("volume {name} cannot be read"))?;
        let attachment = self.attachment(&name);
        let listed = self
            .nodes
            .iter()
            .map(|node| (node.name_any().as_str().into(), wire::node(node)));
        let setting = &api_types::settings::DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED;
        Ok(View {
            now,
            volume: read,
            tickets: attachment.map(wire::tickets).unwrap_or_default(),
            statuses: attachment.map(wire::statuses).unwrap_or_default(),
            nodes: view::Nodes {
                complete: true,
                listed: listed.collect(),
            },
            engines: view::Engines {
                complete: true,
                listed: self.engines_of(&name).filter_map(wire::engine).collect(),
            },
            settings: view::Settings {
                detach_manual_when_cordoned: self.settings().is_on(setting),
                ..view::Settings::default()
            },
        })
    }

    /// What the attachment controller would decide now.
    pub(crate) fn decided(&self, volume: &Volume, now: Timestamp) -> Result<(View, Plan)> {
        let view = self.view(volume, now)?;
        let plan = attach_core::decide(&view);
        Ok((view, plan))
    }
}

/// The error for a volume that does not exist. A claim's name is often what people have at hand.
pub(crate) async fn unknown_volume(client: &Client, name: &str) -> anyhow::Error {
    let listed = list::<Volume>(inside(client), "volumes", None).await;
    let volumes = match listed {
        Ok(volumes) => volumes,
        Err(error) => return error,
    };
    unknown_among(&volumes, name)
}

fn unknown_among(volumes: &[Volume], name: &str) -> anyhow::Error {
    let of_claim = volumes.iter().find(|volume| {
        let status = volume.status.as_ref();
        status.is_some_and(|status| {
            let claim = &status.kubernetes_status;
            !claim.pvc_name.is_empty()
                && (claim.pvc_name == name
                    || format!("{}/{}", claim.namespace, claim.pvc_name) == name)
        })
    });
    if let Some(volume) = of_claim {
        let message = format!(
            "there is no volume {name:?}, but a claim of that name: its volume is {:?}",
            volume.name_any()
        );
        return crate::exit::Failure::new(crate::exit::Outcome::NotFound, message).into();
    }
    let names: Vec<String> = volumes.iter().map(ResourceExt::name_any).collect();
    let names = names.iter().map(String::as_str);
    suggest::unknown("volume", name, names, "lariat volume list")
}

/// Objects in the namespace of everything Longhorn.
pub(crate) fn inside<K>(client: &Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

pub(crate) async fn list<K>(api: Api<K>, what: &str, selector: Option<&str>) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let parameters = selector.map_or_else(ListParams::default, |selector| {
        ListParams::default().labels(selector)
    });
    let listed = api.list(&parameters).await;
    listed
        .map(|list| list.items)
        .map_err(|error| not_listed(error, what))
}

fn not_listed(error: kube::Error, what: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.code == 404 => anyhow::anyhow!(
            "this cluster knows no {what}: install the resources with `lariat crds | kubectl apply -f -`, or name \
             another cluster with --kubeconfig FILE"
        ),
        error => api_error(error, "list", what),
    }
}

/// What the API refused, in a sentence with what to try.
pub(crate) fn api_error(error: kube::Error, verb: &str, what: &str) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.code == 401 => anyhow::anyhow!(
            "cannot {verb} {what}: the API does not know this account ({}); use another one with --kubeconfig FILE",
            status.message
        ),
        kube::Error::Api(status) if status.code == 403 => anyhow::anyhow!(
            "not allowed to {verb} {what}: {}; ask for a role that allows it, or use another account with --kubeconfig",
            status.message
        ),
        kube::Error::Api(status) if status.code == 409 => {
            anyhow::anyhow!("cannot {verb} {what}: somebody changed it at the same time; try again")
        }
        kube::Error::Api(status) => {
            let next = match status.code {
                400 | 422 => "correct what it names, and try again",
                404 => "see whether it still exists, and try again",
                _ => "try again, and if it goes on, look into the API server's log",
            };
            anyhow::anyhow!("cannot {verb} {what}: {}; {next}", status.message)
        }
        other => anyhow::anyhow!(
            "cannot {verb} {what}: {}; see whether the API still answers, and try again",
            root_cause(&other)
        ),
    }
}

/// When an object was made.
pub(crate) fn created<K: Resource>(object: &K) -> Option<Timestamp> {
    object.meta().creation_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
pub(crate) mod sample;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::output::golden;

    #[test]
    fn what_the_api_refuses_is_said_with_the_next_thing_to_try() {
        let refused = |code: u16, message: &str| {
            let status = kube::core::Status::failure(message, "").with_code(code);
            kube::Error::Api(Box::new(status))
        };
        let forbidden = || refused(403, "forbidden: User \"bob\" cannot do that");
        let broken = std::io::Error::other("connection reset by peer");
        let errors = [
            api_error(forbidden(), "set setting", "auto-salvage"),
            not_listed(forbidden(), "volumes"),
            not_listed(refused(401, "Unauthorized"), "volumes"),
            not_listed(refused(404, "404 page not found"), "volumes"),
            api_error(
                refused(409, "the object has been modified"),
                "cordon node",
                "node-1",
            ),
            api_error(
                refused(422, "spec.size: Invalid value: -1"),
                "create volume",
                "v",
            ),
            api_error(
                refused(404, "volumes.longhorn.io \"v\" not found"),
                "delete volume",
                "v",
            ),
            api_error(refused(503, "the store is full"), "create volume", "v"),
            api_error(kube::Error::ReadEvents(broken), "read volume", "v"),
        ];
        let lines = errors.iter().map(|error| exit::told(error) + "\n");
        golden::check("errors-refused", &lines.collect::<String>());
    }

    #[test]
    fn names_that_do_not_exist_come_with_those_that_are_near() {
        let inventory = sample::cluster();
        let volume = |name| unknown_among(&inventory.volumes, name);
        let errors = [
            volume("pvc-1111111"),
            volume("pvc"),
            volume("database"),
            volume("default/database"),
            volume("nothing-like-it"),
            inventory.node("node1").expect_err("no such node"),
            inventory.node("db").expect_err("no such node"),
        ];
        let lines = errors.iter().map(|error| exit::told(error) + "\n");
        golden::check("errors-unknown", &lines.collect::<String>());
    }
}
