//! LAR-136: a node whose clock is wrong.
//!
//! This machine has one clock, which tests leave alone. The processes of one node are shown another: a library of a few
//! lines that is loaded before the C library answers them when they ask for the time of day. Everything else is real, the
//! agent's lease first of all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clinic::{run, until_found, until_gone, until_why};
use crate::world::World;

/// Adds what stands in a file, in seconds, for processes that have a certain word in their command line.
const SHIFTED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static const char *shift_file;

__attribute__((constructor)) static void start(void) {
    char line[4096];
    size_t length, at;
    FILE *file = fopen("/proc/self/cmdline", "r");
    const char *word = getenv("TEST_CLOCK_WORD");
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (!file || !word) return;
    length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    for (at = 0; at < length; at++)
        if (!line[at]) line[at] = ' ';
    line[length] = 0;
    if (strstr(line, word)) shift_file = getenv("TEST_CLOCK_FILE");
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    long seconds = 0;
    int result;
    FILE *file;
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    result = real(clock, time);
    if (result || clock != CLOCK_REALTIME || !shift_file) return result;
    file = fopen(shift_file, "r");
    if (!file) return result;
    if (fscanf(file, "%ld", &seconds) == 1) time->tv_sec += seconds;
    fclose(file);
    return result;
}
"#;

/// The library, for whatever is started with it.
fn library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    fs::write(&source, SHIFTED).expect("a source file");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()
        .expect("cc runs, as it does whenever something is linked");
    assert!(built.status.success(), "{built:?}");
    library
}

/// A cluster's environment lives as long as its processes, which outlive what a test has on its stack.
fn lasting(path: &Path) -> &'static str {
    Box::leak(path.to_string_lossy().into_owned().into_boxed_str())
}

#[test]
fn a_clock_is_ahead() {
    let folder = tempfile::tempdir().expect("a folder");
    let shift = folder.path().join("shift");
    let environment = vec![
        ("LD_PRELOAD", lasting(&library(folder.path()))),
        ("TEST_CLOCK_FILE", lasting(&shift)),
        ("TEST_CLOCK_WORD", "--name node-3 "),
    ];
    let world = World::with_environment(3, environment.leak());
    let kubeconfig = world.cluster.kubeconfig();
    world.claim("data", "longhorn", "Filesystem");
    fs::write(&shift, "60").expect("another time");
    until_found(&kubeconfig, "LAR-136");
    let doctor = run(&kubeconfig, &["doctor"]);
    assert_eq!(doctor.code, 3, "{}{}", doctor.text, doctor.errors);
    // The less, the longer a write takes to reach the server.
    let said = (40..=60).any(|seconds| {
        let said = format!("the clock of node node-3 is {seconds} s ahead of the API server's");
        doctor.text.contains(&said)
    });
    assert!(said, "{}", doctor.text);

    // As it says: nothing about attaching depends on clocks.
    world.pod("app", "data", Some("node-3"));
    world.running("app");
    until_why(
        &kubeconfig,
        "app",
        0,
        &["attached", "LAR-136", "ahead of the API server's"],
    );
    let volume = world.volume_of("data");
    world.end_pod("app", &volume);

    fs::remove_file(&shift).expect("the right time");
    until_gone(&kubeconfig, "LAR-136");
    world.pod("app", "data", Some("node-3"));
    world.running("app");
    until_why(&kubeconfig, "app", 0, &["attached"]);
    world.end_pod("app", &volume);
}
