//! What names may look like, with the real server's sentences for those that don't.

/// The forms of names that kinds ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Dotted: most kinds.
    Subdomain,
    /// Without dots: namespaces.
    Label,
    /// Anything that fits between two slashes of a URL.
    PathSegment,
}

impl NameRule {
    /// What is wrong with `name`; nothing if empty.
    pub fn problems(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => subdomain(name),
            Self::Label => label(name),
            Self::PathSegment => path_segment(name),
        }
    }

    /// What is wrong with `prefix` as a `generateName`, to which characters will be added.
    pub fn prefix_problems(self, prefix: &str) -> Vec<String> {
        match prefix.strip_suffix('-') {
            // What follows a dash makes it an inner one.
            Some(rest) if !rest.is_empty() && self != Self::PathSegment => {
                self.problems(&format!("{rest}a"))
            }
            _ => self.problems(prefix),
        }
    }
}

const SUBDOMAIN_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// DNS-1123 subdomain.
pub fn subdomain(name: &str) -> Vec<String> {
    let mut problems = too_long(name, SUBDOMAIN_BYTES_MAX);
    if !name.split('.').all(is_lower_label) {
        problems.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    problems
}

/// DNS-1123 label.
pub fn label(name: &str) -> Vec<String> {
    let mut problems = too_long(name, LABEL_BYTES_MAX);
    if !is_lower_label(name) {
        problems.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
             '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
             '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

/// DNS-1035 label: like DNS-1123, but it starts with a letter.
pub fn label_1035(name: &str) -> Vec<String> {
    let mut problems = too_long(name, LABEL_BYTES_MAX);
    if !is_lower_label(name) || name.starts_with(|c: char| c.is_ascii_digit()) {
        problems.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start \
             with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  \
             or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

pub fn path_segment(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    ['/', '%']
        .into_iter()
        .filter(|forbidden| name.contains(*forbidden))
        .map(|forbidden| format!("may not contain '{forbidden}'"))
        .collect()
}

/// The keys of labels and annotations, finalizers, and other names with an optional prefix.
pub fn qualified(name: &str) -> Vec<String> {
    const FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start \
                        and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
                        '123-abc', regex used for validation is \
                        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut problems = Vec::new();
    let parts: Vec<&str> = name.split('/').collect();
    let local = match parts[..] {
        [local] => local,
        [prefix, local] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                let wrong = subdomain(prefix).into_iter();
                problems.extend(wrong.map(|problem| format!("prefix part {problem}")));
            }
            local
        }
        _ => {
            return vec![format!(
                "a qualified name {FORM} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    if local.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if local.len() > LABEL_BYTES_MAX {
        problems.push(format!(
            "name part must be no more than {LABEL_BYTES_MAX} bytes"
        ));
    }
    if !is_mixed_name(local) {
        problems.push(format!("name part {FORM}"));
    }
    problems
}

/// The values of labels.
pub fn label_value(value: &str) -> Vec<String> {
    let mut problems = too_long(value, LABEL_BYTES_MAX);
    if !value.is_empty() && !is_mixed_name(value) {
        problems.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  \
             or 'my_value',  or '12345', regex used for validation is \
             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    problems
}

/// The keys of Secrets and ConfigMaps.
pub fn config_key(key: &str) -> Vec<String> {
    let mut problems = too_long(key, SUBDOMAIN_BYTES_MAX);
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() || !key.chars().all(fits) {
        problems.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
             'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
             '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match key {
        "." => problems.push("must not be '.'".to_owned()),
        ".." => problems.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

fn too_long(text: &str, bytes_max: usize) -> Vec<String> {
    if text.len() > bytes_max {
        vec![format!("must be no more than {bytes_max} bytes")]
    } else {
        Vec::new()
    }
}

fn is_lower_label(label: &str) -> bool {
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_mixed_name(name: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(name.chars().next())
        && ends(name.chars().last())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let long = "a".repeat(64);
        let very_long = "a".repeat(254);
        type Rule = fn(&str) -> Vec<String>;
        let rows: [(Rule, &str, usize); 30] = [
            (subdomain, "a.b-c.1", 0),
            (subdomain, "A", 1),
            (subdomain, "a..b", 1),
            (subdomain, "-a", 1),
            (subdomain, "", 1),
            (subdomain, &very_long, 1),
            (label, "a-1", 0),
            (label, "a.b", 1),
            (label, &long, 1),
            (label, "a-", 1),
            (label_1035, "a1", 0),
            (label_1035, "1a", 1),
            (path_segment, "A:b", 0),
            (path_segment, "a/b", 1),
            (path_segment, "..", 1),
            (qualified, "example.com/My_name.1", 0),
            (qualified, "name", 0),
            (qualified, "/name", 1),
            (qualified, "Example.com/name", 1),
            (qualified, "a/b/c", 1),
            (qualified, "a/", 2),
            (qualified, "", 2),
            (qualified, "-a", 1),
            (label_value, "", 0),
            (label_value, "A_b.c", 0),
            (label_value, "a b", 1),
            (config_key, "my.key_1", 0),
            (config_key, "bad key", 1),
            (config_key, "..", 1),
            (config_key, "", 1),
        ];
        for (rule, name, expected) in rows {
            assert_eq!(rule(name).len(), expected, "{name:?}: {:?}", rule(name));
        }
    }

    #[test]
    fn generated_names_may_end_in_a_dash() {
        assert!(NameRule::Subdomain.prefix_problems("web-").is_empty());
        assert!(NameRule::Subdomain.prefix_problems("web.").len() == 1);
        assert!(NameRule::Label.prefix_problems("-").len() == 1);
    }
}
