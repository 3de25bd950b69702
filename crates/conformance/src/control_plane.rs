//! A real kube-apiserver on an etcd of its own, and kube-controller-manager if a suite needs it, on loopback, in a temporary folder. All of it is gone when it is dropped.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;

use crate::process::Process;
use crate::programs;

/// What differs between the suites' control planes.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Pods need a service account. Without a controller manager nobody makes one, and no pod could be created.
    pub service_accounts: bool,
    /// Further arguments of kube-apiserver.
    pub arguments: Vec<String>,
    /// The controllers of kube-controller-manager that run beside it, by their names there; without any, it is not started.
    pub controllers: Vec<String>,
    /// Etcd syncs what it answers, as it does where its data matters. What suites store need not outlive the machine; figures that are
    /// compared with a server that syncs must be of one that does, too.
    pub durable: bool,
}

/// Etcd and kube-apiserver, ready.
pub struct ControlPlane {
    // In the order in which they end.
    _controllers: Option<Process>,
    _apiserver: Process,
    _etcd: Process,
    port: u16,
    folder: tempfile::TempDir,
}

impl ControlPlane {
    /// Starts both, and waits until the API says that it is ready.
    ///
    /// # Errors
    /// If a program cannot be built or started, or does not become ready; with its last words.
    pub async fn start(options: &Options) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lariat-kube").tempdir()?;
        let path = folder.path();
        let token = make_keys(path)?;
        let [client, peer, port] = free_ports()?;
        let mut etcd = Process::start(
            "etcd",
            &mut etcd_command(path, client, peer, options.durable)?,
            path,
        )?;
        etcd.until("it listens", async || {
            tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, client))
                .await
                .is_ok()
        })
        .await?;
        let mut command = Command::new(programs::folder("kubernetes")?.join("kube-apiserver"));
        command.args(apiserver_arguments(path, client, port, options));
        let mut apiserver = Process::start("kube-apiserver", &mut command, path)?;
        write_kubeconfig(path, port, &token)?;
        let kube = client_of(&path.join("kubeconfig")).await?;
        apiserver
            .until("it is ready", async || {
                let request = http::Request::get("/readyz")
                    .body(Vec::new())
                    .expect("a request");
                kube.request_text(request).await.is_ok()
            })
            .await?;
        let controllers = if options.controllers.is_empty() {
            None
        } else {
            let mut command = controller_manager_command(path, &options.controllers)?;
            Some(Process::start(
                "kube-controller-manager",
                &mut command,
                path,
            )?)
        };
        Ok(Self {
            _controllers: controllers,
            _apiserver: apiserver,
            _etcd: etcd,
            port,
            folder,
        })
    }

    /// The folder of everything here: keys, logs, the kubeconfig.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A kubeconfig of an administrator (`system:masters`).
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder().join("kubeconfig")
    }

    /// Such as `https://127.0.0.1:6443`.
    #[must_use]
    pub fn server(&self) -> String {
        server(self.port)
    }

    /// The private key that signs service account tokens, for kube-controller-manager.
    #[must_use]
    pub fn service_account_key(&self) -> PathBuf {
        self.folder().join("service-account.key")
    }

    /// The certificate of the authority that signed the server's.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder().join("ca.crt")
    }

    /// A client with the administrator's kubeconfig.
    ///
    /// # Errors
    /// If the kubeconfig is gone.
    pub async fn client(&self) -> Result<Client> {
        client_of(&self.kubeconfig()).await
    }
}

/// A client for a kubeconfig that repeats nothing: refusals are what is looked at.
///
/// # Errors
/// If the file is no kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("cannot read {}", kubeconfig.display()))?;
    let mut config =
        kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Ports that were free a moment ago: neither program can say which one it took.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn server(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

fn etcd_command(folder: &Path, client: u16, peer: u16, durable: bool) -> Result<Command> {
    let (client, peer) = (
        format!("http://127.0.0.1:{client}"),
        format!("http://127.0.0.1:{peer}"),
    );
    let mut command = Command::new(programs::folder("etcd")?.join("etcd"));
    command
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .arg(format!("--unsafe-no-fsync={}", !durable))
        .arg("--log-level=warn");
    Ok(command)
}

fn apiserver_arguments(folder: &Path, etcd: u16, port: u16, options: &Options) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("service-account.pub")),
        format!(
            "--service-account-signing-key-file={}",
            file("service-account.key")
        ),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        // Addresses of services are never used; the range must exist.
        "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
        // A loopback address is no endpoint that the cluster could announce.
        "--endpoint-reconciler-type=none".to_owned(),
        "--shutdown-delay-duration=0s".to_owned(),
    ];
    if !options.service_accounts {
        arguments.push("--disable-admission-plugins=ServiceAccount".to_owned());
    }
    arguments.extend(options.arguments.iter().cloned());
    arguments
}

fn controller_manager_command(folder: &Path, controllers: &[String]) -> Result<Command> {
    let program = programs::folder("kubernetes")?.join("kube-controller-manager");
    let mut command = Command::new(program);
    command
        .arg("--kubeconfig")
        .arg(folder.join("kubeconfig"))
        .arg("--service-account-private-key-file")
        .arg(folder.join("service-account.key"))
        .arg("--root-ca-file")
        .arg(folder.join("ca.crt"))
        .arg(format!("--controllers={}", controllers.join(",")))
        // Suites leave hundreds of namespaces behind in a minute; the defaults would take many.
        .args(["--kube-api-qps=1000", "--kube-api-burst=2000"])
        .arg("--concurrent-namespace-syncs=20")
        // One of it, which serves nothing.
        .args(["--leader-elect=false", "--secure-port=0"]);
    Ok(command)
}

/// Makes an authority, the server's certificate, the key of service accounts and an administrator's token, which it returns.
fn make_keys(folder: &Path) -> Result<String> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "lariat-conformance");
    let certificate = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let server_key = KeyPair::generate()?;
    let names = ["127.0.0.1", "localhost"].map(str::to_owned);
    let server = CertificateParams::new(names)?.signed_by(&server_key, &issuer)?;
    let accounts = KeyPair::generate()?;
    let token = uuid::Uuid::new_v4().simple().to_string();
    let files = [
        ("ca.crt", certificate),
        ("server.crt", server.pem()),
        ("server.key", server_key.serialize_pem()),
        ("service-account.key", accounts.serialize_pem()),
        ("service-account.pub", accounts.public_key_pem()),
        (
            "tokens.csv",
            format!("{token},admin,admin,system:masters\n"),
        ),
    ];
    for (name, text) in files {
        fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(token)
}

fn write_kubeconfig(folder: &Path, port: u16, token: &str) -> Result<()> {
    let authority = folder.join("ca.crt");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "conformance",
        "clusters": [{"name": "conformance", "cluster": {"server": server(port), "certificate-authority": authority}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "conformance", "context": {"cluster": "conformance", "user": "admin"}}],
    });
    fs::write(folder.join("kubeconfig"), config.to_string()).context("cannot write a kubeconfig")
}
