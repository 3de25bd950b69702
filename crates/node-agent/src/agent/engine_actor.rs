//! One volume's engine on this node: its process, its control connection, its objects.

mod answers;
mod notices;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_types::{Engine, EngineRole, InstanceState, Volume, names};
use engine::control::Command;
use engine::frontend::FrontendKind;
use events::sentence;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use tokio::sync::{Notify, watch};

use super::control::Connection;
use super::engine_plan::{EngineCommand, Step, Wanted, is_awaited, plan};
use super::engine_process::{EXPAND, LIST_SNAPSHOTS, Managed, lock, request};
use super::engine_report::{Process, SnapshotsSeen, report};
use super::objects::{newest, patch_status, release};
use super::process::{EngineRecord, Handle, log_tail, spawn};
use super::{AgentError, Context, ReplicaTls, engines, leftovers};
use crate::launch::LaunchSpec;

/// How often the engine is looked at although it said nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(1);

/// From the start of a process to its control socket.
const SOCKET_PATIENCE: Duration = Duration::from_secs(10);

/// An orderly end waits up to ten seconds for users of the device, and then for replicas.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(25);

pub(super) struct Actor {
    context: Arc<Context>,
    secret: Vec<u8>,
    volume: String,
    store: Store<Engine>,
    wake: Arc<Notify>,
    stop: watch::Receiver<bool>,
    process: Option<Managed>,
    /// Epoch of the process that ended last, and why it did.
    ended: Option<(u64, String)>,
    resumable: Option<u64>,
    waits_for: Option<String>,
    /// The keeper has the device of a process that died: the next engine takes it over.
    kept: bool,
    written: HashMap<String, Engine>,
}

