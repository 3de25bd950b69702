//! File systems on a device: which one is there, making one, checking it, growing it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use tokio::time::Instant;
use tonic::Status;

use super::device::Device;
use super::effects::blocking;
use super::refusal::{Refusal, is_about_content};
use super::tool::run;

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing, as far as anyone can tell: no signature that blkid knows, and zeros where any format begins or ends.
    Blank,
    /// The file system of this name.
    FileSystem(String),
    /// An xfs whose making was cut off. The kernel never mounts it, so that no file can be in it.
    UnfinishedXfs,
    /// Bytes that nothing is known of. What is left of an ext4 whose making was cut off looks like this, for mkfs.ext4 writes its
    /// superblock last; so does a database that needs no file system.
    Unknown,
    /// A signature or table of something else, as part of a sentence. No mkfs of ours leaves one on a blank device.
    Foreign(String),
}

/// How much must be zero at the beginning: boot sectors, partition tables, superblocks and volume managers' labels are in it.
const HEAD_BYTES: u64 = 1 << 20;
/// The same at the end, where backup partition tables and software RAID keep theirs.
const TAIL_BYTES: u64 = 1 << 17;
/// Where an xfs superblock says that it is being made.
const XFS_IN_PROGRESS_OFFSET: u64 = 126;

/// Looks at a device without the cache of earlier looks.
pub async fn probe(device: &Device, deadline: Instant) -> Result<Content, Status> {
    let path = device.path.as_os_str();
    let options = ["-p", "-o", "export", "--"];
    let arguments = options.iter().map(std::ffi::OsStr::new).chain([path]);
    let answer = run("blkid", arguments).await?;
    let failed = |error: &dyn std::fmt::Display| {
        Status::internal(format!("cannot read {}: {error}", device.path.display()))
    };
    let content = judge(answer.code, &answer.stdout).ok_or_else(|| {
        failed(&format_args!(
            "blkid ended with {}: {}",
            answer.code, answer.complaint
        ))
    })?;
    let path = device.path.clone();
    let refined = blocking("read a device", deadline, move || refine(&path, content));
    refined.await?.map_err(|error| failed(&error))
}

/// What blkid's answer means; None if it could not tell.
fn judge(code: i32, stdout: &str) -> Option<Content> {
    let value = |name: &str| {
        let found = stdout.lines().find_map(|line| line.strip_prefix(name));
        found
            .and_then(|rest| rest.strip_prefix('='))
            .map(str::to_owned)
    };
    match code {
        0 => Some(match (value("TYPE"), value("PTTYPE")) {
            (Some(kind), _) if value("USAGE").is_none_or(|usage| usage == "filesystem") => {
                Content::FileSystem(kind)
            }
            (Some(kind), _) => Content::Foreign(format!("a signature of {kind}")),
            (None, Some(table)) => Content::Foreign(format!("a partition table ({table})")),
            (None, None) => Content::Foreign("a signature without a type".to_owned()),
        }),
        2 => Some(Content::Blank),
        8 => Some(Content::Foreign(
            "signatures of more than one format".to_owned(),
        )),
        _ => None,
    }
}

/// Believes "nothing" only when there are zeros, and looks whether an xfs was finished.
fn refine(path: &Path, content: Content) -> io::Result<Content> {
    let file = File::open(path)?;
    match content {
        Content::Blank => {
            let end = {
                use std::io::{Seek as _, SeekFrom};
                (&file).seek(SeekFrom::End(0))?
            };
            let tail = end.saturating_sub(TAIL_BYTES);
            if is_zero(&file, 0, HEAD_BYTES.min(end))? && is_zero(&file, tail, end - tail)? {
                return Ok(Content::Blank);
            }
            Ok(Content::Unknown)
        }
        Content::FileSystem(kind) if kind == "xfs" => {
            let mut flag = [0_u8];
            file.read_exact_at(&mut flag, XFS_IN_PROGRESS_OFFSET)?;
            Ok(if flag == [1] {
                Content::UnfinishedXfs
            } else {
                Content::FileSystem(kind)
            })
        }
        other => Ok(other),
    }
}

fn is_zero(file: &File, start: u64, bytes: u64) -> io::Result<bool> {
    let mut buffer = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
    file.read_exact_at(&mut buffer, start)?;
    Ok(buffer.iter().all(|&byte| byte == 0))
}

