//! How long a call may take: what its caller said, or a default.

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;

/// For callers that set no deadline.
pub const DEFAULT: Duration = Duration::from_secs(30);
/// A caller that waits longer than this is asked to call again, so that no call is held for ever.
const LONGEST: Duration = Duration::from_secs(600);
/// Left of the caller's time for the answer to travel. An answer that comes too late is no answer, and the
/// reason in it is lost.
const MARGIN_DIVISOR: u32 = 10;
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// When the call must have been answered.
pub fn of(metadata: &MetadataMap) -> Instant {
    let header = metadata.get("grpc-timeout");
    let timeout = header.and_then(|value| parse(value.to_str().ok()?));
    Instant::now() + budget(timeout)
}

fn budget(timeout: Option<Duration>) -> Duration {
    timeout.map_or(DEFAULT, |timeout| {
        let timeout = timeout.min(LONGEST);
        timeout - (timeout / MARGIN_DIVISOR).min(MARGIN_MAX)
    })
}

/// gRPC's own form: up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_grpcs_form_only() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(parse(text), expected.map(Duration::from_millis), "{text}");
        };
        check("1H", Some(3_600_000));
        check("2M", Some(120_000));
        check("10S", Some(10_000));
        check("110000m", Some(110_000));
        check("5000u", Some(5));
        check("3000000n", Some(3));
        check("", None);
        check("S", None);
        check("1", None);
        check("-1S", None);
        check("+1S", None);
        check("123456789S", None);
        check("1s", None);
        check("1é", None);
    }

    #[test]
    fn answers_before_the_caller_gives_up() {
        let check = |timeout: Option<u64>, expected: u64| {
            assert_eq!(
                budget(timeout.map(Duration::from_millis)),
                Duration::from_millis(expected)
            );
        };
        check(None, 30_000);
        check(Some(100), 90);
        check(Some(10_000), 9_000);
        check(Some(110_000), 109_000);
        check(Some(86_400_000), 599_000);
        check(Some(0), 0);
    }
}
