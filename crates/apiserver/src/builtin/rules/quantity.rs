//! Kubernetes quantities: `1Gi`, `100m`, `1e3`, and the one form in which each is written back.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// The error text of the real server.
pub const FORMAT_ERROR: &str = "quantities must match the regular expression \
                                '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// No quantity is larger; what is written larger is capped.
const NANOS_MAX: i128 = i64::MAX as i128 * NANOS_PER_UNIT;
/// Digits after the point that are kept; smaller ones only round up.
const FRACTION_DIGITS: usize = 18;
const FRACTION_SCALE: i128 = 10i128.pow(FRACTION_DIGITS as u32);
const TEXT_BYTES_MAX: usize = 256;

/// An exact amount, and the family of suffixes it was written with.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    nanos: i128,
    notation: Notation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    /// `k`, `M`, `G`; `m`, `u`, `n`; no suffix.
    Decimal,
    /// `Ki`, `Mi`, `Gi`.
    Binary,
    /// `e3`.
    Exponent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{FORMAT_ERROR}")]
pub struct ParseQuantityError;

impl Quantity {
    /// A quantity from its JSON, which may be a number.
    pub fn from_json(value: &Value) -> Result<Self, ParseQuantityError> {
        match value {
            Value::String(text) => text.parse(),
            Value::Number(number) => number.to_string().parse(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                Err(ParseQuantityError)
            }
        }
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// The amount in whole units, rounded away from zero.
    pub fn units_rounded_up(self) -> i64 {
        let units = self.nanos / NANOS_PER_UNIT + (self.nanos % NANOS_PER_UNIT).signum();
        i64::try_from(units).unwrap_or(i64::MAX)
    }

    pub fn is_integer(self) -> bool {
        self.nanos % NANOS_PER_UNIT == 0
    }
}

/// By amount: `1Gi` equals `1024Mi`.
impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ParseQuantityError);
        }
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let number_bytes = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_bytes);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(ParseQuantityError);
        }
        let scale = Scale::parse(suffix).ok_or(ParseQuantityError)?;
        let nanos = scale.nanos(whole, fraction);
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            notation: scale.notation(),
        })
    }
}

/// What the suffix multiplies by.
enum Scale {
    PowerOf1024(u32),
    PowerOf10(i32, Notation),
}

const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL_SUFFIXES: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
            return Some(Self::PowerOf10(*exponent, Notation::Decimal));
        }
        if let Some(power) = BINARY_SUFFIXES.iter().position(|name| *name == suffix) {
            return Some(Self::PowerOf1024(power as u32));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // More than this is beyond either end of the range.
        let magnitude = digits.parse().unwrap_or(i32::MAX).min(1000);
        let signed = if exponent.starts_with('-') {
            -magnitude
        } else {
            magnitude
        };
        Some(Self::PowerOf10(signed, Notation::Exponent))
    }

    fn notation(&self) -> Notation {
        match self {
            Self::PowerOf1024(_) => Notation::Binary,
            Self::PowerOf10(_, notation) => *notation,
        }
    }

    /// The magnitude, rounded up to a whole nano-unit and capped.
    fn nanos(&self, whole: &str, fraction: &str) -> i128 {
        match *self {
            Self::PowerOf1024(power) => {
                let multiplier = 1024i128.pow(power);
                let (fraction, beyond) = fraction_digits(fraction);
                // A fraction of 10^-18 times 2^60 times 10^9, without leaving 128 bits.
                let fraction_nanos = fraction * multiplier;
                let divisor = FRACTION_SCALE / NANOS_PER_UNIT;
                let rounded = divide_up(fraction_nanos, divisor, beyond);
                whole_digits(whole)
                    .and_then(|whole| whole.checked_mul(multiplier * NANOS_PER_UNIT))
                    .map_or(NANOS_MAX, |nanos| (nanos + rounded).min(NANOS_MAX))
            }
            Self::PowerOf10(exponent, _) => {
                // All digits as one number, to be shifted at once.
                let digits = format!("{whole}{fraction}");
                let digits = digits.trim_start_matches('0');
                let shift = exponent + 9 - fraction.len() as i32;
                shifted(digits, shift)
            }
        }
    }
}

/// `digits` × 10^`shift`, rounded up and capped.
fn shifted(digits: &str, shift: i32) -> i128 {
    if digits.is_empty() {
        return 0;
    }
    let length = digits.len() as i32 + shift;
    if length > 30 {
        return NANOS_MAX;
    }
    if length <= 0 {
        // Less than one nano-unit, but not nothing.
        return 1;
    }
    let kept = digits.len().min(length as usize);
    let beyond = digits[kept..].bytes().any(|digit| digit != b'0');
    let padding = 10i128.pow((length as usize - kept) as u32);
    let value = digits[..kept].parse::<i128>().unwrap_or(NANOS_MAX);
    value
        .saturating_mul(padding)
        .saturating_add(i128::from(beyond))
        .min(NANOS_MAX)
}

