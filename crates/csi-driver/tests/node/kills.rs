//! A node's process is killed at each of the tools that a call runs, and another one is asked for the same.
//!
//! The test runs itself as a process that serves a node. Before the machine's own tools in its path are ones that kill it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use csi_driver::VolumeNotes;
use csi_driver::csi::v1::node_client::NodeClient;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Status, async_trait};

use crate::crashes::seen;
use crate::support::{PATIENCE, connect, mounted};
use crate::test_node::*;

const NODE_FOLDER: &str = "CSI_NODE_KILL_TEST_NODE";
const NOTES_FOLDER: &str = "CSI_NODE_KILL_TEST_NOTES";
const TEST_NAME: &str = "kills::a_node_call_survives_a_kill_at_each_of_its_tools";

/// When the process is killed, seen from the tool that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before,
    /// The tool goes on alone, beside whatever the next process does.
    During,
    After,
}

/// What outlives a process: its marks, and the tools that kill it.
struct Notes {
    folder: tempfile::TempDir,
}

impl Notes {
    /// The process dies at the tool of this number, counted from 1.
    fn new(at_tool: usize, moment: Moment) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["tools", "marks"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        fs::write(folder.path().join("ran"), "0").expect("a file");
        let place = folder.path().display();
        let path = std::env::var("PATH").expect("a path");
        let tools = [
            "blkid",
            "mkfs.ext4",
            "mkfs.xfs",
            "e2fsck",
            "dumpe2fs",
            "resize2fs",
            "mount",
            "umount",
        ];
        for tool in tools {
            let script = format!(
                "#!/bin/sh
PATH='{path}'
ran=$(($(cat {place}/ran) + 1))
echo $ran > {place}/ran
[ $ran = {at_tool} ] || exec {tool} \"$@\"
case {moment:?} in
    Before) kill -9 $PPID ;;
    During) kill -9 $PPID; {tool} \"$@\" ;;
    After) {tool} \"$@\"; kill -9 $PPID ;;
esac
touch {place}/ended
"
            );
            let program = folder.path().join("tools").join(tool);
            fs::write(&program, script).expect("a script");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
        }
        Self { folder }
    }

    fn marks(&self) -> Arc<MarksInFiles> {
        MarksInFiles::in_notes(self.folder.path())
    }

    fn tools_run(&self) -> usize {
        let count = fs::read_to_string(self.folder.path().join("ran")).expect("a count");
        count.trim().parse().expect("a number")
    }

    /// Waits for the tool that was left alone.
    async fn until_the_tool_has_ended(&self) {
        let ended = async {
            while !self.folder.path().join("ended").exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, ended).await.expect("the tool ends");
    }
}

/// Marks that a second process finds.
struct MarksInFiles(PathBuf);

impl MarksInFiles {
    fn in_notes(notes: &Path) -> Arc<Self> {
        Arc::new(Self(notes.join("marks")))
    }
}

#[async_trait]
impl VolumeNotes for MarksInFiles {
    async fn is_begun(&self, volume: &str) -> Result<bool, Status> {
        Ok(self.0.join(volume).exists())
    }

    async fn begin(&self, volume: &str) -> Result<(), Status> {
        fs::write(self.0.join(volume), "").expect("a mark");
        Ok(())
    }

    async fn end(&self, volume: &str) -> Result<(), Status> {
        // There may be none.
        let _ = fs::remove_file(self.0.join(volume));
        Ok(())
    }

    fn refused(&self, volume: &str, why: &str) {
        panic!("nothing here is refused: volume {volume}: {why}");
    }
}

/// A process that serves a node until one of its tools kills it.
struct NodeProcess {
    child: Child,
    socket: PathBuf,
}

impl NodeProcess {
    fn start(node: &TestNode, notes: &Notes) -> Self {
        let tools = notes.folder.path().join("tools");
        let path = std::env::var("PATH").expect("a path");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args([TEST_NAME, "--exact", "--test-threads=1"])
            .env(NODE_FOLDER, node.folder.path())
            .env(NOTES_FOLDER, notes.folder.path())
            .env("PATH", format!("{}:{path}", tools.display()))
            .stdout(Stdio::null())
            .spawn();
        Self {
            child: child.expect("the test runs itself"),
            socket: node.path("killed.sock"),
        }
    }

