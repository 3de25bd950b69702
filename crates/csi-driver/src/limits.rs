//! What every request is checked for before anything else: fields that must be there, and sizes that the
//! CSI specification bounds. Pure.

use std::collections::HashMap;

use tonic::Status;

/// The specification's limit for strings such as names and ids.
pub const STRING_BYTES_MAX: usize = 128;
/// The specification's limit for maps: keys and values together.
pub const MAP_BYTES_MAX: usize = 4096;
/// What the kernel takes for a path.
pub const PATH_BYTES_MAX: usize = 4096;
/// More capabilities than there are access modes and access types repeat themselves.
const CAPABILITIES_MAX: usize = 64;
/// How much of a refused text an error repeats; the text may come from anyone.
const SHOWN_CHARACTERS_MAX: usize = 64;

/// The beginning of a text, for an error's message.
pub fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARACTERS_MAX).collect()
}

/// A name or id that must be there.
pub fn required<'a>(field: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    optional(field, value)
}

/// A name or id that may be empty.
pub fn optional<'a>(field: &str, value: &'a str) -> Result<&'a str, Status> {
    bounded(field, value, STRING_BYTES_MAX)
}

fn bounded<'a>(field: &str, value: &'a str, bytes_max: usize) -> Result<&'a str, Status> {
    if value.len() > bytes_max {
        return Err(Status::invalid_argument(format!(
            "{field} has {} bytes, at most {bytes_max} are allowed",
            value.len()
        )));
    }
    if value.contains('\0') {
        return Err(Status::invalid_argument(format!(
            "{field} contains a zero byte"
        )));
    }
    Ok(value)
}

/// An absolute path without `..`, that must be there.
pub fn path<'a>(field: &str, value: &'a str) -> Result<&'a std::path::Path, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    let path = std::path::Path::new(bounded(field, value, PATH_BYTES_MAX)?);
    let goes_up = path
        .components()
        .any(|part| part == std::path::Component::ParentDir);
    if !path.is_absolute() || goes_up {
        return Err(Status::invalid_argument(format!(
            "{field} {:?} must be an absolute path without \"..\"",
            shown(value)
        )));
    }
    if path.parent().is_none() {
        return Err(Status::invalid_argument(format!(
            "{field} must not be the root folder"
        )));
    }
    Ok(path)
}

/// A path at which something should be; one that can hold nothing is for the caller to find empty.
pub fn any_path<'a>(field: &str, value: &'a str) -> Result<&'a std::path::Path, Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    bounded(field, value, PATH_BYTES_MAX).map(std::path::Path::new)
}

/// A map, such as parameters. Never shows values: some maps hold secrets.
pub fn map(field: &str, values: &HashMap<String, String>) -> Result<(), Status> {
    let bytes: usize = values
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if bytes > MAP_BYTES_MAX {
        return Err(Status::invalid_argument(format!(
            "{field} has {bytes} bytes, at most {MAP_BYTES_MAX} are allowed"
        )));
    }
    Ok(())
}

/// A list of capabilities that must not be empty.
pub fn capabilities<T>(field: &str, values: &[T]) -> Result<(), Status> {
    match values.len() {
        0 => Err(Status::invalid_argument(format!("{field} is missing"))),
        1..=CAPABILITIES_MAX => Ok(()),
        count => Err(Status::invalid_argument(format!(
            "{field} has {count} entries, at most {CAPABILITIES_MAX} are allowed"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[track_caller]
    fn check<T: std::fmt::Debug>(result: Result<T, Status>, expected: Result<(), &str>) {
        match (result, expected) {
            (Ok(_), Ok(())) => {}
            (Err(status), Err(part)) => {
                assert_eq!(status.code(), Code::InvalidArgument);
                assert!(status.message().contains(part), "{status}");
            }
            (result, expected) => panic!("{result:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn strings_are_there_and_short() {
        check(required("volume_id", "pvc-1"), Ok(()));
        check(required("volume_id", ""), Err("volume_id is missing"));
        check(required("volume_id", &"x".repeat(128)), Ok(()));
        check(
            required("volume_id", &"x".repeat(129)),
            Err("has 129 bytes"),
        );
        check(required("volume_id", "a\0b"), Err("zero byte"));
        check(optional("node_id", ""), Ok(()));
    }

    #[test]
    fn paths_are_absolute_and_do_not_climb() {
        check(path("target_path", "/var/lib/kubelet/x"), Ok(()));
        check(path("target_path", ""), Err("target_path is missing"));
        check(path("target_path", "relative"), Err("absolute"));
        check(path("target_path", "/a/../etc"), Err("without \"..\""));
        check(path("target_path", "/"), Err("root folder"));
        check(
            path("target_path", &format!("/{}", "x".repeat(4096))),
            Err("4097 bytes"),
        );
    }

    #[test]
    fn maps_and_lists_are_bounded_and_values_stay_unseen() {
        let entry = |bytes: usize| HashMap::from([("key".to_owned(), "s".repeat(bytes))]);
        check(map("secrets", &entry(4093)), Ok(()));
        check(map("secrets", &entry(4094)), Err("secrets has 4097 bytes"));
        check(capabilities::<u8>("capabilities", &[]), Err("is missing"));
        check(capabilities("capabilities", &[0; 64]), Ok(()));
        check(capabilities("capabilities", &[0; 65]), Err("65 entries"));
    }
}
