//! A CSI driver that does as it is told.
//!
//! What it does not show: gRPC itself (codes on the wire, message limits, broken sockets), and a driver whose
//! volumes have a life of their own. Its volumes are names in a map.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cluster_core::VolumeHandle;
use cluster_core::attacher::{
    Capabilities, PublishRequest, PublishedVolumes, RpcError, UnpublishRequest,
};
use controllers::kubernetes::csi::{
    CreateRequest, CreatedVolume, CsiController, DriverCapabilities, Secrets,
};
use tokio::sync::Semaphore;

pub struct FakeCsi {
    pub name: String,
    pub capabilities: DriverCapabilities,
    state: Mutex<State>,
    /// Closed, publishes hang until it is opened.
    gate: Semaphore,
    gated: AtomicBool,
    pub in_flight: AtomicUsize,
    pub in_flight_peak: AtomicUsize,
}

#[derive(Default)]
struct State {
    volumes: BTreeMap<String, i64>,
    published: PublishedVolumes,
    calls: Vec<String>,
    answers: BTreeMap<&'static str, VecDeque<RpcError>>,
    publish_requests: Vec<(PublishRequest, Secrets)>,
    unpublish_requests: Vec<(UnpublishRequest, Secrets)>,
}

impl FakeCsi {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            capabilities: DriverCapabilities {
                attach: Capabilities {
                    publish: true,
                    read_only: false,
                    single_node_multi_writer: false,
                },
                list_published: false,
                create_delete: true,
            },
            state: Mutex::default(),
            gate: Semaphore::new(0),
            gated: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            in_flight_peak: AtomicUsize::new(0),
        }
    }

    /// From now on publishes hang.
    pub fn hold(&self) {
        self.gated.store(true, Ordering::SeqCst);
    }

    /// Lets what hangs go on.
    pub fn let_go(&self) {
        self.gated.store(false, Ordering::SeqCst);
        self.gate.add_permits(100_000);
    }

    /// Lets one of those that hang go on.
    pub fn answer_one(&self) {
        self.gate.add_permits(1);
    }

    /// The next call of a method fails so.
    pub fn fail_next(&self, method: &'static str, code: i32, message: &str) {
        let error = RpcError {
            code,
            message: message.to_owned(),
        };
        let mut state = self.state.lock().expect("no holder panics");
        state.answers.entry(method).or_default().push_back(error);
    }

    /// Somebody else has changed what is published.
    pub fn forget_published(&self, handle: &str) {
        let mut state = self.state.lock().expect("no holder panics");
        state.published.insert(handle.into(), BTreeSet::new());
    }

    /// `publish vol-1 n1`, in order.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().expect("no holder panics").calls.clone()
    }

    pub fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|other| *other == call).count()
    }

    pub fn published(&self, handle: &str) -> Vec<String> {
        let state = self.state.lock().expect("no holder panics");
        let nodes = state.published.get(&VolumeHandle::from(handle));
        nodes.into_iter().flatten().cloned().collect()
    }

    pub fn volumes(&self) -> Vec<String> {
        let state = self.state.lock().expect("no holder panics");
        state.volumes.keys().cloned().collect()
    }

    pub fn last_publish(&self) -> Option<(PublishRequest, Secrets)> {
        let state = self.state.lock().expect("no holder panics");
        state.publish_requests.last().cloned()
    }

    pub fn last_unpublish(&self) -> Option<(UnpublishRequest, Secrets)> {
        let state = self.state.lock().expect("no holder panics");
        state.unpublish_requests.last().cloned()
    }

    fn begin(&self, method: &'static str, what: &str) -> Result<(), RpcError> {
        let mut state = self.state.lock().expect("no holder panics");
        state.calls.push(format!("{method} {what}"));
        match state.answers.get_mut(method).and_then(VecDeque::pop_front) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl CsiController for FakeCsi {
    async fn driver_name(&self) -> Result<String, RpcError> {
        Ok(self.name.clone())
    }

    async fn capabilities(&self) -> Result<DriverCapabilities, RpcError> {
        Ok(self.capabilities)
    }

    async fn publish(
        &self,
        request: PublishRequest,
        secrets: Secrets,
    ) -> Result<BTreeMap<String, String>, RpcError> {
        let node = request.node_id.clone();
        let begun = self.begin("publish", &format!("{} {node}", request.handle));
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_peak.fetch_max(now, Ordering::SeqCst);
        if self.gated.load(Ordering::SeqCst) {
            let permit = self.gate.acquire().await;
            permit.expect("never closed").forget();
        }
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        begun?;
        let mut state = self.state.lock().expect("no holder panics");
        state
            .publish_requests
            .push((request.clone(), secrets.clone()));
        state
            .published
            .entry(request.handle.clone())
            .or_default()
            .insert(node);
        Ok(BTreeMap::from([(
            "device".to_owned(),
            format!("/dev/{}", request.handle),
        )]))
    }

    async fn unpublish(&self, request: UnpublishRequest, secrets: Secrets) -> Result<(), RpcError> {
        self.begin(
            "unpublish",
            &format!("{} {}", request.handle, request.node_id),
        )?;
        let mut state = self.state.lock().expect("no holder panics");
        if let Some(nodes) = state.published.get_mut(&request.handle) {
            nodes.remove(&request.node_id);
        }
        state.unpublish_requests.push((request, secrets));
        Ok(())
    }

    async fn list(&self) -> Result<PublishedVolumes, RpcError> {
        self.begin("list", "")?;
        Ok(self
            .state
            .lock()
            .expect("no holder panics")
            .published
            .clone())
    }

    async fn create(&self, request: CreateRequest) -> Result<CreatedVolume, RpcError> {
        self.begin("create", &request.name)?;
        let mut state = self.state.lock().expect("no holder panics");
        state
            .volumes
            .insert(request.name.clone(), request.bytes_required);
        Ok(CreatedVolume {
            handle: request.name,
            bytes: request.bytes_required,
            attributes: request.parameters,
            accessible_from: Vec::new(),
        })
    }

    async fn delete(&self, handle: VolumeHandle, _secrets: Secrets) -> Result<(), RpcError> {
        self.begin("delete", handle.as_str())?;
        let mut state = self.state.lock().expect("no holder panics");
        state.volumes.remove(handle.as_str());
        Ok(())
    }
}
