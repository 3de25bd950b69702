//! Amounts of storage as Kubernetes writes them, in bytes.

/// `10Gi`, `1.5G`, `512`; rounded up. None for what is not an amount of bytes.
pub(super) fn bytes(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text
        .find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor: i128 = match suffix {
        "" => 1,
        "k" => 1000,
        "M" => 1000_i128.pow(2),
        "G" => 1000_i128.pow(3),
        "T" => 1000_i128.pow(4),
        "P" => 1000_i128.pow(5),
        "E" => 1000_i128.pow(6),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        exponent => {
            let power = exponent.strip_prefix(['e', 'E'])?.parse::<u32>().ok()?;
            10_i128.checked_pow(power)?
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 18 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let unscaled: i128 = format!("{whole}{fraction}").parse().ok()?;
    let product = unscaled.checked_mul(factor)?;
    let rounded_up = (product + scale - 1) / scale;
    i64::try_from(rounded_up).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_bytes() {
        for (text, expected) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("10Gi", Some(10 << 30)),
            ("1.5G", Some(1_500_000_000)),
            ("1e3", Some(1000)),
            ("0.1", Some(1)),
            (".5Ki", Some(512)),
            ("100Ei", None),
            ("", None),
            ("Gi", None),
            ("-1", None),
            ("1.2.3", None),
            ("many", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
