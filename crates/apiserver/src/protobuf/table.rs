//! What each message holds, read from `fields.txt`.
//!
//! ```text
//! kind <apiVersion> <kind> <message>
//!
//! <message> [choice]
//! <number> <JSON name> <type> <presence>
//! ```
//!
//! - An apiVersion of `*` is any: `DeleteOptions` is sent in the group of what is deleted.
//! - A type is a message or one of the names in [`Type`]; `[type]` is a list of it, `{type}` a map
//!   from strings to it.
//! - A presence says when JSON has the field; see [`Presence`]. `inline` is that of an embedded
//!   struct, whose fields stand beside the others; its name is `-`.
//! - A `choice` stands in JSON for the first of its fields that is there, or for null.
//! - Empty lines and lines that begin with `#` mean nothing.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The table in `fields.txt`. A mistake in that file is a mistake of ours, found by any test.
pub(super) static TABLE: LazyLock<Table> =
    LazyLock::new(|| Table::parse(include_str!("fields.txt")));

pub(super) struct Table {
    kinds: Vec<Kind>,
    messages: Vec<Message>,
}

struct Kind {
    api_version: &'static str,
    kind: &'static str,
    message: MessageId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MessageId(usize);

#[derive(Debug)]
pub(super) struct Message {
    pub is_choice: bool,
    pub fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    pub number: u32,
    pub name: &'static str,
    pub shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One(Type, Presence),
    List(Type, Presence),
    Map(Type, Presence),
    Inline(MessageId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    String,
    /// Base64 in JSON.
    Bytes,
    Bool,
    Int32,
    Int64,
    Double,
    /// Whole seconds.
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    /// A message whose only field is the text of any JSON.
    Json,
    Message(MessageId),
}

/// When JSON has a field: what Go's struct and its `json` tag say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Held by value without `omitempty`, or a struct by value, which `omitempty` does not omit:
    /// always there, with its zero value if need be. That of lists, maps and bytes is null.
    Keep,
    /// Held by value with `omitempty`: there unless it is zero.
    Omit,
    /// A pointer with `omitempty`: there if it is set, even to zero.
    Pointer,
    /// A pointer without `omitempty`: null if it is not set.
    Nullable,
}

impl Table {
    /// The message of a kind, if the table has it.
    pub fn kind(&self, api_version: &str, kind: &str) -> Option<MessageId> {
        self.kinds
            .iter()
            .find(|known| {
                known.kind == kind && (known.api_version == api_version || known.api_version == "*")
            })
            .map(|known| known.message)
    }

    pub fn message(&self, id: MessageId) -> &Message {
        &self.messages[id.0]
    }

    fn parse(text: &'static str) -> Self {
        let lines = || {
            text.lines()
                .map(|line| line.split(' ').collect::<Vec<_>>())
                .filter(|words| !words[0].is_empty() && words[0] != "#")
        };
        let mut ids = HashMap::new();
        for words in lines() {
            if let [name] | [name, "choice"] = words[..] {
                let id = MessageId(ids.len());
                assert!(ids.insert(name, id).is_none(), "{name} is there twice");
            }
        }
        let mut table = Self {
            kinds: Vec::new(),
            messages: Vec::new(),
        };
        for words in lines() {
            match words[..] {
                ["kind", api_version, kind, message] => table.kinds.push(Kind {
                    api_version,
                    kind,
                    message: ids[message],
                }),
                [_] | [_, "choice"] => table.messages.push(Message {
                    is_choice: words.len() == 2,
                    fields: Vec::new(),
                }),
                [number, name, type_text, presence] => {
                    let message = table.messages.last_mut().expect("a field is of a message");
                    message.fields.push(Field {
                        number: number.parse().expect("a field has a number"),
                        name,
                        shape: Shape::parse(type_text, presence, &ids),
                    });
                }
                _ => panic!("not a line of this table: {words:?}"),
            }
        }
        table
    }

    #[cfg(test)]
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.kinds.iter().map(|kind| (kind.api_version, kind.kind))
    }
}

impl Message {
    /// The place of a field in [`Message::fields`].
    pub fn position(&self, number: u32) -> Option<usize> {
        self.fields.iter().position(|field| field.number == number)
    }
}

impl Shape {
    fn parse(type_text: &str, presence: &str, ids: &HashMap<&str, MessageId>) -> Self {
        let presence = match presence {
            "keep" => Presence::Keep,
            "omit" => Presence::Omit,
            "pointer" => Presence::Pointer,
            "nullable" => Presence::Nullable,
            "inline" => return Self::Inline(ids[type_text]),
            _ => panic!("{presence} is no presence"),
        };
        let within = |open: char, close: char| type_text.strip_prefix(open)?.strip_suffix(close);
        if let Some(item) = within('[', ']') {
            Self::List(Type::parse(item, ids), presence)
        } else if let Some(value) = within('{', '}') {
            Self::Map(Type::parse(value, ids), presence)
        } else {
            Self::One(Type::parse(type_text, ids), presence)
        }
    }
}

impl Type {
    fn parse(text: &str, ids: &HashMap<&str, MessageId>) -> Self {
        match text {
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "bool" => Self::Bool,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "double" => Self::Double,
            "time" => Self::Time,
            "microtime" => Self::MicroTime,
            "quantity" => Self::Quantity,
            "intorstring" => Self::IntOrString,
            "json" => Self::Json,
            message => Self::Message(ids[message]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::builtin;

    /// Read as JSON and YAML only: there are no bytes of a real client yet to compare a row of this table with. A client that
    /// sends protobuf is told to send JSON.
    const NOT_THERE: [(&str, &str); 1] = [("apps", "StatefulSet")];

    #[test]
    fn every_kind_of_the_server_is_there() {
        for kind in builtin::kinds() {
            if NOT_THERE.contains(&(kind.group, kind.kind)) {
                continue;
            }
            let api_version = match kind.group {
                "" => kind.version.to_owned(),
                group => format!("{group}/{}", kind.version),
            };
            assert!(
                TABLE.kind(&api_version, kind.kind).is_some(),
                "{api_version} {}",
                kind.kind
            );
        }
        assert!(TABLE.kind("storage.k8s.io/v1", "DeleteOptions").is_some());
        assert!(TABLE.kind("storage.k8s.io/v1", "Pod").is_none());
        assert!(
            TABLE
                .kind("storage.k8s.io/v1beta1", "StorageClass")
                .is_none()
        );
    }

    #[test]
    fn numbers_and_names_are_unique() {
        for message in &TABLE.messages {
            let numbers: HashSet<u32> = message.fields.iter().map(|field| field.number).collect();
            assert_eq!(numbers.len(), message.fields.len(), "{message:?}");
            let mut names = HashSet::new();
            collect_names(message, &mut names);
        }
    }

    /// Names must be unique across embedded structs too: they land in one JSON object.
    fn collect_names(message: &Message, names: &mut HashSet<&'static str>) {
        for field in &message.fields {
            match field.shape {
                Shape::Inline(id) => collect_names(TABLE.message(id), names),
                Shape::One(..) | Shape::List(..) | Shape::Map(..) => {
                    assert!(names.insert(field.name), "{message:?}");
                }
            }
        }
    }

    #[test]
    fn lists_and_maps_are_never_pointers() {
        for message in &TABLE.messages {
            for field in &message.fields {
                if let Shape::List(_, presence) | Shape::Map(_, presence) = field.shape {
                    assert!(
                        matches!(presence, Presence::Keep | Presence::Omit),
                        "{message:?}"
                    );
                }
            }
        }
    }
}
