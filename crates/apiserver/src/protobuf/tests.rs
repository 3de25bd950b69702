use std::collections::HashSet;
use std::error::Error;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::json;

use super::table::{MessageId, Shape, Type};
use super::*;

/// Objects that Go has encoded, with the JSON that Go gave for them.
macro_rules! fixtures {
    ($($name:literal),* $(,)?) => {
        [$((
            $name,
            include_str!(concat!("fixtures/", $name, ".base64")),
            include_str!(concat!("fixtures/", $name, ".json")),
        )),*]
    };
}

const FIXTURES: [(&str, &str, &str); 11] = fixtures![
    "config-map",
    "custom-resource-definition",
    "delete-options",
    "eviction",
    "lease",
    "namespace",
    "node",
    "persistent-volume",
    "pod",
    "secret",
    "volume-attachment",
];

/// Every kind with every field set, and with none: one line each, of base64 and JSON.
const FILLED: &str = include_str!("fixtures/filled.txt");
const EMPTY: &str = include_str!("fixtures/empty.txt");

fn check(name: &str, base64: &str, expected: &str) {
    let body = BASE64.decode(base64.replace('\n', "")).unwrap();
    let expected: Value = serde_json::from_str(expected).unwrap();
    let actual = decode(&body).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
    assert_eq!(actual, expected, "{name}");
}

fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

fn rows(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines().map(|line| line.split_once(' ').unwrap())
}

#[test]
fn objects_as_clients_send_them() {
    for (name, base64, expected) in FIXTURES {
        check(name, base64, expected);
    }
}

#[test]
fn every_field_of_every_kind() {
    for (rows_of, text) in [("filled", FILLED), ("empty", EMPTY)] {
        let mut seen = Vec::new();
        for (base64, expected) in rows(text) {
            let object: Value = serde_json::from_str(expected).unwrap();
            let name = format!("{rows_of} {} {}", object["apiVersion"], object["kind"]);
            check(&name, base64, expected);
            seen.push((object["apiVersion"].clone(), object["kind"].clone()));
        }
        for (api_version, kind) in TABLE.kinds() {
            let api_version = if api_version == "*" {
                "v1"
            } else {
                api_version
            };
            assert!(
                seen.contains(&(json!(api_version), json!(kind))),
                "{rows_of} lacks {api_version} {kind}"
            );
        }
    }
}

/// A field that no row fills is a field nobody has seen decoded.
#[test]
fn filled_rows_fill_every_field() {
    let mut seen = HashSet::new();
    for (_, text) in rows(FILLED) {
        let object: Value = serde_json::from_str(text).unwrap();
        let [api_version, kind] = ["apiVersion", "kind"].map(|name| object[name].as_str().unwrap());
        let message = TABLE.kind(api_version, kind).unwrap();
        check_filled(message, &object, &mut seen);
    }
}

fn check_filled(id: MessageId, object: &Value, seen: &mut HashSet<MessageId>) {
    let message = TABLE.message(id);
    if message.is_choice || !seen.insert(id) {
        return;
    }
    for field in &message.fields {
        let value = &object[field.name];
        let (of, value) = match field.shape {
            Shape::Inline(embedded) => (Type::Message(embedded), Some(object)),
            Shape::One(of, _) => (of, Some(value)),
            Shape::List(of, _) => (of, value.get(0)),
            Shape::Map(of, _) => (of, value.as_object().and_then(|map| map.values().next())),
        };
        let value = value.filter(|value| !value.is_null());
        let value = value.unwrap_or_else(|| panic!("{} of {object}", field.name));
        if let Type::Message(id) = of {
            check_filled(id, value, seen);
        }
    }
}

// What other encoders than Go's may write: built by hand.

