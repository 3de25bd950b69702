//! Leading: of all managers one works, and it stops before another may begin.
//!
//! The holder of a Lease renews it by a compare-and-swap. Others take it when they have seen no change for its whole
//! duration, by their own clock. A holder that could not renew stops its work a good while sooner, by its own clock, counted
//! from *before* the last renewal that succeeded was sent. So clocks need not agree, only run at the same speed.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use api_types::names::NAMESPACE;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The pause after a request that failed.
const RETRY: Duration = Duration::from_millis(200);

/// How leading is decided. Renewals must be much more frequent than the deadline, and the deadline well before the
/// duration: what lies between them is the time that stopping may take.
#[derive(Clone, Debug)]
pub struct LeaderOptions {
    /// The name of the Lease.
    pub lease: String,
    /// Its namespace.
    pub namespace: String,
    /// Who we are; no two processes may have the same.
    pub identity: String,
    pub renew_every: Duration,
    /// Work stops when the last renewal is this old.
    pub renew_deadline: Duration,
    /// Others may take the lease when it has not changed for this long.
    pub lease_duration: Duration,
    /// No other process can lead, which something else makes sure of: whoever holds the lease is dead.
    pub alone: bool,
}

impl LeaderOptions {
    /// For the only manager of a cluster. Nobody waits to take over, so that a slow API is no reason to stop working.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            renew_deadline: Duration::from_secs(30),
            lease_duration: Duration::from_secs(40),
            alone: true,
            ..Self::default()
        }
    }
}

impl Default for LeaderOptions {
    fn default() -> Self {
        Self {
            lease: "lariat-manager".to_owned(),
            namespace: NAMESPACE.to_owned(),
            identity: uuid::Uuid::new_v4().to_string(),
            renew_every: Duration::from_secs(1),
            renew_deadline: Duration::from_secs(4),
            lease_duration: Duration::from_secs(6),
            alone: false,
        }
    }
}

/// A lease that is ours, as last written.
struct Held {
    lease: Lease,
    /// Before the request that got or renewed it was sent.
    renewed: Instant,
}

/// Leads whenever it can, until stopped. `work` is begun each time that leadership is won and must end soon after its
/// token is cancelled. What it returns by itself ends everything.
pub async fn lead<F, W, T>(
    client: Client,
    options: &LeaderOptions,
    stop: CancellationToken,
    mut work: F,
) -> Option<T>
where
    F: FnMut(CancellationToken) -> W,
    W: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let api: Api<Lease> = Api::namespaced(client, &options.namespace);
    loop {
        let held = tokio::select! {
            () = stop.cancelled() => return None,
            held = acquire(&api, options) => held,
        };
        tracing::info!(leader.identity = options.identity, "leading");
        let token = stop.child_token();
        // Dropped with us: work must not outlive whoever watches over its lease.
        let mut task = AbortOnDropHandle::new(tokio::spawn(work(token.clone())));
        let (held, end) = hold(&api, options, held, &stop, &mut task).await;
        match end {
            End::Finished(result) => {
                release(&api, held).await;
                return Some(result);
            }
            End::Defect(error) => {
                release(&api, held).await;
                // A defect of the work is one of this process: it ends as if it had happened here.
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
                return None;
            }
            End::Stopped | End::Lost => {}
        }
        token.cancel();
        let until = held.renewed + options.lease_duration;
        if timeout_at(until, &mut task).await.is_err() {
            tracing::error!("work did not stop in time and is cut off");
            task.abort();
            let _ = task.await;
        }
        if stop.is_cancelled() {
            release(&api, held).await;
            return None;
        }
        tracing::warn!(leader.identity = options.identity, "not leading any more");
    }
}

/// Why a lease is not renewed any more.
enum End<T> {
    Stopped,
    Lost,
    Finished(T),
    Defect(tokio::task::JoinError),
}