impl Actor {
    pub(super) fn new(
        context: Arc<Context>,
        secret: Vec<u8>,
        volume: String,
        store: Store<Engine>,
        wake: Arc<Notify>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            context,
            secret,
            volume,
            store,
            wake,
            stop,
            process: None,
            ended: None,
            resumable: None,
            waits_for: None,
            kept: false,
            written: HashMap::new(),
        }
    }

    /// Runs until the volume has neither an engine nor an object on this node, or the agent stops.
    pub(super) async fn run(mut self, adopted: Option<Handle>) {
        self.adopt(adopted).await;
        loop {
            let objects = self.objects();
            if self.stopping() {
                self.drop_users().await;
                self.shut_down("the node's agent stops").await;
                self.let_go().await;
                let objects = self.objects();
                self.report_all(&objects).await.unwrap_or_else(|error| {
                    tracing::warn!(volume.name = %self.volume, error = &error as &dyn std::error::Error, "cannot report the end of an engine");
                });
                return;
            }
            // A device that is kept for the next engine is put away first, if none comes here any more.
            if objects.is_empty() && self.process.is_none() && !self.kept {
                return;
            }
            let pause = match self.step(&objects).await {
                Ok(()) => LOOK_AGAIN,
                Err(error) => {
                    tracing::warn!(volume.name = %self.volume, error = &error as &dyn std::error::Error, "cannot settle an engine");
                    RETRY
                }
            };
            self.rest(pause).await;
        }
    }

    fn stopping(&self) -> bool {
        *self.stop.borrow()
    }

    async fn rest(&mut self, pause: Duration) {
        let pushed = async {
            match &mut self.process {
                // Closed for good: the next look sees it.
                Some(process) => drop(process.pushed.changed().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.wake.notified() => {}
            () = pushed => {}
            _ = self.stop.wait_for(|stop| *stop) => {}
        }
    }

    fn objects(&self) -> Vec<Engine> {
        engines::of_volume(&self.store, &self.volume)
            .iter()
            .map(|engine| newest(engine.as_ref(), &self.written))
            .collect()
    }

    async fn step(&mut self, objects: &[Engine]) -> Result<(), AgentError> {
        self.look().await;
        self.tell_of_notices();
        self.count();
        let wanted: Vec<Wanted> = objects.iter().map(Wanted::read).collect();
        if self.relay(&wanted).await? {
            self.look().await;
        }
        self.resumable = self.resumable.filter(|epoch| is_awaited(&wanted, *epoch));
        let running = self.process.as_ref().map(Managed::running);
        let step = plan(running.as_ref(), &wanted, self.resumable);
        tracing::debug!(volume.name = %self.volume, ?step, "decided");
        self.waits_for = None;
        match step {
            Step::Rest => {
                let runs = wanted.iter().any(|engine| engine.run && !engine.deleting);
                // Between two engines, perhaps after a pause for one that failed often, its users keep the device.
                if self.kept && !runs && !self.volume_belongs_here().await? {
                    self.let_go().await;
                }
            }
            Step::Wait(why) => self.waits_for = Some(why),
            Step::Start { engine } => {
                let object = objects.iter().find(|object| object.name_any() == engine);
                if let Some(object) = object {
                    self.start(object).await?;
                }
            }
            Step::Shutdown { why, again } => {
                self.report_all(objects).await?;
                self.end(&why, again).await;
            }
            Step::Command(commands) => self.command(commands),
        }
        let objects = self.objects();
        self.report_all(&objects).await?;
        self.release_all(&objects).await
    }

    fn count(&self) {
        let status = self.process.as_ref().map(|process| &process.status);
        self.context.metrics.engine(&self.volume, status);
    }

    /// Sees what the process says, or that it says nothing any more.
    async fn look(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        let closed = process.pushed.borrow_and_update().closed;
        if !closed {
            match process.connection.status().await {
                Ok(status) => {
                    process.status = status;
                    return;
                }
                // Slow is not dead: users of the device must not lose it for that.
                Err(error) if !process.pushed.borrow().closed => {
                    tracing::warn!(volume.name = %self.volume, error = &error as &dyn std::error::Error, "an engine does not answer");
                    return;
                }
                Err(_) => {}
            }
        }
        let (handle, record) = (process.handle.clone(), process.record.clone());
        if self.reconnect().await {
            return;
        }
        if !handle.wait(Duration::from_secs(5)).await {
            handle.kill();
            handle.wait(Duration::from_secs(5)).await;
        }
        let tail = log_tail(&self.context.layout.engine_log(&self.volume));
        let how = handle.verdict().unwrap_or_else(|| "it ended".to_owned());
        let why = format!(
            "the engine process of epoch {} is gone: {how}; its last words: {tail}",
            record.epoch
        );
        tracing::warn!(volume.name = %self.volume, engine.name = %record.engine, why, "an engine ended by itself");
        self.kept = self.context.keeper && record.frontend;
        self.forget(record.epoch, why).await;
    }

    /// The process belongs to its epoch for ever: that it was started is on the API's record before it is.
    async fn start(&mut self, object: &Engine) -> Result<(), AgentError> {
        let context = self.context.clone();
        let _starting = context.starts.read().await;
        let wanted = Wanted::read(object);
        self.kept &= wanted.frontend;
        self.clear_leftovers().await;
        let record = EngineRecord {
            engine: wanted.name.clone(),
            volume: self.volume.clone(),
            epoch: wanted.epoch,
            uuid: uuid::Uuid::new_v4().to_string(),
            frontend: wanted.frontend,
        };
        let starting = Process::Silent {
            state: InstanceState::Starting,
            uuid: &record.uuid,
        };
        self.write(object, &report(&self.context.node, &wanted, &starting))
            .await?;
        self.resumable = None;
        self.ended = None;
        tracing::info!(volume.name = %self.volume, engine.name = %record.engine, epoch = record.epoch, "starting an engine");
        let started = self.launch(&wanted, record.clone()).await;
        match started {
            Ok(process) => {
                self.kept = false;
                self.process = Some(process);
            }
            Err(why) => self.forget(record.epoch, why).await,
        }
        Ok(())
    }

    async fn launch(&self, wanted: &Wanted, record: EngineRecord) -> Result<Managed, String> {
        let layout = &self.context.layout;
        let spec = LaunchSpec {
            volume: self.volume.clone(),
            epoch: wanted.epoch,
            generation: wanted.version,
            size_bytes: wanted.size_bytes,
            in_sync: wanted.in_sync.iter().cloned().collect(),
            written_off: wanted.written_off(),
            addresses: wanted
                .addresses
                .iter()
                .filter(|(name, _)| wanted.in_sync.contains(*name))
                .map(|(name, address)| (name.clone(), address.clone()))
                .collect(),
            frontend: if wanted.frontend {
                FrontendKind::Fuse
            } else {
                FrontendKind::None
            },
            secret: LaunchSpec::encode_secret(&self.secret),
            tls: self.context.tls != ReplicaTls::Off,
            runtime_dir: layout.run(),
            device_dir: layout.devices(),
            standby: wanted.role == EngineRole::Standby,
            keeper: self.context.keeper.then(|| layout.keeper_socket()),
            rebuild_bytes_per_second_max: 0,
        };
        record
            .save(layout)
            .map_err(|error| format!("cannot note the engine's start: {error}"))?;
        let handle = spawn(&self.context.executable, layout, &spec)
            .await
            .map_err(|error| sentence(&error))?;
        let until = Instant::now() + SOCKET_PATIENCE;
        loop {
            match self.connect(handle.clone(), record.clone()).await {
                Ok(process) => return Ok(process),
                Err(_) if handle.is_alive() && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(error) => {
                    handle.kill();
                    handle.wait(Duration::from_secs(5)).await;
                    let tail = log_tail(&layout.engine_log(&self.volume));
                    return Err(format!(
                        "the engine did not start: {error}; its last words: {tail}"
                    ));
                }
            }
        }
    }

    async fn connect(&self, handle: Handle, record: EngineRecord) -> Result<Managed, String> {
        let path = self.context.layout.control(&self.volume);
        let connection = Connection::attach(&path)
            .await
            .map_err(|error| sentence(&error))?;
        let status = connection
            .status()
            .await
            .map_err(|error| sentence(&error))?;
        if status.epoch != record.epoch || status.process_id != handle.pid {
            return Err(format!(
                "process {} of epoch {} answers at {}",
                status.process_id,
                status.epoch,
                path.display()
            ));
        }
        Ok(Managed {
            handle,
            pushed: connection.pushed(),
            connection: Arc::new(connection),
            record,
            status,
            told: 0,
            commands: Arc::default(),
        })
    }

    /// A connection can break without the engine's end. Says whether there is another.
    async fn reconnect(&mut self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let (handle, record) = (process.handle.clone(), process.record.clone());
        if !handle.is_alive() {
            return false;
        }
        match self.connect(handle, record).await {
            Ok(again) => {
                self.process = Some(again);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes over what a predecessor of this agent has started, or clears away what is left of it.
    async fn adopt(&mut self, found: Option<Handle>) {
        let record = EngineRecord::load(&self.context.layout, &self.volume);
        if let (Some(handle), Some(record)) = (&found, &record) {
            // It may be so young that its socket is not there yet.
            let until = Instant::now() + SOCKET_PATIENCE;
            while handle.is_alive() && Instant::now() < until {
                match self.connect(handle.clone(), record.clone()).await {
                    Ok(process) => {
                        tracing::info!(volume.name = %self.volume, engine.name = %record.engine, pid = handle.pid, "adopted a running engine");
                        self.process = Some(process);
                        return;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        }
        if let Some(handle) = found {
            tracing::warn!(volume.name = %self.volume, pid = handle.pid, "ending an engine process that cannot be adopted");
            handle.kill();
            handle.wait(Duration::from_secs(5)).await;
        }
        self.kept = self.context.keeper && record.is_some_and(|record| record.frontend);
        self.clear_leftovers().await;
    }

    fn command(&self, commands: Vec<EngineCommand>) {
        let Some(process) = &self.process else { return };
        for command in commands {
            let (key, request) = request(command);
            if !lock(&process.commands).running.insert(key.clone()) {
                continue;
            }
            tracing::info!(volume.name = %self.volume, command = ?request, "asking the engine");
            let (connection, commands) = (process.connection.clone(), process.commands.clone());
            let (wake, volume) = (self.wake.clone(), self.volume.clone());
            let version = process.status.snapshots_version;
            tokio::spawn(async move {
                let result = connection.request(request).await;
                let done = lock(&commands).finish(key.clone(), version, result);
                if let Err(why) = done {
                    tracing::warn!(volume.name = %volume, command = %key, why, "the engine could not do it");
                }
                wake.notify_one();
            });
        }
    }

    async fn end(&mut self, why: &str, again: bool) {
        let Some(process) = &self.process else { return };
        let epoch = process.record.epoch;
        tracing::info!(volume.name = %self.volume, epoch, why, "ending an engine");
        if !again {
            // This node has no claim on the volume any more: who still has it mounted must not hold the device.
            self.drop_users().await;
        }
        let in_order = self.shut_down(why).await;
        self.resumable = (again && in_order).then_some(epoch);
        // What follows from the end is decided at once.
        self.wake.notify_one();
    }

    /// Says whether it ended in order, with nothing proposed.
    async fn shut_down(&mut self, why: &str) -> bool {
        let Some(process) = &self.process else {
            return true;
        };
        let (epoch, handle) = (process.record.epoch, process.handle.clone());
        let connection = process.connection.clone();
        let asked = async move { connection.request(Command::Shutdown).await };
        let answered = self
            .beside(tokio::time::timeout(SHUTDOWN_PATIENCE, asked))
            .await;
        let in_order = matches!(answered, Some(Ok(Ok(_))));
        if !in_order {
            tracing::warn!(volume.name = %self.volume, epoch, "the engine does not end in order");
        }
        if !handle.wait(Duration::from_secs(5)).await {
            handle.kill();
            handle.wait(Duration::from_secs(5)).await;
        }
        // What was shown may be recorded yet, and a successor of the same epoch would not know of it.
        let settled = |process: &Managed| process.status.proposal.is_none();
        let is_settled = self.process.as_ref().is_none_or(settled);
        self.forget(epoch, why.to_owned()).await;
        in_order && is_settled
    }

    async fn forget(&mut self, epoch: u64, why: String) {
        self.process = None;
        self.ended = Some((epoch, why));
        self.clear_leftovers().await;
    }

    /// Unmounts what is mounted from the device.
    async fn drop_users(&mut self) {
        let users = leftovers::users(&self.context.layout, &self.volume).await;
        if users.is_empty() {
            return;
        }
        let volume = self.volume.clone();
        let mut dropping = tokio::spawn(async move { leftovers::drop_all(&volume, &users).await });
        let dropped = match self.beside(&mut dropping).await {
            Some(dropped) => dropped,
            None => {
                // Nobody writes it out any more: without the device, unmounts fail instead of waiting.
                self.kept = false;
                self.clear_leftovers().await;
                dropping.await
            }
        };
        if let Err(error) = dropped {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    async fn volume_belongs_here(&self) -> Result<bool, AgentError> {
        let node = &self.context.node;
        let belongs = |volume: Volume| {
            volume.metadata.deletion_timestamp.is_none()
                && [&volume.spec.node_id, &volume.spec.migration_node_id].contains(&node)
        };
        Ok(self.volume().await?.is_some_and(belongs))
    }

    async fn volume(&self) -> Result<Option<Volume>, AgentError> {
        let volumes: Api<Volume> = Api::namespaced(self.context.client.clone(), names::NAMESPACE);
        let volume = volumes.get_opt(&self.volume).await;
        volume.map_err(AgentError::Api)
    }

    /// Nobody will take a kept device over here.
    async fn let_go(&mut self) {
        if std::mem::take(&mut self.kept) {
            self.drop_users().await;
            self.clear_leftovers().await;
        }
    }

    async fn clear_leftovers(&self) {
        leftovers::clear(&self.context.layout, &self.volume, self.kept).await;
    }

    async fn report_all(&mut self, objects: &[Engine]) -> Result<(), AgentError> {
        for object in objects {
            let object = newest(object, &self.written);
            let wanted = Wanted::read(&object);
            let value = self.report_of(&wanted);
            self.write(&object, &value).await?;
        }
        let kept: BTreeSet<String> = objects.iter().map(Engine::name_any).collect();
        self.written.retain(|name, _| kept.contains(name));
        Ok(())
    }

    fn report_of(&self, wanted: &Wanted) -> serde_json::Value {
        let node = &self.context.node;
        let own = self
            .process
            .as_ref()
            .filter(|process| process.record.epoch == wanted.epoch);
        if let Some(process) = own {
            let mut commands = lock(&process.commands);
            commands.keep_attempts(&wanted.roles, &wanted.snapshot_requests);
            let rebuild_errors = commands.replica_errors();
            let snapshots = SnapshotsSeen {
                listed: process.listed(&commands),
                list_error: &commands.error(LIST_SNAPSHOTS),
                errors: commands.snapshot_errors(&wanted.snapshot_requests),
            };
            return report(
                node,
                wanted,
                &Process::Answers {
                    status: &process.status,
                    uuid: &process.record.uuid,
                    rebuild_errors: &rebuild_errors,
                    expand_error: &commands.error(EXPAND),
                    snapshots,
                },
            );
        }
        let process = match &self.ended {
            _ if self.resumable == Some(wanted.epoch) => Process::Silent {
                state: InstanceState::Starting,
                uuid: "",
            },
            Some((epoch, why)) if *epoch == wanted.epoch => Process::Ended { why },
            _ => Process::None {
                waits_for: self.waits_for.as_deref(),
            },
        };
        report(node, wanted, &process)
    }

    async fn write(
        &mut self,
        object: &Engine,
        value: &serde_json::Value,
    ) -> Result<(), AgentError> {
        let api: Api<Engine> = Api::namespaced(self.context.client.clone(), names::NAMESPACE);
        let patched = patch_status(&api, object, value)
            .await
            .map_err(AgentError::Api)?;
        if let Some(patched) = patched {
            self.written.insert(patched.name_any(), patched);
        }
        Ok(())
    }

    /// Lets objects go whose engine is gone.
    async fn release_all(&self, objects: &[Engine]) -> Result<(), AgentError> {
        let api: Api<Engine> = Api::namespaced(self.context.client.clone(), names::NAMESPACE);
        for object in objects {
            let object = newest(object, &self.written);
            let wanted = Wanted::read(&object);
            let runs = self
                .process
                .as_ref()
                .is_some_and(|process| process.record.epoch == wanted.epoch);
            if wanted.deleting && !runs {
                release(&api, &object).await.map_err(AgentError::Api)?;
            }
        }
        Ok(())
    }
}
