//! The logs of Lariat's own pods, through the API: those of a cluster that is not on this machine.

use std::pin::pin;
use std::time::Duration;

use diagnose::{BundleFile, redact_line};
use futures::{AsyncRead, AsyncReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, Client, ResourceExt as _};

use super::logs::{LOG_BYTES_MAX, LOGS_MAX, Tail};
use crate::client::root_cause;
use crate::exit;
use crate::inventory::{inside, list};

/// The pods of the manager and of the nodes, as `deploy/base` labels them.
const SELECTOR: &str =
    "app.kubernetes.io/name=lariat,app.kubernetes.io/component in (manager,node)";
const COMPONENT: &str = "app.kubernetes.io/component";
/// At 200 bytes a line about as much as is kept. Not `limitBytes`: of the lines that are asked for it keeps the oldest.
const LOG_LINES_MAX: i64 = 20_000;
/// Each is a stream from a kubelet, by way of the API server, which has others to serve.
const LOGS_AT_ONCE: usize = 8;
/// A kubelet that is there sends a few MiB in a second or two; of one that is not, the API server says so sooner or later.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// One line for each log that could not be read.
const UNREAD: &str = "logs/pods/unread.txt";

/// One log that a pod has. They are read in this order: where there are more than an archive takes, the sidecars' are left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Log {
    is_sidecar: bool,
    component: String,
    pod: String,
    container: String,
    /// Of the container before its last restart: what it said before it ended.
    is_previous: bool,
}

impl Log {
    fn path(&self) -> String {
        let previous = if self.is_previous { ".previous" } else { "" };
        format!("logs/pods/{}/{}{previous}.log", self.pod, self.container)
    }

    fn parameters(&self) -> LogParams {
        LogParams {
            container: Some(self.container.clone()),
            previous: self.is_previous,
            tail_lines: Some(LOG_LINES_MAX),
            ..LogParams::default()
        }
    }
}

/// The logs as files, and one with a line for each that could not be read. Nothing at all where Lariat has no pods.
pub(super) async fn read(client: &Client) -> Vec<BundleFile> {
    let pods: Vec<Pod> = match list(inside(client), "pods of Lariat", Some(SELECTOR)).await {
        Ok(pods) => pods,
        Err(error) => return vec![unread(&[exit::told(&error)])],
    };
    let mut logs = of_pods(&pods);
    let beyond = logs.split_off(logs.len().min(LOGS_MAX));
    let api: Api<Pod> = inside(client);
    let api = &api;
    let answers = futures::stream::iter(logs).map(|log| async move {
        let answer = last_of(api, &log).await;
        (log, answer)
    });
    let answers: Vec<_> = answers.buffered(LOGS_AT_ONCE).collect().await;
    let (mut files, mut missing) = (Vec::new(), Vec::new());
    for (log, answer) in answers {
        match answer {
            Ok(tail) => files.push(BundleFile {
                path: log.path(),
                bytes: tail.cleaned(),
            }),
            Err(why) => missing.push(format!("{}: {why}", log.path())),
        }
    }
    let left_out = |log: &Log| format!("{}: there are more than {LOGS_MAX} logs", log.path());
    missing.extend(beyond.iter().map(left_out));
    if !missing.is_empty() {
        files.push(unread(&missing));
    }
    files
}

/// What to say to whoever made the archive.
pub(super) fn left_out(files: &[BundleFile]) -> Option<String> {
    let file = files.iter().find(|file| file.path == UNREAD)?;
    let text = String::from_utf8_lossy(&file.bytes);
    let first = text.lines().next()?;
    let more = match text.lines().count() - 1 {
        0 => String::new(),
        more => format!(", and {more} more in {UNREAD} of the archive"),
    };
    Some(format!(
        "not in the archive, since it could not be read: {first}{more}"
    ))
}

fn unread(lines: &[String]) -> BundleFile {
    let lines = lines.iter().map(|line| redact_line(line) + "\n");
    BundleFile {
        path: UNREAD.to_owned(),
        bytes: lines.collect::<String>().into_bytes(),
    }
}

/// Every log that these pods have.
fn of_pods(pods: &[Pod]) -> Vec<Log> {
    let mut logs = Vec::new();
    for pod in pods {
        let component = pod.labels().get(COMPONENT).cloned().unwrap_or_default();
        let spec = pod.spec.iter();
        let containers = spec.flat_map(|spec| {
            let before = spec.init_containers.iter().flatten();
            before.chain(&spec.containers)
        });
        for container in containers {
            let log = Log {
                is_sidecar: container.name != component,
                component: component.clone(),
                pod: pod.name_any(),
                container: container.name.clone(),
                is_previous: false,
            };
            if has_restarted(pod, &container.name) {
                logs.push(Log {
                    is_previous: true,
                    ..log.clone()
                });
            }
            logs.push(log);
        }
    }
    logs.sort_unstable();
    logs
}

fn has_restarted(pod: &Pod, container: &str) -> bool {
    let status = pod.status.iter();
    let mut all = status.flat_map(|status| {
        let before = status.init_container_statuses.iter().flatten();
        before.chain(status.container_statuses.iter().flatten())
    });
    all.any(|status| status.name == container && status.restart_count > 0)
}

