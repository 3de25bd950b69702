//! Requests that both servers refuse, each with another code or reason: which pairs may be, and why. `docs/api-differences.md` says
//! the same to readers.
//!
//! A run prints every pair that it met, with a count and an example, whether it may be or not, and the rows that nothing fitted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::allowed::matches;
use super::compare::{Difference, shortened};
use super::exchange::Request;

/// The path of the one difference that there is between two such answers.
pub const PATH: &str = "refusal";

/// Pairs of one kind.
struct Allowed {
    /// The kind of request as the generator calls it; a `*` at either end stands for anything.
    request: &'static str,
    /// A resource, with the same `*`.
    resource: &'static str,
    /// What stands in the request's path or body, if it matters; behind a `!`, what does not.
    with: &'static str,
    /// Code and reason of the real server.
    real: &'static str,
    ours: &'static str,
    why: &'static str,
}

const FAULT: &str = "a request that can never be right is the client's fault, not the server's";
const METHOD: &str =
    "a collection of custom objects does not have this method: 405, as for built-in kinds, not 400";
const UNSERVED: &str =
    "what is not served is a Status with 404, as for built-in kinds, not a page of text";
const KIND: &str =
    "the kind of a custom object is looked at before anything else, not after all of it";
const UNNAMED: &str = "an applied object without a name is refused for that, before its uid is compared and others' fields are looked for";
const VERSIONED: &str =
    "a new object with a version is refused for that, whether one of its name exists or not";

const CUSTOM: &str = "*.longhorn.io";
const UNCLASSIFIED: &str = "500 (no reason)";

#[rustfmt::skip]
const ALLOWED: &[Allowed] = &[
    allow("get", "*", "resourceVersion=abc", UNCLASSIFIED, "400 BadRequest", FAULT),
    allow("create", "*", "\"resourceVersion\":\"5\"", UNCLASSIFIED, "400 BadRequest", FAULT),
    allow("apply", "*", "", UNCLASSIFIED, "400 BadRequest", FAULT),
    allow("apply", "*", "", UNCLASSIFIED, "422 Invalid", FAULT),
    allow("apply", "*", "\"metadata\":{\"uid\":", "409 Conflict", "400 BadRequest", UNNAMED),
    allow("apply", "*", "\"metadata\":{\"uid\":", "422 Invalid", "400 BadRequest", UNNAMED),
    allow("apply", "*", "!\"name\":", "409 Conflict", "400 BadRequest", UNNAMED),
    allow("create", "*", "\"resourceVersion\":\"5\"", "409 AlreadyExists", "400 BadRequest", VERSIONED),
    allow("post to an object", CUSTOM, "", "400 BadRequest", "405 MethodNotAllowed", METHOD),
    allow("put to a collection", CUSTOM, "", "400 BadRequest", "405 MethodNotAllowed", METHOD),
    allow("patch of a collection", CUSTOM, "", "400 BadRequest", "405 MethodNotAllowed", METHOD),
    allow("unknown resource", CUSTOM, "", "404 (no Status)", "404 NotFound", UNSERVED),
    allow("update", CUSTOM, "\"kind\":\"Other\"", "404 NotFound", "422 Invalid", KIND),
];

const fn allow(
    request: &'static str,
    resource: &'static str,
    with: &'static str,
    real: &'static str,
    ours: &'static str,
    why: &'static str,
) -> Allowed {
    Allowed {
        request,
        resource,
        with,
        real,
        ours,
        why,
    }
}

impl Allowed {
    fn fits(&self, request: &Request, pair: &Difference) -> bool {
        matches(self.request, request.what)
            && matches(self.resource, request.resource)
            && self.fits_text(&request.label)
            && self.real == pair.real
            && self.ours == pair.ours
    }

    fn fits_text(&self, label: &str) -> bool {
        match self.with.strip_prefix('!') {
            Some(absent) => !label.contains(absent),
            None => label.contains(self.with),
        }
    }
}

/// One pair, in the requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// The row that lets it be; none first, since those are what a reader looks for.
    row: Option<usize>,
    request: &'static str,
    real: String,
    ours: String,
}

#[derive(Debug)]
struct Met {
    count: usize,
    resources: BTreeSet<&'static str>,
    example: String,
}

/// What a run has met.
#[derive(Debug, Default)]
pub struct Refusals {
    met: BTreeMap<Pair, Met>,
}

