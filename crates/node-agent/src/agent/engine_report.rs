//! An engine's status as its object shows it.

use std::collections::BTreeMap;

use api_types::InstanceState;
use engine::control::{EngineState, EngineStatus};
use engine::frontend::FrontendState;
use serde_json::{Value, json};

use super::engine_plan::Wanted;

mod snapshots;

pub use snapshots::SnapshotsSeen;

/// The longest text that goes into a status.
const MESSAGE_BYTES_MAX: usize = 1024;

/// What is known of the process of an engine's epoch.
#[derive(Clone, Debug)]
pub enum Process<'a> {
    /// It answers.
    Answers {
        status: &'a EngineStatus,
        uuid: &'a str,
        rebuild_errors: &'a BTreeMap<String, String>,
        expand_error: &'a str,
        snapshots: SnapshotsSeen<'a>,
    },
    /// It was started, or is being ended, and says nothing.
    Silent { state: InstanceState, uuid: &'a str },
    /// It ended, and this is why.
    Ended { why: &'a str },
    /// There is none, as far as this agent knows.
    None { waits_for: Option<&'a str> },
}

/// The keys of `Engine.status` that this node writes, as they should be.
#[must_use]
pub fn report(node: &str, engine: &Wanted, process: &Process<'_>) -> Value {
    match process {
        Process::Answers {
            status,
            uuid,
            rebuild_errors,
            expand_error,
            snapshots,
        } => {
            let mut value = answering(node, status, uuid, rebuild_errors, expand_error);
            snapshots::show(snapshots, engine.generation, &mut value);
            value
        }
        Process::Silent { state, uuid } => json!({
            "ownerID": node,
            "currentState": state,
            "started": true,
            "uuid": uuid,
            "epoch": engine.epoch,
            "endpoint": "",
            "message": "",
        }),
        Process::Ended { .. } | Process::None { .. } => absent(node, engine, process),
    }
}

fn absent(node: &str, engine: &Wanted, process: &Process<'_>) -> Value {
    let (state, message) = match process {
        _ if !engine.run || engine.deleting => (InstanceState::Stopped, String::new()),
        Process::Ended { why } => (InstanceState::Error, (*why).to_owned()),
        _ if engine.started => (
            InstanceState::Error,
            format!(
                "the engine process of epoch {} is gone: it ended while no agent watched it",
                engine.epoch
            ),
        ),
        Process::None {
            waits_for: Some(why),
        } => (InstanceState::Starting, format!("waiting: {why}")),
        _ => (InstanceState::Stopped, String::new()),
    };
    json!({
        "ownerID": node,
        "currentState": state,
        "endpoint": "",
        "replicaModeMap": {},
        "currentReplicaAddressMap": {},
        "rebuildStatus": {},
        "proposedInSyncReplicas": [],
        "proposalBasedOn": 0,
        "wantsTakeOver": false,
        "isExpanding": false,
        "snapshotErrors": {},
        "snapshotsError": "",
        "message": cut(&message),
    })
}

fn answering(
    node: &str,
    status: &EngineStatus,
    uuid: &str,
    rebuild_errors: &BTreeMap<String, String>,
    expand_error: &str,
) -> Value {
    let (state, message) = state_of(status);
    let modes: BTreeMap<&str, &str> = status
        .members
        .iter()
        // One that was left behind has no mode until somebody tries to use it again: an old error would look like the
        // failure of a rebuild that has not begun.
        .filter(|member| member.role != "out" || rebuild_errors.contains_key(&member.name))
        .map(|member| {
            (
                member.name.as_str(),
                mode_of(&member.role, member.connected),
            )
        })
        .collect();
    let addresses: BTreeMap<&str, &str> = status
        .members
        .iter()
        .filter(|member| member.connected)
        .map(|member| (member.name.as_str(), member.address.as_str()))
        .collect();
    let endpoint = match &status.frontend {
        FrontendState::Ready { endpoint } if state == InstanceState::Running => {
            endpoint_text(endpoint)
        }
        _ => String::new(),
    };
    let proposed = status.proposal.as_ref();
    json!({
        "ownerID": node,
        "currentState": state,
        "started": true,
        "uuid": uuid,
        "epoch": status.epoch,
        "endpoint": endpoint,
        "currentSize": status.size_bytes.to_string(),
        "replicaModeMap": modes,
        "currentReplicaAddressMap": addresses,
        "inSyncReplicas": status.in_sync,
        "inSyncVersion": status.generation,
        "proposedInSyncReplicas": proposed.map_or_else(Vec::new, |proposal| proposal.in_sync.clone()),
        "proposalBasedOn": proposed.map_or(0, |proposal| proposal.generation - 1),
        "wantsTakeOver": matches!(status.state, EngineState::Standby { wants_take_over: true, .. }),
        "fencedReplicas": status.fence_proof.as_ref().map_or_else(Vec::new, |proof| proof.replicas.clone()),
        "rebuildStatus": rebuilds(status, rebuild_errors),
        "isExpanding": status.tasks.iter().any(|task| task.kind == "expand"),
        "lastExpansionError": cut(expand_error),
        "message": cut(&message),
    })
}

fn state_of(status: &EngineStatus) -> (InstanceState, String) {
    match (&status.state, &status.frontend) {
        // It is an error when the device and all that was mounted from it are gone, not before.
        (EngineState::Fenced { why }, _) => (
            InstanceState::Stopping,
            format!("fenced by a newer engine: {why}"),
        ),
        (_, FrontendState::Failed { reason }) => (
            InstanceState::Error,
            format!("the device cannot be opened: {reason}"),
        ),
        // It took over from another engine: its device is there already, and requests wait for the replicas.
        (EngineState::Opening { waiting_for }, FrontendState::Ready { .. }) => (
            InstanceState::Running,
            format!(
                "requests wait for replicas to accept the epoch: {}",
                waiting_for.join("; ")
            ),
        ),
        (EngineState::Opening { waiting_for }, _) => (
            InstanceState::Starting,
            format!(
                "waiting for replicas to accept the epoch: {}",
                waiting_for.join("; ")
            ),
        ),
        (EngineState::Closing, _) | (EngineState::Standby { .. }, FrontendState::Closing) => {
            (InstanceState::Stopping, String::new())
        }
        (
            EngineState::Standby { waiting_for, .. },
            FrontendState::Opening | FrontendState::Closed,
        ) => (
            InstanceState::Starting,
            format!("waiting to read from: {}", waiting_for.join("; ")),
        ),
        // The device comes after the replicas, and after a comparison that may take long; nobody can use the volume
        // before. An engine that has not begun to open its front end calls it closed.
        (EngineState::Serving, FrontendState::Opening | FrontendState::Closed) => {
            let tasks: Vec<&str> = status.tasks.iter().map(|task| task.kind.as_str()).collect();
            let why = format!("waiting for its device; under way: {}", tasks.join(", "));
            let message = if tasks.is_empty() { String::new() } else { why };
            (InstanceState::Starting, message)
        }
        (EngineState::Serving, FrontendState::Closing) => (InstanceState::Stopping, String::new()),
        (EngineState::Serving | EngineState::Standby { .. }, FrontendState::Ready { .. }) => (
            InstanceState::Running,
            status.stalled.clone().unwrap_or_default(),
        ),
    }
}

/// An engine without a device has no endpoint.
fn endpoint_text(endpoint: &engine::frontend::Endpoint) -> String {
    match endpoint {
        engine::frontend::Endpoint::Nowhere => String::new(),
        other => other.to_string(),
    }
}

fn mode_of(role: &str, connected: bool) -> &'static str {
    match role {
        // The last one in sync stays in sync while it is away.
        "inSync" => "RW",
        "rebuilding" | "joining" if connected => "WO",
        _ => "ERR",
    }
}

/// By the replica's address, as Longhorn has it.
fn rebuilds(status: &EngineStatus, errors: &BTreeMap<String, String>) -> BTreeMap<String, Value> {
    let address_of = |name: &str| {
        status
            .members
            .iter()
            .find(|member| member.name == name)
            .map_or_else(|| name.to_owned(), |member| member.address.clone())
    };
    let mut rebuilds: BTreeMap<String, Value> = errors
        .iter()
        .map(|(name, error)| {
            let value = json!({
                "error": cut(error), "isRebuilding": false, "progress": 0, "state": "error",
            });
            (address_of(name), value)
        })
        .collect();
    for task in status.tasks.iter().filter(|task| task.kind == "rebuild") {
        let Some(member) = &task.member else { continue };
        let percent = (task.done_bytes.saturating_mul(100))
            .checked_div(task.total_bytes)
            .unwrap_or(0)
            .min(100);
        let value = json!({
            "error": "", "isRebuilding": true, "progress": percent, "state": "in_progress",
        });
        rebuilds.insert(address_of(member), value);
    }
    rebuilds
}

/// Texts in objects are bounded, whatever a process wrote.
#[must_use]
pub fn cut(text: &str) -> &str {
    if text.len() <= MESSAGE_BYTES_MAX {
        return text;
    }
    let mut end = MESSAGE_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use engine::control::{FenceProofReport, MemberReport, ProposalReport};
    use engine::frontend::Endpoint;

    use super::*;

    fn status() -> EngineStatus {
        let member = |name: &str, role: &str, connected| MemberReport {
            name: name.into(),
            address: format!("{name}:1"),
            role: role.into(),
            connected,
            trouble: None,
            read_us: 0,
        };
        EngineStatus {
            volume: "v".into(),
            epoch: 4,
            size_bytes: 4096,
            state: EngineState::Serving,
            stalled: None,
            frontend: FrontendState::Ready {
                endpoint: Endpoint::BlockDevice("/dev/x".into()),
            },
            endpoint: Some("/dev/x".into()),
            generation: 7,
            in_sync: vec!["a".into(), "b".into()],
            members: vec![member("a", "inSync", true), member("b", "failed", false)],
            proposal: Some(ProposalReport {
                generation: 8,
                in_sync: vec!["a".into()],
            }),
            committer_attached: true,
            fence_proof: Some(FenceProofReport {
                epoch: 4,
                replicas: vec!["a".into(), "b".into()],
                at_us: 1,
            }),
            tasks: vec![],
            statistics: Default::default(),
            snapshots_version: 1,
            process_id: 1,
        }
    }

    fn wanted() -> Wanted {
        Wanted::read(&api_types::Engine::new(
            "v-e-4",
            api_types::EngineSpec {
                epoch: 4,
                desire_state: InstanceState::Running,
                ..Default::default()
            },
        ))
    }

    fn answers(status: &EngineStatus) -> Value {
        let process = Process::Answers {
            status,
            uuid: "u",
            rebuild_errors: &BTreeMap::new(),
            expand_error: "",
            snapshots: SnapshotsSeen::default(),
        };
        report("n", &wanted(), &process)
    }

    #[test]
    fn a_running_engine_shows_its_proposal_and_its_modes() {
        let value = answers(&status());
        assert_eq!(value["currentState"], "running");
        assert_eq!(value["endpoint"], "/dev/x");
        assert_eq!(value["replicaModeMap"], json!({"a": "RW", "b": "ERR"}));
        assert_eq!(value["currentReplicaAddressMap"], json!({"a": "a:1"}));
        assert_eq!(value["proposedInSyncReplicas"], json!(["a"]));
        assert_eq!(value["proposalBasedOn"], 7);
        assert_eq!(value["inSyncVersion"], 7);
        assert_eq!(value["currentSize"], "4096");
    }

    #[test]
    fn states_as_the_volume_controller_reads_them() {
        let check = |change: fn(&mut EngineStatus), state: &str, has_endpoint: bool| {
            let mut status = status();
            change(&mut status);
            let value = answers(&status);
            assert_eq!(value["currentState"], state);
            assert_eq!(value["endpoint"] != "", has_endpoint, "{state}");
        };
        check(|_| (), "running", true);
        check(|s| s.frontend = FrontendState::Opening, "starting", false);
        check(|s| s.frontend = FrontendState::Closed, "starting", false);
        check(
            |s| {
                s.frontend = FrontendState::Ready {
                    endpoint: Endpoint::Nowhere,
                }
            },
            "running",
            false,
        );
        fn opening() -> EngineState {
            EngineState::Opening {
                waiting_for: vec![],
            }
        }
        fn standby() -> EngineState {
            EngineState::Standby {
                wants_take_over: true,
                waiting_for: vec![],
            }
        }
        check(
            |s| (s.state, s.frontend) = (opening(), FrontendState::Closed),
            "starting",
            false,
        );
        // It took over, with its device open.
        check(|s| s.state = opening(), "running", true);
        check(|s| s.state = standby(), "running", true);
        check(
            |s| (s.state, s.frontend) = (standby(), FrontendState::Closed),
            "starting",
            false,
        );
        check(|s| s.state = EngineState::Closing, "stopping", false);
        check(
            |s| s.state = EngineState::Fenced { why: "e".into() },
            "stopping",
            false,
        );
        check(
            |s| s.frontend = FrontendState::Failed { reason: "x".into() },
            "error",
            false,
        );
    }

    #[test]
    fn an_engine_without_a_process_says_why() {
        let check = |change: fn(&mut Wanted), process: Process<'_>, state: &str, message: &str| {
            let mut wanted = wanted();
            change(&mut wanted);
            let value = report("n", &wanted, &process);
            assert_eq!(value["currentState"], state);
            let found = value["message"].as_str().expect("text");
            assert!(found.contains(message), "{found} lacks {message}");
        };
        let none = Process::None { waits_for: None };
        check(|w| w.run = false, none.clone(), "stopped", "");
        check(
            |w| w.deleting = true,
            Process::Ended { why: "x" },
            "stopped",
            "",
        );
        check(|_| (), Process::Ended { why: "killed" }, "error", "killed");
        check(|w| w.started = true, none.clone(), "error", "is gone");
        check(
            |_| (),
            Process::None {
                waits_for: Some("an address"),
            },
            "starting",
            "an address",
        );
    }
}