async fn last_of(api: &Api<Pod>, log: &Log) -> Result<Tail, String> {
    let reading = async {
        let answer = api.log_stream(&log.pod, &log.parameters()).await;
        let answer = answer.map_err(|error| match error {
            kube::Error::Api(status) => status.message,
            other => root_cause(&other),
        })?;
        let tail = tail(pin!(answer)).await;
        tail.map_err(|error| root_cause(&error))
    };
    let read = tokio::time::timeout(LOG_TIMEOUT, reading).await;
    read.unwrap_or_else(|_| Err(format!("no end of it within {} s", LOG_TIMEOUT.as_secs())))
}

/// What a stream ends with, however long it is.
async fn tail(mut log: impl AsyncRead + Unpin) -> std::io::Result<Tail> {
    let mut tail = Tail::default();
    let mut part = vec![0; 64 * 1024];
    loop {
        let count = log.read(&mut part).await?;
        tail.bytes.extend_from_slice(&part[..count]);
        let is_end = count == 0;
        // Seldom: what stays is moved each time.
        let room = if is_end { 1 } else { 2 } * LOG_BYTES_MAX;
        if tail.bytes.len() > room {
            tail.bytes.drain(..tail.bytes.len() - LOG_BYTES_MAX);
            tail.is_cut = true;
        }
        if is_end {
            return Ok(tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{Expression, Selector, SelectorExt as _};
    use serde_json::{Value, json};

    use super::*;
    use crate::output::golden;

    /// The pods that the manifests make, each with this container restarted.
    fn deployed(restarted: &str) -> Vec<Pod> {
        let texts = [
            include_str!("../../../../deploy/base/manager.yaml"),
            include_str!("../../../../deploy/base/node.yaml"),
        ];
        let objects = texts.iter().flat_map(|text| {
            let objects: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
            objects
        });
        let pods = objects.filter(|object| object["spec"]["template"].is_object());
        pods.map(|object| {
            let mut pod = object["spec"]["template"].clone();
            pod["metadata"]["name"] = object["metadata"]["name"].clone();
            pod["status"] = json!({"containerStatuses": [
                {"name": restarted, "restartCount": 1, "ready": true, "image": "", "imageID": ""},
            ]});
            serde_json::from_value(pod).expect("a pod")
        })
        .collect()
    }

    #[test]
    fn every_container_of_the_deployed_pods_is_asked() {
        let logs = of_pods(&deployed("node"));
        let paths: Vec<String> = logs.iter().map(Log::path).collect();
        assert_eq!(
            paths,
            [
                "logs/pods/lariat-manager/manager.log",
                "logs/pods/lariat-node/node.log",
                "logs/pods/lariat-node/node.previous.log",
                "logs/pods/lariat-manager/attacher.log",
                "logs/pods/lariat-manager/csi-provisioner.log",
                "logs/pods/lariat-manager/liveness-probe.log",
                "logs/pods/lariat-node/liveness-probe.log",
                "logs/pods/lariat-node/node-driver-registrar.log",
            ]
        );
    }

    #[test]
    fn the_deployed_pods_are_the_ones_that_are_looked_for() {
        let wanted: Selector = [
            Expression::Equal("app.kubernetes.io/name".to_owned(), "lariat".to_owned()),
            Expression::In(
                COMPONENT.to_owned(),
                ["manager", "node"].map(str::to_owned).into(),
            ),
        ]
        .into_iter()
        .collect();
        assert_eq!(wanted.to_string(), SELECTOR);
        let pods = deployed("");
        assert_eq!(pods.len(), 2);
        for pod in pods {
            assert!(wanted.matches(pod.labels()), "{:?}", pod.labels());
        }
    }

    #[test]
    fn logs_that_could_not_be_read_are_named() {
        let missing = [
            "logs/pods/lariat-node-7/node.log: container \"node\" is waiting to start",
            "logs/pods/lariat-node-8/node.log: no end of it within 30 s, token=sesame",
            "logs/pods/lariat-node-9/node.log: there are more than 500 logs",
        ]
        .map(str::to_owned);
        assert_eq!(left_out(&[]), None);
        let one = unread(&missing[..1]);
        let all = unread(&missing);
        let page = format!(
            "{}\n{}\n# {}\n{}",
            left_out(&[one]).expect("a line"),
            left_out(std::slice::from_ref(&all)).expect("a line"),
            all.path,
            String::from_utf8_lossy(&all.bytes)
        );
        golden::check("support-bundle-logs", &page);
    }

    #[test]
    fn a_log_without_end_is_kept_as_its_end() {
        let kept = |length: usize| {
            let bytes: Vec<u8> = (0..length)
                .map(|place| (place % 251).to_le_bytes()[0])
                .collect();
            let log = futures::io::Cursor::new(bytes.clone());
            let tail = crate::runtime::block_on(async { Ok(tail(log).await?) });
            let tail = tail.expect("a log");
            assert!(bytes.ends_with(&tail.bytes));
            (tail.bytes.len(), tail.is_cut)
        };
        for (length, expected) in [
            (0, (0, false)),
            (LOG_BYTES_MAX, (LOG_BYTES_MAX, false)),
            (LOG_BYTES_MAX + 1, (LOG_BYTES_MAX, true)),
            (3 * LOG_BYTES_MAX, (LOG_BYTES_MAX, true)),
        ] {
            assert_eq!(kept(length), expected);
        }
    }
}
