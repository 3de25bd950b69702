//! Follows this node's Engine objects: one task for each volume that has an engine here.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::Arc;

use api_types::{Engine, names};
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::engine_actor::Actor;
use super::process::{self, Handle};
use super::{AgentError, Context};

/// Runs until told to stop, and then until every engine has ended in order.
pub(super) async fn run(
    context: Arc<Context>,
    secret: Vec<u8>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let api: Api<Engine> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    let selector = format!("{}={}", names::label::NODE, context.node);
    let (store, writer) = reflector::store();
    let config = watcher::Config::default().labels(&selector);
    let events = reflector::reflector(writer, watcher::watcher(api, config)).default_backoff();
    let mut events = pin!(events);
    let mut found = find_predecessors(&context);
    let mut wakes: HashMap<String, Arc<Notify>> = HashMap::new();
    let mut tasks: JoinSet<String> = JoinSet::new();
    let stopping = stop.clone();
    let follow = |volume: String, adopted: Option<Handle>, wake: Arc<Notify>| {
        let actor = Actor::new(
            context.clone(),
            secret.clone(),
            volume.clone(),
            store.clone(),
            wake,
            stopping.clone(),
        );
        let metrics = context.metrics.clone();
        async move {
            actor.run(adopted).await;
            metrics.engine(&volume, None);
            volume
        }
    };
    let mut ready = false;
    let mut ending = false;
    loop {
        let mut touched: Vec<String> = Vec::new();
        tokio::select! {
            _ = stop.wait_for(|stop| *stop), if !ending => {
                ending = true;
                // Told to stop before the objects were seen: what a predecessor has left ends here all the same.
                for (volume, adopted) in std::mem::take(&mut found) {
                    let wake = Arc::new(Notify::new());
                    wakes.insert(volume.clone(), wake.clone());
                    tasks.spawn(follow(volume, adopted, wake));
                }
            }
            Some(ended) = tasks.join_next() => {
                let volume = ended.map_err(|_| AgentError::Task("an engine's task"))?;
                wakes.remove(&volume);
                touched.push(volume);
            }
            // Until the last engine has ended: it may wait for what becomes of its object.
            event = events.next() => match event {
                Some(Ok(Event::Apply(engine) | Event::Delete(engine))) => touched.push(engine.spec.volume_name),
                Some(Ok(Event::InitDone)) => {
                    ready = true;
                    touched.extend(wakes.keys().cloned());
                    touched.extend(found.keys().cloned());
                    touched.extend(store.state().iter().map(|engine| engine.spec.volume_name.clone()));
                }
                Some(Ok(Event::Init | Event::InitApply(_))) => {}
                Some(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "watching engines"),
                None => return Err(AgentError::Task("the watch of engines")),
            },
        }
        if ending && tasks.is_empty() {
            return Ok(());
        }
        if !ready {
            continue;
        }
        touched.sort();
        touched.dedup();
        for volume in touched {
            if !names_a_volume(&volume) {
                tracing::warn!(
                    volume.name = volume,
                    "an Engine is left alone: its volumeName is no name of a volume"
                );
                continue;
            }
            if let Some(wake) = wakes.get(&volume) {
                wake.notify_one();
                continue;
            }
            let adopted = found.remove(&volume);
            if ending || (adopted.is_none() && of_volume(&store, &volume).is_empty()) {
                continue;
            }
            let wake = Arc::new(Notify::new());
            wakes.insert(volume.clone(), wake.clone());
            tasks.spawn(follow(volume, adopted.flatten(), wake));
        }
    }
}

/// Names become names of files, which this process makes and removes as root.
fn names_a_volume(name: &str) -> bool {
    block_core::VolumeName::new(name).is_ok()
}

/// The volume's engines on this node, the oldest first.
pub(super) fn of_volume(store: &Store<Engine>, volume: &str) -> Vec<Arc<Engine>> {
    let mut engines = store.state();
    engines.retain(|engine| engine.spec.volume_name == volume);
    engines.sort_by_key(|engine| (engine.spec.epoch, engine.name_any()));
    engines
}

/// Volumes that a predecessor of this agent had engines for: those that run, and those that left something behind.
fn find_predecessors(context: &Context) -> BTreeMap<String, Option<Handle>> {
    let mut found: BTreeMap<String, Option<Handle>> = BTreeMap::new();
    if let Ok(entries) = std::fs::read_dir(context.layout.run()) {
        for entry in entries.flatten() {
            let name = entry.file_name();
            let volume = name.to_str().and_then(|name| {
                [".control", ".fuse", ".engine.json"]
                    .iter()
                    .find_map(|ending| name.strip_suffix(ending))
            });
            if let Some(volume) = volume {
                found.insert(volume.to_owned(), None);
            }
        }
    }
    match process::find(&context.layout) {
        Ok(processes) => {
            for (pid, volume) in processes {
                found.insert(volume, Some(Handle::adopted(pid)));
            }
        }
        Err(error) => tracing::warn!(%error, "cannot look for engines that run already"),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::names_a_volume;

    #[test]
    fn what_leads_out_of_our_folders_names_no_volume() {
        for name in ["pvc-1", "a.b_c-D9"] {
            assert!(names_a_volume(name), "{name}");
        }
        for name in ["", "..", "../v", "/etc/passwd", "a/b", ".hidden", "a\0b"] {
            assert!(!names_a_volume(name), "{name:?}");
        }
    }
}
