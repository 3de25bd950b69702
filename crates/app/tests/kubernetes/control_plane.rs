//! A real Kubernetes control plane without kubelets: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::eventually;

/// Where the programs are: folders with colons between them.
pub const PROGRAMS: &str = "LARIAT_KUBERNETES_BIN";

/// Whether etcd is to sync what it answers.
const DURABLE: &str = "LARIAT_DURABLE_ETCD";

const ADMINISTRATOR: &str = "administrator-token";

/// Who may come in by a token of their own; all others are service accounts.
const STATIC_TOKENS: [(&str, &str, &str); 5] = [
    (ADMINISTRATOR, "administrator", "system:masters"),
    (
        "controllers-token",
        "system:kube-controller-manager",
        "none",
    ),
    ("scheduler-token", "system:kube-scheduler", "none"),
    ("kubelet-token", KUBELET, "none"),
    ("person-token", PERSON, "none"),
];

/// Somebody who looks after volumes, and may do what a test gives rights for.
pub const PERSON: &str = "alice";

/// Whom the stand-in for kubelets speaks as; see `kubelet.yaml`.
pub const KUBELET: &str = "stand-in-kubelet";

/// The file of a program, if it is to be had.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os(PROGRAMS)?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(name));
    paths.find(|path| path.exists())
}

/// A process that ends with its value.
pub struct Part {
    child: Child,
}

impl Part {
    /// Starts a program whose output goes to `FOLDER/logs/NAME`.
    pub fn start(folder: &Path, name: &str, command: &mut Command) -> Self {
        let logs = folder.join("logs");
        fs::create_dir_all(&logs).expect("a folder");
        let log = File::options()
            .create(true)
            .append(true)
            .open(logs.join(name))
            .expect("a log");
        let errors = log.try_clone().expect("a log");
        let child = command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self { child }
    }

    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        let deadline = std::time::Instant::now() + crate::support::PATIENCE;
        while self.is_running() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self.kill();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct ControlPlane {
    folder: PathBuf,
    port: u16,
    parts: Vec<Part>,
}

impl ControlPlane {
    pub fn start(folder: &Path) -> Self {
        let mut plane = Self::start_bare(folder);
        plane.start_controllers();
        plane
    }

