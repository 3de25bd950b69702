//! `--leader-election`: of the attachers of one driver one works, and the next takes over when it dies.

use std::time::Duration;

use crate::{World, eventually};

/// The driver's list must not be a second reason for a call.
const ELECTED: &[&str] = &["--leader-election", "--reconcile-sync", "3600"];
const VOLUMES: usize = 20;
/// So long that two who both work would both have called before one of them has written down that it is done.
const LATENCY: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_works_and_the_next_takes_over_when_it_dies() {
    let mut world = World::start_with(ELECTED).await;
    world.attach("first").await;
    world.until_attached("first").await;
    // Who has attached it leads. Another comes, and knows whose Lease it wants.
    let introductions = world.driver.introductions();
    world.start_attacher();
    eventually("the second attacher to meet the driver", || {
        world.driver.introductions() > introductions
    })
    .await;

    world.driver.set_latency(LATENCY);
    let volumes: Vec<String> = (0..VOLUMES).map(|number| format!("v{number}")).collect();
    for volume in &volumes {
        world.attach(volume).await;
    }
    for volume in &volumes {
        world.until_attached(volume).await;
    }
    for volume in &volumes {
        world.delete_attachment(volume).await;
    }
    for volume in &volumes {
        world.until_gone(volume).await;
    }
    is_called_once(&world, "publish", "first");
    for volume in &volumes {
        is_called_once(&world, "publish", volume);
        is_called_once(&world, "unpublish", volume);
    }

    world.kill_attacher();
    world.attach("last").await;
    world.until_attached("last").await;
    is_called_once(&world, "publish", "last");
    is_called_once(&world, "publish", "first");
    let calls = world.driver.calls();
    assert_eq!(calls.len(), 2 + 2 * VOLUMES, "{calls:?}");
}

fn is_called_once(world: &World, call: &str, volume: &str) {
    let call = format!("{call} h-{volume} id-of-n1");
    assert_eq!(world.driver.count(&call), 1, "{call}");
}
