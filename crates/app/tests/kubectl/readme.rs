//! The README's tour of a stuck volume, word for word: what it says is printed is what is printed.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::replace_status;
use crate::support::kubectl::Kubectl;
use crate::support::{Cluster, lariat};

const README: &str = include_str!("../../../../README.md");
const CHAPTER: &str = "### Why is it stuck?";

/// A command and what follows it.
struct Step {
    command: String,
    printed: String,
}

fn steps() -> Vec<Step> {
    let (_, chapter) = README.split_once(CHAPTER).expect("the chapter");
    let blocks = chapter.split("```console\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let mut steps: Vec<Step> = Vec::new();
    for block in blocks {
        let mut goes_on = false;
        for line in block.lines() {
            let begun = line.strip_prefix("$ ");
            if let Some(command) = begun {
                steps.push(Step {
                    command: command.to_owned(),
                    printed: String::new(),
                });
            } else {
                let step = steps.last_mut().expect("a command comes first");
                let text = if goes_on {
                    &mut step.command
                } else {
                    &mut step.printed
                };
                text.push_str(line);
                text.push('\n');
            }
            goes_on = line.ends_with('\\');
            if begun.is_some() && goes_on {
                steps.last_mut().expect("it was pushed").command.push('\n');
            }
        }
    }
    steps
}

/// Without the ages, which are what they are, and the widths of columns that follow from them.
fn comparable(text: &str) -> Vec<Vec<&str>> {
    let is_age = |word: &&str| {
        let number = word.strip_suffix('s');
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let words = |line| str::split_whitespace(line).filter(|word| !is_age(word));
    text.lines().map(|line| words(line).collect()).collect()
}

#[test]
fn the_readme_s_stuck_volume_is_as_it_says() {
    let cluster = Cluster::start();
    let kubectl = Kubectl::new(&cluster.kubeconfig());
    let folder = Path::new(lariat()).parent().expect("a folder");
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{}:{path}", folder.display());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let steps = steps();
    assert!(steps.len() >= 5, "the tour is not found");
    for step in &steps {
        // The test has a cluster of its own.
        if step.command.starts_with("export ") {
            continue;
        }
        let is_new = step.command.contains("--subresource");
        if is_new
            && !kubectl
                .prints(&["patch", "--help"])
                .contains("--subresource")
        {
            // It came with kubectl 1.24, which is newer than that of Debian 12.
            let path = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes/pvc-1";
            let status =
                json!({"state": "attached", "currentNodeID": "node-1", "robustness": "healthy"});
            replace_status(&kubectl, path, status);
            continue;
        }
        let output = Command::new("bash")
            .args(["-c", &step.command])
            .current_dir(root.expect("a workspace"))
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("PATH", &path)
            .output()
            .expect("bash runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {complaint}", step.command);
        assert_eq!(
            comparable(&printed),
            comparable(&step.printed),
            "{}",
            step.command
        );
    }
}
