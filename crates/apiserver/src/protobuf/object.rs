//! From a message to a JSON object, as the table says.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::table::{Field, Message, MessageId, Presence, Shape, Table, Type};
use super::wire::{self, Fields, Raw};
use super::{LEVELS_MAX, MalformedError, VALUES_MAX, shown, well_known};

/// What is wrong, and with which field.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: MalformedError,
    /// Innermost first: it grows while the failure travels out.
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Field(&'static str),
    Index(usize),
    Key(String),
}

impl Failure {
    fn within(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The field as users write it: `spec.containers[0].ports`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for step in self.steps.iter().rev() {
            let written = match step {
                Step::Field(name) if path.is_empty() => write!(path, "{name}"),
                Step::Field(name) => write!(path, ".{name}"),
                Step::Index(index) => write!(path, "[{index}]"),
                Step::Key(key) => write!(path, "[{}]", shown(key)),
            };
            written.expect("a string takes any text");
        }
        path
    }
}

impl From<MalformedError> for Failure {
    fn from(error: MalformedError) -> Self {
        Self {
            error,
            steps: Vec::new(),
        }
    }
}

pub(super) struct Decoder<'t> {
    table: &'t Table,
    /// Values that may still come before the object is too large.
    values_left: usize,
}

impl<'t> Decoder<'t> {
    pub fn new(table: &'t Table) -> Self {
        Self {
            table,
            values_left: VALUES_MAX,
        }
    }

    pub fn root(&mut self, id: MessageId, bytes: &[u8]) -> Result<Map<String, Value>, Failure> {
        self.object(id, &[bytes], 1)
    }

    /// A message in any number of pieces: protobuf says that a message sent twice is merged, which
    /// is the same as reading the two one after the other.
    fn object(
        &mut self,
        id: MessageId,
        pieces: &[&[u8]],
        level: usize,
    ) -> Result<Map<String, Value>, Failure> {
        check_level(level)?;
        let mut object = Map::new();
        self.add_fields(id, pieces, level, &mut object)?;
        Ok(object)
    }

