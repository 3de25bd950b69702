//! `lariat disk identify`: the block devices of this machine, and by what each of them is known again.
//!
//! A disk must be recognised after a reboot, whatever name the kernel gives it then. The ladder: a World Wide Name that
//! the hardware has; a name derived from its serial number; the UUID of the file system on it. Two devices with one
//! identity are two ways to one disk, or copies of each other: neither may be used before a person has looked.

mod read;

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use crate::output::human::size;
use crate::output::{self, Cell, Column, OutputArgument, Row, Tone};

/// A disk smaller than this is not worth the trouble.
const BYTES_MIN: u64 = 1 << 30;
/// What a WWN that a rule made from a serial number begins with.
const DERIVED_PREFIX: &str = "fake.";

#[derive(Args)]
pub(crate) struct IdentifyArguments {
    /// Print a udev rule that gives disks without a World Wide Name one that is derived from their serial number
    #[arg(long)]
    pub udev_rule: bool,

    #[command(flatten)]
    pub output: OutputArgument,
}

/// What the kernel and udev say about one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub name: String,
    pub size_bytes: u64,
    pub removable: bool,
    pub read_only: bool,
    pub model: String,
    pub wwn: String,
    pub serial: String,
    /// Type and UUID of what is on it, such as `ext4`, `LVM2_member` or `swap`.
    pub content: String,
    pub file_system_uuid: String,
    pub partitions: usize,
    /// Where it or a partition of it is mounted.
    pub mounts: Vec<String>,
    /// What is built on it: LVM, RAID, multipath.
    pub holders: Vec<String>,
    /// The file behind a loop device.
    pub backing_file: Option<String>,
    /// It could not be looked at, and why.
    pub problem: Option<String>,
}

/// By what a device is known again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "by", content = "value")]
pub(crate) enum Identity {
    Wwn(String),
    SerialDerived(String),
    FileSystemUuid(String),
    None,
}

