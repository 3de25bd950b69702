//! What the driver answers is written down: also that it failed, and also when the answer comes late.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::{FINALIZER, World, eventually, is_attached};

/// Somebody else's, which keeps an object for a look at it after the attacher has let go.
const HOLD: &str = "example.com/hold";

/// How long a call may take, as `--timeout` has it.
const CALL_TIMEOUT: Duration = Duration::from_secs(6);
/// How long it takes: most of that, and the rest is for a machine that has much to do.
const LATENCY: Duration = Duration::from_secs(4);
/// The driver's list must not be a second reason for a call.
const LATE: &[&str] = &["--timeout", "6", "--reconcile-sync", "3600"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_that_fails_is_told_and_tried_again_until_it_succeeds() {
    let world = World::start().await;
    world.attach("v").await;
    world.until_attached("v").await;
    let finalizers = json!({"metadata": {"finalizers": [FINALIZER, HOLD]}});
    world.patch_attachment("v", finalizers).await;

    let failure = Status::internal("the array does not answer");
    world.driver.fail_all(Some(failure));
    // Times in statuses are whole seconds.
    let began = Timestamp::now() - Duration::from_secs(1);
    world.delete_attachment("v").await;
    let is_told = |found: Option<&VolumeAttachment>| {
        let status = found.and_then(|found| found.status.as_ref());
        status.is_some_and(|status| status.detach_error.is_some())
    };
    let found = world.until("v", "told the error", is_told).await;
    let found = found.expect("it was there just now");
    assert!(is_attached(Some(&found)), "nobody has detached it");
    assert_eq!(found.finalizers(), [FINALIZER, HOLD]);
    let error = found.status.and_then(|status| status.detach_error);
    let error = error.expect("an error");
    assert_eq!(
        error.message.as_deref(),
        Some("the array does not answer"),
        "the driver's own words"
    );
    let at = error.time.expect("a time").0;
    assert!((began..=Timestamp::now()).contains(&at), "{at}");
    // The external-attacher writes a code for attaches alone, and so do we.
    assert_eq!(error.error_code, None);
    eventually("another try", || {
        world.driver.count("unpublish h-v id-of-n1") >= 2
    })
    .await;
    assert!(world.driver.is_published("h-v"));

    world.driver.fail_all(None);
    let is_released = |found: Option<&VolumeAttachment>| {
        let status = found.and_then(|found| found.status.as_ref());
        found.is_some_and(|found| found.finalizers() == [HOLD])
            && status.is_some_and(|status| status.detach_error.is_none() && !status.attached)
    };
    let found = world.until("v", "released", is_released).await;
    let status = found.and_then(|found| found.status).expect("a status");
    assert_eq!(status.attachment_metadata, None);
    assert_eq!(status.attach_error, None);
    assert!(!world.driver.is_published("h-v"));
    let unheld = json!({"metadata": {"finalizers": null}});
    world.patch_attachment("v", unheld).await;
    world.until_gone("v").await;
}

/// Whoever wrote it down in what is left of the call's own time would have to make the call again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_is_written_down_in_time_of_its_own() {
    let world = World::start_with(LATE).await;
    world.driver.set_latency(LATENCY);
    world.attach("v").await;
    silence_beyond_the_call(&world).await;
    world.until_attached("v").await;
    let publishes = world.driver.count("publish h-v id-of-n1");
    assert_eq!(publishes, 1, "the answer was not lost");

    world.delete_attachment("v").await;
    silence_beyond_the_call(&world).await;
    world.until_gone("v").await;
    let unpublishes = world.driver.count("unpublish h-v id-of-n1");
    assert_eq!(unpublishes, 1, "the answer was not lost");
}

/// The API falls silent while a call is in flight, and answers again when the time that the call had is over.
async fn silence_beyond_the_call(world: &World) {
    eventually("a call in flight", || world.driver.in_flight() == 1).await;
    let began = Instant::now();
    signal_api(world, Signal::STOP);
    eventually("its answer", || world.driver.in_flight() == 0).await;
    let took = began.elapsed();
    assert!(took < CALL_TIMEOUT, "this machine is too slow: {took:?}");
    sleep_until(began + CALL_TIMEOUT + Duration::from_secs(1)).await;
    signal_api(world, Signal::CONT);
}

/// A process that is stopped keeps its connections, and nothing comes over them.
fn signal_api(world: &World, signal: Signal) {
    let pid = Pid::from_raw(world.cluster.pid().cast_signed());
    kill_process(pid.expect("a process"), signal).expect("it can be signalled");
}