    /// The API alone.
    pub fn start_bare(folder: &Path) -> Self {
        let mut plane = Self {
            folder: folder.to_owned(),
            port: free_port(),
            parts: Vec::new(),
        };
        plane.write_files();
        let etcd = format!("http://127.0.0.1:{}", free_port());
        plane.start_etcd(&etcd);
        plane.start_api(&etcd);
        let client = plane.kubeconfig("administrator", ADMINISTRATOR);
        let kubectl = program("kubectl").expect("kubectl");
        eventually("kube-apiserver to be ready", || {
            let asked = Command::new(&kubectl)
                .arg("--kubeconfig")
                .arg(&client)
                .args(["get", "--raw", "/readyz"])
                .output();
            asked.is_ok_and(|answer| answer.status.success())
        });
        plane.kubeconfig("kubelet", "kubelet-token");
        plane.kubeconfig(PERSON, "person-token");
        plane
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn administrator(&self) -> PathBuf {
        self.folder.join("administrator.kubeconfig")
    }

    /// For the stand-in of kubelets.
    pub fn kubelet(&self) -> PathBuf {
        self.folder.join("kubelet.kubeconfig")
    }

    /// Writes a kubeconfig for whoever has this token.
    pub fn kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": self.folder.join("pki/apiserver.crt"),
            }}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let path = self.folder.join(format!("{name}.kubeconfig"));
        fs::write(&path, config.to_string()).expect("a kubeconfig");
        path
    }

    /// Every request that ended, as the audit log has it.
    pub fn audited(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.join("audit.log")).unwrap_or_default();
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        events.collect()
    }

    fn write_files(&self) {
        let tokens: String = STATIC_TOKENS
            .iter()
            .map(|(token, user, group)| format!("{token},{user},{user},{group}\n"))
            .collect();
        fs::write(self.folder.join("tokens.csv"), tokens).expect("a file");
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata"}],
        });
        fs::write(self.folder.join("audit-policy.json"), policy.to_string()).expect("a file");
        let key = rcgen::KeyPair::generate().expect("a key");
        fs::write(self.folder.join("accounts.key"), key.serialize_pem()).expect("a file");
        fs::write(self.folder.join("accounts.pub"), key.public_key_pem()).expect("a file");
    }

    fn start_etcd(&mut self, address: &str) {
        let peers = format!("http://127.0.0.1:{}", free_port());
        let mut command = Command::new(program("etcd").expect("etcd"));
        command
            .arg("--data-dir")
            .arg(self.folder.join("etcd"))
            .args([
                "--listen-client-urls",
                address,
                "--advertise-client-urls",
                address,
            ])
            .args([
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
            ])
            .args(["--initial-cluster", &format!("default={peers}")]);
        // Nothing here has to outlive the machine, except where figures are to be those of a server whose data does.
        if std::env::var_os(DURABLE).is_none() {
            command.arg("--unsafe-no-fsync");
        }
        self.add("etcd", &mut command);
    }

    fn start_api(&mut self, etcd: &str) {
        let mut command = Command::new(program("kube-apiserver").expect("kube-apiserver"));
        command
            .args(["--etcd-servers", etcd])
            .args([
                "--bind-address",
                "127.0.0.1",
                "--advertise-address",
                "127.0.0.1",
            ])
            .args(["--secure-port", &self.port.to_string()])
            .arg("--cert-dir")
            .arg(self.folder.join("pki"))
            .args(["--authorization-mode", "RBAC"])
            .args(["--service-cluster-ip-range", "10.96.0.0/24"])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .arg("--service-account-signing-key-file")
            .arg(self.folder.join("accounts.key"))
            .arg("--service-account-key-file")
            .arg(self.folder.join("accounts.pub"))
            .arg("--token-auth-file")
            .arg(self.folder.join("tokens.csv"))
            .arg("--audit-policy-file")
            .arg(self.folder.join("audit-policy.json"))
            .arg("--audit-log-path")
            .arg(self.folder.join("audit.log"))
            // Pods of the node agent are privileged.
            .arg("--allow-privileged");
        self.add("kube-apiserver", &mut command);
    }

    fn start_controllers(&mut self) {
        let controllers = self.kubeconfig("controllers", "controllers-token");
        let mut command =
            Command::new(program("kube-controller-manager").expect("kube-controller-manager"));
        command
            .arg("--kubeconfig")
            .arg(controllers)
            .args(["--use-service-account-credentials", "--leader-elect=false"])
            .arg("--service-account-private-key-file")
            .arg(self.folder.join("accounts.key"))
            .arg("--root-ca-file")
            .arg(self.folder.join("pki/apiserver.crt"))
            // A test does not wait as long as a data centre does.
            .args([
                "--node-monitor-period=1s",
                "--node-monitor-grace-period=12s",
            ])
            .args(["--attach-detach-reconcile-sync-period=5s"])
            .args(["--pvclaimbinder-sync-period=5s", "--secure-port=0"]);
        self.add("kube-controller-manager", &mut command);
        let scheduler = self.kubeconfig("scheduler", "scheduler-token");
        let mut command = Command::new(program("kube-scheduler").expect("kube-scheduler"));
        command
            .arg("--kubeconfig")
            .arg(scheduler)
            .args(["--leader-elect=false", "--secure-port=0"]);
        self.add("kube-scheduler", &mut command);
    }

    fn add(&mut self, name: &str, command: &mut Command) {
        let part = Part::start(&self.folder, name, command);
        self.parts.push(part);
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // The last that was started first: nobody complains about who is gone already.
        while let Some(part) = self.parts.pop() {
            drop(part);
        }
    }
}

/// A port that nobody has at this moment. The programs here cannot be told to pick one themselves.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
