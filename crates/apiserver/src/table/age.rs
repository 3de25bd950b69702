//! Ages and durations as kubectl prints them.

use jiff::Timestamp;

/// The age of something made at `since`, or `<unknown>` where that is no time.
pub fn age(since: &str, now: Timestamp) -> String {
    since.parse::<Timestamp>().map_or_else(
        |_| "<unknown>".to_owned(),
        |since| human_duration(now.duration_since(since).as_secs()),
    )
}

/// Two units at most, fewer the longer it is: exact ages matter only while they are short.
pub fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let minutes = seconds / 60;
    let hours = seconds / 3600;
    let days = hours / 24;
    let with_rest = |whole: i64, unit: &str, rest: i64, rest_unit: &str| {
        if rest == 0 {
            format!("{whole}{unit}")
        } else {
            format!("{whole}{unit}{rest}{rest_unit}")
        }
    };
    if seconds < 2 * 60 {
        format!("{seconds}s")
    } else if minutes < 10 {
        with_rest(minutes, "m", seconds % 60, "s")
    } else if minutes < 3 * 60 {
        format!("{minutes}m")
    } else if hours < 8 {
        with_rest(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        with_rest(days, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{days}d")
    } else if hours < 24 * 365 * 8 {
        with_rest(days / 365, "y", days % 365, "d")
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_in_kubectl() {
        let check = |seconds: i64, expected: &str| assert_eq!(human_duration(seconds), expected);
        check(-5, "<invalid>");
        check(0, "0s");
        check(119, "119s");
        check(120, "2m");
        check(125, "2m5s");
        check(599, "9m59s");
        check(600, "10m");
        check(3 * 3600 - 1, "179m");
        check(3 * 3600, "3h");
        check(3 * 3600 + 61, "3h1m");
        check(9 * 3600, "9h");
        check(47 * 3600, "47h");
        check(49 * 3600, "2d1h");
        check(9 * 86400, "9d");
        check(800 * 86400, "2y70d");
        check(3000 * 86400, "8y");
    }
}