fn varint(number: i64) -> Vec<u8> {
    let mut rest = number.cast_unsigned();
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// A field of bytes: text, a message, an entry of a map.
fn field(number: u32, payload: &[u8]) -> Vec<u8> {
    let tag = varint(i64::from(number << 3 | 2));
    [&tag[..], &varint(payload.len() as i64), payload].concat()
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [PREFIX.to_vec(), field(1, &type_meta), field(2, raw)].concat()
}

fn lease(spec: &[u8]) -> Result<Value, ProtobufError> {
    let raw = field(2, spec);
    decode(&body("coordination.k8s.io/v1", "Lease", &raw)).map(|mut lease| lease["spec"].take())
}

fn crd_body(schema: &[u8]) -> Vec<u8> {
    let version = field(4, &field(1, schema));
    body(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &field(2, &field(7, &version)),
    )
}

fn crd_schema(schema: &[u8]) -> Result<Value, ProtobufError> {
    decode(&crd_body(schema))
        .map(|mut crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take())
}

#[test]
fn last_scalar_wins_and_messages_merge() {
    let raw = [
        field(1, &field(1, b"first")),
        field(1, &field(3, b"space")),
        field(1, &field(1, b"second")),
        field(2, &[field(1, b"key"), field(2, b"old")].concat()),
        field(2, &[field(2, b"new"), field(1, b"key")].concat()),
    ]
    .concat();
    assert_eq!(
        decode(&body("v1", "ConfigMap", &raw)).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "second", "namespace": "space"},
            "data": {"key": "new"},
        })
    );
}

#[test]
fn fields_of_newer_versions_are_skipped() {
    let newer =
        b"\xf8\x07\x01\xf9\x07\0\0\0\0\0\0\0\0\xfa\x07\x01x\xfb\x07\xfc\x07\xfd\x07\0\0\0\0";
    let spec = [&newer[..], &field(1, b"node-1"), newer].concat();
    assert_eq!(lease(&spec).unwrap(), json!({"holderIdentity": "node-1"}));
}

#[test]
fn numbers_may_be_packed() {
    // supplementalGroups of the security context of a pod, in one field of three numbers and none
    let pod = |groups: &[u8]| {
        let raw = field(2, &field(14, &field(4, groups)));
        decode(&body("v1", "Pod", &raw)).map(|mut pod| pod["spec"]["securityContext"].take())
    };
    assert_eq!(
        pod(b"\x01\x80\x01\x00").unwrap(),
        json!({"supplementalGroups": [1, 128, 0]})
    );
    assert_eq!(pod(b"").unwrap(), json!({}));
    assert!(pod(b"\x80").is_err());
}

#[test]
fn times_at_the_edges() {
    let check = |seconds: i64, nanoseconds: i64, expected: &str| {
        let time = [&[0x08][..], &varint(seconds), &[0x10], &varint(nanoseconds)].concat();
        let actual = match lease(&field(3, &time)) {
            Ok(spec) => spec["acquireTime"].to_string(),
            Err(error) => chain(&error),
        };
        assert!(actual.contains(expected), "{actual} instead of {expected}");
    };
    check(0, 0, "\"1970-01-01T00:00:00.000000Z\"");
    check(0, 999_999_999, "\"1970-01-01T00:00:00.999999Z\"");
    check(-62_135_596_800, 0, "null");
    check(-62_135_596_799, 0, "\"0001-01-01T00:00:01.000000Z\"");
    check(253_402_300_799, 0, "\"9999-12-31T23:59:59.000000Z\"");
    let outside = "is outside the years 1 to 9999";
    check(-62_135_596_801, 0, outside);
    check(253_402_300_800, 0, outside);
    check(i64::MAX, 0, outside);
    check(i64::MIN, 0, outside);
    check(0, 1_000_000_000, outside);
    check(0, -1, outside);
    assert_eq!(lease(&field(3, b"")).unwrap(), json!({"acquireTime": null}));
}

