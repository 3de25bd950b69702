//! What a node needs of this machine.

use anyhow::{Result, bail};

/// `CAP_SYS_ADMIN`, by its number in the kernel: to mount, and to set up devices.
const SYS_ADMIN: u32 = 21;

/// Refuses a node that could never mount a volume, before it tells the cluster that it can. `instead` is what else there
/// is to try.
pub(crate) fn require_for_nodes(instead: &str) -> Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if may_mount(&status) == Some(false) {
        bail!(
            "a node mounts file systems and sets up devices, which this account may not do (it lacks CAP_SYS_ADMIN); \
             run it as root{instead}"
        );
    }
    Ok(())
}

/// Nothing where the kernel does not say.
fn may_mount(status: &str) -> Option<bool> {
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    Some(effective >> SYS_ADMIN & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::may_mount;

    #[test]
    fn the_kernel_says_who_may_mount() {
        let check = |status: &str, expected| assert_eq!(may_mount(status), expected, "{status}");
        check(
            "Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n",
            Some(true),
        );
        check(
            "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n",
            Some(false),
        );
        check("CapEff:\t000001ffffdfffff\n", Some(false));
        check("CapEff:\t0000000000200000\n", Some(true));
        check("", None);
    }
}
