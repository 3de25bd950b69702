//! The manager: watches everything all the time, and runs all controllers while it leads.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::context::{Context, Objects};
use super::leader::{LeaderOptions, lead};
use crate::metrics::{ClusterMetrics, Metrics};
use crate::{attachment, holders, nodes, reaper, snapshots, volume};

/// How long a manager that stops may take to write what it has still to tell.
const LAST_WORDS: Duration = Duration::from_secs(1);

type Controller = Arc<dyn Fn(Context, CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Clone, Debug)]
pub struct Options {
    pub leader: LeaderOptions,
    /// A node whose lease has not changed for this long is lost.
    pub node_lost_after: Duration,
    pub reaper: attach_core::reaper::Policy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            leader: LeaderOptions::default(),
            node_lost_after: Duration::from_secs(4),
            reaper: attach_core::reaper::Policy::default(),
        }
    }
}

/// All controllers of one process.
pub struct Manager {
    options: Options,
    controllers: Vec<(&'static str, Controller)>,
    objects: Objects,
    metrics: Metrics,
}

/// A part that must never end has ended; the process should too, and be started again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the {0} controller ended by itself")]
    ControllerEnded(&'static str),
    #[error("a watch ended by itself")]
    WatchEnded,
}

impl Manager {
    /// With the controllers of volumes and tickets.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let lost_after = options.node_lost_after;
        let lease = options.leader.lease.clone();
        let policy = options.reaper.clone();
        Self {
            options,
            controllers: Vec::new(),
            objects: Objects::default(),
            metrics: Metrics::default(),
        }
        .with("volume", volume::run)
        .with("attachment", attachment::run)
        .with("holders", holders::run)
        .with("snapshots", snapshots::run)
        .with("reaper", move |context, stop| {
            reaper::run(context, policy.clone(), stop)
        })
        .with("nodes", move |context, stop| {
            nodes::run(context, lost_after, lease.clone(), stop)
        })
    }

    /// One more controller that runs while this process leads. It must end when its token is cancelled, and only then.
    #[must_use]
    pub fn with<F, W>(mut self, name: &'static str, controller: F) -> Self
    where
        F: Fn(Context, CancellationToken) -> W + Send + Sync + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let controller: Controller =
            Arc::new(move |context, stop| Box::pin(controller(context, stop)));
        self.controllers.push((name, controller));
        self
    }

    /// What is watched, once [`run`](Self::run) has begun.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// For controllers that are added, to count into.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Shows what is counted, and what the watched objects say.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register_manager(registry);
        registry.register_collector(Box::new(ClusterMetrics::new(self.objects.clone())));
    }

    /// Runs until `shutdown`, leading whenever it can. `lease_client` is for the leader's lease alone, whose renewals must not wait
    /// for anything else.
    pub async fn run(
        self,
        client: Client,
        lease_client: Client,
        shutdown: CancellationToken,
    ) -> Result<(), RunError> {
        let (objects, metrics) = (self.objects, self.metrics);
        // Watched also while another leads: taking over then needs no list.
        let mut watches = objects.watch(&client);
        let (context, telling) = Context::new(client, objects, metrics, "lariat-manager");
        let mut telling = JoinSet::from_iter([telling]);
        let controllers = Arc::new(self.controllers);
        let ended = {
            let leading = lead(lease_client, &self.options.leader, shutdown, |stop| {
                work(context.clone(), Arc::clone(&controllers), stop)
            });
            tokio::select! {
                ended = leading => ended.unwrap_or(Ok(())),
                Some(_) = watches.join_next() => Err(RunError::WatchEnded),
                Some(_) = telling.join_next() => Err(RunError::WatchEnded),
            }
        };
        drop(context);
        // What was decided last is told and kept too, if the API still takes it.
        tokio::time::timeout(LAST_WORDS, telling.join_next())
            .await
            .ok();
        // Before the client goes: a watch without one would complain.
        watches.shutdown().await;
        ended
    }
}

/// Says that this process leads no more, however its work ends.
struct Leading(Metrics);

impl Leading {
    fn new(metrics: &Metrics) -> Self {
        metrics.set_leading(true);
        Self(metrics.clone())
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.set_leading(false);
    }
}

/// Ends when stopped, with everything it started.
async fn work(
    context: Context,
    controllers: Arc<Vec<(&'static str, Controller)>>,
    stop: CancellationToken,
) -> Result<(), RunError> {
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = context.objects.wait_until_ready() => {}
    }
    context.history().forget_all();
    let _leading = Leading::new(&context.metrics);
    let mut tasks = JoinSet::new();
    for (name, controller) in controllers.iter() {
        let (name, running) = (*name, controller(context.clone(), stop.clone()));
        tasks.spawn(async move {
            running.await;
            name
        });
    }
    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => match ended {
            Ok(_) if stop.is_cancelled() => Ok(()),
            Ok(name) => Err(RunError::ControllerEnded(name)),
            Err(_) => Err(RunError::ControllerEnded("panicking")),
        },
    };
    tasks.shutdown().await;
    result
}
