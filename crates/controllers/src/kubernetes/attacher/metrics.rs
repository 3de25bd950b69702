//! Times of calls, under the sidecars' own name, so that their dashboards work.

use std::time::Duration;

use cluster_core::DriverName;
use cluster_core::attacher::RpcError;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The sidecars' buckets.
const BUCKETS: [f64; 14] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 450.0, 600.0,
];

type Labels = [(&'static str, String); 3];

#[derive(Clone)]
pub struct CallMetrics {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Default for CallMetrics {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }
}

impl CallMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "csi_sidecar_operations",
            "How long calls of the driver take",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }

    pub(super) fn observe<T>(
        &self,
        driver: &DriverName,
        method: &'static str,
        took: Duration,
        answer: &Result<T, RpcError>,
    ) {
        let code = match answer {
            Ok(_) => 0,
            Err(error) => error.code,
        };
        let labels = [
            ("driver_name", driver.to_string()),
            // As the sidecars write it, with its service.
            ("method_name", format!("/csi.v1.Controller/{method}")),
            ("grpc_status_code", code_name(code).to_owned()),
        ];
        self.seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}

fn code_name(code: i32) -> &'static str {
    match code {
        0 => "OK",
        1 => "Canceled",
        2 => "Unknown",
        3 => "InvalidArgument",
        4 => "DeadlineExceeded",
        5 => "NotFound",
        6 => "AlreadyExists",
        7 => "PermissionDenied",
        8 => "ResourceExhausted",
        9 => "FailedPrecondition",
        10 => "Aborted",
        11 => "OutOfRange",
        12 => "Unimplemented",
        13 => "Internal",
        14 => "Unavailable",
        15 => "DataLoss",
        16 => "Unauthenticated",
        _ => "Other",
    }
}
