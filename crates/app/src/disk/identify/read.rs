//! Reads what the kernel, udev and the devices themselves say. Decides nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Result, anyhow};

use super::Device;

const SYS_BLOCK: &str = "/sys/block";
const MOUNT_TABLE: &str = "/proc/self/mountinfo";
const UDEV_DATA: &str = "/run/udev/data";
/// Every signature that is looked for is within this.
const PROBED_BYTES: u64 = 72 * 1024;
const SECTOR_BYTES: u64 = 512;
/// No machine has more; a broken driver might pretend to.
const DEVICES_MAX: usize = 4096;

/// All whole disks of this machine, in the order of names.
pub(super) fn devices() -> Result<Vec<Device>> {
    let mounts = mounts();
    let names = names(Path::new(SYS_BLOCK))?;
    let devices = names.iter().map(|name| device(name, &mounts));
    // A loop or ram device without content is a place for one, and no device.
    Ok(devices.filter(|device| device.size_bytes > 0).collect())
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(|error| {
        let folder = folder.display();
        anyhow!("cannot list block devices in {folder}: {error}; is /sys mounted?")
    })?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .take(DEVICES_MAX)
        .collect();
    names.sort();
    Ok(names)
}

fn device(name: &str, mounts: &BTreeMap<String, Vec<String>>) -> Device {
    let folder = Path::new(SYS_BLOCK).join(name);
    let text = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0')
            .to_owned()
    };
    let number = |file: &str| text(file).parse::<u64>().unwrap_or(0);
    let numbers = text("dev");
    let udev = udev(&numbers);
    let known = |keys: &[&str]| {
        keys.iter()
            .find_map(|key| udev.get(*key).cloned())
            .unwrap_or_default()
    };
    let first = |values: [String; 3]| {
        values
            .into_iter()
            .find(|value| !value.is_empty())
            .unwrap_or_default()
    };
    let partitions = partitions(&folder);
    let mut mounted: Vec<String> = mounts.get(&numbers).cloned().unwrap_or_default();
    for partition in &partitions {
        mounted.extend(mounts.get(partition).cloned().unwrap_or_default());
    }
    let backing_file = Some(text("loop/backing_file")).filter(|file| !file.is_empty());
    let mut device = Device {
        name: name.to_owned(),
        size_bytes: number("size").saturating_mul(SECTOR_BYTES),
        removable: number("removable") == 1,
        read_only: number("ro") == 1,
        model: first([text("device/model"), known(&["ID_MODEL"]), String::new()]),
        wwn: first([
            known(&["ID_WWN_WITH_EXTENSION", "ID_WWN"]),
            text("wwid"),
            text("device/wwid"),
        ]),
        serial: first([known(&["ID_SERIAL"]), text("serial"), text("device/serial")]),
        content: known(&["ID_FS_TYPE"]),
        file_system_uuid: known(&["ID_FS_UUID"]),
        partitions: partitions.len(),
        mounts: mounted,
        holders: holders(&folder),
        backing_file,
        problem: None,
    };
    if device.content.is_empty() && device.size_bytes > 0 {
        let mount_table = fs::read_to_string(MOUNT_TABLE).unwrap_or_default();
        probe(&mut device, Path::new("/dev"), &mount_table);
    }
    device
}

/// The device numbers of the partitions.
fn partitions(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().join("partition").exists())
        .map(|entry| {
            fs::read_to_string(entry.path().join("dev"))
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .collect()
}

fn holders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("holders"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// What udev has found out, if it runs here.
fn udev(numbers: &str) -> BTreeMap<String, String> {
    let text =
        fs::read_to_string(Path::new(UDEV_DATA).join(format!("b{numbers}"))).unwrap_or_default();
    let pairs = text
        .lines()
        .filter_map(|line| line.strip_prefix("E:")?.split_once('='));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Where each device is mounted, by its numbers.
fn mounts() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(MOUNT_TABLE).unwrap_or_default();
    let mut mounts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let (Some(numbers), Some(place)) = (words.get(2), words.get(4)) {
            let places = mounts.entry((*numbers).to_owned()).or_default();
            if !places.iter().any(|known| known == place) {
                places.push((*place).to_owned());
            }
        }
    }
    mounts
}

/// Looks at the device itself, for machines without udev. A file on a FUSE file system may be served by a process that
/// hangs, and reading would hang with it: such a device is left alone.
fn probe(device: &mut Device, devices: &Path, mount_table: &str) {
    if let Some(file) = &device.backing_file
        && is_on_fuse(file, mount_table)
    {
        device.problem =
            Some("it is a volume's own device, or a file that another process serves".to_owned());
        return;
    }
    let path = devices.join(&device.name);
    let mut head = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(PROBED_BYTES).read_to_end(&mut head));
    match read {
        Ok(_) => {
            if let Some((content, uuid)) = signature(&head) {
                content.clone_into(&mut device.content);
                device.file_system_uuid = uuid;
            }
        }
        Err(error) => {
            device.problem = Some(format!(
                "{} cannot be read ({error}); run this as root on the host",
                path.display()
            ));
        }
    }
}

