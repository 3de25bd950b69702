//! Names that are meant when an unknown one is given.

use crate::exit::{Failure, Outcome};

/// More would not help anybody to choose.
const SUGGESTIONS_MAX: usize = 3;

/// The names that are nearest to `name`: those that it is a part of, else those that differ by the fewest slips.
pub(crate) fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    // Of one or two letters every other name is as near as the next.
    let slips_max = match name.chars().count() {
        0..=2 => 0,
        letters => (letters / 4).clamp(1, 4),
    };
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .filter_map(|candidate| {
            let is_part = name.len() >= 3
                && (candidate.starts_with(name)
                    || candidate.ends_with(name)
                    || candidate.contains(name));
            let distance = if is_part {
                0
            } else {
                strsim::damerau_levenshtein(&name.to_lowercase(), &candidate.to_lowercase())
            };
            (distance <= slips_max).then_some((distance, candidate))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    let best = near.first().map(|(distance, _)| *distance);
    near.retain(|(distance, _)| Some(*distance) == best);
    near.truncate(SUGGESTIONS_MAX);
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The error for an unknown name: near names if there are some, else how to list them all.
pub(crate) fn unknown<'a>(
    what: &str,
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    list_with: &str,
) -> anyhow::Error {
    let near = near(name, known);
    let message = if near.is_empty() {
        format!("there is no {what} {name:?}; list them with: {list_with}")
    } else {
        let quoted: Vec<String> = near.iter().map(|name| format!("{name:?}")).collect();
        format!(
            "there is no {what} {name:?}; did you mean {}?",
            quoted.join(" or ")
        )
    };
    Failure::new(Outcome::NotFound, message).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, known: &[&str], expected: &[&str]) {
        assert_eq!(near(name, known.iter().copied()), expected, "{name}");
    }

    #[test]
    fn slips_and_abbreviations_are_recognised() {
        let nodes = ["node-1", "node-2", "node-3", "worker"];
        check("node1", &nodes, &["node-1"]);
        check("ndoe-2", &nodes, &["node-2"]);
        check("wroker", &nodes, &["worker"]);
        check("NODE-3", &nodes, &["node-3"]);
        check("storage", &nodes, &[]);
        let volumes = ["pvc-0b6f2c52-9d6c", "pvc-1a2b3c4d-0000"];
        check("0b6f", &volumes, &["pvc-0b6f2c52-9d6c"]);
        check("pvc-1a2b", &volumes, &["pvc-1a2b3c4d-0000"]);
        check("", &volumes, &[]);
        check("b", &["a", "c"], &[]);
        check("A", &["a", "c"], &["a"]);
    }

    #[test]
    fn an_unknown_name_says_what_to_try() {
        let error = unknown("node", "node1", ["node-1", "db"], "lariat node list");
        assert_eq!(
            error.to_string(),
            "there is no node \"node1\"; did you mean \"node-1\"?"
        );
        let error = unknown("node", "x", ["node-1"], "lariat node list");
        assert_eq!(
            error.to_string(),
            "there is no node \"x\"; list them with: lariat node list"
        );
    }
}
