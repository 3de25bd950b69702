//! Which metrics and labels a PromQL expression names: as much of the language as our rules use.

use std::collections::BTreeSet;

/// One metric, with the labels that are chosen by or grouped by.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    pub metrics: BTreeSet<String>,
    pub labels: BTreeSet<String>,
}

const WORDS: [&str; 10] = [
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
];
/// Before the parentheses that hold labels.
const GROUPING: [&str; 5] = ["by", "without", "on", "ignoring", "group_left"];

/// After the name of a function or an aggregation.
const CALLED: [Option<&str>; 3] = [Some("("), Some("by"), Some("without")];

pub fn read(expression: &str) -> Named {
    let tokens = tokens(expression);
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut in_braces = false;
    let mut in_grouping = false;
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map(String::as_str);
        let before = at.checked_sub(1).map(|at| tokens[at].as_str());
        match token.as_str() {
            "{" => in_braces = true,
            "}" => in_braces = false,
            "(" => in_grouping = before.is_some_and(|word| GROUPING.contains(&word)),
            ")" => in_grouping = false,
            word if is_name(word) => {
                let is_label = in_grouping
                    || (in_braces && next.is_some_and(|sign| sign.starts_with(['=', '!'])));
                if is_label {
                    labels.insert(word.to_owned());
                } else if !in_braces && !CALLED.contains(&next) && !WORDS.contains(&word) {
                    metrics.insert(word.to_owned());
                }
            }
            _ => {}
        }
    }
    Named { metrics, labels }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Names, signs and brackets; strings, numbers and durations in brackets are left out.
fn tokens(expression: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
            '[' => rest.find(']').map_or(rest.len(), |end| end + 1),
            '0'..='9' | '.' => end_of(rest, |one| one.is_ascii_alphanumeric() || one == '.'),
            '_' | 'a'..='z' | 'A'..='Z' => {
                end_of(rest, |one| one.is_ascii_alphanumeric() || one == '_')
            }
            '=' | '!' | '~' | '<' | '>' => end_of(rest, |one| "=!~<>".contains(one)),
            other => other.len_utf8(),
        };
        let (token, left) = rest.split_at(length);
        let is_left_out = first.is_whitespace() || first.is_ascii_digit() || "\"[.".contains(first);
        if !is_left_out {
            tokens.push(token.to_owned());
        }
        rest = left;
    }
    tokens
}

fn end_of(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|one| !belongs(one)).unwrap_or(text.len())
}

#[test]
fn metrics_and_labels_are_told_from_the_rest() {
    let check = |expression: &str, metrics: &[&str], labels: &[&str]| {
        let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let expected = Named {
            metrics: set(metrics),
            labels: set(labels),
        };
        assert_eq!(read(expression), expected, "{expression}");
    };
    check("up", &["up"], &[]);
    check("max(a_b) > 120", &["a_b"], &[]);
    check(
        "max by (x, y) (a{z=\"q w\",v=~\"e|f\"}) / b",
        &["a", "b"],
        &["v", "x", "y", "z"],
    );
    check(
        "histogram_quantile(0.9, sum by (le) (rate(a_bucket{d!=\"x\"}[15m]))) > 1.5e3",
        &["a_bucket"],
        &["d", "le"],
    );
    check("(sum(a) or vector(0)) < 1", &["a"], &[]);
    check("count(count by (version) (a)) > 1", &["a"], &["version"]);
}
