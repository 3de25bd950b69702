//! Chores that take a number, with a program in cargo's place that says what it was asked for.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const CARGO: &str = "#!/bin/sh\necho rounds=$LARIAT_TORTURE_ROUNDS frames=$LARIAT_HOSTILE_FRAMES\n";

#[test]
fn a_chore_is_done_as_often_as_was_asked() {
    let cargo = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cargo-in-its-place");
    fs::write(&cargo, CARGO).expect("a program");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("a program");
    let check = |arguments: &[&str], expected: Result<&str, &str>| {
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(arguments)
            .env("CARGO", &cargo)
            .env_remove("LARIAT_TORTURE_ROUNDS")
            .env_remove("LARIAT_HOSTILE_FRAMES")
            .output()
            .expect("xtask runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), expected.is_ok(), "{errors}");
        match expected {
            Ok(line) => assert!(said.lines().any(|one| one == line), "{said}"),
            // Nothing is begun.
            Err(why) => assert!(errors.contains(why) && said.is_empty(), "{said}{errors}"),
        }
    };
    check(&["torture"], Ok("rounds=1000 frames="));
    check(&["torture", "7"], Ok("rounds=7 frames="));
    check(&["hostile"], Ok("rounds= frames=1000000"));
    check(&["hostile", "5000"], Ok("rounds= frames=5000"));
    for none in ["often", "0", "-1"] {
        check(&["torture", none], Err("is not a number of times"));
    }
}
