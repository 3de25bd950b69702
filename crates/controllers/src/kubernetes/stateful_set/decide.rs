//! Which pods a StatefulSet should make or give up now, decided from those that there are.
//!
//! Pods have numbers. In order, a pod is made when all before it are ready, and given up when all that should stay are and
//! the one after it is gone; in parallel nothing waits. A pod that is over is given up, so that it is made again.

use std::collections::BTreeMap;

/// What a set asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub first: u32,
    pub replicas: u32,
    pub parallel: bool,
    /// Pods of another revision are replaced from this number on; None: by people only.
    pub update_from: Option<u32>,
    /// The template's revision.
    pub revision: String,
}

impl Wanted {
    fn end(&self) -> u32 {
        self.first.saturating_add(self.replicas)
    }

    fn wants(&self, number: u32) -> bool {
        (self.first..self.end()).contains(&number)
    }
}

/// A pod of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub ready: bool,
    pub deleting: bool,
    /// It has succeeded or failed, and will not run again.
    pub over: bool,
    pub revision: String,
}

impl Member {
    fn is_well(&self) -> bool {
        self.ready && !self.deleting && !self.over
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create(u32),
    Delete(u32),
}

pub fn decide(wanted: &Wanted, members: &BTreeMap<u32, Member>) -> Vec<Step> {
    let mut steps = Vec::new();
    for number in wanted.first..wanted.end() {
        match members.get(&number) {
            None => steps.push(Step::Create(number)),
            Some(member) if member.over && !member.deleting => steps.push(Step::Delete(number)),
            Some(member) if member.is_well() => continue,
            Some(_) => {}
        }
        if !wanted.parallel {
            return steps;
        }
    }
    let surplus = members.iter().rev().filter(|(n, _)| !wanted.wants(**n));
    for (number, member) in surplus {
        if !member.deleting {
            steps.push(Step::Delete(*number));
        }
        if !wanted.parallel {
            return steps;
        }
    }
    if steps.is_empty() {
        steps.extend(update(wanted, members));
    }
    steps
}

/// One at a time, the last one first, and only while all are well.
fn update(wanted: &Wanted, members: &BTreeMap<u32, Member>) -> Option<Step> {
    let from = wanted.update_from?;
    let mut own = members.iter().filter(|(number, _)| wanted.wants(**number));
    if !own.clone().all(|(_, member)| member.is_well()) {
        return None;
    }
    let old = own.rfind(|(n, member)| **n >= from && member.revision != wanted.revision);
    old.map(|(number, _)| Step::Delete(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members as `NUMBER` and letters: `r` ready, `d` being deleted, `o` over, `x` of an old revision.
    fn check(wanted: &Wanted, members: &str, expected: &str) {
        let members = members.split_whitespace().map(|word| {
            let digits = word.trim_end_matches(char::is_alphabetic);
            let has = |letter| word.contains(letter);
            let member = Member {
                ready: has('r'),
                deleting: has('d'),
                over: has('o'),
                revision: if has('x') { "old" } else { "new" }.to_owned(),
            };
            (digits.parse().expect("a number"), member)
        });
        let steps = decide(wanted, &members.collect());
        let shown = steps.iter().map(|step| match step {
            Step::Create(number) => format!("+{number}"),
            Step::Delete(number) => format!("-{number}"),
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
    }

    fn ordered(replicas: u32) -> Wanted {
        Wanted {
            first: 0,
            replicas,
            parallel: false,
            update_from: Some(0),
            revision: "new".to_owned(),
        }
    }

    fn parallel(replicas: u32) -> Wanted {
        Wanted {
            parallel: true,
            ..ordered(replicas)
        }
    }

    #[test]
    fn in_order_one_waits_for_the_one_before() {
        check(&ordered(3), "", "+0");
        check(&ordered(3), "0", "");
        check(&ordered(3), "0r", "+1");
        check(&ordered(3), "0r 1", "");
        check(&ordered(3), "0r 1r 2r", "");
        // A gap is filled before anything else.
        check(&ordered(3), "1r 2r", "+0");
        check(&ordered(3), "0rd 1r 2r", "");
        check(&ordered(3), "0r 1o 2r", "-1");
        check(&ordered(3), "0r 1od 2r", "");
    }

    #[test]
    fn in_order_the_last_one_goes_first() {
        check(&ordered(1), "0r 1r 2r", "-2");
        check(&ordered(1), "0r 1r 2rd", "");
        check(&ordered(1), "0 1r 2r", "");
        check(&ordered(0), "0r 1r", "-1");
        check(&ordered(0), "0", "-0");
    }

    #[test]
    fn in_parallel_nothing_waits() {
        check(&parallel(3), "", "+0 +1 +2");
        check(&parallel(3), "1", "+0 +2");
        check(&parallel(1), "0 1r 2r 3d", "-2 -1");
        check(&parallel(2), "0o 1od", "-0");
    }

    #[test]
    fn a_new_template_reaches_one_pod_at_a_time() {
        check(&ordered(3), "0rx 1rx 2rx", "-2");
        check(&ordered(3), "0rx 1rx", "+2");
        check(&ordered(3), "0rx 1rx 2", "");
        check(&ordered(3), "0rx 1rx 2r", "-1");
        check(&ordered(3), "0r 1r 2r", "");
        let from = |update_from| Wanted {
            update_from,
            ..ordered(3)
        };
        check(&from(Some(2)), "0rx 1rx 2rx", "-2");
        check(&from(Some(2)), "0rx 1rx 2r", "");
        check(&from(None), "0rx 1rx 2rx", "");
    }

    #[test]
    fn numbers_may_begin_elsewhere() {
        let wanted = Wanted {
            first: 5,
            ..ordered(2)
        };
        check(&wanted, "", "+5");
        check(&wanted, "5r 6r", "");
        check(&wanted, "0r 5r 6r", "-0");
    }
}
