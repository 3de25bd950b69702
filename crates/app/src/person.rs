//! Who is at the keyboard, as far as this program can tell. It proves nothing; it helps the next person to ask the right one.

use controllers::history::Note;
use jiff::Timestamp;

/// `alice@desk`.
pub(crate) fn name() -> String {
    let of = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    let user = of("SUDO_USER")
        .or_else(|| of("USER"))
        .or_else(|| of("LOGNAME"));
    let user = user.unwrap_or_else(|| format!("uid-{}", rustix::process::geteuid().as_raw()));
    let machine = rustix::system::uname();
    format!("{user}@{}", machine.nodename().to_string_lossy())
}

/// What this person did to a volume's tickets, and why, for its history.
pub(crate) fn note(did: &str, why: &str, at: Timestamp) -> Note {
    Note {
        id: uuid::Uuid::new_v4().simple().to_string(),
        at,
        who: name(),
        did: did.to_owned(),
        why: why.to_owned(),
    }
}

/// The user without the machine, fit for a name in the API.
pub(crate) fn short_name(name: &str) -> String {
    let user = name.split('@').next().unwrap_or_default().to_lowercase();
    let fit: String = user
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .take(40)
        .collect();
    let fit = fit.trim_matches('-');
    if fit.is_empty() {
        "somebody".to_owned()
    } else {
        fit.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_api() {
        assert_eq!(short_name("Alice@desk"), "alice");
        assert_eq!(short_name("CORP\\bob.b@x"), "corp-bob-b");
        assert_eq!(short_name("é@x"), "somebody");
        assert!(name().contains('@'));
    }
}
