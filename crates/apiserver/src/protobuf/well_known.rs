//! The types that JSON writes in a form of their own: times, quantities, numbers or strings, JSON.
//!
//! Each is a small message. It comes as a list of pieces because protobuf allows a message to be
//! sent in several, of which later fields win.

use jiff::SignedDuration;
use jiff::civil::{DateTime, datetime};
use serde_json::Value;

use super::MalformedError;
use super::wire::{Fields, Raw};

/// The seconds of Go's zero time, the first of the year 1, which JSON writes as null.
const ZERO_TIME_SECONDS: i64 = -62_135_596_800;

const EPOCH: DateTime = datetime(1970, 1, 1, 0, 0, 0, 0);

/// RFC 3339 in whole seconds. Go drops the nanoseconds when it reads, and so never writes them.
pub(super) fn time(pieces: &[&[u8]]) -> Result<Value, MalformedError> {
    let seconds = match timestamp(pieces)? {
        None | Some((ZERO_TIME_SECONDS, _)) => return Ok(Value::Null),
        Some((seconds, _)) => seconds,
    };
    Ok(Value::from(format!("{}Z", civil(seconds, 0)?)))
}

/// RFC 3339 with six digits of fraction.
pub(super) fn micro_time(pieces: &[&[u8]]) -> Result<Value, MalformedError> {
    let (seconds, nanoseconds) = match timestamp(pieces)? {
        None | Some((ZERO_TIME_SECONDS, 0)) => return Ok(Value::Null),
        Some(timestamp) => timestamp,
    };
    Ok(Value::from(format!("{:.6}Z", civil(seconds, nanoseconds)?)))
}

fn timestamp(pieces: &[&[u8]]) -> Result<Option<(i64, i32)>, MalformedError> {
    if pieces.iter().all(|piece| piece.is_empty()) {
        return Ok(None);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    each_field(pieces, |number, raw| {
        match number {
            1 => seconds = raw.int64()?,
            2 => nanoseconds = raw.int32()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(Some((seconds, nanoseconds)))
}

fn civil(seconds: i64, nanoseconds: i32) -> Result<DateTime, MalformedError> {
    let error = MalformedError::Time {
        seconds,
        nanoseconds,
    };
    if seconds < ZERO_TIME_SECONDS || !(0..1_000_000_000).contains(&nanoseconds) {
        return Err(error);
    }
    let microseconds = i64::from(nanoseconds / 1000);
    EPOCH
        .checked_add(SignedDuration::from_secs(seconds))
        .and_then(|time| time.checked_add(SignedDuration::from_micros(microseconds)))
        .map_err(|_| error)
}

/// The text as it came: clients write the canonical form, and whether it is a quantity at all is
/// checked where quantities in JSON are.
pub(super) fn quantity(pieces: &[&[u8]]) -> Result<Value, MalformedError> {
    let mut text = "0";
    each_field(pieces, |number, raw| {
        if number == 1 {
            text = raw.text()?;
        }
        Ok(())
    })?;
    Ok(Value::from(text))
}

pub(super) fn int_or_string(pieces: &[&[u8]]) -> Result<Value, MalformedError> {
    let (mut discriminant, mut integer, mut text) = (0, 0, "");
    each_field(pieces, |number, raw| {
        match number {
            1 => discriminant = raw.int64()?,
            2 => integer = raw.int32()?,
            3 => text = raw.text()?,
            _ => {}
        }
        Ok(())
    })?;
    match discriminant {
        0 => Ok(Value::from(integer)),
        1 => Ok(Value::from(text)),
        _ => Err(MalformedError::IntOrString { discriminant }),
    }
}

pub(super) fn json(pieces: &[&[u8]]) -> Result<Value, MalformedError> {
    let mut text: &[u8] = &[];
    each_field(pieces, |number, raw| {
        if number == 1 {
            text = raw.bytes()?;
        }
        Ok(())
    })?;
    if text.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(text).map_err(MalformedError::Json)
}

/// Go writes integral numbers without a point, which a JSON parser then reads as integers.
pub(super) fn double(number: f64) -> Result<Value, MalformedError> {
    const INT64_END: f64 = 9_223_372_036_854_775_808.0;
    if !number.is_finite() {
        return Err(MalformedError::NotFinite { number });
    }
    let is_negative_zero = number == 0.0 && number.is_sign_negative();
    if number.fract() != 0.0 || is_negative_zero {
        Ok(Value::from(number))
    } else if (-INT64_END..INT64_END).contains(&number) {
        Ok(Value::from(number as i64))
    } else if (INT64_END..2.0 * INT64_END).contains(&number) {
        Ok(Value::from(number as u64))
    } else {
        Ok(Value::from(number))
    }
}

fn each_field<'a>(
    pieces: &[&'a [u8]],
    mut visit: impl FnMut(u32, Raw<'a>) -> Result<(), MalformedError>,
) -> Result<(), MalformedError> {
    for piece in pieces {
        for field in Fields::of(piece) {
            let (number, raw) = field?;
            visit(number, raw)?;
        }
    }
    Ok(())
}
