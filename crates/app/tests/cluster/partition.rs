//! Parts that live but cannot reach each other: there is one writer at any time, and nothing acknowledged is missing.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{eventually, lariat};
use crate::world::{World, condition, leftovers};

/// How long one part sleeps between two looks at whether the wire is cut.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Within this a node that is asked to stop must have ended; then it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_node_that_the_api_cannot_reach_is_fenced_and_finds_back() {
    let world = World::new(2);
    let wire = Wire::to(&world.cluster.address());
    let _far = FarNode::start(&world, &wire, "node-3");
    eventually("node-3 to be ready", || is_ready(&world, "node-3"));
    let (volume, writer) = written_on(&world, "node-3");

    // From here on node-3 hears nothing of the API; its engine and all replicas still reach each other.
    wire.cut();
    eventually("node-3 to be lost", || !is_ready(&world, "node-3"));
    let path = once_gone_run_on(&world, "node-1");
    let object = world.get("lhv", &volume);
    assert_eq!(
        object["status"]["fenceProof"]["formerNodeID"], "node-3",
        "{object}"
    );
    let lines = read_lines(&path.join("log"));
    // Whatever the cut node acknowledged, before or after this look, must be in what the other node found.
    let error = writer.ended();
    assert!(
        writer.acknowledged() <= lines,
        "{} writes were acknowledged, {lines} are there",
        writer.acknowledged()
    );
    assert!(lines >= 20, "{lines}");
    assert!(
        error.contains("error"),
        "the fenced engine refuses: {error}"
    );
    let mut file = File::create(path.join("after")).expect("the new writer writes");
    file.write_all(b"from node-1").expect("a write");
    file.sync_all()
        .expect("the one writer's write is acknowledged");

    wire.mend();
    eventually("node-3 to be back", || is_ready(&world, "node-3"));
    let former = world.node_folder("node-3").to_string_lossy().into_owned();
    eventually("node-3 to drop its mounts and devices", || {
        leftovers(&former).is_empty()
    });
    world.until_robust(&volume);
    assert_eq!(
        read_lines(&path.join("log")),
        lines,
        "nobody wrote any more"
    );
    assert_eq!(
        fs::read_to_string(path.join("after")).expect("the file"),
        "from node-1"
    );
}

#[test]
fn a_replica_that_falls_silent_is_left_behind_and_brought_back() {
    let world = World::new(3);
    let (volume, writer) = written_on(&world, "node-1");
    let epoch = world.get("lhv", &volume)["status"]["epoch"].clone();

    // Its connections stay open, and nothing comes over them: the harder way to lose a replica.
    let agent = world.processes(&["--name node-2"]);
    signal(&agent, Signal::STOP);
    let before = writer.acknowledged();
    eventually("the set without the silent replica", || {
        world.in_sync_nodes(&volume) == ["node-1", "node-3"]
    });
    eventually("writes to go on", || writer.acknowledged() > before + 20);
    signal(&agent, Signal::CONT);
    world.until_robust(&volume);
    // Also where the silent replica is.
    check_all_is_there(&world, &volume, &epoch, &writer, "node-2");
}

/// Only the way from the engine to one replica is cut: that replica's node reaches the API all the time, and nobody calls it lost.
#[test]
fn a_replica_that_the_engine_cannot_reach_is_left_behind_and_brought_back() {
    let world = World::new(2);
    let wire = Wire::to(&world.cluster.address());
    let _far = FarNode::start_at(&world, &wire, "node-3", FAR_HOST);
    eventually("node-3 to be ready", || is_ready(&world, "node-3"));
    let (volume, writer) = written_on(&world, "node-1");
    let epoch = world.get("lhv", &volume)["status"]["epoch"].clone();

    let cut = NoWayTo::cut(FAR_HOST);
    let before = writer.acknowledged();
    let in_sync = || world.in_sync_nodes(&volume);
    let without = ["node-1", "node-2"];
    eventually("the set without the replica", || in_sync() == without);
    assert!(is_ready(&world, "node-3"), "its node is well");
    eventually("writes to go on", || writer.acknowledged() > before + 20);
    assert_eq!(in_sync(), without);
    drop(cut);
    world.until_robust(&volume);
    assert_eq!(in_sync(), ["node-1", "node-2", "node-3"]);
    // Also where the replica is that was cut off.
    check_all_is_there(&world, &volume, &epoch, &writer, "node-3");
    world.delete("pod", "app");
    world.until_gone("pod", "app");
}

/// The volume of a pod on this node, with all its replicas, and who writes to it.
fn written_on(world: &World, node: &str) -> (String, Writer) {
    world.claim("data", "longhorn", "Filesystem");
    world.pod("app", "data", Some(node));
    let path = world.path(&world.running("app"));
    let volume = world.volume_of("data");
    world.until_robust(&volume);
    let writer = Writer::start(&path.join("log"));
    eventually("the first writes", || writer.acknowledged() >= 20);
    (volume, writer)
}

/// Where the volume is mounted for the pod's successor on this node.
fn once_gone_run_on(world: &World, node: &str) -> PathBuf {
    world.until_gone("pod", "app");
    world.pod("app", "data", Some(node));
    world.path(&world.running("app"))
}

