//! The Helm chart, made of the kustomize base: what is installed is written down once.
//!
//! A line of the base that ends in `# helm: TEXT` has `TEXT` in place of its value in the chart; every other line is the
//! same in both. The chart's default values are the base's, which a test shows by rendering it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const MARK: &str = " # helm: ";
const HEADER: &str = "# Made from deploy/base by `cargo xtask chart`; change that.\n";

/// Writes the chart's templates, and removes those whose file in the base is gone.
pub fn write(root: &Path) -> Result<()> {
    let folder = templates(root);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let made = make(root)?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if !made.iter().any(|(name, _)| path.ends_with(name)) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    for (name, text) in made {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn base(root: &Path) -> PathBuf {
    root.join("deploy/base")
}

fn templates(root: &Path) -> PathBuf {
    root.join("deploy/helm/lariat/templates")
}

/// Each template's name and text.
fn make(root: &Path) -> Result<Vec<(String, String)>> {
    let folder = base(root);
    let entries = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut made = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name == "kustomization.yaml" {
            continue;
        }
        let path = folder.join(&name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        made.push((name, template(&text)));
    }
    made.sort();
    Ok(made)
}

fn template(text: &str) -> String {
    let lines = text.lines().map(|line| template_line(line) + "\n");
    HEADER.to_owned() + &lines.collect::<String>()
}

/// The line with its value replaced, if it is marked: `key: value`, or `- value`.
fn template_line(line: &str) -> String {
    let Some((before, replacement)) = line.split_once(MARK) else {
        return line.to_owned();
    };
    let value = before.find(": ").map(|at| at + 2);
    let item = before.find("- ").map(|at| at + 2);
    let at = value.or(item).unwrap_or(before.len());
    format!("{}{replacement}", &before[..at])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::workspace_root;

    #[test]
    fn marked_lines_get_their_template() {
        let check = |line: &str, expected: &str| assert_eq!(template_line(line), expected);
        check("  a: 1", "  a: 1");
        check("  a: 1 # why", "  a: 1 # why");
        check("  a: 1 # helm: {{ .Values.a }}", "  a: {{ .Values.a }}");
        check(
            "  - --a=1 # helm: --a={{ .Values.a }}",
            "  - --a={{ .Values.a }}",
        );
    }

    #[test]
    fn the_chart_is_made_of_the_base_as_it_is() {
        let root = workspace_root();
        let made = make(&root).expect("a base");
        assert!(made.len() > 5, "the base has more files than that");
        let mut found: Vec<String> = fs::read_dir(templates(&root))
            .expect("templates; make them with `cargo xtask chart`")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        found.sort();
        let names: Vec<&String> = made.iter().map(|(name, _)| name).collect();
        assert_eq!(
            found.iter().collect::<Vec<_>>(),
            names,
            "run `cargo xtask chart`"
        );
        for (name, text) in made {
            let there = fs::read_to_string(templates(&root).join(&name)).expect("a template");
            assert!(
                there == text,
                "{name} is not what the base makes: run `cargo xtask chart`"
            );
        }
    }

    /// What Helm would make of the few constructs that the chart uses.
    fn render(template: &str, values: &Value) -> String {
        let mut rest = template;
        let mut rendered = String::new();
        while let Some((before, after)) = rest.split_once("{{ ") {
            let (expression, after) = after.split_once(" }}").expect("an end of the expression");
            let mut steps = expression.split(" | ");
            let path = steps.next().expect("a value");
            let path = path.strip_prefix(".Values.").expect("one of the values");
            let value = path.split('.').fold(values, |value, key| &value[key]);
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                other => panic!("{path} is {other} in values.yaml"),
            };
            rendered += before;
            match steps.next() {
                None => rendered += &text,
                Some("quote") => rendered += &format!("{text:?}"),
                Some(other) => panic!("{other} is not known here"),
            }
            rest = after;
        }
        rendered + rest
    }

    fn documents(text: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(text).expect("YAML")
    }

    #[test]
    fn with_its_own_values_the_chart_is_the_base() {
        let root = workspace_root();
        let values = fs::read_to_string(root.join("deploy/helm/lariat/values.yaml"));
        let values = documents(&values.expect("values")).remove(0);
        let mut expressions = 0;
        for (name, text) in make(&root).expect("a base") {
            expressions += text.matches("{{ ").count();
            let plain = fs::read_to_string(base(&root).join(&name)).expect("a file of the base");
            assert_eq!(
                documents(&render(&text, &values)),
                documents(&plain),
                "{name}"
            );
        }
        assert!(expressions > 10, "the chart has values that mean something");
    }
}
