//! Reads `/metrics` as Prometheus does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// Status and body of one GET; none if nobody answers.
pub fn get(address: &str, path: &str, token: Option<&str>) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .ok()?;
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let authorization = authorization.unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// One process that shows metrics.
pub struct Process {
    pub address: String,
    pub token: String,
}

impl Process {
    /// The one with this folder.
    pub fn of(folder: &Path, token_file: &Path) -> Self {
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path);
            text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
                .trim()
                .to_owned()
        };
        Self {
            address: read(&folder.join("metrics-address")),
            token: read(token_file),
        }
    }

    pub fn scrape(&self) -> Scrape {
        let answer = get(&self.address, "/metrics", Some(&self.token));
        let (status, body) = answer.expect("an answer");
        assert_eq!(status, 200, "{body}");
        Scrape::read(&body)
    }
}

pub struct Sample {
    /// With the suffix of its kind, such as `_total`.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Default)]
pub struct Family {
    pub kind: String,
    pub labels: BTreeSet<String>,
    pub samples: Vec<Sample>,
}

/// Families by the name that queries use: counters have `_total`, histograms no suffix.
#[derive(Default)]
pub struct Scrape {
    pub families: BTreeMap<String, Family>,
}

impl Scrape {
    pub fn read(text: &str) -> Self {
        assert!(text.ends_with("# EOF\n"), "it was cut off: {text}");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a name and a kind");
                let suffix = if kind == "counter" { "_total" } else { "" };
                current = format!("{name}{suffix}");
                let family = families.entry(current.clone()).or_default();
                assert_eq!(family.kind, "", "{current} is shown twice");
                family.kind = kind.to_owned();
            } else if !line.starts_with('#') {
                let sample = read_sample(line);
                let family = families.get_mut(&current).expect("a family");
                let is_of = sample.name.starts_with(current.as_str());
                assert!(is_of, "{line} is not of {current}");
                family.labels.extend(sample.labels.keys().cloned());
                family.samples.push(sample);
            }
        }
        Self { families }
    }

    /// The samples of this name with these labels, added up.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let samples = self.families.values().flat_map(|family| &family.samples);
        let fits = |sample: &&Sample| {
            let has = |(key, value): &(&str, &str)| {
                sample.labels.get(*key).map(String::as_str) == Some(*value)
            };
            sample.name == name && labels.iter().all(has)
        };
        samples.filter(fits).map(|sample| sample.value).sum()
    }

    /// Takes note of families and labels that another scrape has.
    pub fn learn(&mut self, other: &Scrape) {
        for (name, family) in &other.families {
            let known = self.families.entry(name.clone()).or_default();
            known.kind.clone_from(&family.kind);
            known.labels.extend(family.labels.iter().cloned());
        }
    }
}

fn read_sample(line: &str) -> Sample {
    let (rest, value) = line.rsplit_once(' ').expect("a value");
    let (name, labels) = rest.split_once('{').unwrap_or((rest, "}"));
    let labels = labels.strip_suffix('}').expect("the end of the labels");
    let labels = labels.split_terminator("\",").map(|label| {
        let (key, value) = label.split_once("=\"").expect("a label");
        (key.to_owned(), value.trim_end_matches('"').to_owned())
    });
    Sample {
        name: name.to_owned(),
        labels: labels.collect(),
        value: value.parse().expect("a number"),
    }
}

#[test]
fn a_scrape_is_read() {
    let text = "# HELP a A.\n# TYPE a counter\na_total{x=\"1\",y=\"b c\"} 2\n# TYPE h histogram\n\
        h_sum 1.5\nh_bucket{le=\"+Inf\"} 3\n# TYPE g gauge\n# EOF\n";
    let scrape = Scrape::read(text);
    assert_eq!(scrape.sum("a_total", &[("y", "b c")]), 2.0);
    assert_eq!(scrape.sum("a_total", &[("y", "b")]), 0.0);
    assert_eq!(scrape.sum("h_sum", &[]), 1.5);
    let names: Vec<&String> = scrape.families.keys().collect();
    assert_eq!(names, ["a_total", "g", "h"]);
    assert_eq!(scrape.families["a_total"].labels.len(), 2);
}