#[test]
fn json_in_the_envelope() {
    let type_meta = [field(1, b"example.com/v1"), field(2, b"Any")].concat();
    let envelope = |raw: &[u8], rest: &[u8]| {
        decode(&[PREFIX, &field(1, &type_meta), &field(2, raw), rest].concat())
    };
    let is_json = field(4, b"application/json");
    assert_eq!(
        envelope(br#"{"kind": "Other", "a": [1]}"#, &is_json).unwrap(),
        json!({"apiVersion": "example.com/v1", "kind": "Any", "a": [1]})
    );
    let fails = |raw: &[u8], rest: &[u8]| envelope(raw, rest).unwrap_err();
    assert!(matches!(fails(b"[]", &is_json), ProtobufError::NotAnObject));
    assert!(matches!(
        fails(b"{", &is_json),
        ProtobufError::Malformed { .. }
    ));
    let cbor = fails(b"{}", &field(4, b"application/cbor"));
    assert!(cbor.is_unsupported_media_type(), "{cbor}");
    let gzip = fails(b"{}", &[is_json, field(3, b"gzip")].concat());
    assert!(gzip.is_unsupported_media_type(), "{gzip}");
}

#[test]
fn errors_say_what_and_where() {
    let check = |bytes: &[u8], expected: &str| {
        assert_eq!(chain(&decode(bytes).unwrap_err()), expected);
    };
    check(
        b"{}",
        "the body is not Kubernetes protobuf: it does not begin with \"k8s\\0\"",
    );
    check(
        b"k8s\0\x0a\x05",
        "the protobuf envelope is malformed: the data ends in the middle of a value",
    );
    check(b"k8s\0", "the protobuf envelope names no kind");
    check(
        &body("", "Pod", b""),
        "the protobuf envelope names no apiVersion",
    );
    check(
        &body("apps/v1", "Deployment", b""),
        "Deployment of apps/v1 cannot be read as protobuf by this server: send it as \
         application/json",
    );
    // the name of the second environment variable of the first container is a number
    let container = [field(7, b""), field(7, b"\x08\x01")].concat();
    check(
        &body("v1", "Pod", &field(2, &field(2, &container))),
        "Pod in protobuf is malformed at spec.containers[0].env[1].name: wire type varint where \
         bytes is needed",
    );
    let long = "x".repeat(1000);
    check(
        &body("v1", &long, b""),
        &format!(
            "{} of v1 cannot be read as protobuf by this server: send it as application/json",
            &long[..64]
        ),
    );
    let entry = [field(1, b"key"), field(2, b"\xff")].concat();
    check(
        &body("v1", "ConfigMap", &field(2, &entry)),
        "ConfigMap in protobuf is malformed at data[key]: text is not UTF-8",
    );
    // once a number, once text
    let twice = [&b"\x08\x01"[..], &field(1, b"name")].concat();
    check(
        &body("v1", "Namespace", &field(1, &twice)),
        "Namespace in protobuf is malformed at metadata.name: wire type varint where bytes is \
         needed",
    );
    check(
        &body("v1", "Namespace", b"\x0a"),
        "Namespace in protobuf is malformed: the data ends in the middle of a value",
    );
    let maximum = |number: f64| [&[0x49][..], &number.to_le_bytes()].concat();
    assert_eq!(
        chain(&crd_schema(&maximum(f64::NAN)).unwrap_err()),
        "CustomResourceDefinition in protobuf is malformed at \
         spec.versions[0].schema.openAPIV3Schema.maximum: NaN is no number that JSON can express"
    );
    assert_eq!(
        crd_schema(&maximum(-0.0)).unwrap()["maximum"].to_string(),
        "-0.0"
    );
    assert!(!decode(b"{}").unwrap_err().is_unsupported_media_type());
    let unknown = decode(&body("apps/v1", "Deployment", b"")).unwrap_err();
    assert!(unknown.is_unsupported_media_type());
}

#[test]
fn depth_is_what_the_json_parser_reads() {
    // `not` inside `not`, each one level, of which the schema itself is the sixth
    let nested = |nots: usize| {
        let schema = (0..nots).fold(Vec::new(), |schema, _| field(28, &schema));
        decode(&crd_body(&schema))
    };
    let deepest = nested(LEVELS_MAX - 6).unwrap();
    let text = deepest.to_string();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), deepest);
    let error = nested(LEVELS_MAX - 5).unwrap_err();
    assert!(
        chain(&error).contains("nested more than 127 levels deep"),
        "{error}"
    );

    // JSON within JSON: `default` is on the seventh
    let default = |levels: usize| {
        let text = ["[".repeat(levels), "]".repeat(levels)].concat();
        let raw = field(1, text.as_bytes());
        crd_schema(&field(8, &raw))
    };
    assert!(default(LEVELS_MAX - 6).is_ok());
    let error = default(LEVELS_MAX - 5).unwrap_err();
    assert!(
        chain(&error).contains("nested more than 127 levels deep"),
        "{error}"
    );
}

