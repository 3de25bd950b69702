//! How many findings `lariat doctor` would have now, counted by the manager that leads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use controllers::runtime::{Cache, Context, Objects};
use diagnose::{ClusterDump, Code, Index, Scope, Severity, examine};
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use telemetry::Rows;
use tokio_util::sync::CancellationToken;

use crate::{exit, gather};

/// Kinds that the manager does not watch, because only diagnosis needs them.
const UNWATCHED: [&str; 4] = [
    "persistentvolumeclaims",
    "csinodes.storage.k8s.io",
    "csidrivers.storage.k8s.io",
    "events",
];
/// A look may take one part in this many of a processor's time.
const SHARE: u32 = 20;

/// What the last look found; nothing while another manager leads.
#[derive(Clone, Default)]
pub(crate) struct Findings(Arc<Mutex<Option<Looked>>>);

struct Looked {
    at: Instant,
    took: Duration,
    counts: BTreeMap<(Code, Severity), u64>,
}

impl Findings {
    fn lock(&self) -> MutexGuard<'_, Option<Looked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Findings")
    }
}

/// Looks again and again until it is told to stop.
pub(crate) async fn run(
    context: Context,
    findings: Findings,
    every: Duration,
    stop: CancellationToken,
) {
    let looking = async {
        loop {
            let began = Instant::now();
            match look(&context).await {
                Ok(counts) => {
                    *findings.lock() = Some(Looked {
                        at: Instant::now(),
                        took: began.elapsed(),
                        counts,
                    });
                }
                Err(error) => tracing::warn!("cannot look for findings: {}", exit::told(&error)),
            }
            tokio::time::sleep(every.max(began.elapsed() * SHARE)).await;
        }
    };
    let _ = stop.run_until_cancelled(looking).await;
    *findings.lock() = None;
}

async fn look(context: &Context) -> Result<BTreeMap<(Code, Severity), u64>> {
    let mut dump = watched(&context.objects);
    let at = gather::complete(&context.client, &mut dump, &UNWATCHED).await?;
    // A count without a whole kind would say that what was found there is gone.
    if let Some(unread) = dump.missed().find(|unread| unread.whole) {
        bail!("not everything could be read: {unread}");
    }
    let examined = tokio::task::spawn_blocking(move || {
        let index = Index::new(&dump, at.unwrap_or_else(Timestamp::now));
        let mut counts = BTreeMap::new();
        for finding in examine(&index, &Scope::Everything) {
            *counts.entry((finding.code, finding.severity)).or_default() += 1;
        }
        counts
    });
    examined.await.context("the diagnosis has a defect")
}

fn watched(objects: &Objects) -> ClusterDump {
    fn all<K>(cache: &Cache<K>) -> diagnose::Objects<K>
    where
        K: kube::Resource<DynamicType = ()>
            + Clone
            + fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        cache.all().into()
    }
    ClusterDump {
        pods: all(&objects.pods),
        persistent_volumes: all(&objects.persistent_volumes),
        attachments: all(&objects.kubernetes_attachments),
        nodes: all(&objects.kubernetes_nodes),
        leases: all(&objects.leases),
        volumes: all(&objects.volumes),
        longhorn_attachments: all(&objects.attachments),
        engines: all(&objects.engines),
        replicas: all(&objects.replicas),
        longhorn_nodes: all(&objects.nodes),
        settings: all(&objects.settings),
        snapshots: all(&objects.snapshots),
        backups: all(&objects.backups),
        ..ClusterDump::default()
    }
}

impl Collector for Findings {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let looked = self.lock();
        let mut rows = Rows::new(encoder);
        let Some(looked) = looked.as_ref() else {
            return Ok(());
        };
        // Codes without a finding are shown as none, so that an alert sees them go.
        let mut counts: BTreeMap<(Code, Severity), u64> = Code::ALL
            .iter()
            .map(|code| ((*code, code.severity()), 0))
            .collect();
        counts.extend(&looked.counts);
        rows.gauges(
            "lariat_findings",
            "What `lariat doctor` finds, by code; `lariat doctor explain CODE` tells more",
            counts.iter().map(|((code, severity), count)| {
                let labels = [
                    ("code", code.to_string()),
                    ("severity", severity.to_string()),
                ];
                (labels, *count as f64)
            }),
        )?;
        rows.gauge(
            "lariat_findings_age_seconds",
            "Since the manager looked for findings",
            looked.at.elapsed().as_secs_f64(),
        )?;
        rows.gauge(
            "lariat_findings_look_seconds",
            "How long that took",
            looked.took.as_secs_f64(),
        )
    }
}
