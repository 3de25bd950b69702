//! Attachments as `name=driver:volume@node+seconds[!flag…]`, volumes as `name:MODES[~annotated-node]`.
//! Flags: `!pending` (not attached), `!inline`.

use super::*;
use crate::view::AttachmentSource;

const OURS: &str = "driver.longhorn.io";

fn attachment(text: &str) -> (AttachmentName, VolumeAttachment) {
    let (head, flags) = text.split_once('!').unwrap_or((text, ""));
    let (name, rest) = head.split_once('=').expect("name=…");
    let (driver, rest) = rest.split_once(':').expect("driver:…");
    let (volume, rest) = rest.split_once('@').expect("volume@…");
    let (node, seconds) = rest.split_once('+').expect("node+seconds");
    let source = if flags == "inline" {
        AttachmentSource::Inline
    } else {
        AttachmentSource::Volume(volume.into())
    };
    let attachment = VolumeAttachment {
        driver: if driver == "our" {
            OURS.into()
        } else {
            driver.into()
        },
        source,
        node: node.into(),
        created_at: Timestamp(seconds.parse().expect("seconds")),
        deleting: flags == "deleting",
        finalizers: Vec::new(),
        annotations: BTreeMap::new(),
        attached: flags != "pending",
        attach_error: None,
        detach_error: None,
    };
    (name.into(), attachment)
}

fn volume(text: &str) -> (PvName, PersistentVolume) {
    let (head, annotated) = text
        .split_once('~')
        .map_or((text, None), |(head, node)| (head, Some(node)));
    let (name, modes) = head.split_once(':').expect("name:modes");
    let mode = match modes {
        "RWO" => AccessMode::ReadWriteOnce,
        "ROX" => AccessMode::ReadOnlyMany,
        "RWX" => AccessMode::ReadWriteMany,
        other => panic!("unknown mode {other}"),
    };
    let annotations = annotated
        .map(|node| (attached_node_annotation(&OURS.into()), node.to_owned()))
        .into_iter()
        .collect();
    let volume = PersistentVolume {
        driver: OURS.into(),
        handle: name.into(),
        access_modes: [mode].into(),
        claim_uid: None,
        deleting: false,
        finalizers: Vec::new(),
        annotations,
        read_only: false,
        fs_type: None,
        is_block: false,
        publish_secret: None,
        attributes: BTreeMap::new(),
    };
    (name.into(), volume)
}

fn check(attachments: &str, volumes: &str, expected: &[&str]) {
    let attachments = attachments.split_whitespace().map(attachment).collect();
    let volumes = volumes.split_whitespace().map(volume).collect();
    assert_eq!(
        told(&rebuild(&OURS.into(), &attachments, &volumes)),
        expected
    );
}

/// All that an index says.
fn told(index: &AttachmentIndex) -> Vec<String> {
    let held = index.held().map(|(name, volume)| match volume.holders {
        Holders::One(holder) => {
            format!("{name} on {} since {}", holder.node, holder.attached_at.0)
        }
        Holders::Migrating {
            source,
            target,
            started_at,
        } => {
            format!(
                "{name} migrating {}→{} since {}",
                source.node, target.node, started_at.0
            )
        }
    });
    held.chain(index.findings().iter().map(ToString::to_string))
        .collect()
}

#[test]
fn attached_volumes_come_back() {
    check(
        "a=our:pv1@n1+10 b=our:pv2@n2+20",
        "pv1:RWO pv2:RWO",
        &["pv1 on n1 since 10", "pv2 on n2 since 20"],
    );
    check("", "pv1:RWO", &[]);
}

#[test]
fn other_drivers_are_left_alone() {
    check("a=ebs.csi.aws.com:pv1@n1+10", "pv1:RWO", &[]);
}

/// Pitfall 1: an attachment that exists but is not attached.
#[test]
fn only_attached_counts() {
    check("a=our:pv1@n1+10!pending", "pv1:RWO", &[]);
    // Being deleted but still attached: it is there until the driver has detached it.
    check(
        "a=our:pv1@n1+10!deleting",
        "pv1:RWO",
        &["pv1 on n1 since 10"],
    );
}

/// Pitfall 2: volumes cannot be selected by the API, so attachments without one are met here.
#[test]
fn attachments_without_a_volume_are_skipped_and_named() {
    check(
        "a=our:pv1@n1+10!inline",
        "pv1:RWO",
        &["attachment a names no PersistentVolume and is skipped"],
    );
}

/// Pitfall 3: created or deleted between listing and use. Rebuilding again is the whole cure.
#[test]
fn rebuilding_is_repeatable_and_ignores_order() {
    let one = ["b=our:pv1@n2+10", "a=our:pv1@n1+10"]
        .map(attachment)
        .into_iter()
        .collect();
    let other = ["a=our:pv1@n1+10", "b=our:pv1@n2+10"]
        .map(attachment)
        .into_iter()
        .collect();
    let volumes = [volume("pv1:RWX")].into_iter().collect();
    assert_eq!(
        told(&rebuild(&OURS.into(), &one, &volumes)),
        told(&rebuild(&OURS.into(), &other, &volumes))
    );
}