impl Identity {
    fn text(&self) -> (&'static str, &str) {
        match self {
            Self::Wwn(value) => ("WWN", value),
            Self::SerialDerived(value) => ("serial", value),
            Self::FileSystemUuid(value) => ("file system", value),
            Self::None => ("", ""),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceRow {
    pub device: String,
    pub size_bytes: u64,
    pub model: String,
    pub content: String,
    pub identity: Identity,
    /// Other devices with the same identity.
    pub duplicates: Vec<String>,
    pub usable: bool,
    /// Why not; or how.
    pub reasons: Vec<String>,
}

impl Row for DeviceRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("DEVICE"),
        Column::new("SIZE"),
        Column::new("CONTENT"),
        Column::new("KNOWN BY"),
        Column::new("IDENTITY").shrinks(),
        Column::new("USABLE"),
        Column::new("MODEL").wide(),
        Column::new("WHY").flows(),
    ];
    const NONE: &'static str = "This machine shows no block devices; inside a container, /sys and /dev of the host are needed.";

    fn name(&self) -> String {
        self.device.clone()
    }

    fn cells(&self, _: Timestamp) -> Vec<Cell> {
        let (by, identity) = self.identity.text();
        vec![
            Cell::new(&self.device),
            Cell::new(size(i64::try_from(self.size_bytes).unwrap_or(i64::MAX))),
            Cell::new(&self.content),
            Cell::new(by),
            Cell::new(identity),
            if self.usable {
                Cell::toned("yes", Tone::Good)
            } else {
                Cell::toned("no", Tone::Bad)
            },
            Cell::new(&self.model),
            Cell::new(self.reasons.join("; ")),
        ]
    }
}

pub(crate) fn run(arguments: &IdentifyArguments) -> Result<()> {
    let devices = read::devices()?;
    let rows = judge(&devices);
    if arguments.udev_rule {
        return output::say(&udev_rule(&devices));
    }
    output::show(&rows, arguments.output.output)
}

/// The highest rung of the ladder that a device reaches.
fn identity(device: &Device) -> Identity {
    let wwn = device.wwn.trim();
    // `t10.` names are made of vendor, model and serial number: not world wide, but good.
    if wwn.starts_with(DERIVED_PREFIX) || wwn.starts_with("t10.") {
        return Identity::SerialDerived(wwn.to_owned());
    }
    if !wwn.is_empty() {
        return Identity::Wwn(wwn.to_owned());
    }
    if !device.serial.trim().is_empty() {
        return Identity::SerialDerived(format!("{DERIVED_PREFIX}{}", device.serial.trim()));
    }
    if !device.file_system_uuid.is_empty() {
        return Identity::FileSystemUuid(device.file_system_uuid.clone());
    }
    Identity::None
}

/// Which devices can hold replicas, and why not. Pure.
pub(crate) fn judge(devices: &[Device]) -> Vec<DeviceRow> {
    let mut by_identity: BTreeMap<Identity, Vec<&str>> = BTreeMap::new();
    for device in devices {
        by_identity
            .entry(identity(device))
            .or_default()
            .push(&device.name);
    }
    let row = |device: &Device| {
        let identity = identity(device);
        let same = by_identity
            .get(&identity)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let duplicates: Vec<String> = same
            .iter()
            .filter(|name| identity != Identity::None && **name != device.name)
            .map(|name| format!("/dev/{name}"))
            .collect();
        let obstacles = obstacles(device, &identity, &duplicates);
        DeviceRow {
            device: format!("/dev/{}", device.name),
            size_bytes: device.size_bytes,
            model: device.model.clone(),
            content: device.content.clone(),
            identity,
            duplicates,
            usable: obstacles.is_empty(),
            reasons: if obstacles.is_empty() {
                vec![how(device)]
            } else {
                obstacles
            },
        }
    };
    devices.iter().map(row).collect()
}

fn obstacles(device: &Device, identity: &Identity, duplicates: &[String]) -> Vec<String> {
    let mut obstacles = Vec::new();
    if let Some(problem) = &device.problem {
        obstacles.push(problem.clone());
    }
    if device.size_bytes < BYTES_MIN {
        let least = size(i64::try_from(BYTES_MIN).unwrap_or(i64::MAX));
        obstacles.push(format!("it is smaller than {least}"));
    }
    if device.read_only {
        obstacles.push("it is read-only".to_owned());
    }
    if device.removable {
        obstacles.push("it is removable".to_owned());
    }
    if device.partitions > 0 {
        obstacles.push(format!(
            "it has {}",
            crate::volume::attach::count(device.partitions, "partition")
        ));
    }
    if !device.holders.is_empty() {
        obstacles.push(format!("{} is built on it", device.holders.join(", ")));
    }
    if ["swap", "LVM2_member", "linux_raid_member", "crypto_LUKS"]
        .contains(&device.content.as_str())
    {
        obstacles.push(format!("it holds {}", device.content));
    }
    if !duplicates.is_empty() {
        obstacles.push(format!(
            "{} has the same identity: two ways to one disk, or a copy of it",
            duplicates.join(", ")
        ));
    }
    if *identity == Identity::None {
        obstacles.push(
            "nothing tells it apart after a reboot: make a file system on it, or give it a serial number".to_owned(),
        );
    }
    let system = ["/", "/boot", "/boot/efi", "/usr", "/var", "[SWAP]"];
    let mounted: Vec<&str> = device
        .mounts
        .iter()
        .map(String::as_str)
        .filter(|at| system.contains(at))
        .collect();
    if !mounted.is_empty() {
        obstacles.push(format!("the system runs from it ({})", mounted.join(", ")));
    }
    obstacles
}

/// The next thing to do with a device that can be used.
fn how(device: &Device) -> String {
    match (device.mounts.first(), device.content.as_str()) {
        (Some(place), _) => format!("mounted: lariat disk add NODE {} {place}", device.name),
        (None, "") => format!(
            "empty: mkfs.ext4 /dev/{}, mount it, then lariat disk add",
            device.name
        ),
        (None, content) => format!("has {content}: mount it, then lariat disk add"),
    }
}

/// A rule for udev, with what it would do here.
fn udev_rule(devices: &[Device]) -> String {
    let gains: Vec<String> = devices
        .iter()
        .filter(|device| device.wwn.is_empty() && !device.serial.is_empty())
        .map(|device| {
            format!(
                "#   /dev/{} becomes {DERIVED_PREFIX}{}\n",
                device.name, device.serial
            )
        })
        .collect();
    let here = if gains.is_empty() {
        "#   none: every disk here has a World Wide Name, or has no serial number either\n"
            .to_owned()
    } else {
        gains.concat()
    };
    format!(
        "# Gives disks that have a serial number but no World Wide Name a name that is derived from it.\n\
         # Put this into /etc/udev/rules.d/61-lariat-serial-wwn.rules, then:\n\
         #   udevadm control --reload && udevadm trigger --subsystem-match=block --action=change\n\
         # It runs after 60-persistent-storage.rules, which finds out serial numbers, and so makes its own link.\n\
         # On this machine:\n\
         {here}\
         ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{{DEVTYPE}}==\"disk\", KERNEL==\"sd*|vd*|xvd*|nvme*\", \\\n  \
         ENV{{ID_SERIAL}}==\"?*\", ENV{{ID_WWN}}!=\"?*\", ENV{{ID_WWN_WITH_EXTENSION}}!=\"?*\", \\\n  \
         ENV{{ID_WWN}}=\"{DERIVED_PREFIX}$env{{ID_SERIAL}}\", ENV{{ID_WWN_WITH_EXTENSION}}=\"{DERIVED_PREFIX}$env{{ID_SERIAL}}\", \\\n  \
         SYMLINK+=\"disk/by-id/wwn-{DERIVED_PREFIX}$env{{ID_SERIAL}}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::sample;
    use crate::output::{Screen, golden, list};

    fn device(name: &str) -> Device {
        Device {
            name: name.to_owned(),
            size_bytes: 1 << 40,
            ..Device::default()
        }
    }

    fn machine() -> Vec<Device> {
        let text = str::to_owned;
        vec![
            Device {
                wwn: text("naa.5000c500a1b2c3d4"),
                partitions: 3,
                mounts: vec![text("/boot"), text("/")],
                ..device("sda")
            },
            Device {
                wwn: text("naa.5000c500ffffffff"),
                model: text("ST4000"),
                ..device("sdb")
            },
            Device {
                serial: text("WD-1234"),
                content: text("ext4"),
                file_system_uuid: text("11-22"),
                mounts: vec![text("/srv/data")],
                ..device("sdc")
            },
            Device {
                wwn: text("fake.RAID-7"),
                content: text("xfs"),
                ..device("sdd")
            },
            Device {
                content: text("ext4"),
                file_system_uuid: text("aa-bb"),
                ..device("sde")
            },
            Device {
                content: text("ext4"),
                file_system_uuid: text("aa-bb"),
                ..device("sdf")
            },
            device("sdg"),
            Device {
                wwn: text("eui.0025385b71b00001"),
                content: text("LVM2_member"),
                holders: vec![text("dm-0")],
                ..device("nvme0n1")
            },
            Device {
                wwn: text("t10.ATA_QEMU_1"),
                read_only: true,
                removable: true,
                size_bytes: 1 << 20,
                ..device("sr0")
            },
            Device {
                serial: text("x"),
                problem: Some(text("it does not answer")),
                ..device("sdh")
            },
        ]
    }

    #[test]
    fn devices_are_judged_by_their_identity_and_their_use() {
        let rows = judge(&machine());
        let text = list(&rows, None, Screen::default(), sample::now()).unwrap();
        golden::check("disk-identify", &text);
        let text = list(
            &rows,
            Some(output::Format::Json),
            Screen::default(),
            sample::now(),
        )
        .unwrap();
        golden::check("disk-identify-json", &text);
    }

    #[test]
    fn the_rule_names_the_disks_that_gain_by_it() {
        golden::check("disk-identify-udev-rule", &udev_rule(&machine()));
        golden::check("disk-identify-udev-rule-none", &udev_rule(&[]));
    }
}
