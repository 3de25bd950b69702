//! What `deploy/` and the Dockerfile say is true of this binary and of Debian.

mod image;
mod rights;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("a workspace").to_owned()
}

fn lariat(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_lariat");
    let output = Command::new(program).args(arguments).output();
    output.expect("lariat runs")
}

/// All YAML files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            found.push(path);
        }
    }
    found
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a file");
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The objects of the base.
fn base() -> Vec<Value> {
    let files = files_below(&root().join("deploy/base"));
    files.iter().flat_map(|path| documents(path)).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> Vec<&'a Value> {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.into_iter().flatten().collect()
}

fn words<'a>(value: &'a Value, pointer: &str) -> Vec<&'a str> {
    list(value, pointer)
        .into_iter()
        .filter_map(Value::as_str)
        .collect()
}

const CONTAINERS: &str = "/spec/template/spec/containers";

/// Every container that runs this binary, in the base and in overlays.
fn own_containers() -> Vec<Value> {
    let folders = ["deploy/base", "deploy/overlays"];
    let files = folders
        .iter()
        .flat_map(|folder| files_below(&root().join(folder)));
    let objects: Vec<Value> = files.flat_map(|path| documents(&path)).collect();
    let containers = objects.iter().flat_map(|object| list(object, CONTAINERS));
    let own = containers.filter(|container| words(container, "/command") == ["lariat"]);
    own.cloned().collect()
}

#[test]
fn the_definitions_are_those_of_this_version() {
    let printed = lariat(&["crds"]);
    assert!(printed.status.success());
    let kept = fs::read(root().join("deploy/crds/longhorn.io.yaml")).expect("the CRDs");
    assert!(
        kept == printed.stdout,
        "deploy/crds/longhorn.io.yaml is of another version: write it with `lariat crds`"
    );
}

#[test]
fn every_argument_of_a_manifest_is_one_of_this_binary() {
    let containers = own_containers();
    assert_eq!(containers.len(), 3, "manager, attacher and node");
    for container in &containers {
        let mut arguments = words(container, "/args");
        arguments.push("--help");
        let answer = lariat(&arguments);
        let complaint = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.success(), "lariat {arguments:?}: {complaint}");
    }
    // The check can fail: the help is not given before what stands before it is looked at.
    let wrong = lariat(&["manager", "--no-such-option", "--help"]);
    assert!(!wrong.status.success());
}

#[test]
fn every_variable_of_a_manifest_is_read() {
    for container in &own_containers() {
        let mut arguments = words(container, "/args");
        arguments.push("--help");
        let help = String::from_utf8_lossy(&lariat(&arguments).stdout).into_owned();
        // Lines are wrapped anywhere.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for variable in list(container, "/env") {
            let name = text(variable, "/name");
            // How much is logged is no option; see `start_logging`.
            let is_known = name == "LARIAT_LOG" || help.contains(&format!("[env: {name}="));
            assert!(is_known, "lariat {arguments:?} does not read {name}");
        }
    }
}

#[test]
fn the_base_is_whole() {
    let folder = root().join("deploy/base");
    let listed = documents(&folder.join("kustomization.yaml")).remove(0);
    let listed: BTreeSet<PathBuf> = words(&listed, "/resources")
        .into_iter()
        .map(|name| folder.join(name))
        .collect();
    let mut there: BTreeSet<PathBuf> = files_below(&folder).into_iter().collect();
    there.remove(&folder.join("kustomization.yaml"));
    assert_eq!(listed, there, "the kustomization lists what is there");

    let objects = base();
    let named = |kind: &str, name: &str| {
        objects
            .iter()
            .any(|object| text(object, "/kind") == kind && text(object, "/metadata/name") == name)
    };
    for object in &objects {
        let name = text(object, "/metadata/name");
        for subject in list(object, "/subjects") {
            assert!(named("ServiceAccount", text(subject, "/name")), "{name}");
        }
        if object.get("roleRef").is_some() {
            let role = (text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
            assert!(named(role.0, role.1), "{name} binds {role:?}");
        }
        let account = text(object, "/spec/template/spec/serviceAccountName");
        assert!(
            account.is_empty() || named("ServiceAccount", account),
            "{name}"
        );
        let volumes: BTreeSet<&str> = list(object, "/spec/template/spec/volumes")
            .into_iter()
            .map(|volume| text(volume, "/name"))
            .collect();
        let mounts: BTreeSet<&str> = list(object, CONTAINERS)
            .into_iter()
            .flat_map(|container| list(container, "/volumeMounts"))
            .map(|mount| text(mount, "/name"))
            .collect();
        assert_eq!(
            volumes, mounts,
            "{name} mounts what it has, and has what it mounts"
        );
    }
}

/// Rights are named one by one: no wildcards, no secrets but the one that is ours, nothing outside of our own kinds deleted.
#[test]
fn nobody_has_more_rights_than_can_be_named() {
    let definitions = api_types::all_crds();
    let own: BTreeSet<&str> = definitions
        .iter()
        .map(|definition| definition.spec.names.plural.as_str())
        .collect();
    let mut rules = 0;
    for object in &base() {
        let name = text(object, "/metadata/name");
        for rule in list(object, "/rules") {
            rules += 1;
            let (verbs, resources) = (words(rule, "/verbs"), words(rule, "/resources"));
            let groups = words(rule, "/apiGroups");
            let all = verbs.iter().chain(&resources).chain(&groups);
            assert!(!all.into_iter().any(|word| *word == "*"), "{name}: {rule}");
            if groups == ["longhorn.io"] {
                for resource in &resources {
                    let plural = resource.trim_end_matches("/status");
                    assert!(own.contains(plural), "{name}: there is no {resource}");
                }
            }
            if resources.contains(&"secrets") {
                let only_own = words(rule, "/resourceNames") == ["lariat-replica-key"];
                assert!(only_own || verbs == ["create"], "{name}: {rule}");
            }
        }
        let is_privileged = list(object, CONTAINERS)
            .into_iter()
            .filter(|container| container.pointer("/securityContext/privileged").is_some())
            .map(|container| text(container, "/name"));
        let expected: &[&str] = if name == "lariat-node" && text(object, "/kind") == "DaemonSet" {
            &["node"]
        } else {
            &[]
        };
        assert_eq!(is_privileged.collect::<Vec<_>>(), expected, "{name}");
    }
    assert!(rules > 10, "the base has rights at all");
}
