//! Dashboard, alerts and documentation against what was really shown.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::expressions;
use crate::scrape::Scrape;

/// Prometheus adds these by itself.
const ADDED: [&str; 3] = ["instance", "job", "le"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn name_what_is_shown(seen: &Scrape) {
    let documented = documented();
    let shown: BTreeSet<String> = seen.families.keys().cloned().collect();
    let missing: Vec<_> = documented.difference(&shown).collect();
    assert!(missing.is_empty(), "documented, but not shown: {missing:?}");
    let silent: Vec<_> = shown.difference(&documented).collect();
    assert!(silent.is_empty(), "shown, but not documented: {silent:?}");
    let expressions = [dashboard_expressions(), alert_expressions()].concat();
    assert!(expressions.len() > 50, "{}", expressions.len());
    for expression in &expressions {
        check(seen, expression);
    }
}

/// Every metric and label of the expression was shown.
fn check(seen: &Scrape, expression: &str) {
    let named = expressions::read(expression);
    assert!(!named.metrics.is_empty(), "no metric in {expression}");
    let mut labels = BTreeSet::new();
    for metric in &named.metrics {
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| metric.strip_suffix(suffix))
            .find_map(|name| seen.families.get(name))
            .filter(|family| family.kind == "histogram");
        let family = seen
            .families
            .get(metric)
            .filter(|family| family.kind != "histogram")
            .or(of_histogram);
        let family = family.unwrap_or_else(|| panic!("no {metric}, in {expression}"));
        labels.extend(family.labels.iter().map(String::as_str));
    }
    labels.extend(ADDED);
    for label in &named.labels {
        let is_known = labels.contains(label.as_str());
        assert!(is_known, "no label {label}, in {expression}");
    }
}

/// The names in the first column of the tables.
fn documented() -> BTreeSet<String> {
    let text = read("docs/metrics.md");
    let names = text.lines().filter_map(|line| {
        let name = line.strip_prefix("| `")?.split('`').next()?;
        let is_metric = ["lariat_", "csi_"]
            .iter()
            .any(|start| name.starts_with(start));
        is_metric.then(|| name.to_owned())
    });
    names.collect()
}

fn dashboard_expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/dashboard.json"))
        .expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    targets
        .flatten()
        .map(|target| target["expr"].as_str().expect("an expression").to_owned())
        .collect()
}

fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts.yaml"))
        .expect("the alerts are YAML");
    let groups = rules["groups"].as_array().expect("groups");
    let rules = groups.iter().filter_map(|group| group["rules"].as_array());
    rules.flatten().cloned().collect()
}

fn alert_expressions() -> Vec<String> {
    let text = |alert: &Value| alert["expr"].as_str().expect("an expression").to_owned();
    alerts().iter().map(text).collect()
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() > 15, "{}", alerts.len());
    let mut names = BTreeSet::new();
    for alert in &alerts {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&alert["alert"]);
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(!text(&alert["for"]).is_empty(), "{name} has no for");
        let severity = text(&alert["labels"]["severity"]);
        let known = ["critical", "warning", "info"];
        assert!(known.contains(&severity.as_str()), "{name}: {severity:?}");
        let summary = text(&alert["annotations"]["summary"]);
        assert!(summary.ends_with('.'), "{name}: {summary:?}");
        runbook_exists(&name, &text(&alert["annotations"]["runbook"]));
    }
}

/// A file of this repository, and the heading in it.
fn runbook_exists(name: &str, runbook: &str) {
    let pages: Vec<String> = if runbook.contains("{{ $labels.code }}") {
        let codes = diagnose::Code::ALL.iter();
        codes
            .map(|code| runbook.replace("{{ $labels.code }}", &code.to_string()))
            .collect()
    } else {
        vec![runbook.to_owned()]
    };
    for page in pages {
        let (path, heading) = page.split_once('#').unwrap_or((&page, ""));
        let text = read(path);
        let anchors = text.lines().filter_map(|line| {
            let title = line.strip_prefix("## ")?.to_lowercase().replace(' ', "-");
            let kept = |one: &char| one.is_ascii_alphanumeric() || *one == '-';
            Some(title.chars().filter(kept).collect::<String>())
        });
        let is_there = heading.is_empty() || anchors.into_iter().any(|one| one == heading);
        assert!(is_there, "{name}: no heading #{heading} in {path}");
    }
}
