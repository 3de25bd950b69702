//! Who has been told what already, so that a reason is told when it becomes one and not at every look, and to those
//! who come later when they come.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;

/// A reason in force, and who should know of it now.
pub struct Notice<T> {
    /// What makes it another reason than those before it.
    pub fingerprint: String,
    pub reason: T,
    pub recipients: Vec<ObjectReference>,
}

/// What of a notice has not been told.
pub struct News<T> {
    pub reason: T,
    /// It was not in force before. Otherwise somebody has only come late.
    pub is_new: bool,
    /// Those who have not heard it, in the notice's order.
    pub recipients: Vec<ObjectReference>,
}

/// The reasons in force, by the object that they are about. Losing them costs repeated events.
#[derive(Default)]
pub struct Told {
    by_object: Mutex<HashMap<String, Heard>>,
}

/// Who has heard of each reason, by its fingerprint.
type Heard = BTreeMap<String, BTreeSet<Recipient>>;

/// Kind, namespace, name and uid: what has another's name after it is not the same.
type Recipient = [Option<String>; 4];

impl Told {
    /// What nobody, or not everybody concerned, was told of the reasons that are in force now. Those and their recipients are all
    /// that is remembered. A list and not an iterator: nothing is looked up under the lock.
    pub fn fresh<T>(&self, object: &str, now: Vec<Notice<T>>) -> Vec<News<T>> {
        let mut all = self.all();
        let before = all.remove(object).unwrap_or_default();
        let mut after = Heard::new();
        let mut fresh = Vec::new();
        for notice in now {
            let Notice {
                fingerprint,
                reason,
                mut recipients,
            } = notice;
            let heard_before = before.get(&fingerprint);
            let is_new = heard_before.is_none() && !after.contains_key(&fingerprint);
            let heard = after.entry(fingerprint).or_default();
            recipients.retain(|recipient| {
                let recipient = identity(recipient);
                let knows = heard_before.is_some_and(|before| before.contains(&recipient));
                heard.insert(recipient) && !knows
            });
            if is_new || !recipients.is_empty() {
                fresh.push(News {
                    reason,
                    is_new,
                    recipients,
                });
            }
        }
        if !after.is_empty() {
            all.insert(object.to_owned(), after);
        }
        fresh
    }

    pub fn forget(&self, object: &str) {
        self.all().remove(object);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Heard>> {
        self.by_object
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn identity(recipient: &ObjectReference) -> Recipient {
    let ObjectReference {
        kind,
        namespace,
        name,
        uid,
        ..
    } = recipient;
    [kind.clone(), namespace.clone(), name.clone(), uid.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `name@uid`.
    fn recipient(word: &str) -> ObjectReference {
        let (name, uid) = word.split_once('@').unwrap_or((word, ""));
        ObjectReference {
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn notice(word: &str) -> Notice<&str> {
        let (reason, recipients) = word.split_once(':').unwrap_or((word, ""));
        let recipients = recipients.split(',').filter(|word| !word.is_empty());
        Notice {
            fingerprint: reason.to_owned(),
            reason,
            recipients: recipients.map(recipient).collect(),
        }
    }

    fn shown(news: &News<&str>) -> String {
        let sign = if news.is_new { "+" } else { "" };
        let names = news.recipients.iter().map(|recipient| {
            let name = recipient.name.as_deref();
            name.unwrap_or_default()
        });
        let names: Vec<&str> = names.collect();
        let separator = if names.is_empty() { "" } else { ":" };
        format!("{sign}{}{separator}{}", news.reason, names.join(","))
    }

    /// A word is a reason in force and who should know of it, `full:claim,pod`. Expected is who is told; `+` says that the
    /// reason is new.
    #[track_caller]
    fn check_of(told: &Told, object: &str, now: &str, expected: &str) {
        let notices: Vec<Notice<&str>> = now.split_whitespace().map(notice).collect();
        let news: Vec<String> = told.fresh(object, notices).iter().map(shown).collect();
        assert_eq!(news.join(" "), expected, "{object}: {now}");
    }

    /// The reasons that are remembered, and how often somebody has heard one.
    fn remembered(told: &Told) -> (usize, usize) {
        let all = told.all();
        let heard = || all.values().flat_map(BTreeMap::values);
        (heard().count(), heard().map(BTreeSet::len).sum())
    }

    #[test]
    fn a_reason_is_told_again_only_after_it_was_gone() {
        let told = Told::default();
        let check = |now: &str, expected: &str| check_of(&told, "v", now, expected);
        check("a b a", "+a +b");
        check("b c", "+c");
        check("a b", "+a");
        check("", "");
        check("b", "+b");
        check("b:v", "b:v");
        check("b:v", "");
        check("", "");
        check("b:v", "+b:v");
    }

    #[test]
    fn who_comes_late_hears_what_the_others_know_and_they_do_not_hear_it_again() {
        let told = Told::default();
        let check = |now: &str, expected: &str| check_of(&told, "v", now, expected);
        check("full:v", "+full:v");
        check("full:claim,v", "full:claim");
        check("full:pod,claim,v", "full:pod");
        check("full:pod,claim,v", "");
        check("full:pod,other,claim,v lost:v", "full:other +lost:v");
        check("full:other,pod,v,claim lost:pod,v", "lost:pod");
        check("lost:pod,v full:v,claim,pod,other", "");
    }

    #[test]
    fn nobody_hears_twice_what_is_in_force_for_two_causes() {
        let told = Told::default();
        let check = |now: &str, expected: &str| check_of(&told, "v", now, expected);
        check("full:v,v full:v,pod", "+full:v full:pod");
        check("full:pod full:v", "");
        check("full:pod full:late,v full:late", "full:late");
    }

    #[test]
    fn another_of_the_same_name_is_told_too() {
        let told = Told::default();
        let check = |now: &str, expected: &str| check_of(&told, "v", now, expected);
        check("full:pod@1,v", "+full:pod,v");
        check("full:pod@2,v", "full:pod");
        check("full:pod@2,v", "");
    }

    #[test]
    fn only_what_is_current_is_remembered() {
        let told = Told::default();
        let check = |object: &str, now: &str, expected: &str, left: (usize, usize)| {
            check_of(&told, object, now, expected);
            assert_eq!(remembered(&told), left, "{object}: {now}");
        };
        check("v", "full:pod,v lost:v", "+full:pod,v +lost:v", (2, 3));
        check("w", "full:pod,w", "+full:pod,w", (3, 5));
        check("v", "full:v lost:v", "", (3, 4));
        check("v", "full:pod,v", "full:pod", (2, 4));
        check("v", "", "", (1, 2));
        check("w", "full", "", (1, 0));
        told.forget("w");
        assert!(told.all().is_empty());
        check("w", "full:w", "+full:w", (1, 1));
        check("w", "", "", (0, 0));
        assert!(told.all().is_empty());
    }
}
