//! The machine that this process runs on.

use std::sync::OnceLock;

use block_core::wire::HostBoot;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Which start of the machine this is. What was written to files survives the end of a process, not that of the machine.
pub fn host_boot() -> HostBoot {
    static BOOT: OnceLock<HostBoot> = OnceLock::new();
    // A machine that does not say is taken for one that never starts again, as all were before this was asked.
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        parse(&text).unwrap_or_default()
    })
}

/// A UUID as the kernel writes it.
fn parse(text: &str) -> Option<HostBoot> {
    let digits: String = text.trim().chars().filter(|digit| *digit != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_name_of_its_start_is_read() {
        let boot = parse("00112233-4455-6677-8899-aabbccddeeff\n").expect("a name");
        assert_eq!((boot[0], boot[1], boot[15]), (0x00, 0x11, 0xff));
        assert_eq!(parse(""), None);
        assert_eq!(parse("0011"), None);
        assert_ne!(host_boot(), HostBoot::default(), "this machine has one");
    }
}
