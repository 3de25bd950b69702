//! The engine as it describes itself.

use serde::{Deserialize, Serialize};

use crate::core::statistics::OperationReport;
use crate::frontend::FrontendState;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineStatus {
    pub volume: String,
    pub epoch: u64,
    pub size_bytes: u64,
    pub state: EngineState,
    /// Why requests wait, where they do.
    pub stalled: Option<String>,
    pub frontend: FrontendState,
    /// Where users find the volume, once they do.
    pub endpoint: Option<String>,
    pub generation: u64,
    pub in_sync: Vec<String>,
    pub members: Vec<MemberReport>,
    pub proposal: Option<ProposalReport>,
    pub committer_attached: bool,
    pub fence_proof: Option<FenceProofReport>,
    pub tasks: Vec<TaskReport>,
    pub statistics: StatisticsReport,
    /// Rises whenever the list of snapshots may have changed; means nothing beyond this process.
    #[serde(default)]
    pub snapshots_version: u64,
    pub process_id: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum EngineState {
    /// Waiting for replicas to accept the epoch.
    Opening {
        waiting_for: Vec<String>,
    },
    Serving,
    /// Only reads, and waits to take over from the writer.
    Standby {
        wants_take_over: bool,
        /// Replicas that cannot be read from yet.
        waiting_for: Vec<String>,
    },
    Closing,
    Fenced {
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberReport {
    pub name: String,
    pub address: String,
    /// `inSync`, `failed`, `rebuilding`, `joining` or `out`.
    pub role: String,
    pub connected: bool,
    pub trouble: Option<String>,
    pub read_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProposalReport {
    pub generation: u64,
    pub in_sync: Vec<String>,
}

/// Every replica named here obeys this epoch: no older engine can write to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FenceProofReport {
    pub epoch: u64,
    pub replicas: Vec<String>,
    /// Microseconds after the engine's start.
    pub at_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskReport {
    pub kind: String,
    pub member: Option<String>,
    pub step: String,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatisticsReport {
    pub read: OperationReport,
    pub write: OperationReport,
    pub unmap: OperationReport,
    pub flush: OperationReport,
    pub open_requests: u64,
    /// The longest that a snapshot or the start of a rebuild held writes back.
    pub barrier_max_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotReport {
    pub name: String,
    pub parent: Option<String>,
    pub created_unix_ms: u64,
    pub user_created: bool,
    pub removed: bool,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    /// The live volume builds upon it, with no other snapshot between.
    #[serde(default)]
    pub below_live: bool,
}
