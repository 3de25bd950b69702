//! A cluster in one process: the real embedded API with all CRDs, and a CSI driver that does as it is told.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod csi;
pub mod objects;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver::auth::{Authenticator, User};
use apiserver::core::Core;
use apiserver::service::{ApiService, CertificateUser};
use futures::StreamExt as _;
use http::Method;
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Generous: the machine may be busy. Nothing waits this long unless it fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub client: Client,
    pub stop: CancellationToken,
    refused: Refused,
    requests: Requests,
    tasks: JoinSet<()>,
}

/// `GET /api/v1/nodes/n1`, in order.
type Requests = Arc<Mutex<Vec<String>>>;

/// Requests that are answered as those of a stranger: a method and a part of the path.
type Refused = Arc<Mutex<Vec<(Method, String)>>>;

impl Cluster {
    pub async fn start() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let store = revision_store::Store::in_memory(revision_store::Options::default());
        let core = Core::new(store.expect("a store"));
        let service = ApiService::new(Arc::clone(&core), Authenticator::new("token"));
        for name in ["default", "longhorn-system"] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            service.apply(&namespace, "test").await.expect("applied");
        }
        for definition in api_types::all_crds() {
            let definition = serde_json::to_value(definition).expect("serializable");
            service.apply(&definition, "test").await.expect("applied");
        }
        let user = CertificateUser(User::new("test"));
        let refused = Refused::default();
        let refusals = Arc::clone(&refused);
        let requests = Requests::default();
        let noted = Arc::clone(&requests);
        let in_process = tower::service_fn(move |mut request: http::Request<_>| {
            let service = service.clone();
            let asked = format!("{} {}", request.method(), request.uri().path());
            noted.lock().expect("no holder panics").push(asked);
            if !is_refused(&refusals, request.method(), request.uri().path()) {
                request.extensions_mut().insert(user.clone());
            }
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(apiserver::lifecycle::run(core));
        Self {
            client: Client::new(in_process, "default"),
            stop: CancellationToken::new(),
            refused,
            requests,
            tasks,
        }
    }

    /// What the API was asked by anybody, whether it answered or refused, for paths with this part.
    pub fn requests(&self, path_part: &str) -> Vec<String> {
        let requests = self.requests.lock().expect("no holder panics");
        let fits = |request: &&String| request.contains(path_part);
        requests.iter().filter(fits).cloned().collect()
    }

    /// What was asked so far counts no more.
    pub fn forget_requests(&self) {
        self.requests.lock().expect("no holder panics").clear();
    }

    /// From now on these requests are refused, as by an administrator who forgot a rule.
    pub fn refuse(&self, method: Method, path_part: &str) {
        let mut refused = self.refused.lock().expect("no holder panics");
        refused.push((method, path_part.to_owned()));
    }

    pub fn refuse_nothing(&self) {
        self.refused.lock().expect("no holder panics").clear();
    }

    /// Runs beside the test until it ends.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub fn default<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Every message of events with this reason.
    pub async fn events(&self, reason: &str) -> Vec<String> {
        let api: Api<Event> = self.default();
        let parameters = ListParams::default().fields(&format!("reason={reason}"));
        let events = api.list(&parameters).await.expect("events");
        events
            .into_iter()
            .filter_map(|event| event.message)
            .collect()
    }

    /// Waits for an event with this reason whose message contains the words.
    pub async fn until_event(&self, reason: &str, words: &str) -> Event {
        self.until_recorded(reason, words, |_| true).await
    }

    /// The same, on an object of this kind.
    pub async fn until_told(&self, kind: &str, reason: &str, words: &str) -> Event {
        let on_kind = |event: &Event| event.involved_object.kind.as_deref() == Some(kind);
        self.until_recorded(reason, words, on_kind).await
    }

    async fn until_recorded(
        &self,
        reason: &str,
        words: &str,
        wanted: impl Fn(&Event) -> bool,
    ) -> Event {
        let config = watcher::Config::default().fields(&format!("reason={reason}"));
        let events = watcher::watcher(self.all::<Event>(), config);
        let found = events.filter_map(|event| async move {
            match event {
                Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event)) => Some(event),
                Ok(_) | Err(_) => None,
            }
        });
        let mut found = std::pin::pin!(found);
        let search = async {
            while let Some(event) = found.next().await {
                let message = event.message.as_deref().unwrap_or_default();
                if message.contains(words) && wanted(&event) {
                    return event;
                }
            }
            unreachable!("a watch does not end");
        };
        match timeout(PATIENCE, search).await {
            Ok(event) => event,
            Err(_) => panic!(
                "no event {reason} with {words:?}; there are {:?}",
                self.events(reason).await
            ),
        }
    }
}

fn is_refused(refused: &Refused, method: &Method, path: &str) -> bool {
    let refused = refused.lock().expect("no holder panics");
    refused
        .iter()
        .any(|(other, part)| other == method && path.contains(part))
}

pub async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).expect("a valid object");
    let name = object.name_any();
    match api.create(&PostParams::default(), &object).await {
        Ok(created) => created,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Waits until the object, or its absence, is as wanted.
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    wanted: impl Fn(Option<&K>) -> bool,
) -> Option<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut objects = std::pin::pin!(watcher::watch_object(api.clone(), name));
    let mut last = None;
    let search = async {
        while let Some(object) = objects.next().await {
            let Ok(object) = object else { continue };
            if wanted(object.as_ref()) {
                return object;
            }
            last = object;
        }
        unreachable!("a watch does not end");
    };
    match timeout(PATIENCE, search).await {
        Ok(object) => object,
        Err(_) => panic!("{name} never was {what}; it is {last:?}"),
    }
}

/// Waits for a condition that no object shows, such as what the fake driver was asked.
pub async fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if timeout(PATIENCE, waiting).await.is_err() {
        panic!("it never came to this: {what}");
    }
}