/// One engine has acknowledged everything, and everything is there when the pod moves to this node.
fn check_all_is_there(world: &World, volume: &str, epoch: &Value, writer: &Writer, node: &str) {
    writer.stop();
    let object = world.get("lhv", volume);
    assert_eq!(object["status"]["epoch"], *epoch, "one engine all the time");
    let acknowledged = writer.acknowledged();
    world.delete("pod", "app");
    let path = once_gone_run_on(world, node);
    assert_eq!(read_lines(&path.join("log")), acknowledged);
}

/// An address of this machine that nobody else uses.
const FAR_HOST: &str = "127.0.0.3";

/// Packets to an address are dropped until this is.
struct NoWayTo(&'static str);

impl NoWayTo {
    fn cut(host: &'static str) -> Self {
        assert!(Self::route("add", host), "the way can be cut with ip route");
        Self(host)
    }

    fn route(verb: &str, host: &str) -> bool {
        let status = Command::new("ip")
            .args(["route", verb, "blackhole", host, "table", "local"])
            .status();
        status.expect("ip, of the package iproute2").success()
    }
}

impl Drop for NoWayTo {
    fn drop(&mut self) {
        Self::route("del", self.0);
    }
}

fn is_ready(world: &World, node: &str) -> bool {
    world
        .try_get("lhn", node)
        .is_some_and(|object| condition(&object, "Ready") == "True")
}

fn signal(processes: &[i32], signal: Signal) {
    assert_eq!(processes.len(), 1, "one process: {processes:?}");
    let pid = Pid::from_raw(processes[0]).expect("a process");
    kill_process(pid, signal).expect("a process that can be signalled");
}

/// How many whole lines a log has; each must be the number of its line.
fn read_lines(file: &Path) -> u64 {
    let text = fs::read_to_string(file).expect("the log");
    let mut count = 0;
    for line in text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
    {
        assert_eq!(line.trim_end(), count.to_string(), "the log's line {count}");
        count += 1;
    }
    count
}

/// Writes numbered lines, each synced before the next, until it is stopped or refused.
struct Writer {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: std::cell::RefCell<Option<JoinHandle<String>>>,
}

impl Writer {
    fn start(path: &Path) -> Self {
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .expect("a log");
        let (acknowledged, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, stopped) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let line = format!("{}\n", count.load(Ordering::SeqCst));
                let written = log
                    .write_all(line.as_bytes())
                    .and_then(|()| log.sync_data());
                if let Err(error) = written {
                    return error.to_string();
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
            String::new()
        });
        Self {
            acknowledged,
            stop,
            thread: Some(thread).into(),
        }
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// What it was refused with, once it was.
    fn ended(&self) -> String {
        let thread = self.thread.take().expect("a writer that runs");
        eventually("the writer to be refused", || thread.is_finished());
        thread.join().expect("a writer that does not panic")
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        assert_eq!(self.ended(), "", "the writer was refused");
    }
}

/// A node that the test itself has started, with its own way to the API.
struct FarNode {
    child: Child,
}

impl FarNode {
    fn start(world: &World, wire: &Wire, name: &str) -> Self {
        Self::start_at(world, wire, name, "127.0.0.1")
    }

    /// One that serves its replicas at this address.
    fn start_at(world: &World, wire: &Wire, name: &str, host: &str) -> Self {
        let folder = world.node_folder(name);
        fs::create_dir_all(&folder).expect("a folder");
        let kubeconfig = folder.join("kubeconfig");
        let text = fs::read_to_string(world.cluster.kubeconfig()).expect("a kubeconfig");
        let text = text.replace(&world.cluster.address(), &wire.address.to_string());
        fs::write(&kubeconfig, text).expect("a kubeconfig");
        let log = world
            .cluster
            .folder()
            .join("logs")
            .join(format!("{name}.log"));
        let log = File::create(log).expect("a log");
        let child = Command::new(lariat())
            .args(["node", "--embedded", "--name", name, "--host", host])
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--data-dir")
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn();
        Self {
            child: child.expect("lariat can be started"),
        }
    }
}

impl Drop for FarNode {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        let deadline = Instant::now() + STOP_PATIENCE;
        while Instant::now() < deadline && self.child.try_wait().is_ok_and(|end| end.is_none()) {
            thread::sleep(LOOK_EVERY);
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A wire to the API that can be cut: then bytes neither arrive nor are lost, and nobody is told, as when packets are dropped.
struct Wire {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    over: AtomicBool,
}

impl Wire {
    fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let (state, target) = (Arc::new(State::default()), target.to_owned());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            while !shared.over.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((near, _)) => shared.join(near, &target),
                    Err(_) => thread::sleep(LOOK_EVERY),
                }
            }
        });
        Self { address, state }
    }

    fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
    }

    fn mend(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.mend();
    }
}

impl State {
    fn join(self: &Arc<Self>, near: TcpStream, target: &str) {
        let Ok(far) = TcpStream::connect(target) else {
            return;
        };
        for socket in [&near, &far] {
            socket.set_nonblocking(false).ok();
            socket.set_nodelay(true).ok();
            socket.set_read_timeout(Some(LOOK_EVERY * 5)).ok();
        }
        let ends = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
        for (from, to) in ends {
            let (Ok(from), Ok(to)) = (from, to) else {
                return;
            };
            let state = Arc::clone(self);
            thread::spawn(move || state.carry(from, to));
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while !self.over.load(Ordering::SeqCst) {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if is_timeout(&error) => continue,
                Err(_) => break,
            };
            while self.is_cut.load(Ordering::SeqCst) {
                thread::sleep(LOOK_EVERY);
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        for socket in [&from, &to] {
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
