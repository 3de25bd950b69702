//! What may differ, and why. `docs/api-differences.md` says the same to readers.

use super::compare::Difference;

/// Differences of one kind.
struct Allowed {
    /// A resource, or `*`.
    resource: &'static str,
    /// A path of a difference; a `*` at an end stands for anything.
    path: &'static str,
    /// What is in the real server's value, if it matters.
    real: &'static str,
    /// What is in ours, if it matters.
    ours: &'static str,
    why: &'static str,
}

const ALLOWED: &[Allowed] = &[];

/// Why a difference is fine, if it is.
pub fn reason(resource: &str, difference: &Difference) -> Option<&'static str> {
    let fits = |allowed: &&Allowed| {
        (allowed.resource == "*" || allowed.resource == resource)
            && matches(allowed.path, &difference.path)
            && difference.real.contains(allowed.real)
            && difference.ours.contains(allowed.ours)
    };
    ALLOWED.iter().find(fits).map(|allowed| allowed.why)
}

fn matches(pattern: &str, path: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), None) => path.ends_with(end),
        (None, Some(start)) => path.starts_with(start),
        _ => path == pattern,
    }
}
