use super::*;

fn at(ms: u64) -> Moment {
    Moment {
        unix_ms: 1_000_000 + ms,
        monotonic_us: ms * 1000,
    }
}

fn see(timelines: &mut Timelines, hop: Hop, node: Option<&str>, ms: u64) -> Vec<Passage> {
    let seen = Seen {
        hop,
        node: node.map(str::to_owned),
    };
    timelines.observe("v", &seen, at(ms))
}

const ATTACH: [Hop; 10] = [
    Hop::PodScheduled,
    Hop::AttachmentCreated,
    Hop::TicketFiled,
    Hop::NodeChosen,
    Hop::EngineCreated,
    Hop::DeviceReady,
    Hop::VolumeAttached,
    Hop::TicketSatisfied,
    Hop::AttachmentDone,
    Hop::PodRunning,
];

#[test]
fn an_attach_is_stamped_hop_by_hop() {
    let mut timelines = Timelines::default();
    let mut finished = Vec::new();
    for (index, hop) in (0..).zip(ATTACH) {
        assert!(finished.is_empty(), "finished before {hop:?}");
        // Each value is usually seen several times: only the first counts.
        finished = see(&mut timelines, hop, Some("a"), index * 10);
        finished.extend(see(&mut timelines, hop, Some("a"), index * 10 + 5));
    }
    let [passage] = &finished[..] else {
        panic!("{finished:?}");
    };
    assert_eq!(passage.direction, Direction::Attach);
    assert_eq!(passage.started_ms, 1_000_000);
    let stamps: Vec<(Hop, u64)> = passage
        .hops
        .iter()
        .map(|stamp| (stamp.hop, stamp.after_us))
        .collect();
    let expected: Vec<(Hop, u64)> = (0..)
        .zip(ATTACH)
        .map(|(i, hop)| (hop, i * 10_000))
        .collect();
    assert_eq!(stamps, expected);
    assert!(!timelines.is_moving("v"));
}

#[test]
fn the_time_between_two_hops() {
    let stamp = |hop, after_us| Stamp { hop, after_us };
    let passage = Passage {
        node: "a".to_owned(),
        direction: Direction::Attach,
        started_ms: 0,
        hops: vec![
            stamp(Hop::TicketFiled, 0),
            stamp(Hop::TicketSatisfied, 2_000),
            stamp(Hop::AttachmentDone, 5_500),
        ],
    };
    let check = |from: Hop, to: Hop, expected_us: Option<u64>| {
        let expected = expected_us.map(Duration::from_micros);
        assert_eq!(passage.between(from, to), expected, "{from:?} to {to:?}");
    };
    check(Hop::TicketSatisfied, Hop::AttachmentDone, Some(3_500));
    check(Hop::TicketFiled, Hop::AttachmentDone, Some(5_500));
    check(Hop::AttachmentDone, Hop::TicketSatisfied, Some(0));
    check(Hop::TicketSatisfied, Hop::PodRunning, None);
    check(Hop::PodScheduled, Hop::TicketSatisfied, None);
}

#[test]
fn a_move_is_a_detach_there_and_an_attach_here() {
    let mut timelines = Timelines::default();
    timelines.was_there("v", "a");
    assert!(see(&mut timelines, Hop::PodScheduled, Some("a"), 0).is_empty());
    assert!(
        !timelines.is_moving("v"),
        "a volume that was there begins nothing"
    );
    for (ms, hop, node) in [
        (1, Hop::PodLeaving, Some("a")),
        (2, Hop::AttachmentDeleted, Some("a")),
        (3, Hop::TicketWithdrawn, Some("a")),
        (4, Hop::NodeReleased, None),
        (5, Hop::PodScheduled, Some("b")),
        (6, Hop::DeviceGone, Some("a")),
        (7, Hop::AttachmentGone, Some("a")),
    ] {
        assert_eq!(see(&mut timelines, hop, node, ms), [], "{hop:?}");
    }
    let finished = see(&mut timelines, Hop::VolumeDetached, None, 8);
    assert_eq!(finished.len(), 1, "{finished:?}");
    assert_eq!(
        (finished[0].node.as_str(), finished[0].direction),
        ("a", Direction::Detach)
    );
    assert_eq!(
        finished[0].hops.last(),
        Some(&Stamp {
            hop: Hop::VolumeDetached,
            after_us: 7000
        })
    );
    assert!(timelines.is_moving("v"), "the attach to b goes on");
}

#[test]
fn an_attach_that_is_given_up_becomes_a_detach() {
    let mut timelines = Timelines::default();
    see(&mut timelines, Hop::PodScheduled, Some("a"), 0);
    see(&mut timelines, Hop::PodLeaving, Some("a"), 1);
    let finished = see(&mut timelines, Hop::VolumeDetached, None, 2);
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].direction, Direction::Detach);
}

#[test]
fn a_ticket_by_hand_ends_when_it_is_satisfied() {
    let mut timelines = Timelines::default();
    see(&mut timelines, Hop::TicketFiled, Some("a"), 0);
    assert_eq!(
        see(&mut timelines, Hop::TicketSatisfied, Some("a"), 1).len(),
        1
    );
}

#[test]
fn the_annotation_keeps_the_newest() {
    let passage = |started_ms| Passage {
        node: "a".to_owned(),
        direction: Direction::Attach,
        started_ms,
        hops: Vec::new(),
    };
    let mut text = append(Some("not JSON"), passage(0));
    for started in 1..20 {
        text = append(Some(&text), passage(started));
    }
    let kept: Vec<u64> = read(&text)
        .iter()
        .map(|passage| passage.started_ms)
        .collect();
    assert_eq!(kept, (12..20).collect::<Vec<u64>>());
}

/// Anybody may write anything into a VolumeAttachment; the timeline only looks.
#[test]
fn a_ticket_under_another_name_is_seen_like_any_other() {
    let object = serde_json::json!({
        "metadata": {"name": "v"},
        "spec": {"volume": "v", "attachmentTickets": {"mine": {"id": "other", "nodeID": "n1", "type": "longhorn-api"}}},
    });
    let object = serde_json::from_value(object).expect("a VolumeAttachment");
    let (seen, now) = tickets(&object, &BTreeMap::new());
    let hops: Vec<Hop> = seen.iter().map(|seen| seen.hop).collect();
    assert_eq!(hops, [Hop::TicketFiled]);
    assert_eq!(now["mine"], "n1");
}
