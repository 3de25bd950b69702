//! JSON text that says one thing twice: parsers keep the last, strict clients want to be told.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How many duplicates are named.
const REPORTED_MAX: usize = 64;

/// Parses JSON and returns the paths of the fields that occur more than once, in order. Of two
/// equal fields the last one wins.
pub fn parse_json(text: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let seed = Node {
        path: &mut String::new(),
        duplicates: &mut duplicates,
    };
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, duplicates))
}

/// The message of strict field validation, and of the warning without it.
pub fn duplicate_field(path: &str) -> String {
    format!("duplicate field {path:?}")
}

struct Node<'a> {
    path: &'a mut String,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let parent_bytes = self.path.len();
            self.path.push_str(&format!("[{}]", list.len()));
            let item = items.next_element_seed(Node {
                path: self.path,
                duplicates: self.duplicates,
            })?;
            self.path.truncate(parent_bytes);
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let parent_bytes = self.path.len();
            if parent_bytes > 0 {
                self.path.push('.');
            }
            self.path.push_str(&name);
            let value = fields.next_value_seed(Node {
                path: self.path,
                duplicates: self.duplicates,
            })?;
            let duplicate = object.insert(name, value).is_some();
            // A field given three times is still one complaint.
            if duplicate
                && self.duplicates.len() < REPORTED_MAX
                && !self.duplicates.contains(self.path)
            {
                self.duplicates.push(self.path.clone());
            }
            self.path.truncate(parent_bytes);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::arbitrary::any_value;
    use super::*;

    #[test]
    fn duplicates_are_named_and_the_last_wins() {
        let text =
            br#"{"a": {"b": 1, "b": 2, "b": 3}, "l": [{"x": 1}, {"x": 1, "x": 2}], "a2": null}"#;
        let (value, duplicates) = parse_json(text).unwrap();
        assert_eq!(
            value,
            json!({"a": {"b": 3}, "l": [{"x": 1}, {"x": 2}], "a2": null})
        );
        assert_eq!(duplicates, ["a.b", "l[1].x"]);
        assert_eq!(duplicate_field("a.b"), r#"duplicate field "a.b""#);
    }

    #[test]
    fn bad_text_is_an_error() {
        for text in ["", "{", "{} x", r#"{"a":}"#, &"[".repeat(100_000)] {
            assert!(parse_json(text.as_bytes()).is_err(), "{text:.20}");
        }
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_reads(value in any_value()) {
            let text = serde_json::to_vec(&value).unwrap();
            let (read, duplicates) = parse_json(&text).unwrap();
            prop_assert_eq!(read, serde_json::from_slice::<Value>(&text).unwrap());
            prop_assert!(duplicates.is_empty());
        }
    }
}