/// Renews until that fails for too long, somebody else has the lease, work ends or we are stopped.
async fn hold<T>(
    api: &Api<Lease>,
    options: &LeaderOptions,
    mut held: Held,
    stop: &CancellationToken,
    task: &mut AbortOnDropHandle<T>,
) -> (Held, End<T>) {
    let mut next = held.renewed + options.renew_every;
    loop {
        tokio::select! {
            () = stop.cancelled() => return (held, End::Stopped),
            ended = &mut *task => return match ended {
                Ok(result) => (held, End::Finished(result)),
                Err(error) => (held, End::Defect(error)),
            },
            () = sleep_until(next) => {}
        }
        let deadline = held.renewed + options.renew_deadline;
        let sent = Instant::now();
        match timeout_at(deadline, renew(api, options, &held.lease)).await {
            Ok(Ok(lease)) => {
                held = Held {
                    lease,
                    renewed: sent,
                };
                next = sent + options.renew_every;
            }
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => {
                match timeout_at(deadline, api.get_opt(&options.lease)).await {
                    // A renewal whose answer was lost.
                    Ok(Ok(Some(lease))) if holder(&lease) == options.identity => held.lease = lease,
                    Ok(Err(error)) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "cannot read the leader's lease"
                        );
                        next = Instant::now() + RETRY;
                    }
                    Ok(Ok(_)) | Err(_) => return (held, End::Lost),
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot renew the leader's lease"
                );
                next = Instant::now() + RETRY;
            }
            Err(_) => return (held, End::Lost),
        }
        if Instant::now() >= deadline && held.renewed + options.renew_deadline <= deadline {
            return (held, End::Lost);
        }
    }
}

/// Waits until the lease is free or has been left alone for its duration, and takes it.
async fn acquire(api: &Api<Lease>, options: &LeaderOptions) -> Held {
    let mut changes = pin!(watcher::watch_object(api.clone(), &options.lease));
    let mut known: Option<Lease> = None;
    let mut take_at: Option<Instant> = None;
    loop {
        let may_take = async {
            match take_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(lease)) => {
                    take_at = Some(free_at(lease.as_ref(), options));
                    known = lease;
                }
                Some(Err(error)) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "cannot watch the leader's lease");
                    tokio::time::sleep(RETRY).await;
                }
                None => tokio::time::sleep(RETRY).await,
            },
            () = may_take => {
                let sent = Instant::now();
                match take(api, options, known.as_ref()).await {
                    Ok(lease) => return Held { lease, renewed: sent },
                    Err(error) => {
                        // Somebody was faster: the watch tells who.
                        tracing::debug!(error = &error as &dyn std::error::Error, "did not get the leader's lease");
                        take_at = Some(Instant::now() + options.renew_every);
                    }
                }
            }
        }
    }
}

fn free_at(lease: Option<&Lease>, options: &LeaderOptions) -> Instant {
    let is_free = lease.is_none_or(|lease| {
        let holder = holder(lease);
        holder.is_empty() || holder == options.identity
    });
    if is_free || options.alone {
        return Instant::now();
    }
    let promised = lease
        .and_then(|lease| lease.spec.as_ref()?.lease_duration_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok());
    let duration = promised.map_or(options.lease_duration, Duration::from_secs);
    Instant::now() + duration.max(options.lease_duration)
}

fn holder(lease: &Lease) -> &str {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default()
}

async fn take(
    api: &Api<Lease>,
    options: &LeaderOptions,
    known: Option<&Lease>,
) -> kube::Result<Lease> {
    let now = MicroTime(Timestamp::now());
    let seconds = options.lease_duration.as_secs_f64().ceil() as i32;
    let transitions = known.and_then(|lease| lease.spec.as_ref()?.lease_transitions);
    let mut lease = known.cloned().unwrap_or_default();
    lease.metadata.name = Some(options.lease.clone());
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "lariat.io/version".to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    );
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(options.identity.clone()),
        lease_duration_seconds: Some(seconds),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_transitions: Some(transitions.unwrap_or_default().saturating_add(1)),
        ..lease.spec.unwrap_or_default()
    });
    match known {
        None => api.create(&PostParams::default(), &lease).await,
        // With the version that was seen: whoever else takes it wins or loses, but never both.
        Some(_) => {
            api.replace(&options.lease, &PostParams::default(), &lease)
                .await
        }
    }
}

async fn renew(api: &Api<Lease>, options: &LeaderOptions, held: &Lease) -> kube::Result<Lease> {
    let mut lease = held.clone();
    lease.spec.get_or_insert_default().renew_time = Some(MicroTime(Timestamp::now()));
    api.replace(&options.lease, &PostParams::default(), &lease)
        .await
}

/// Lets another take over at once.
async fn release(api: &Api<Lease>, held: Held) {
    let mut lease = held.lease;
    lease.spec.get_or_insert_default().holder_identity = Some(String::new());
    let name = lease.metadata.name.clone().unwrap_or_default();
    if let Err(error) = api.replace(&name, &PostParams::default(), &lease).await {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "the leader's lease was not given back; it runs out"
        );
    }
}
