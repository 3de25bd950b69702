//! `pattern`: Go's regular expressions on Rust's engine.

use regex::{Regex, RegexBuilder};

use super::Schema;

/// Both engines run in linear time; what is left to bound is the memory of the compiled program.
const PROGRAM_BYTES_MAX: usize = 1 << 20;
const PATTERN_BYTES_MAX: usize = 16 << 10;

impl Schema {
    /// The compiled `pattern`, or why it does not compile. `None` without a pattern.
    pub(super) fn regex(&self) -> Option<Result<&Regex, &str>> {
        let pattern = self.pattern.as_deref()?;
        let compiled = self.compiled_pattern.get_or_compile(|| compile(pattern));
        Some(compiled.as_ref().map_err(String::as_str))
    }
}

pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(format!(
            "must be at most {PATTERN_BYTES_MAX} bytes long, is {}",
            pattern.len()
        ));
    }
    RegexBuilder::new(&translate(pattern))
        .size_limit(PROGRAM_BYTES_MAX)
        .dfa_size_limit(PROGRAM_BYTES_MAX)
        .nest_limit(64)
        .build()
        .map_err(|error| error.to_string())
}

/// The two syntaxes differ in three places: Go's `\d`, `\s` and `\w` are ASCII only, and inside
/// brackets `[`, `&&` and `~~` are plain characters to Go but operators to Rust.
fn translate(pattern: &str) -> String {
    let mut translated = String::with_capacity(pattern.len() + 16);
    let mut characters = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('d') => translated.push_str("[0-9]"),
                Some('D') => translated.push_str("[^0-9]"),
                Some('w') => translated.push_str("[0-9A-Za-z_]"),
                Some('W') => translated.push_str("[^0-9A-Za-z_]"),
                Some('s') => translated.push_str(r"[\t\n\f\r ]"),
                Some('S') => translated.push_str(r"[^\t\n\f\r ]"),
                Some(escaped) => translated.extend(['\\', escaped]),
                None => translated.push('\\'),
            },
            '[' if !in_class => {
                in_class = true;
                translated.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    translated.push('^');
                }
                // A bracket right after the opening one is a member of the class.
                if characters.next_if_eq(&']').is_some() {
                    translated.push_str(r"\]");
                }
            }
            '[' if characters.peek() == Some(&':') => {
                // A named class such as `[:alpha:]`, copied whole.
                translated.push('[');
                for inner in characters.by_ref() {
                    translated.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if in_class => translated.extend(['\\', character]),
            ']' if in_class => {
                in_class = false;
                translated.push(']');
            }
            _ => translated.push(character),
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_what_go_matches() {
        let rows: [(&str, &str, bool); 12] = [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\d.]+$", "1.2", true),
            (r"^[^\d]+$", "ab", true),
            (r"^\w+$", "ä", false),
            (r"^[[]$", "[", true),
            (r"^[]a]$", "]", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[:alpha:]_]+$", "ab_", true),
            (r"b", "abc", true),
            (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "vol-1", true),
            (r"^\S+$", "a b", false),
        ];
        for (pattern, text, expected) in rows {
            let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(regex.is_match(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn refuses_what_would_cost_too_much() {
        assert!(compile(r"((a{100}){100}){100}").is_err());
        assert!(compile(&"a".repeat(PATTERN_BYTES_MAX + 1)).is_err());
        assert!(compile("(").is_err());
    }
}
