//! The kernel's table of mounts.

use std::io;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`, as far as it is needed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `MAJOR:MINOR` of what is mounted.
    pub device: String,
    /// Which part of the file system is mounted: `/` for all of it.
    pub root: PathBuf,
    pub target: PathBuf,
    pub kind: String,
    pub source: String,
}

/// Everything that is mounted now, in the order in which it was mounted.
pub fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read_to_string("/proc/self/mountinfo")?))
}

/// What is mounted below a folder.
pub fn below(folder: &Path) -> io::Result<Vec<Mount>> {
    let mut mounts = read()?;
    mounts.retain(|mount| mount.target.starts_with(folder));
    Ok(mounts)
}

/// What is mounted from a block device: its file system, and the device itself where it is bound to a path.
pub fn of_device(device: &Path) -> io::Result<Vec<Mount>> {
    let number = device_number(device)?;
    let node = device.file_name().map(|name| Path::new("/").join(name));
    let mut mounts = read()?;
    mounts.retain(|mount| {
        let bound = mount.kind.ends_with("tmpfs") && Some(&mount.root) == node.as_ref();
        mount.device == number || bound
    });
    Ok(mounts)
}

/// `MAJOR:MINOR` of a block device, as the table writes it.
pub fn device_number(device: &Path) -> io::Result<String> {
    let number = rustix::fs::stat(device)?.st_rdev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    Ok(format!("{major}:{minor}"))
}

/// The loop devices over a file, also when the file's name is gone.
pub fn loops_over(file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Only a loop device that is set up has this file.
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = backing.trim_end().trim_end_matches(" (deleted)");
        if Path::new(backing) == file {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}

fn parse(table: &str) -> Vec<Mount> {
    table.lines().filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let device = left.next()?.to_owned();
    let root = PathBuf::from(unescape(left.next()?));
    let target = PathBuf::from(unescape(left.next()?));
    let mut right = right.split(' ');
    Some(Mount {
        device,
        root,
        target,
        kind: right.next()?.to_owned(),
        source: unescape(right.next()?),
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read() {
        let table = "36 35 98:0 / /mnt\\0402 rw,noatime master:1 - ext4 /dev/loop3 rw\n\
                     37 35 0:5 /loop3 /pods/u/dev rw - devtmpfs udev rw\nnonsense\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].target, Path::new("/mnt 2"));
        assert_eq!(
            (mounts[0].device.as_str(), mounts[0].source.as_str()),
            ("98:0", "/dev/loop3")
        );
        assert_eq!(mounts[1].root, Path::new("/loop3"));
    }
}
