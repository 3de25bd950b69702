//! `format` of strings, as far as the real server checks it. Unknown formats accept anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Whether `text` has the named format.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => is_date_time(text),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "duration" => is_duration(text),
        "byte" => STANDARD.decode(text).is_ok(),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "hostname" => is_hostname(text),
        "email" => is_email(text),
        "uri" => is_uri(text),
        "hexcolor" => is_hex_colour(text),
        _ => true,
    }
}

fn is_date_time(text: &str) -> bool {
    // The parser also takes a blank or nothing where RFC 3339 has a `T`.
    let separated = matches!(text.as_bytes().get(10), Some(b'T' | b't'));
    separated && !text.ends_with(']') && text.parse::<jiff::Timestamp>().is_ok()
}

/// Go's durations (`1h30m`, `1.5s`, `-2ms`), which is what Kubernetes writes.
fn is_duration(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return true;
    }
    let mut rest = unsigned;
    while !rest.is_empty() {
        let number_bytes = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_bytes);
        if !number.contains(|c: char| c.is_ascii_digit()) || number.matches('.').count() > 1 {
            return false;
        }
        let tail = tail.trim_start_matches(' ');
        let unit = ["ns", "us", "µs", "μs", "ms", "s", "m", "h", "d", "w"]
            .into_iter()
            .find(|unit| tail.starts_with(unit));
        let Some(unit) = unit else { return false };
        rest = &tail[unit.len()..];
    }
    !unsigned.is_empty()
}

fn is_uuid(text: &str, version: Option<char>) -> bool {
    let digits: Vec<char> = text.chars().filter(|c| *c != '-').collect();
    let dashes = text.len() - digits.len();
    digits.len() == 32
        && (dashes == 0 || dashes == 4)
        && digits.iter().all(char::is_ascii_hexdigit)
        && version.is_none_or(|version| digits[12] == version)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let bits_max = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    !bits.starts_with('+') && bits.parse::<u8>().is_ok_and(|bits| bits <= bits_max)
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8 | 20)
        && parts
            .iter()
            .all(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()))
}

fn is_hostname(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    !name.is_empty()
        && name.len() <= 255
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.chars().all(|c| c.is_alphanumeric() || c == '-')
        })
}

fn is_email(text: &str) -> bool {
    match text.rsplit_once('@') {
        Some((local, host)) => {
            !local.is_empty() && !local.contains(char::is_whitespace) && is_hostname(host)
        }
        None => false,
    }
}

/// What Go's `url.ParseRequestURI` takes: an absolute path, or a scheme and what follows it.
fn is_uri(text: &str) -> bool {
    if text.contains(|c: char| c.is_ascii_control() || c == ' ') {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !rest.is_empty()
}

fn is_hex_colour(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && digits.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let rows = [
            ("date-time", "2026-01-02T03:04:05Z", true),
            ("date-time", "2026-01-02T03:04:05.123456+02:00", true),
            ("date-time", "2026-01-02", false),
            ("date-time", "2026-13-02T03:04:05Z", false),
            ("date-time", "2026-01-02 03:04:05Z", false),
            ("date", "2026-02-28", true),
            ("date", "2026-02-30", false),
            ("duration", "1h30m", true),
            ("duration", "-1.5s", true),
            ("duration", "5", false),
            ("duration", "", false),
            ("byte", "YWJj", true),
            ("byte", "a b", false),
            ("uuid", "3d9e1e62-8e7b-4b6a-9f6b-0123456789ab", true),
            ("uuid4", "3d9e1e62-8e7b-1b6a-9f6b-0123456789ab", false),
            ("uuid", "3d9e", false),
            ("ipv4", "10.0.0.1", true),
            ("ipv4", "10.0.0.256", false),
            ("ipv6", "::1", true),
            ("cidr", "10.0.0.0/8", true),
            ("cidr", "10.0.0.0/33", false),
            ("mac", "00:11:22:33:44:55", true),
            ("hostname", "a.example", true),
            ("hostname", "-a", false),
            ("email", "a@b.example", true),
            ("email", "a", false),
            ("uri", "http://a/b", true),
            ("uri", "a b", false),
            ("password", "anything", true),
            ("never-heard-of", "anything", true),
        ];
        for (format, text, expected) in rows {
            assert_eq!(matches(format, text), expected, "{format} on {text:?}");
        }
    }
}
