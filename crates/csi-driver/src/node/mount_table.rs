//! The kernel's table of mounts, `/proc/self/mountinfo`. Pure but for [`MountTable::read`].

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device of the file system, as major and minor number.
    pub device: (u32, u32),
    /// Which part of the file system is mounted.
    pub root: PathBuf,
    /// Where.
    pub target: PathBuf,
    /// Options of this mount, such as `ro` and `noatime`.
    pub options: Vec<String>,
    pub file_system: String,
    pub source: String,
    /// Options of the file system, wherever it is mounted.
    pub super_options: Vec<String>,
}

/// All mounts, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    pub mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table of this process. The kernel answers from memory, whatever state the mounts are in.
    pub fn read() -> std::io::Result<Self> {
        std::fs::read("/proc/self/mountinfo").map(|bytes| Self::parse(&bytes))
    }

    /// Parses a table. Lines that make no sense are left out: they are of a future kernel.
    pub fn parse(bytes: &[u8]) -> Self {
        let lines = bytes.split(|&byte| byte == b'\n');
        Self {
            mounts: lines.filter_map(parse_line).collect(),
        }
    }

    /// What is seen at a path: the newest of the mounts that are stacked there.
    pub fn at(&self, target: &Path) -> Option<&Mount> {
        self.mounts
            .iter()
            .rev()
            .find(|mount| mount.target == target)
    }

    /// Where a device is shown: the file system on it, or its node, which is a file of `/dev`'s file system.
    pub fn places_of(&self, device: &Path, number: (u32, u32)) -> Vec<&Path> {
        let node = device.file_name().map(|name| Path::new("/").join(name));
        let is_shown = |mount: &&Mount| {
            let is_node = mount.device.0 == 0
                && mount.file_system == "devtmpfs"
                && node.as_ref() == Some(&mount.root);
            mount.device == number || is_node
        };
        self.mounts
            .iter()
            .filter(is_shown)
            .map(|mount| mount.target.as_path())
            .collect()
    }

    /// Where else a device is mounted.
    pub fn others_of(&self, mount: &Mount) -> Vec<&Path> {
        let same = self
            .mounts
            .iter()
            .filter(|other| other.device == mount.device && other.target != mount.target);
        same.map(|other| other.target.as_path()).collect()
    }
}

impl Mount {
    pub fn is_read_only(&self) -> bool {
        has(&self.options, "ro")
    }

    /// Whether the whole file system cannot be written, which also happens by itself after an I/O error.
    pub fn is_super_read_only(&self) -> bool {
        has(&self.super_options, "ro")
    }
}

fn has(options: &[String], wanted: &str) -> bool {
    options.iter().any(|option| option == wanted)
}

/// `36 35 98:0 /root /target rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue`: between the options and the dash are any
/// number of optional fields.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (_id, _parent) = (fields.next()?, fields.next()?);
    let device = parse_device(&text(fields.next()?))?;
    let root = path(fields.next()?);
    let target = path(fields.next()?);
    let options = list(fields.next()?);
    fields.by_ref().find(|field| *field == b"-")?;
    Some(Mount {
        device,
        root,
        target,
        options,
        file_system: text(fields.next()?),
        source: text(fields.next()?),
        // A source may be empty, which leaves two spaces; options are always there.
        super_options: list(fields.next()?),
    })
}

/// `8:1`.
pub fn parse_device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn list(field: &[u8]) -> Vec<String> {
    text(field).split(',').map(str::to_owned).collect()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescaped(field)).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescaped(field)))
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        if let (b'\\', Some((digits, after))) = (byte, behind.split_at_checked(3))
            && let Some(value) = octal(digits)
        {
            bytes.push(value);
            rest = after;
            continue;
        }
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_of_line() {
        let check = |line: &str, expected: Option<(&str, &str, &str, &str)>| {
            let table = MountTable::parse(line.as_bytes());
            let found = table.mounts.first().map(|mount| {
                (
                    mount.root.to_str().expect("text"),
                    mount.target.to_str().expect("text"),
                    mount.file_system.as_str(),
                    mount.source.as_str(),
                )
            });
            assert_eq!(found, expected, "{line}");
        };
        let plain = "36 35 98:0 / /mnt rw,noatime - ext4 /dev/sda rw,errors=continue";
        check(plain, Some(("/", "/mnt", "ext4", "/dev/sda")));
        let shared = "36 35 98:0 /a /mnt rw master:1 shared:7 - xfs /dev/sdb rw";
        check(shared, Some(("/a", "/mnt", "xfs", "/dev/sdb")));
        let escaped = r"36 35 98:0 / /a\040b\011c\134d\012e rw - ext4 /dev/x\040y rw";
        check(escaped, Some(("/", "/a b\tc\\d\ne", "ext4", "/dev/x y")));
        let odd = r"36 35 98:0 / /a\04 rw - ext4 \999 rw";
        check(odd, Some(("/", r"/a\04", "ext4", r"\999")));
        let no_source = "36 35 0:5 / /proc rw - proc  rw";
        check(no_source, Some(("/", "/proc", "proc", "")));
        let device = "40 35 0:6 /loop0 /pods/x/block rw,nosuid - devtmpfs udev rw,size=4k";
        check(
            device,
            Some(("/loop0", "/pods/x/block", "devtmpfs", "udev")),
        );
        check("", None);
        check("36 35 98:0 / /mnt rw", None);
        check("36 35 x:0 / /mnt rw - ext4 a rw", None);
        check("36 35 98:0 / /mnt rw - ext4", None);
    }

    #[test]
    fn the_newest_of_a_stack_is_seen() {
        let table = MountTable::parse(
            b"1 0 7:1 / /a rw - ext4 /dev/loop1 rw\n\
              2 0 7:2 / /a ro,noatime - xfs /dev/loop2 rw\n\
              3 0 7:2 / /b rw - xfs /dev/loop2 ro\n",
        );
        let top = table.at(Path::new("/a")).expect("a mount");
        assert_eq!(top.device, (7, 2));
        assert!(top.is_read_only() && !top.is_super_read_only());
        assert_eq!(table.others_of(top), [Path::new("/b")]);
        assert!(
            table
                .at(Path::new("/b"))
                .expect("a mount")
                .is_super_read_only()
        );
        assert_eq!(table.at(Path::new("/c")), None);
    }

    #[test]
    fn a_device_is_found_as_a_file_system_and_as_a_node() {
        let table = MountTable::parse(
            b"1 0 7:1 / /staging rw - ext4 /dev/loop1 rw\n\
              2 0 7:1 / /pod rw - ext4 /dev/loop1 rw\n\
              3 0 7:2 / /other rw - ext4 /dev/loop2 rw\n\
              4 0 0:6 / /dev rw - devtmpfs udev rw\n\
              5 0 0:6 /loop1 /raw rw - devtmpfs udev rw\n\
              6 0 0:6 /loop2 /raw-other rw - devtmpfs udev rw\n",
        );
        let places = table.places_of(Path::new("/dev/loop1"), (7, 1));
        assert_eq!(
            places,
            [Path::new("/staging"), Path::new("/pod"), Path::new("/raw")]
        );
    }

    #[test]
    fn this_machine_has_a_root() {
        let table = MountTable::read().expect("/proc");
        assert!(table.at(Path::new("/")).is_some());
    }
}
