//! Sizes, ages and lengths of time, as people write and read them.

use std::time::Duration;

use jiff::Timestamp;

const SUFFIXES: [(&str, u32); 6] = [
    ("Ei", 60),
    ("Pi", 50),
    ("Ti", 40),
    ("Gi", 30),
    ("Mi", 20),
    ("Ki", 10),
];

/// `10Gi`, `1.5Gi`, `512`: the largest unit that leaves at most one digit after the point, rounded down.
pub(crate) fn size(bytes: i64) -> String {
    let positive = u64::try_from(bytes).unwrap_or(0);
    for (suffix, shift) in SUFFIXES {
        let unit = 1_u64 << shift;
        if positive >= unit {
            let whole = positive / unit;
            let tenth = (u128::from(positive % unit) * 10) >> shift;
            return if tenth == 0 {
                format!("{whole}{suffix}")
            } else {
                format!("{whole}.{tenth}{suffix}")
            };
        }
    }
    positive.to_string()
}

/// Bytes from `10Gi`, `1.5G`, `512`, as Kubernetes reads them.
pub(crate) fn parse_size(text: &str) -> Result<i64, String> {
    let refused = || {
        format!(
            "{text:?} is not a size; write a number with Ki, Mi, Gi or Ti behind it, such as 10Gi"
        )
    };
    let trimmed = text.trim();
    let digits = trimmed
        .find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))
        .unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits);
    let factor: i128 = match suffix.trim_end_matches('B') {
        "" => 1,
        "k" | "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        other => {
            let known = SUFFIXES.iter().find(|(suffix, _)| *suffix == other);
            1_i128 << known.ok_or_else(refused)?.1
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 19 || fraction.len() > 9 || fraction.contains('.') {
        return Err(refused());
    }
    let scale = 10_i128.pow(u32::try_from(fraction.len()).map_err(|_| refused())?);
    let unscaled: i128 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| refused())?;
    let bytes = (unscaled * factor + scale - 1) / scale;
    i64::try_from(bytes)
        .map_err(|_| format!("{text:?} is more than 64 bits can count; give a smaller size"))
}

/// The age of something, as kubectl shows it.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(String::new, |since| {
        lasting(now.duration_since(since).as_secs())
    })
}

/// A length of time in kubectl's words: two units where the second one still matters, else one.
pub(crate) fn lasting(seconds: i64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let two = |first: i64, unit: &str, second: i64, smaller: &str| {
        if second == 0 {
            format!("{first}{unit}")
        } else {
            format!("{first}{unit}{second}{smaller}")
        }
    };
    match () {
        () if seconds < -1 => "<invalid>".to_owned(),
        () if seconds < 0 => "0s".to_owned(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(hours / 24, "d", hours % 24, "h"),
        () if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        () if hours < 24 * 365 * 8 => two(hours / 24 / 365, "y", hours / 24 % 365, "d"),
        () => format!("{}y", hours / 24 / 365),
    }
}

/// A length of time such as `90s`, `30m`, `2h`, `1d` or `1h30m`.
pub(crate) fn parse_lasting(text: &str) -> Result<Duration, String> {
    let refused = || {
        format!(
            "{text:?} is not a length of time; write a number with s, m, h or d behind it, such as 2h or 1h30m"
        )
    };
    let mut seconds: u64 = 0;
    let mut number = String::new();
    let mut units = 0;
    for letter in text.trim().chars() {
        if letter.is_ascii_digit() {
            number.push(letter);
            continue;
        }
        let unit = match letter {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(refused()),
        };
        let count: u64 = number.parse().map_err(|_| refused())?;
        let part = count.checked_mul(unit).ok_or_else(refused)?;
        seconds = seconds.checked_add(part).ok_or_else(refused)?;
        number.clear();
        units += 1;
    }
    if units == 0 || !number.is_empty() {
        return Err(refused());
    }
    if seconds == 0 {
        return Err(format!("{text:?} is no time at all; give at least 1s"));
    }
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_people_do() {
        for (bytes, expected) in [
            (0, "0"),
            (-5, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1 << 30, "1Gi"),
            (10 << 30, "10Gi"),
            (3 << 29, "1.5Gi"),
            ((1 << 30) - 1, "1023.9Mi"),
            (i64::MAX, "7.9Ei"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn sizes_are_read_as_kubernetes_does() {
        for (text, expected) in [
            ("10Gi", Some(10 << 30)),
            ("10GiB", Some(10 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("500M", Some(500_000_000)),
            ("512", Some(512)),
            ("", None),
            ("Gi", None),
            ("10 Gigs", None),
            ("-1Gi", None),
            ("1.2.3Gi", None),
            ("9999999999999Ti", None),
        ] {
            assert_eq!(parse_size(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn every_size_that_is_shown_can_be_read() {
        for shift in 0..62 {
            let bytes = 1_i64 << shift;
            assert_eq!(parse_size(&size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn ages_are_kubectls() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * 60, "179m"),
            (180 * 60, "3h"),
            (190 * 60, "3h10m"),
            (8 * 3600, "8h"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (50 * 3600, "2d2h"),
            (192 * 3600, "8d"),
            (365 * 24 * 3600, "365d"),
            (730 * 24 * 3600, "2y"),
            (740 * 24 * 3600, "2y10d"),
            (3000 * 24 * 3600, "8y"),
        ] {
            assert_eq!(lasting(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn lengths_of_time_are_read() {
        for (text, expected) in [
            ("90s", Some(90)),
            ("2h", Some(7200)),
            ("1h30m", Some(5400)),
            ("1d", Some(86_400)),
            ("2", None),
            ("", None),
            ("0s", None),
            ("h", None),
            ("2 weeks", None),
            ("99999999999999999999d", None),
        ] {
            let parsed = parse_lasting(text).ok().map(|lasting| lasting.as_secs());
            assert_eq!(parsed, expected, "{text:?}");
        }
    }
}
