//! The published examples of Longhorn and Harvester objects parse, mean what they say, and survive.

use api_types::{Node, VolumeAttachment, condition, names};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    instances::loss,
    kinds::{read_and_write, schema_of_kind},
};

macro_rules! fixtures {
    ($($name:literal),+ $(,)?) => {
        const FIXTURES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../fixtures/", $name, ".yaml")))),+];
    };
}

fixtures!(
    "csi-ticket-full",
    "csi-ticket-satisfied",
    "migration-done",
    "migration-source-ticket-gone",
    "migration-two-tickets",
    "no-tickets",
    "node-evicting-a-disk",
    "snapshot-ticket-waiting",
);

fn text(name: &str) -> &'static str {
    FIXTURES
        .iter()
        .find(|(fixture, _)| *fixture == name)
        .expect("the fixture is listed")
        .1
}

fn parse<T: DeserializeOwned>(name: &str) -> T {
    serde_saphyr::from_str(text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_fixture_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let listed: Vec<String> = FIXTURES
        .iter()
        .map(|(name, _)| format!("{name}.yaml"))
        .collect();
    assert_eq!(files, listed);
}

#[test]
fn every_fixture_survives() {
    for (name, _) in FIXTURES {
        let object: Value = parse(name);
        let kind = object["kind"].as_str().unwrap();
        let written =
            read_and_write(kind, &object).unwrap_or_else(|error| panic!("{name}: {error}"));
        loss(&schema_of_kind(kind), &object, &written)
            .unwrap_or_else(|loss| panic!("{name}: {loss}"));
    }
}

#[test]
fn fully_written_attachments_come_back_identical() {
    for name in [
        "csi-ticket-full",
        "migration-done",
        "migration-source-ticket-gone",
        "migration-two-tickets",
        "no-tickets",
    ] {
        let object: Value = parse(name);
        assert_eq!(
            read_and_write("VolumeAttachment", &object).as_ref(),
            Ok(&object),
            "{name}"
        );
    }
}

#[test]
fn attachments_mean_what_the_examples_say() {
    let check = |name: &str, tickets: &[(&str, &str, bool)]| {
        let attachment: VolumeAttachment = parse(name);
        assert_eq!(attachment.namespace().as_deref(), Some(names::NAMESPACE));
        assert_eq!(attachment.spec.volume, attachment.name_any());
        let status = attachment.status.unwrap();
        let found: Vec<_> = attachment
            .spec
            .attachment_tickets
            .values()
            .map(|ticket| {
                (
                    ticket.attacher_type.as_str(),
                    ticket.node_id.as_str(),
                    status.satisfies(ticket),
                )
            })
            .collect();
        assert_eq!(found, tickets, "{name}");
    };
    check(
        "csi-ticket-full",
        &[("csi-attacher", "rancher60-master", true)],
    );
    check(
        "csi-ticket-satisfied",
        &[("csi-attacher", "harvester-node-1", true)],
    );
    check(
        "snapshot-ticket-waiting",
        &[("snapshot-controller", "harvester-node-1", false)],
    );
    check("no-tickets", &[]);
    check(
        "migration-two-tickets",
        &[
            ("csi-attacher", "harvester-node-2", true),
            ("csi-attacher", "harvester-node-0", true),
        ],
    );
    check(
        "migration-done",
        &[("csi-attacher", "harvester-node-0", true)],
    );
}

#[test]
fn a_ticket_that_changed_is_no_longer_satisfied() {
    let attachment: VolumeAttachment = parse("csi-ticket-full");
    let mut ticket = attachment
        .spec
        .attachment_tickets
        .into_values()
        .next()
        .unwrap();
    ticket.generation += 1;
    assert!(!attachment.status.unwrap().satisfies(&ticket));
}

#[test]
fn the_node_means_what_the_example_says() {
    let node: Node = parse("node-evicting-a-disk");
    let disk = &node.spec.disks["default-disk-ed7af10f5b8356be"];
    assert!(disk.eviction_requested && !disk.allow_scheduling);
    assert_eq!(disk.storage_reserved, 36_900_254_515);
    let status = node.status.unwrap();
    assert!(condition::is_true(
        &status.conditions,
        api_types::node_condition::READY
    ));
    let scheduled: i64 = status.disk_status["default-disk-ed7af10f5b8356be"]
        .scheduled_replica
        .values()
        .sum();
    assert_eq!(scheduled, 71_940_702_208);
}
