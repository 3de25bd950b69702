//! What may differ in two answers of one kind, and why. `docs/api-differences.md` says the same to readers. Which refusals may have
//! different codes or reasons is in `refusals.rs`.

use super::compare::Difference;

/// Differences of one kind.
struct Allowed {
    /// A resource; a `*` at either end stands for anything.
    resource: &'static str,
    /// A path of a difference, with the same `*`.
    path: &'static str,
    /// What is in the real server's value, if it matters.
    real: &'static str,
    /// What is in ours, if it matters.
    ours: &'static str,
    why: &'static str,
}

const WORDS: &str =
    "the wording of a refusal is our own; its status, reason, details and causes are not";
const WARNINGS: &str = "warnings come with what was done; a refusal names what it refuses";
const FAULT: &str = "a request that can never be right is the client's fault, not the server's";
const ORDER: &str = "of several faults of one object not all are named";
const PATH: &str = "an unknown subresource names no object, as for built-in kinds";
const ZERO: &str = "a Go value without content, which means the same as none";
const LISTS: &str =
    "a list that is always there in Go belongs to nobody; here it belongs to who filled it";
const PHASE_TIME: &str = "when a volume's phase changed is not recorded";
const MARKS: &str = "a pod that goes at once is not marked as going before";
const TWICE: &str = "the real server states some faults twice";
const RESULTS: &str =
    "a patch is refused for itself where the real server shows what it would have made";
const SCALARS: &str = "a claim without a capacity shows none in its table";
const OPEN: &str = "not understood yet: the object is the same, its last write was another one";
const NAMES: &str = "the name of an event must be a name, as that of every object";
const NULLS: &str = "an applied null sets nothing, and is owned by nobody";

#[rustfmt::skip]
const ALLOWED: &[Allowed] = &[
    allow("*", ".message", "", "", WORDS),
    allow("*", ".details.causes[*].message", "", "", WORDS),
    allow("*", "*.description", "", "", "the descriptions of columns are our own"),
    allow("*", "*.format", "\"name\"", "\"\"", "only the column of names is marked as one"),
    allow("*", "warnings", "", "[]", WARNINGS),
    allow("*", ".details.causes", "", "(absent)", ORDER),
    allow("*", ".details.causes", "(absent)", "", ORDER),
    allow("*", ".details", "{}", "(absent)", ZERO),
    allow("*", ".details", "(absent)", "{}", ZERO),
    allow("*", ".metadata.continue", "\"\"", "(absent)", ZERO),
    allow("events", "*eventTime", "null", "(absent)", ZERO),
    allow("events", "*reason", "(absent)", "\"\"", ZERO),
    allow("events", "*f:reason", "(absent)", "{}", ZERO),
    allow("events", "*f:reportingComponent", "(absent)", "{}", ZERO),
    allow("events", "*f:reportingInstance", "(absent)", "{}", ZERO),
    allow("leases.coordination.k8s.io", "*.spec", "{}", "(absent)", ZERO),
    allow("nodes", "*status.daemonEndpoints", "", "(absent)", ZERO),
    allow("nodes", "*status.nodeInfo", "", "(absent)", ZERO),
    allow("pods", "*lastProbeTime", "", "(absent)", ZERO),
    allow("pods", "*lastTransitionTime", "", "(absent)", ZERO),
    allow("pods", "*f:spec.f:containers..", "(absent)", "{}", LISTS),
    allow("persistentvolumes", "*status.lastPhaseTransitionTime", "", "(absent)", PHASE_TIME),
    allow("*.longhorn.io", ".details.name", "", "(absent)", PATH),
    allow("*.longhorn.io", ".details.group", "", "(absent)", PATH),
    allow("*.longhorn.io", ".details.kind", "", "(absent)", PATH),
    allow("*", ".details.causes", "metadata.uid", "metadata.uid", TWICE),
    allow("*", ".details.causes", "taints", "taints", TWICE),
    allow("*", ".details.causes", "[", "[", ORDER),
    allow("*", ".details.causes[*].*", "", "", ORDER),
    allow("*", ".details", "causes", "(absent)", RESULTS),
    allow("*", ".items", "null", "[]", ZERO),
    allow("persistentvolumeclaims", ".rows[*].cells[*]", "\"0\"", "\"\"", SCALARS),
    allow("*", ".metadata.managedFields", "f:finalizers", "", NULLS),
    allow("*", "warnings", "[]", "unknown field", WARNINGS),
    allow("*", "status", "500", "200", FAULT),
    allow("*", "outcome", "field not declared in schema", "", FAULT),
    allow("*", "status", "201", "400", FAULT),
    allow("*", "outcome", "", "resourceVersion should not be set", FAULT),
    allow("*", "outcome", "accessor error", "", FAULT),
    allow("events", "status", "201", "422", NAMES),
    allow("events", "outcome", "", "metadata.name", NAMES),
    allow("*", ".metadata.resourceVersion", "first seen", "(absent)", "a dry run makes no version"),
    allow("settings.longhorn.io", ".metadata.resourceVersion", "changed", "as before", NULLS),
    allow("persistentvolumeclaims", ".metadata.resourceVersion", "", "", OPEN),
    allow("persistentvolumes", "*metadata.resourceVersion", "", "", OPEN),
    allow("pods", "", "MODIFIED", "DELETED", MARKS),
    allow("events", ".metadata.resourceVersion", "as before", "changed", OPEN),
];

const fn allow(
    resource: &'static str,
    path: &'static str,
    real: &'static str,
    ours: &'static str,
    why: &'static str,
) -> Allowed {
    Allowed {
        resource,
        path,
        real,
        ours,
        why,
    }
}

/// Why a difference is fine, if it is.
pub fn reason(resource: &str, difference: &Difference) -> Option<&'static str> {
    let fits = |allowed: &&Allowed| {
        matches(allowed.resource, resource)
            && matches(allowed.path, &difference.path)
            && difference.real.contains(allowed.real)
            && difference.ours.contains(allowed.ours)
    };
    ALLOWED.iter().find(fits).map(|allowed| allowed.why)
}

/// Whether a text is what a pattern with a `*` at its beginning, its end or both stands for.
pub fn matches(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (Some(part), Some(_)) => text.contains(part.trim_end_matches('*')),
        _ => text == pattern,
    }
}
