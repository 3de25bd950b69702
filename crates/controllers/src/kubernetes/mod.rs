//! What Kubernetes' own controllers do around a volume, over `cluster-core`'s decisions: for the embedded
//! mode, where nobody else does it. The attacher and the attachments' state serve real clusters too.

pub mod attach_detach;
pub mod attacher;
pub mod attachment_state;
pub mod binder;
pub mod cache;
pub mod csi;
pub mod node_lifecycle;
pub mod queue;
pub mod scheduler;
pub mod stateful_set;

use std::sync::Arc;

use api_types::names;
use cluster_core::{DriverName, Timestamp};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::attach_detach::AttachDetachOptions;
use self::attacher::{AttacherError, AttacherOptions};
use self::binder::BinderOptions;
use self::cache::Feeds;
use self::csi::{CsiController, CsiSocket};
use crate::metrics::Metrics;

/// How the embedded mode's set works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The driver whose volumes are made, fenced and moved.
    pub driver: String,
    /// `attacher.csi_address` is the driver's socket.
    pub attacher: AttacherOptions,
    pub attach_detach: AttachDetachOptions,
    pub binder: BinderOptions,
    pub metrics: Metrics,
}

impl Default for Options {
    fn default() -> Self {
        Self::for_driver(names::DRIVER)
    }
}

impl Options {
    pub fn for_driver(driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            attacher: AttacherOptions::default(),
            attach_detach: AttachDetachOptions {
                driver: DriverName::from(driver),
                ..AttachDetachOptions::default()
            },
            binder: BinderOptions {
                driver: driver.to_owned(),
                ..BinderOptions::default()
            },
            metrics: Metrics::default(),
        }
    }
}

/// Starts the embedded mode's set: attach-detach, attacher, attachments' state, binder, scheduler, StatefulSets and node lifecycle. Each task
/// ends with its name; one that ends before `stop` is a failure of the process. Must be called inside a runtime.
pub fn spawn(
    feeds: &Feeds,
    options: Options,
    stop: &CancellationToken,
) -> Result<JoinSet<&'static str>, AttacherError> {
    let address = options.attacher.csi_address.clone();
    let csi = CsiSocket::new(&address).map_err(|source| AttacherError::Connect {
        address,
        source: source.into(),
    })?;
    Ok(spawn_with(feeds, &Arc::new(csi), options, stop))
}

/// The same with a driver that is reached some other way.
pub fn spawn_with<C: CsiController>(
    feeds: &Feeds,
    csi: &Arc<C>,
    options: Options,
    stop: &CancellationToken,
) -> JoinSet<&'static str> {
    let mut tasks = JoinSet::new();
    let Options {
        driver,
        attacher,
        attach_detach,
        binder,
        metrics,
    } = options;
    let part = || (feeds.clone(), stop.clone());
    let (scheduling, sets, lifecycle) = (metrics.clone(), metrics.clone(), metrics.clone());
    let (attaching, binding, deciding) = (metrics.clone(), metrics.clone(), metrics.clone());
    let ((feeds, stop), of) = (part(), DriverName::from(driver.as_str()));
    tasks.spawn(async move {
        attachment_state::run(&feeds, of, &metrics, stop).await;
        "attachment-state"
    });
    let (feeds, stop) = part();
    tasks.spawn(async move {
        attach_detach::run(&feeds, attach_detach, &deciding, stop).await;
        "attach-detach"
    });
    let ((feeds, stop), driver_service) = (part(), Arc::clone(csi));
    tasks.spawn(async move {
        if let Err(error) =
            attacher::run_with(feeds, driver_service, attacher, attaching, stop).await
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the attacher cannot work"
            );
        }
        "attacher"
    });
    let ((feeds, stop), driver_service) = (part(), Arc::clone(csi));
    tasks.spawn(async move {
        binder::run(&feeds, driver_service, binder, &binding, stop).await;
        "binder"
    });
    let (feeds, stop) = part();
    tasks.spawn(async move {
        scheduler::run(&feeds, &scheduling, stop).await;
        "scheduler"
    });
    let (feeds, stop) = part();
    tasks.spawn(async move {
        stateful_set::run(&feeds, &sets, stop).await;
        "stateful-set"
    });
    let (feeds, stop) = part();
    tasks.spawn(async move {
        node_lifecycle::run(&feeds, driver, &lifecycle, stop).await;
        "node-lifecycle"
    });
    tasks
}

/// The wall clock, as the decisions want it.
pub(crate) fn now() -> Timestamp {
    Timestamp(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0))
}