impl Refusals {
    /// Counts a pair. Whether it may be.
    pub fn note(&mut self, request: &Request, pair: &Difference) -> bool {
        let row = ALLOWED.iter().position(|row| row.fits(request, pair));
        let pair = Pair {
            row,
            request: request.what,
            real: pair.real.clone(),
            ours: pair.ours.clone(),
        };
        let met = self.met.entry(pair).or_insert_with(|| Met {
            count: 0,
            resources: BTreeSet::new(),
            example: shortened(&request.label),
        });
        met.count += 1;
        met.resources.insert(request.resource);
        row.is_some()
    }

    /// Everything that was met, and the rows that nothing fitted.
    pub fn report(&self) -> String {
        let mut text = "refusals that differ (kind of request: real / ours)\n".to_owned();
        for (pair, met) in &self.met {
            let why = pair.row.map_or("NOT ALLOWED", |row| ALLOWED[row].why);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:>6} {}: {why}", met.count, told(pair, met));
        }
        for (place, row) in ALLOWED.iter().enumerate() {
            if !self.met.keys().any(|pair| pair.row == Some(place)) {
                let Allowed {
                    request,
                    resource,
                    with,
                    real,
                    ours,
                    ..
                } = row;
                let _ = writeln!(
                    text,
                    "  none {request} of {resource} with {with:?}: {real} / {ours}"
                );
            }
        }
        text
    }

    /// One text for each pair that may not be.
    pub fn failures(&self) -> Vec<String> {
        let strange = self.met.iter().filter(|(pair, _)| pair.row.is_none());
        strange
            .map(|(pair, met)| format!("{}: {} times", told(pair, met), met.count))
            .collect()
    }
}

fn told(pair: &Pair, met: &Met) -> String {
    let resources: Vec<&str> = met.resources.iter().copied().collect();
    format!(
        "{}: {} / {} in {}, such as {}",
        pair.request,
        pair.real,
        pair.ours,
        resources.join(", "),
        met.example
    )
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn request(what: &'static str, resource: &'static str, line: &str) -> Request {
        Request {
            what,
            label: format!("{what}: {line}"),
            resource,
            method: Method::POST,
            path: String::new(),
            content_type: None,
            accept: None,
            body: None,
            about: String::new(),
            dry_run: false,
        }
    }

    fn pair(real: &str, ours: &str) -> Difference {
        Difference {
            path: PATH.to_owned(),
            real: real.to_owned(),
            ours: ours.to_owned(),
        }
    }

    #[test]
    fn a_pair_may_be_only_where_its_row_says() {
        let check = |what, resource, line: &str, real: &str, ours: &str, expected: bool| {
            let noted = Refusals::default().note(&request(what, resource, line), &pair(real, ours));
            assert_eq!(noted, expected, "{what} {resource} {line} {real} {ours}");
        };
        let (bad, method) = ("400 BadRequest", "405 MethodNotAllowed");
        let custom = "volumes.longhorn.io";
        check("put to a collection", custom, "PUT /x", bad, method, true);
        check("put to a collection", custom, "PUT /x", method, bad, false);
        check("put to a collection", "pods", "PUT /x", bad, method, false);
        check("update", custom, "PUT /x", bad, method, false);
        let version = "GET /x?resourceVersion=abc";
        check("get", "pods", version, UNCLASSIFIED, bad, true);
        check("get", "pods", "GET /x", UNCLASSIFIED, bad, false);
        check("create", "pods", "POST /x", "422 Invalid", bad, false);
    }

    #[test]
    fn every_pair_is_reported_with_its_count_and_an_example() {
        let mut refusals = Refusals::default();
        let strange = pair("409 Conflict", "404 NotFound");
        refusals.note(&request("update", "pods", "PUT /pods/a"), &strange);
        refusals.note(&request("update", "nodes", "PUT /nodes/a"), &strange);
        let known = pair("400 BadRequest", "405 MethodNotAllowed");
        refusals.note(
            &request("post to an object", "settings.longhorn.io", "POST /a/b"),
            &known,
        );
        let report = refusals.report();
        let line = "2 update: 409 Conflict / 404 NotFound in nodes, pods, such as update: PUT /pods/a: NOT ALLOWED";
        assert!(report.contains(line), "{report}");
        assert!(report.contains(METHOD), "{report}");
        assert!(
            report.contains("none get of * with \"resourceVersion=abc\""),
            "{report}"
        );
        let failures = refusals.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].ends_with("2 times"), "{failures:?}");
    }
}