    fn add_fields(
        &mut self,
        id: MessageId,
        pieces: &[&[u8]],
        level: usize,
        object: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        let message = self.table.message(id);
        let occurrences = self.occurrences(message, pieces)?;
        for (field, raws) in message.fields.iter().zip(occurrences) {
            if let Shape::Inline(embedded) = field.shape {
                self.add_fields(embedded, &all_bytes(&raws)?, level, object)?;
            } else if let Some(value) = self.field(field, &raws, level + 1)? {
                object.insert(field.name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// The first field that is there, at the level of the choice itself.
    fn choice(
        &mut self,
        message: &Message,
        pieces: &[&[u8]],
        level: usize,
    ) -> Result<Value, Failure> {
        let occurrences = self.occurrences(message, pieces)?;
        for (field, raws) in message.fields.iter().zip(occurrences) {
            if let Some(value) = self.field(field, &raws, level)? {
                return Ok(value);
            }
        }
        Ok(Value::Null)
    }

    /// What stands on the wire for each field of a message, in the order of the table.
    fn occurrences<'a>(
        &mut self,
        message: &Message,
        pieces: &[&'a [u8]],
    ) -> Result<Vec<Vec<Raw<'a>>>, Failure> {
        let mut occurrences = vec![Vec::new(); message.fields.len()];
        for piece in pieces {
            for field in Fields::of(piece) {
                let (number, raw) = field?;
                // A field of a newer version.
                let Some(position) = message.position(number) else {
                    continue;
                };
                self.spend(1)?;
                occurrences[position].push(raw);
            }
        }
        Ok(occurrences)
    }

    /// The value of a field, or nothing if JSON leaves it out.
    fn field(
        &mut self,
        field: &Field,
        raws: &[Raw<'_>],
        level: usize,
    ) -> Result<Option<Value>, Failure> {
        let value = match field.shape {
            Shape::One(of, presence) => self.one(of, presence, raws, level),
            Shape::List(of, presence) => self.list(of, presence, raws, level),
            Shape::Map(of, presence) => self.map(of, presence, raws, level),
            Shape::Inline(_) => unreachable!("embedded structs have no value of their own"),
        };
        if raws.is_empty() && matches!(value, Ok(Some(_))) {
            self.spend(1)?;
        }
        value.map_err(|failure| failure.within(Step::Field(field.name)))
    }

    fn one(
        &mut self,
        of: Type,
        presence: Presence,
        raws: &[Raw<'_>],
        level: usize,
    ) -> Result<Option<Value>, Failure> {
        if raws.is_empty() {
            return match presence {
                Presence::Keep if of == Type::Bytes => Ok(Some(Value::Null)),
                Presence::Keep => self.value(of, &[zero(of)], level).map(Some),
                Presence::Nullable => Ok(Some(Value::Null)),
                Presence::Omit | Presence::Pointer => Ok(None),
            };
        }
        let value = self.value(of, raws, level)?;
        let is_left_out = presence == Presence::Omit && is_zero(&value);
        Ok((!is_left_out).then_some(value))
    }

    fn list(
        &mut self,
        of: Type,
        presence: Presence,
        raws: &[Raw<'_>],
        level: usize,
    ) -> Result<Option<Value>, Failure> {
        let mut items = Vec::with_capacity(raws.len());
        for raw in raws {
            match (of, *raw) {
                (Type::Bool | Type::Int32 | Type::Int64, Raw::Bytes(packed)) => {
                    self.packed(of, packed, level, &mut items)?;
                }
                _ => {
                    let item = self.value(of, &[*raw], level + 1);
                    let index = items.len();
                    items.push(item.map_err(|failure| failure.within(Step::Index(index)))?);
                }
            }
        }
        if items.is_empty() {
            return Ok(empty_collection(presence));
        }
        check_level(level)?;
        Ok(Some(Value::from(items)))
    }

    /// Numbers in a row: how other encoders than Go's write lists of them.
    fn packed(
        &mut self,
        of: Type,
        mut rest: &[u8],
        level: usize,
        items: &mut Vec<Value>,
    ) -> Result<(), Failure> {
        while !rest.is_empty() {
            let number;
            (number, rest) = wire::varint(rest)?;
            self.spend(1)?;
            items.push(self.value(of, &[Raw::Varint(number)], level + 1)?);
        }
        Ok(())
    }

    /// A map is a list of messages of a key and a value. The last value of a key counts.
    fn map(
        &mut self,
        of: Type,
        presence: Presence,
        raws: &[Raw<'_>],
        level: usize,
    ) -> Result<Option<Value>, Failure> {
        if raws.is_empty() {
            return Ok(empty_collection(presence));
        }
        check_level(level)?;
        let mut map = Map::new();
        for raw in raws {
            let (mut key, mut values) = ("", Vec::new());
            for field in Fields::of(raw.bytes()?) {
                match field? {
                    (1, raw) => key = raw.text()?,
                    (2, raw) => {
                        self.spend(1)?;
                        values.push(raw);
                    }
                    (_, _) => {}
                }
            }
            if values.is_empty() {
                values.push(zero(of));
            }
            let value = self
                .value(of, &values, level + 1)
                .map_err(|failure| failure.within(Step::Key(key.to_owned())))?;
            map.insert(key.to_owned(), value);
        }
        Ok(Some(Value::Object(map)))
    }

    /// The value of what stands on the wire at least once: scalars as it stands last, messages
    /// merged. `level` is that of the value.
    fn value(&mut self, of: Type, raws: &[Raw<'_>], level: usize) -> Result<Value, Failure> {
        let last = *raws.last().expect("absent fields have been seen to");
        for raw in raws {
            if raw.wire_type() != last.wire_type() {
                return Err(raw.instead_of(last.wire_type()).into());
            }
        }
        let value = match of {
            Type::String => Value::from(last.text()?),
            Type::Bytes => Value::from(BASE64.encode(last.bytes()?)),
            Type::Bool => Value::from(last.varint()? != 0),
            Type::Int32 => Value::from(last.int32()?),
            Type::Int64 => Value::from(last.int64()?),
            Type::Double => well_known::double(last.double()?)?,
            Type::Time => well_known::time(&all_bytes(raws)?)?,
            Type::MicroTime => well_known::micro_time(&all_bytes(raws)?)?,
            Type::Quantity => well_known::quantity(&all_bytes(raws)?)?,
            Type::IntOrString => well_known::int_or_string(&all_bytes(raws)?)?,
            Type::Json => {
                let value = well_known::json(&all_bytes(raws)?)?;
                self.admit(&value, level)?;
                value
            }
            Type::Message(id) => {
                let message = self.table.message(id);
                let pieces = all_bytes(raws)?;
                if message.is_choice {
                    self.choice(message, &pieces, level)?
                } else {
                    Value::Object(self.object(id, &pieces, level)?)
                }
            }
        };
        Ok(value)
    }

    /// Holds JSON inside the message to the same bounds. The parser has bounded its depth, so this
    /// may recurse.
    fn admit(&mut self, value: &Value, level: usize) -> Result<(), MalformedError> {
        self.spend(1)?;
        match value {
            Value::Array(items) => {
                check_level(level)?;
                items
                    .iter()
                    .try_for_each(|item| self.admit(item, level + 1))
            }
            Value::Object(fields) => {
                check_level(level)?;
                fields
                    .values()
                    .try_for_each(|field| self.admit(field, level + 1))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn spend(&mut self, values: usize) -> Result<(), MalformedError> {
        self.values_left = self
            .values_left
            .checked_sub(values)
            .ok_or(MalformedError::TooManyValues)?;
        Ok(())
    }
}

fn check_level(level: usize) -> Result<(), MalformedError> {
    if level > LEVELS_MAX {
        return Err(MalformedError::TooDeep);
    }
    Ok(())
}

fn all_bytes<'a>(raws: &[Raw<'a>]) -> Result<Vec<&'a [u8]>, MalformedError> {
    raws.iter().map(|raw| raw.bytes()).collect()
}

/// Lists and maps cannot be empty on the wire, only absent, which Go reads as nil.
fn empty_collection(presence: Presence) -> Option<Value> {
    (presence == Presence::Keep).then_some(Value::Null)
}

/// What an absent field means on the wire.
fn zero(of: Type) -> Raw<'static> {
    match of {
        Type::Bool | Type::Int32 | Type::Int64 => Raw::Varint(0),
        Type::Double => Raw::Fixed64(0),
        Type::String
        | Type::Bytes
        | Type::Time
        | Type::MicroTime
        | Type::Quantity
        | Type::IntOrString
        | Type::Json
        | Type::Message(_) => Raw::Bytes(&[]),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
