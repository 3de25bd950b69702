//! Since when a value is what it is: told where it is recorded, and not guessed elsewhere.

use crate::findings::world::{World, now};
use crate::index::Index;
use crate::subject::Subject;
use crate::why::why;

#[test]
fn a_time_is_told_only_of_the_value_that_it_is_for() {
    let said = |status: &[(&str, &str)]| {
        let mut world = World::healthy();
        world.edit("Volume pvc-1", |volume| {
            for (field, value) in status {
                volume["status"][field] = (*value).into();
            }
        });
        let dump = world.dump();
        let index = Index::new(&dump, now());
        let subject = Subject::resolve(&index, "pvc-1").expect("the volume");
        let answer = why(&index, &subject);
        let all = answer.links.iter().flat_map(|link| &link.evidence);
        let mut found = all.filter(|one| one.field == "status.robustness");
        found.next().expect("its robustness").since.is_some()
    };
    let since = ("lastDegradedAt", "2026-01-31T11:40:00Z");
    assert!(said(&[("robustness", "degraded"), since]));
    // What it was before says nothing of when it became this.
    assert!(!said(&[("robustness", "healthy"), since]));
}