fn is_on_fuse(file: &str, mount_table: &str) -> bool {
    let longest = mount_table
        .lines()
        .filter_map(|line| {
            let place = line.split(' ').nth(4)?;
            let kind = line.split(" - ").nth(1)?.split(' ').next()?;
            let is_inside =
                file == place || file.starts_with(&format!("{}/", place.trim_end_matches('/')));
            is_inside.then_some((place.len(), kind))
        })
        .max_by_key(|(length, _)| *length);
    longest.is_some_and(|(_, kind)| kind.starts_with("fuse"))
}

/// What is on a device, from its beginning: type and UUID, in the words of blkid.
fn signature(head: &[u8]) -> Option<(&'static str, String)> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    let uuid = |offset: usize| {
        let bytes: Option<[u8; 16]> = head
            .get(offset..offset + 16)
            .and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(|bytes| uuid::Uuid::from_bytes(bytes).hyphenated().to_string())
            .unwrap_or_default()
    };
    match () {
        () if at(0x438, &[0x53, 0xef]) => Some(("ext4", uuid(0x468))),
        () if at(0, b"XFSB") => Some(("xfs", uuid(32))),
        () if at(0x10040, b"_BHRfS_M") => Some(("btrfs", uuid(0x10020))),
        () if at(4086, b"SWAPSPACE2") => Some(("swap", uuid(1036))),
        () if at(0, b"LUKS\xba\xbe") => Some(("crypto_LUKS", String::new())),
        () if at(512, b"LABELONE") => Some(("LVM2_member", String::new())),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;
    use crate::inventory::sample;
    use crate::output::{Screen, golden, list};

    #[test]
    fn what_cannot_be_looked_at_is_said_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let devices = folder.path();
        // The root is on a disk; below /dev/longhorn a process serves files.
        let mount_table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             31 22 0:40 / /dev/longhorn rw - fuse.lariat lariat rw\n";
        let probed = |name: &str, backing_file: Option<&str>| {
            let mut device = Device {
                name: name.to_owned(),
                serial: name.to_owned(),
                size_bytes: 1 << 40,
                backing_file: backing_file.map(str::to_owned),
                ..Device::default()
            };
            probe(&mut device, devices, mount_table);
            device
        };
        let mut head = vec![0; 4096];
        head[..4].copy_from_slice(b"XFSB");
        for name in ["loop1", "sda"] {
            fs::write(devices.join(name), &head).expect("a device");
        }
        let found = [
            probed("loop0", Some("/dev/longhorn/v/image")),
            probed("loop1", Some("/srv/image")),
            probed("sda", None),
            probed("sdb", None),
        ];
        let rows = super::super::judge(&found);
        let mut page = list(&rows, None, Screen::default(), sample::now()).expect("a table");
        let refused = names(&devices.join("block")).expect_err("no such folder");
        page += &(exit::told(&refused) + "\n");
        golden::check(
            "disk-identify-problems",
            &page.replace(&devices.display().to_string(), "FOLDER"),
        );
    }

    #[test]
    fn signatures_are_those_of_blkid() {
        let check = |marks: &[(usize, &[u8])], expected: Option<(&str, &str)>| {
            let mut head = vec![0; 72 * 1024];
            for (offset, bytes) in marks {
                head[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            let found = signature(&head);
            let found = found.as_ref().map(|(kind, uuid)| (*kind, uuid.as_str()));
            assert_eq!(found, expected);
        };
        let uuid: Vec<u8> = (1..=16).collect();
        let text = "01020304-0506-0708-090a-0b0c0d0e0f10";
        check(
            &[(0x438, &[0x53, 0xef]), (0x468, &uuid)],
            Some(("ext4", text)),
        );
        check(&[(0, b"XFSB"), (32, &uuid)], Some(("xfs", text)));
        check(
            &[(0x10040, b"_BHRfS_M"), (0x10020, &uuid)],
            Some(("btrfs", text)),
        );
        check(&[(512, b"LABELONE")], Some(("LVM2_member", "")));
        check(&[], None);
        assert_eq!(signature(b"short"), None);
    }

    #[test]
    fn this_machine_can_be_read() {
        for device in devices().expect("a list of devices") {
            assert!(device.size_bytes > 0, "{device:?}");
        }
    }
}
