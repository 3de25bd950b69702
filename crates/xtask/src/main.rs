//! Chores of this repository, the same on a laptop and in CI: `cargo xtask ci`.

mod chart;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
cargo xtask COMMAND

  ci        everything that CI checks: fmt, clippy, docs, tidy, every test
  tidy      only the rules about dependencies and file sizes
  chart     make the Helm chart of deploy/base
  sim       a hundred thousand simulated schedules of the engine's protocol (ten minutes)
  torture [ROUNDS]
            a thousand rounds, or so many, of a writer in a pod while parts of its cluster are killed (hours)
  hostile [FRAMES]
            a million mutated frames, or so many, against a live replica server (minutes)
  soak      an engine killed again and again behind a keeper, ten times 90 seconds
  model     the large instances of the model-checked protocols (minutes)
  conformance [SUITE…]
            our API and CSI services beside what users run: the real kube-apiserver and Kubernetes' own suite (docs/conformance.md)
";

fn main() -> Result<()> {
    let command = std::env::args().nth(1).unwrap_or_default();
    match command.as_str() {
        "ci" => ci(),
        "conformance" => conformance(),
        "tidy" => tidy::check(&workspace_root()),
        "chart" => chart::write(&workspace_root()),
        "model" => model(),
        "hostile" => hostile(),
        "sim" => simulate(),
        "soak" => soak(),
        "torture" => torture(),
        "" | "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        unknown => bail!("unknown command `{unknown}`\n\n{USAGE}"),
    }
}

/// What a whole run builds, and what its clusters write, with a margin. Clusters place no replicas on a disk that is nearly full:
/// test after test would wait in vain, for hours, and none would say why.
const ROOM_GIB: u64 = 30;

/// `df` says how much of the disk is left to the folder that everything is built in.
fn check_room() -> Result<()> {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(workspace_root, PathBuf::from);
    let folder = if folder.exists() {
        folder
    } else {
        workspace_root()
    };
    let output = Command::new("df")
        .args(["--output=avail", "--block-size=1G"])
        .arg(&folder)
        .output()
        .context("cannot run df")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let free_gib: u64 = text
        .lines()
        .nth(1)
        .and_then(|line| line.trim().parse().ok())
        .with_context(|| format!("df says nothing of {}: {text}", folder.display()))?;
    if free_gib < ROOM_GIB {
        bail!(
            "the disk of {} has {free_gib} GiB left, and a whole run needs {ROOM_GIB}: remove old `target` folders, or build elsewhere \
             with CARGO_TARGET_DIR",
            folder.display()
        );
    }
    Ok(())
}

fn ci() -> Result<()> {
    step("room", check_room)?;
    step("fmt", || cargo(&["fmt", "--all", "--check"]))?;
    step("tidy", || tidy::check(&workspace_root()))?;
    step("clippy", || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    step("docs", || {
        cargo_with_env(
            &[
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
                "--locked",
            ],
            &[("RUSTDOCFLAGS", "-D warnings")],
        )
    })?;
    step("test", || cargo(&["test", "--workspace", "--locked"]))?;
    // The features that ordinary builds leave out.
    step("ublk", || {
        cargo(&[
            "test",
            "--locked",
            "-p",
            "engine",
            "--features",
            "ublk",
            "--lib",
            "ublk",
        ])
    })
}

/// What `make test` checks in small, in large.
fn model() -> Result<()> {
    step("epochs and the in-sync set", || {
        cargo_with_env(
            &[
                "test",
                "--release",
                "--locked",
                "-p",
                "volume-core",
                "--test",
                "epoch_model",
                "--",
                "large_",
                "--nocapture",
            ],
            &[("LARIAT_MODEL", "large")],
        )
    })?;
    for instance in [
        ["migrating-pair", "3", "1"],
        ["exclusive", "3", "0"],
        ["shared", "2", "1"],
    ] {
        step(&format!("tickets: {}", instance.join(" ")), || {
            let mut arguments = vec![
                "run",
                "--release",
                "--locked",
                "-p",
                "attach-core",
                "--example",
                "model",
                "--",
            ];
            arguments.extend(instance);
            cargo(&arguments)
        })?;
    }
    Ok(())
}

/// What `make test` simulates for twenty seconds, at length.
fn simulate() -> Result<()> {
    step("simulation", || {
        cargo_with_env(
            &[
                "test",
                "--release",
                "--locked",
                "-p",
                "engine",
                "--test",
                "simulation",
                "--",
                "--nocapture",
            ],
            &[("LARIAT_SIM_SCHEDULES", "100000")],
        )
    })
}

/// What `make test` sends to a replica server a hundred thousand times. Not a release build: overflows are to be noticed.
fn hostile() -> Result<()> {
    let frames = count(1_000_000)?;
    step("hostile", || {
        cargo_with_env(
            &["test", "--locked", "-p", "replica", "--test", "hostile"],
            &[("LARIAT_HOSTILE_FRAMES", &frames)],
        )
    })
}

/// An engine that is killed again and again behind a keeper, for longer than the keeper's grace of a minute instead of
/// a few seconds.
fn soak() -> Result<()> {
    step("soak: build", || {
        cargo(&["build", "--locked", "-p", "engine", "--example", "volume"])
    })?;
    for round in 1..=10 {
        step(&format!("soak {round}"), || {
            let test = "engine_kill_is_invisible_with_a_keeper";
            cargo_with_env(
                &[
                    "test", "--locked", "-p", "engine", "--test", "volumes", test,
                ],
                &[("LARIAT_SOAK_SECONDS", "90")],
            )
        })?;
    }
    Ok(())
}

/// What `make test` does to a cluster twenty times, a thousand times.
fn torture() -> Result<()> {
    let rounds = count(1000)?;
    step("torture", || {
        let arguments = [
            "test",
            "--release",
            "--locked",
            "-p",
            "app",
            "--test",
            "cluster",
        ];
        let only = ["torture", "--", "--nocapture"];
        cargo_with_env(
            &[&arguments[..], &only[..]].concat(),
            &[("LARIAT_TORTURE_ROUNDS", &rounds)],
        )
    })
}

/// How many of something a command was asked for. What is no number is said before anything is built.
fn count(usual: u64) -> Result<String> {
    let Some(asked) = std::env::args().nth(2) else {
        return Ok(usual.to_string());
    };
    match asked.parse::<u64>() {
        Ok(count) if count > 0 => Ok(count.to_string()),
        _ => bail!("`{asked}` is not a number of times to do it\n\n{USAGE}"),
    }
}

/// Suites are in a crate of their own: they need what the other chores do not, and those shall start at once.
fn conformance() -> Result<()> {
    let suites: Vec<String> = std::env::args().skip(2).collect();
    let mut arguments = vec!["run", "--quiet", "--locked", "-p", "conformance", "--"];
    arguments.extend(suites.iter().map(String::as_str));
    cargo(&arguments)
}

/// Runs one named part and says how long it took, so that a slow part is seen before it hurts.
fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("=== {name}");
    let started = Instant::now();
    run().with_context(|| format!("`{name}` failed"))?;
    println!("=== {name}: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    cargo_with_env(args, &[])
}

fn cargo_with_env(args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(workspace_root())
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo {}` ended with {status}", args.join(" "));
    }
    Ok(())
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("xtask lives two folders below the workspace root")
        .to_path_buf()
}