    /// The process's side: serves, and never returns.
    async fn serve(node: &Path) {
        let notes = std::env::var_os(NOTES_FOLDER).expect("a folder");
        let marks = MarksInFiles::in_notes(Path::new(&notes));
        let socket = node.join("killed.sock");
        serve("n1", node, marks, &socket, CancellationToken::new()).await;
        panic!("nobody asked the service to end");
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a call on a new node, with a blank volume of this size, for each tool that it runs, and kills the process there.
/// `tools_min`: so that this does not pass by killing nothing.
async fn survives_a_kill_at_each_tool(
    bytes: u64,
    tools_min: usize,
    prepare: impl AsyncFn(&TestNode),
    call: impl AsyncFn(&TestNode) -> Result<(), Status>,
) {
    let mut undisturbed = None;
    for moment in [Moment::Before, Moment::During, Moment::After] {
        let mut kills = 0;
        loop {
            let notes = Notes::new(kills + 1, moment);
            let mut node = TestNode::start_with("n1", notes.marks()).await;
            node.attach("v", bytes);
            prepare(&node).await;
            let process = NodeProcess::start(&node, &notes);
            node.client = NodeClient::new(connect(&process.socket).await);
            let answer = call(&node).await;
            drop(process);
            if notes.tools_run() <= kills {
                answer.expect("undisturbed");
                assert_eq!(undisturbed.get_or_insert(seen(&node)), &seen(&node));
                break;
            }
            kills += 1;
            let place = format!("tool {kills}, {moment:?}");
            assert!(answer.is_err(), "{place}");
            node.restart_with("n1", notes.marks()).await;
            if moment == Moment::During {
                // What is still under way may be in the way of the next call, but not for ever.
                let repeated = async {
                    while call(&node).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                };
                timeout(PATIENCE, repeated).await.expect(&place);
                notes.until_the_tool_has_ended().await;
            }
            let again = call(&node).await;
            again.unwrap_or_else(|status| panic!("{place}: {status}"));
            assert_eq!(
                undisturbed.get_or_insert(seen(&node)),
                &seen(&node),
                "{place}"
            );
            assert!(is_empty(&notes.folder.path().join("marks")), "{place}");
        }
        assert!(kills >= tools_min, "{moment:?}: {kills} tools were caught");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_call_survives_a_kill_at_each_of_its_tools() {
    if let Some(node) = std::env::var_os(NODE_FOLDER) {
        NodeProcess::serve(Path::new(&node)).await;
    }
    // xfs takes no less. blkid, mkfs, mount, and for ext4 before that e2fsck and dumpe2fs.
    for (file_system, bytes, tools) in [("ext4", 64 * MIB, 5), ("xfs", 512 * MIB, 3)] {
        let stage = async |node: &TestNode| node.stage("v", mounted(file_system)).await;
        survives_a_kill_at_each_tool(bytes, tools, async |_| {}, stage).await;
        // A volume that was used before: its data is there after whatever was killed.
        survives_a_kill_at_each_tool(
            bytes,
            tools - 1,
            async |node| {
                stage(node).await.expect("staged");
                fs::write(node.path("v-staging/file"), "kept").expect("a write");
                node.unstage("v").await.expect("unstaged");
            },
            async |node| {
                stage(node).await?;
                let kept = fs::read_to_string(node.path("v-staging/file"));
                assert_eq!(kept.expect("the file"), "kept");
                Ok(())
            },
        )
        .await;
    }
    let bytes = 64 * MIB;
    let stage = async |node: &TestNode| node.stage("v", mounted("ext4")).await;
    let publish = async |node: &TestNode| node.publish("v", "a", mounted("ext4"), false).await;
    survives_a_kill_at_each_tool(
        bytes,
        1,
        async |node| {
            stage(node).await.expect("staged");
            publish(node).await.expect("published");
        },
        async |node| node.unpublish("v", "a").await,
    )
    .await;
    survives_a_kill_at_each_tool(
        bytes,
        1,
        async |node| stage(node).await.expect("staged"),
        async |node| node.unstage("v").await,
    )
    .await;
}