/// Pitfall 4: the migration's start is the older attachment's creation.
#[test]
fn two_attachments_are_a_migration() {
    check(
        "a=our:pv1@n1+10 b=our:pv1@n2+20",
        "pv1:RWX",
        &["pv1 migrating n1→n2 since 10"],
    );
    check(
        "a=our:pv1@n1+30 b=our:pv1@n2+20",
        "pv1:RWX",
        &["pv1 migrating n2→n1 since 20"],
    );
    // Equal ages: the names decide.
    check(
        "b=our:pv1@n1+20 a=our:pv1@n2+20",
        "pv1:RWX",
        &["pv1 migrating n2→n1 since 20"],
    );
}

#[test]
fn more_than_two_are_an_anomaly() {
    check(
        "a=our:pv1@n1+30 b=our:pv1@n2+20 c=our:pv1@n3+10 d=our:pv1@n4+40",
        "pv1:RWX",
        &[
            "pv1 migrating n3→n2 since 10",
            "volume pv1 is attached to 4 nodes, two is the most: n3, n2 are kept as the oldest, n1, n4 ignored",
        ],
    );
}

#[test]
fn the_access_mode_comes_from_the_volume() {
    check(
        "a=our:pv1@n1+10 b=our:pv1@n2+20",
        "pv1:RWO",
        &[
            "pv1 migrating n1→n2 since 10",
            "volume pv1 may be on one node only, and is attached to n1, n2",
        ],
    );
    check(
        "a=our:pv1@n1+10",
        "",
        &[
            "pv1 on n1 since 10",
            "attachment a is of volume pv1, which does not exist: its access mode is not known",
        ],
    );
    check(
        "a=our:pv1@n1+10 b=our:pv1@n2+20",
        "pv1:ROX",
        &["pv1 migrating n1→n2 since 10"],
    );
}

/// Pitfall 5: annotations that were left behind.
#[test]
fn annotations_are_never_believed() {
    check(
        "",
        "pv1:RWO~n1",
        &["volume pv1 is annotated as attached to n1; the truth is no node"],
    );
    check(
        "a=our:pv1@n2+10",
        "pv1:RWO~n1",
        &[
            "pv1 on n2 since 10",
            "volume pv1 is annotated as attached to n1; the truth is n2",
        ],
    );
    check("a=our:pv1@n1+10", "pv1:RWO~n1", &["pv1 on n1 since 10"]);
}

/// What is kept by watch is what a restart would find, after any changes in any order.
#[test]
fn an_index_that_is_kept_equals_one_that_is_rebuilt() {
    // What each name may be next; none of them is its end.
    let attachments: [(&str, &[&str]); 4] = [
        ("a", &["a=our:pv1@n1+10", "a=our:pv1@n1+10!pending"]),
        (
            "b",
            &[
                "b=our:pv1@n2+20",
                "b=our:pv2@n2+30",
                "b=our:pv2@n2+30!inline",
            ],
        ),
        ("c", &["c=our:pv2@n3+20", "c=other.driver:pv2@n3+20"]),
        ("d", &["d=our:pv3@n1+5!deleting", "d=our:pv1@n3+50"]),
    ];
    let volumes: [(&str, &[&str]); 3] = [
        ("pv1", &["pv1:RWX", "pv1:RWO~n2"]),
        ("pv2", &["pv2:RWO", "pv2:RWO~n9"]),
        ("pv3", &["pv3:RWO~n1"]),
    ];
    let mut seed = 1_u64;
    let mut pick = move |count: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % count
    };
    let mut kept = AttachmentIndex::new(OURS.into());
    let (mut live, mut live_volumes) = (BTreeMap::new(), BTreeMap::new());
    for turn in 0..5_000 {
        if pick(3) > 0 {
            let (name, forms) = attachments[pick(attachments.len())];
            let name = AttachmentName::from(name);
            let now = forms
                .get(pick(forms.len() + 1))
                .map(|text| attachment(text).1);
            let before = holders(&kept);
            let changed = kept.attachment(&name, now.as_ref());
            let after = holders(&kept);
            for volume in ["pv1", "pv2", "pv3"].map(PvName::from) {
                let differs = before.get(&volume) != after.get(&volume);
                assert!(
                    !differs || changed.contains(&volume),
                    "turn {turn}: {volume}"
                );
            }
            set(&mut live, name, now);
        } else {
            let (name, forms) = volumes[pick(volumes.len())];
            let name = PvName::from(name);
            let now = forms.get(pick(forms.len() + 1)).map(|text| volume(text).1);
            kept.volume(&name, now.as_ref());
            set(&mut live_volumes, name, now);
        }
        let rebuilt = rebuild(&OURS.into(), &live, &live_volumes);
        assert_eq!(told(&kept), told(&rebuilt), "turn {turn}");
        let migrating = holders(&kept)
            .into_iter()
            .filter(|(_, volume)| matches!(volume.holders, Holders::Migrating { .. }));
        assert!(
            migrating
                .map(|(name, _)| name)
                .eq(kept.migrations().map(|(name, _)| name.clone()))
        );
        assert_eq!(kept.held_count(), kept.held().count(), "turn {turn}");
        let names = |index: &AttachmentIndex| index.volumes.keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            names(&kept),
            names(&rebuilt),
            "turn {turn}: nothing is left behind"
        );
    }
}

fn holders(index: &AttachmentIndex) -> BTreeMap<PvName, VolumeHolders> {
    let held = index.held();
    held.map(|(name, volume)| {
        (
            name.clone(),
            VolumeHolders {
                access_modes: None,
                ..volume
            },
        )
    })
    .collect()
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
