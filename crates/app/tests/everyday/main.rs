//! The everyday command line against a whole cluster: real processes, real volumes, a real terminal.
//!
//! One cluster serves all of it, since starting one takes longer than most of what is asked of it; so the steps are functions,
//! in an order that reads as a day with volumes.

#[path = "../support/mod.rs"]
mod support;

#[path = "../cluster/world.rs"]
#[allow(dead_code, reason = "this target uses its part")]
mod world;

mod attachments;
mod devices;
mod disks;
mod questions;
mod shell;
mod terminal;
mod tickets;

use world::World;

type Step = fn(&World, &shell::Shell);

#[test]
fn a_day_with_volumes() {
    let mut world = World::new(3);
    let shell = shell::Shell::new(&world);
    let steps: [(&str, Step); 9] = [
        ("questions", questions::lists_messages_and_settings),
        ("attachments", attachments::by_hand_and_back),
        ("pods", attachments::a_pods_volume_is_left_alone),
        ("tickets", tickets::only_what_nobody_needs_is_removed),
        ("disks", disks::disks_and_nodes),
        ("watch", terminal::a_watch_tells_what_changes),
        ("tables", terminal::tables_fit_and_colours_can_be_had_or_not),
        ("top", terminal::top_in_a_terminal),
        ("restart", attachments::a_history_survives_its_author),
    ];
    for (name, step) in steps {
        let started = std::time::Instant::now();
        step(&world, &shell);
        eprintln!("{name}: {} ms", started.elapsed().as_millis());
    }
    terminal::an_api_that_goes_away_is_shown_and_found_again(&mut world, &shell);
}