#[test]
fn small_bodies_make_no_large_objects() {
    let error = |raw: &[u8]| chain(&decode(&body("v1", "Pod", &field(2, raw))).unwrap_err());
    let containers = field(2, b"").repeat(VALUES_MAX / 2);
    let expected = format!("more than {VALUES_MAX} values");
    assert!(error(&containers).ends_with(&expected));
    let groups = field(14, &field(4, &vec![1; VALUES_MAX]));
    assert!(error(&groups).ends_with(&expected));
    let text = format!("[{}0]", "0,".repeat(VALUES_MAX));
    let schema = field(8, &field(1, text.as_bytes()));
    assert!(chain(&crd_schema(&schema).unwrap_err()).ends_with(&expected));
}

// No bytes whatever make the decoder panic, and what it accepts can be stored and read again.

fn check_survives(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(value) = decode(bytes) {
        let read: Value = serde_json::from_str(&value.to_string())
            .map_err(|error| TestCaseError::fail(format!("{error}: {value}")))?;
        // Not the whole: reading a number with a fraction may change its last digit.
        prop_assert_eq!(&read["kind"], &value["kind"]);
    }
    Ok(())
}

fn valid_bodies() -> Vec<Vec<u8>> {
    let fixtures = FIXTURES
        .iter()
        .map(|(_, base64, _)| base64.replace('\n', ""));
    let rows = rows(EMPTY).map(|(base64, _)| base64.to_owned());
    let bodies = fixtures.chain(rows);
    bodies
        .map(|base64| BASE64.decode(base64).unwrap())
        .collect()
}

/// Any byte, but half of the time a small one: most of a message is numbers of fields, lengths and
/// flags.
fn likely_byte(random: u16) -> u8 {
    let [choice, byte] = random.to_be_bytes();
    if choice < 0x80 { byte } else { byte % 0x30 }
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    Truncate(Index),
    Repeat(Index, Index),
}

impl Mutation {
    fn any() -> impl Strategy<Value = Self> {
        let byte = || any::<u16>().prop_map(likely_byte);
        prop_oneof![
            6 => (any::<Index>(), byte()).prop_map(|(at, byte)| Self::Set(at, byte)),
            1 => (any::<Index>(), byte()).prop_map(|(at, byte)| Self::Insert(at, byte)),
            1 => any::<Index>().prop_map(Self::Remove),
            1 => any::<Index>().prop_map(Self::Truncate),
            1 => any::<(Index, Index)>().prop_map(|(from, to)| Self::Repeat(from, to)),
        ]
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Self::Set(at, byte) => bytes[at.index(length)] = *byte,
            Self::Insert(at, byte) => bytes.insert(at.index(length), *byte),
            Self::Remove(at) => {
                bytes.remove(at.index(length));
            }
            Self::Truncate(at) => bytes.truncate(at.index(length)),
            Self::Repeat(from, to) => {
                let (from, to) = (from.index(length), to.index(length));
                bytes.extend_from_within(from.min(to)..from.max(to));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50_000))]

    #[test]
    fn random_bytes_never_panic(
        (api_version, kind) in select(TABLE.kinds().collect::<Vec<_>>()),
        raw in prop::collection::vec(any::<u16>().prop_map(likely_byte), 0..48),
    ) {
        check_survives(&raw)?;
        check_survives(&[PREFIX, &raw].concat())?;
        check_survives(&body(api_version, kind, &raw))?;
    }

    #[test]
    fn mutated_objects_never_panic(
        mut bytes in select(valid_bodies()),
        mutations in prop::collection::vec(Mutation::any(), 1..4),
    ) {
        for mutation in mutations {
            mutation.apply(&mut bytes);
        }
        check_survives(&bytes)?;
    }
}