/// Makes a file system on a device that was found blank or half-made. Hardly a block was written, so that discarding them gains
/// nothing and costs a pass over the device; ext4 zeroes its tables in the background after the mount.
pub(super) async fn make(device: &Device, kind: &str) -> Result<(), Refusal> {
    let path = device.path.as_os_str();
    let options: &[&str] = match kind {
        "xfs" => &["-f", "-K", "-q", "--"],
        _ => &[
            "-F",
            "-q",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=1,lazy_journal_init=1,nodiscard",
            "--",
        ],
    };
    let arguments = options.iter().map(std::ffi::OsStr::new).chain([path]);
    let answer = run(&format!("mkfs.{kind}"), arguments).await?;
    if answer.code == 0 {
        return Ok(());
    }
    let status = Status::internal(format!(
        "mkfs.{kind} of {} ended with {}: {}",
        device.path.display(),
        answer.code,
        answer.complaint
    ));
    Err(Refusal::of_tool(&answer, device, status).await)
}

/// Repairs what can be repaired without a person. xfs does that at every mount.
pub(super) async fn check(device: &Device, kind: &str) -> Result<(), Refusal> {
    if kind == "xfs" {
        return Ok(());
    }
    let arguments = [std::ffi::OsStr::new("-p"), device.path.as_os_str()];
    let answer = run("e2fsck", arguments).await?;
    let path = device.path.display();
    let ended = format!("e2fsck -p ended with {}: {}", answer.code, answer.complaint);
    match judge_check(answer.code) {
        Checked::Sound => Ok(()),
        Checked::Refused if is_about_content(&answer, device).await => {
            Err(Refusal::OfVolume(Status::failed_precondition(format!(
                "the file system on {path} has errors that a person must decide about: run \"e2fsck -f {path}\" on this node, after a snapshot of the volume; {ended}"
            ))))
        }
        Checked::Refused | Checked::Unknown => Err(Refusal::Other(Status::unavailable(format!(
            "the file system on {path} could not be checked, and is not mounted before it is: {ended}"
        )))),
    }
}

/// What a check has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checked {
    Sound,
    /// There are errors that are not corrected without a person, or nothing can be made of it at all: a superblock that is damaged, or a
    /// device that does not answer.
    Refused,
    /// The check itself was ended, or asked for wrongly.
    Unknown,
}

/// Bits, as e2fsck(8) lists them; negative if a signal has ended it.
fn judge_check(code: i32) -> Checked {
    match code {
        // 1 and 2: errors were found and corrected.
        0..4 => Checked::Sound,
        4.. if code & (4 | 8) != 0 => Checked::Refused,
        _ => Checked::Unknown,
    }
}

/// Mounts with the options of the capability.
pub(super) async fn mount(
    device: &Device,
    kind: &str,
    options: &[String],
    target: &Path,
) -> Result<(), Refusal> {
    let joined = options.join(",");
    let mut arguments = vec!["-t", kind];
    if !joined.is_empty() {
        arguments.extend(["-o", &joined]);
    }
    let arguments = arguments.into_iter().map(std::ffi::OsStr::new);
    let paths = [
        std::ffi::OsStr::new("--"),
        device.path.as_os_str(),
        target.as_os_str(),
    ];
    let answer = run("mount", arguments.chain(paths)).await?;
    if answer.code == 0 {
        return Ok(());
    }
    let status = Status::internal(format!(
        "cannot mount {} ({kind}, options {joined:?}) at {}: {}",
        device.path.display(),
        target.display(),
        answer.complaint
    ));
    Err(Refusal::of_tool(&answer, device, status).await)
}

/// Grows an ext4 that is not mounted, if its device has grown by more than a block group. Not needed for xfs, and not for an ext4
/// that may be grown while it is mounted; but in many containers it may not.
pub async fn grow_unmounted(device: &Device, kind: &str) -> Result<(), Status> {
    if kind != "ext4" {
        return Ok(());
    }
    let path = device.path.as_os_str();
    let described = run("dumpe2fs", [std::ffi::OsStr::new("-h"), path]).await?;
    let device_bytes = device.bytes().unwrap_or(0);
    let needed = ext4_bytes(&described.stdout)
        .is_some_and(|(bytes, group_bytes)| device_bytes >= bytes.saturating_add(group_bytes));
    if !needed {
        return Ok(());
    }
    // resize2fs wants a full check first, and a file system that fails it should not be touched.
    let checked = run("e2fsck", [std::ffi::OsStr::new("-fp"), path]).await?;
    if !(0..4).contains(&checked.code) {
        tracing::warn!(device = %device.path.display(), complaint = checked.complaint, "the file system is not grown, because a full check failed");
        return Ok(());
    }
    let answer = run("resize2fs", [path]).await?;
    if answer.code != 0 {
        tracing::warn!(device = %device.path.display(), complaint = answer.complaint, "the file system is not grown");
    }
    Ok(())
}

