//! `lariat manager`, `lariat node run` and `lariat attacher`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::scene::{Running, Scene};

/// An API alone, and kubeconfigs that lead nowhere.
struct Stage {
    scene: Scene,
    up: Running,
}

impl Stage {
    fn new() -> Self {
        let scene = Scene::new();
        let mut up = scene.begin("lariat up --listen 127.0.0.1:0 --nodes 0 --data-dir FOLDER/c");
        up.until("ready in");
        scene.write("broken", "clusters: 7");
        scene.write("locked", "");
        fs::set_permissions(scene.path("locked"), Permissions::from_mode(0o000)).expect("its mode");
        let own = fs::read_to_string(scene.path("c/kubeconfig")).expect("a kubeconfig");
        let mut config: serde_json::Value = serde_json::from_str(&own).expect("JSON");
        // Nobody listens there, and nobody may.
        config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1".into();
        scene.write("dead", &config.to_string());
        Self { scene, up }
    }

    /// What every command says that does not find its API.
    fn without_an_api(&mut self, command: &str) {
        let scene = &mut self.scene;
        scene.play(&format!("lariat {command}"));
        scene.play(&format!("lariat {command} --kubeconfig FOLDER/missing"));
        scene.play(&format!("lariat {command} --kubeconfig FOLDER/broken"));
        scene.play(&format!(
            "setpriv --bounding-set=-dac_override,-dac_read_search lariat {command} --kubeconfig FOLDER/locked"
        ));
        let mut waiting = scene.begin(&format!("lariat {command} --kubeconfig FOLDER/dead"));
        waiting.until("trying again until it answers");
        waiting.signal(Signal::TERM);
        scene.end_with(waiting, "cannot reach the API");
    }

    /// And with a place for metrics that it cannot have.
    fn without_metrics(&mut self, command: &str) {
        let scene = &mut self.scene;
        let command = format!("lariat {command} --kubeconfig FOLDER/c/kubeconfig");
        scene.play(&format!("{command} --metrics-listen 9810"));
        scene.write("short", "secret");
        scene.play(&format!("{command} --metrics-token-file FOLDER/short"));
        scene.write("file", "");
        scene.play(&format!("{command} --metrics-token-file FOLDER/file/token"));
        scene.play(&format!("{command} --metrics-listen 127.0.0.1:TAKEN"));
    }

    fn check(self, name: &str) {
        self.up.signal(Signal::TERM);
        let (mut scene, up) = (self.scene, self.up);
        scene.check(name);
        scene.end(up);
    }
}

#[test]
fn a_manager_says_what_it_lacks() {
    let mut stage = Stage::new();
    stage.without_an_api("manager --csi-socket FOLDER/m.sock");
    stage.without_metrics("manager --csi-socket FOLDER/m.sock");
    let scene = &mut stage.scene;
    let manager = "lariat manager --kubeconfig FOLDER/c/kubeconfig --csi-socket";
    scene.play(&format!("{manager} FOLDER/file"));
    scene.play(&format!("{manager} FOLDER/{}", "long".repeat(30)));
    scene.play(&format!("{manager} FOLDER/m.sock --node-lost-after 1"));
    let mut first = scene.begin(&format!("{manager} FOLDER/m.sock"));
    first.until_there(&scene.path("m.sock"));
    scene.play(&format!("{manager} FOLDER/m.sock"));
    // Nothing is to be said of one that works.
    first.signal(Signal::TERM);
    scene.end(first);
    stage.check("manager");
}

#[test]
fn a_node_says_what_it_lacks() {
    let mut stage = Stage::new();
    stage.without_an_api("node run --name n1 --data-dir FOLDER/n1");
    stage.without_metrics("node run --name n1 --data-dir FOLDER/n1");
    let scene = &mut stage.scene;
    let node = "node run --kubeconfig FOLDER/c/kubeconfig";
    scene.play(&format!("lariat {node} --data-dir FOLDER/n1"));
    for name in ["N_1", "-n1", "n1.", "n+1", &"n".repeat(242)] {
        scene.play(&format!("lariat {node} --data-dir FOLDER/n1 --name={name}"));
    }
    scene.play(&format!(
        "lariat {node} --data-dir FOLDER/n1 --name n1 --host localhost"
    ));
    scene.play(&format!(
        "lariat {node} --data-dir FOLDER/n1 --name n1 --replica-tls always"
    ));
    scene.play(&format!(
        "lariat {node} --data-dir FOLDER/file/n1 --name n1"
    ));
    scene.play(&format!(
        "setpriv --bounding-set=-sys_admin lariat {node} --data-dir FOLDER/n1 --name n1"
    ));
    let line = format!("lariat {node} --data-dir FOLDER/n1 --name n1");
    scene.play(&format!("{line} --csi-socket FOLDER/file"));
    let mut first = scene.begin(&line);
    first.until_there(&scene.path("n1/run/csi.sock"));
    let address = || fs::read_to_string(scene.path("n1/metrics-address")).expect("an address");
    let shown = address();
    let mut second = scene.begin(&line);
    second.until("in use");
    // Readers of the first one's metrics still find it.
    assert_eq!(address(), shown);
    scene.end(second);
    first.signal(Signal::TERM);
    scene.end(first);
    stage.check("node-run");
}

#[test]
fn an_attacher_says_what_it_lacks() {
    let mut stage = Stage::new();
    stage.without_an_api("attacher --csi-address FOLDER/d.sock");
    stage.without_metrics("attacher --csi-address FOLDER/d.sock");
    let scene = &mut stage.scene;
    let attacher =
        "lariat attacher --kubeconfig FOLDER/c/kubeconfig --metrics-token-file FOLDER/a/token";
    for address in ["", "unix://", "tcp://127.0.0.1:1"] {
        scene.play(&format!("{attacher} --csi-address={address}"));
    }
    scene.play(&format!("{attacher} --timeout 0"));
    for address in ["FOLDER/d.sock", "unix:///nowhere/d.sock"] {
        let mut waiting = scene.begin(&format!("{attacher} --csi-address {address}"));
        waiting.until("asking again");
        waiting.signal(Signal::TERM);
        scene.end(waiting);
    }
    // Beside a driver, for which ours will do: nothing is to be said of one that works.
    let mut driver =
        scene.begin("lariat manager --kubeconfig FOLDER/c/kubeconfig --csi-socket FOLDER/d.sock");
    driver.until_there(&scene.path("d.sock"));
    // Of those that were refused.
    fs::remove_file(scene.path("a/metrics-address")).expect("an address");
    let mut attaching = scene.begin(&format!("{attacher} --csi-address FOLDER/d.sock"));
    attaching.until_there(&scene.path("a/metrics-address"));
    attaching.signal(Signal::TERM);
    scene.end(attaching);
    driver.signal(Signal::TERM);
    scene.end(driver);
    stage.check("attacher");
}
