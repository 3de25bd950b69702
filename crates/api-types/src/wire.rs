//! How API structs and enums are declared, so that none can drop what it does not understand.
//!
//! `object!` and `string_enum!` are macros rather than conventions: a struct that forgot its
//! catch-all would lose other tools' fields silently, and only on the objects of some future version.

use std::collections::BTreeMap;

use schemars::Schema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Fields of an object that this version does not know, by their JSON name.
pub type UnknownFields = BTreeMap<String, Value>;

/// Declares API structs: camelCase names, defaults for absent and `null` fields, and an `unknown`
/// map that carries every other field through a read and a write.
macro_rules! object {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$field_meta:meta])* pub $field:ident : $type:ty ),* $(,)?
        }
    )+) => {$(
        // First, because attributes of these derives may follow in `$meta`.
        #[derive(
            Clone, Debug, Default, PartialEq, Eq,
            ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema,
        )]
        $(#[$meta])*
        #[serde(rename_all = "camelCase", default)]
        #[schemars(transform = $crate::wire::open_object)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(deserialize_with = "crate::wire::null_as_default")]
                pub $field: $type,
            )*
            /// Fields that this version does not know; written back as they were read.
            #[serde(flatten)]
            #[schemars(skip)]
            pub unknown: $crate::wire::UnknownFields,
        }
    )+};
}

/// Declares an enum that is a string on the wire.
///
/// Every enum has `Other(String)` for values of later versions. A `checked` enum's CRD schema lists
/// the known values, so that the API server refuses a typing mistake; an `open` one's does not, because
/// programs write it, not people. The empty string is what Go clients write for "not set": it reads as
/// the default variant unless a variant stands for it, and checked enums admit it.
macro_rules! string_enum {
    ($(
        $(#[$meta:meta])*
        pub $strictness:ident enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $wire:literal ),+ $(,)?
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
            /// A value that this version does not know, as it was read. Build it with `from`, which
            /// maps known values to their variants.
            Other(String),
        }

        impl $name {
            /// The values that this version knows, as they are on the wire.
            pub const KNOWN: &'static [&'static str] = &[$($wire),+];

            /// The value as it is on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $wire, )+
                    Self::Other(value) => value,
                }
            }
        }

        impl From<&str> for $name {
            fn from(value: &str) -> Self {
                match value {
                    $( $wire => Self::$variant, )+
                    unset if unset.is_empty() => Self::default(),
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = <String as ::serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(value.as_str()))
            }
        }

        impl ::schemars::JsonSchema for $name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                $crate::wire::string_enum!(@schema $strictness)
            }
        }
    )+};

    (@schema open) => { ::schemars::json_schema!({ "type": "string" }) };
    (@schema checked) => { $crate::wire::checked_string(Self::KNOWN) };
}

pub(crate) use {object, string_enum};

/// Whether a field has its default value: what Go's `omitempty` leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads `null` as the default: Go writes nil slices, nil maps and zero times as `null`.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Finishes a struct's schema: the API server keeps fields it does not list, admits `null` for lists
/// and maps, and fills in nothing.
///
/// Defaults are left out because a server that writes them would turn "not set" into "set", and later
/// versions could not change a default for existing objects.
pub(crate) fn open_object(schema: &mut Schema) {
    schema.insert(
        "x-kubernetes-preserve-unknown-fields".to_owned(),
        Value::Bool(true),
    );
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for property in properties.values_mut().filter_map(Value::as_object_mut) {
        property.remove("default");
        let is_list = property.get("type").is_some_and(|kind| kind == "array");
        if is_list || property.contains_key("additionalProperties") {
            property.insert("nullable".to_owned(), Value::Bool(true));
        }
    }
}

/// The schema of a string that must be one of `known`, or empty for "not set".
pub(crate) fn checked_string(known: &[&str]) -> Schema {
    let mut values: Vec<&str> = known.to_vec();
    if !values.contains(&"") {
        values.push("");
    }
    schemars::json_schema!({ "type": "string", "enum": values })
}