/// The size of an ext4 and of one of its block groups, as dumpe2fs describes it.
fn ext4_bytes(description: &str) -> Option<(u64, u64)> {
    let value = |name: &str| {
        let rest = description
            .lines()
            .find_map(|line| line.strip_prefix(name))?;
        rest.trim().parse::<u64>().ok()
    };
    let block = value("Block size:")?;
    let bytes = value("Block count:")?.checked_mul(block)?;
    Some((bytes, value("Blocks per group:")?.checked_mul(block)?))
}

/// Grows a mounted file system to its device. Does nothing when it is that large already.
pub async fn grow(device: &Device, kind: &str, target: &Path) -> Result<(), Status> {
    let answer = match kind {
        "ext4" => run("resize2fs", [device.path.as_os_str()]).await?,
        "xfs" => run("xfs_growfs", [target.as_os_str()]).await?,
        other => {
            return Err(Status::failed_precondition(format!(
                "a file system of type {other} cannot be grown"
            )));
        }
    };
    if answer.code == 0 {
        return Ok(());
    }
    let sentence = format!(
        "cannot grow the {kind} on {}: {}",
        device.path.display(),
        answer.complaint
    );
    if kind == "ext4" && answer.complaint.contains("Permission denied") {
        return Err(Status::failed_precondition(format!(
            "{sentence}; growing a mounted ext4 needs CAP_SYS_RESOURCE: give it to the node service, or restart the pod, and the file system grows before it is mounted again"
        )));
    }
    Err(Status::internal(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blkids_answers_are_understood() {
        let check = |code: i32, stdout: &str, expected: Option<Content>| {
            assert_eq!(judge(code, stdout), expected, "{code} {stdout}");
        };
        let foreign = |sentence: &str| Some(Content::Foreign(sentence.to_owned()));
        let ext4 = "DEVNAME=/dev/loop0\nUUID=x\nTYPE=ext4\nUSAGE=filesystem\n";
        check(0, ext4, Some(Content::FileSystem("ext4".to_owned())));
        check(
            0,
            "TYPE=LVM2_member\nUSAGE=raid\n",
            foreign("a signature of LVM2_member"),
        );
        check(
            0,
            "TYPE=crypto_LUKS\nUSAGE=crypto\n",
            foreign("a signature of crypto_LUKS"),
        );
        check(
            0,
            "PTUUID=x\nPTTYPE=gpt\n",
            foreign("a partition table (gpt)"),
        );
        check(0, "", foreign("a signature without a type"));
        check(2, "", Some(Content::Blank));
        check(8, "", foreign("signatures of more than one format"));
        check(4, "", None);
        check(-1, "", None);
    }

    #[test]
    fn only_errors_that_stay_are_refused() {
        for (code, expected) in [
            (0, Checked::Sound),
            (1, Checked::Sound),
            (3, Checked::Sound),
            (4, Checked::Refused),
            (4 | 1, Checked::Refused),
            (4 | 8, Checked::Refused),
            (8, Checked::Refused),
            (16, Checked::Unknown),
            (32, Checked::Unknown),
            (128, Checked::Unknown),
            (-1, Checked::Unknown),
        ] {
            assert_eq!(judge_check(code), expected, "{code}");
        }
    }

    #[test]
    fn dumpe2fs_tells_the_size() {
        let text = "Block count:              131072\nBlock size:               4096\nBlocks per group:         32768\n";
        assert_eq!(ext4_bytes(text), Some((512 << 20, 128 << 20)));
        assert_eq!(ext4_bytes("Block size: 4096\n"), None);
        assert_eq!(ext4_bytes(""), None);
    }

    #[test]
    fn only_zeros_are_blank() {
        let check = |bytes: u64, written: &[u64], expected: Content| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            file.as_file().set_len(bytes).expect("a size");
            for &at in written {
                file.as_file().write_all_at(&[1], at).expect("a write");
            }
            let found = refine(file.path(), Content::Blank).expect("readable");
            assert_eq!(found, expected, "{bytes} {written:?}");
        };
        check(4 << 20, &[], Content::Blank);
        check(4096, &[], Content::Blank);
        check(4 << 20, &[0], Content::Unknown);
        check(4 << 20, &[(1 << 20) - 1], Content::Unknown);
        check(4 << 20, &[(4 << 20) - 1], Content::Unknown);
        check(4096, &[4095], Content::Unknown);
    }
}