fn whole_digits(digits: &str) -> Option<i128> {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    (digits.len() <= 19).then(|| digits.parse().ok()).flatten()
}

/// The digits after the point in units of 10^-18, and whether there were smaller ones.
fn fraction_digits(digits: &str) -> (i128, bool) {
    let kept = &digits[..digits.len().min(FRACTION_DIGITS)];
    let value = kept.parse::<i128>().unwrap_or(0);
    let scale = 10i128.pow((FRACTION_DIGITS - kept.len()) as u32);
    let beyond = digits[kept.len()..].bytes().any(|digit| digit != b'0');
    (value * scale, beyond)
}

fn divide_up(value: i128, divisor: i128, beyond: bool) -> i128 {
    let inexact = value % divisor != 0 || beyond;
    value / divisor + i128::from(inexact)
}

/// The canonical form: no fraction, and the largest suffix that allows for that.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let units = self.nanos / NANOS_PER_UNIT;
        // Small or fractional amounts have no binary form.
        if self.notation == Notation::Binary && self.is_integer() && units.abs() >= 1024 {
            let (mantissa, power) = divided(units, 1024, 6);
            return write!(f, "{mantissa}{}", BINARY_SUFFIXES[power]);
        }
        let (mantissa, power) = divided(self.nanos, 1000, 9);
        let exponent = 3 * power as i32 - 9;
        match self.notation {
            Notation::Exponent if exponent != 0 => write!(f, "{mantissa}e{exponent}"),
            Notation::Exponent | Notation::Decimal | Notation::Binary => {
                write!(f, "{mantissa}{}", DECIMAL_SUFFIXES[power].0)
            }
        }
    }
}

/// Takes out factors of `base` while that leaves a whole number.
fn divided(mut value: i128, base: i128, power_max: usize) -> (i128, usize) {
    let mut power = 0;
    while power < power_max && value % base == 0 {
        value /= base;
        power += 1;
    }
    (value, power)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn canonical_forms() {
        let rows = [
            ("1Gi", "1Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("0.5", "500m"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1E", "1E"),
            ("12e6", "12e6"),
            ("1e-3", "1e-3"),
            ("0", "0"),
            ("-5Gi", "-5Gi"),
            ("+1", "1"),
            (".5", "500m"),
            ("5.", "5"),
            ("0.1n", "1n"),
            ("1.0000000001", "1000000001n"),
            ("10000000000000000000000", "9223372036854775807"),
            ("100Ei", "9223372036854775807"),
            ("107374182400", "107374182400"),
            ("000012Mi", "12Mi"),
        ];
        for (text, expected) in rows {
            let quantity: Quantity = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(quantity.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_quantity() {
        for text in [
            "", ".", "-", "1.2.3", "1 Gi", "1gi", "1KI", "Gi", "1e", "1e1.5", "0x1", "1Gi ", "١",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn order_and_units() {
        let parse = |text: &str| text.parse::<Quantity>().unwrap();
        assert!(parse("1Gi") > parse("1G"));
        assert_eq!(parse("1024Mi"), parse("1Gi"));
        assert_eq!(parse("1500m").units_rounded_up(), 2);
        assert_eq!(parse("-1500m").units_rounded_up(), -2);
        assert_eq!(
            Quantity::from_json(&serde_json::json!(0.5)).unwrap(),
            parse("500m")
        );
    }

    proptest! {
        #[test]
        fn canonical_is_a_fixed_point(text in "[+-]?[0-9]{1,6}(\\.[0-9]{0,4})?(n|u|m||k|M|G|T|Ki|Mi|Gi|Ti|e[0-9]|e-[0-9])") {
            let quantity: Quantity = text.parse().unwrap();
            let again: Quantity = quantity.to_string().parse().unwrap();
            prop_assert_eq!(quantity, again);
            prop_assert_eq!(quantity.to_string(), again.to_string());
        }

        #[test]
        fn agrees_with_plain_arithmetic(units in 0i64..1_000_000, power in 0u32..4) {
            let quantity: Quantity = format!("{units}{}", BINARY_SUFFIXES[power as usize]).parse().unwrap();
            prop_assert_eq!(quantity.units_rounded_up(), units * 1024i64.pow(power));
            let quantity: Quantity = format!("{units}e{power}").parse().unwrap();
            prop_assert_eq!(quantity.units_rounded_up(), units * 10i64.pow(power));
        }

        #[test]
        fn never_panics(text in "[0-9.eEinumkKMGTP+-]{0,40}", any in ".{0,20}") {
            let _ = text.parse::<Quantity>().map(|quantity| quantity.to_string());
            let _ = any.parse::<Quantity>().map(|quantity| quantity.to_string());
        }
    }
}
