//! One attachment in words, and the next step.
//!
//! Attachment: `attached`, `deleting`, `ours` (has our finalizer), `foreign` (another finalizer), `noted`
//! (has both annotations), `inline`, `malformed`, `other-driver`, `force`. Volume: `pv` (exists), `pv-final`
//! (with our finalizer), `pv-others` (with another), `pv-deleting`, `pv-foreign`, `pv-again` (made again, for another volume),
//! `ro`, `block`, `xfs`, `secret`, `secret-missing`, `secret-refused`, modes as `RWO`. Node: `node` (CSINode has the driver). Driver: `trivial`, `can-ro`, `snmw`.

use super::*;
use crate::access::AccessMode;
use crate::identity::Timestamp;
use crate::view::ErrorReport;

const OURS: &str = "driver.longhorn.io";
const FINALIZER: &str = "external-attacher/driver-longhorn-io";

fn attachment(has: &dyn Fn(&str) -> bool) -> VolumeAttachment {
    let annotations = [(NODE_ID_ANNOTATION, "id-1"), (HANDLE_ANNOTATION, "vol-1")];
    let finalizers = [
        (has("foreign"), "other/finalizer"),
        (has("ours"), FINALIZER),
    ];
    VolumeAttachment {
        driver: if has("other-driver") {
            "ebs.csi.aws.com".into()
        } else {
            OURS.into()
        },
        source: match () {
            () if has("inline") => AttachmentSource::Inline,
            () if has("malformed") => AttachmentSource::Malformed,
            () => AttachmentSource::Volume("pv".into()),
        },
        node: "n1".into(),
        created_at: Timestamp(0),
        deleting: has("deleting"),
        finalizers: finalizers
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        annotations: annotations
            .iter()
            .filter(|_| has("noted"))
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        attached: has("attached"),
        attach_error: None,
        detach_error: None,
    }
}

fn volume(has: &dyn Fn(&str) -> bool) -> PersistentVolume {
    let modes = [
        ("RWO", AccessMode::ReadWriteOnce),
        ("ROX", AccessMode::ReadOnlyMany),
        ("RWX", AccessMode::ReadWriteMany),
        ("RWOP", AccessMode::ReadWriteOncePod),
    ];
    let finalizers = [
        (has("pv-others"), "kubernetes.io/pv-protection"),
        (has("pv-final"), FINALIZER),
    ];
    PersistentVolume {
        driver: if has("pv-foreign") {
            "nfs.csi.k8s.io".into()
        } else {
            OURS.into()
        },
        handle: if has("pv-again") { "vol-2" } else { "vol-1" }.into(),
        access_modes: modes
            .iter()
            .filter(|(word, _)| has(word))
            .map(|(_, mode)| *mode)
            .collect(),
        claim_uid: None,
        deleting: has("pv-deleting"),
        finalizers: finalizers
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        annotations: BTreeMap::new(),
        read_only: has("ro"),
        fs_type: has("xfs").then(|| "xfs".to_owned()),
        is_block: has("block"),
        publish_secret: ["secret", "secret-missing", "secret-refused"]
            .into_iter()
            .any(has)
            .then(|| ("ns".to_owned(), "key".to_owned())),
        attributes: BTreeMap::new(),
    }
}

fn step(text: &str) -> Step {
    let has = |word: &str| text.split_whitespace().any(|other| other == word);
    let (attachment, volume) = (attachment(&has), volume(&has));
    let exists = text.split_whitespace().any(|word| word.starts_with("pv"));
    let csi_node = CsiNodeDriver {
        node_id: "id-1".to_owned(),
        volumes_max: None,
    };
    next_step(&AttacherView {
        driver: &OURS.into(),
        name: &"csi-1".into(),
        attachment: &attachment,
        volume: exists.then_some(&volume),
        csi_node: has("node").then_some(&csi_node),
        secret: match () {
            () if has("secret-missing") => SecretState::Missing,
            () if has("secret-refused") => SecretState::Unreadable("forbidden"),
            () => SecretState::Present,
        },
        capabilities: Capabilities {
            publish: !has("trivial"),
            read_only: has("can-ro"),
            single_node_multi_writer: has("snmw"),
        },
        force_sync: has("force"),
        default_fs_type: "ext4",
    })
}

fn check(text: &str, expected: &str) {
    let shown = match step(text) {
        Step::Nothing(idle) => format!("nothing: {idle:?}"),
        Step::MarkAttached => "mark attached".to_owned(),
        Step::AddVolumeFinalizer(patch) => {
            format!("volume finalizer: {patch:?}").replace(FINALIZER, "F")
        }
        Step::AddAttachmentFinalizer {
            finalizers,
            annotations,
        } => {
            let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
            format!("attachment finalizers {finalizers:?}, annotations {keys:?}")
                .replace(FINALIZER, "F")
        }
        Step::Publish(request) => format!(
            "publish {} on {} {:?} ro={} fs={} secret={}",
            request.handle,
            request.node_id,
            request.access_mode,
            request.read_only,
            request.fs_type.as_deref().unwrap_or("block"),
            request.secret.is_some()
        ),
        Step::Unpublish(request) => {
            format!("unpublish {} from {}", request.handle, request.node_id)
        }
        Step::Fail(error) => format!("fail: {error}"),
    };
    assert_eq!(shown, expected, "{text}");
}

#[test]
fn attaching_goes_volume_attachment_driver() {
    check(
        "pv RWO node",
        "volume finalizer: CreateList { finalizer: \"F\" }",
    );
    check(
        "pv pv-others RWO node",
        "volume finalizer: Append { finalizer: \"F\" }",
    );
    let annotations =
        "annotations [\"csi.alpha.kubernetes.io/node-id\", \"lariat.io/volume-handle\"]";
    check(
        "pv-final RWO node",
        &format!("attachment finalizers [\"F\"], {annotations}"),
    );
    check(
        "pv-final RWO node foreign",
        &format!("attachment finalizers [\"other/finalizer\", \"F\"], {annotations}"),
    );
    check(
        "pv-final RWO node ours",
        &format!("attachment finalizers [\"F\"], {annotations}"),
    );
    check(
        "pv-final RWO node ours noted",
        "publish vol-1 on id-1 SingleNodeWriter ro=false fs=ext4 secret=false",
    );
    check("attached", "nothing: AlreadyAttached");
    check(
        "attached force pv-final RWO node ours noted",
        "publish vol-1 on id-1 SingleNodeWriter ro=false fs=ext4 secret=false",
    );
    check("other-driver pv RWO node", "nothing: OtherDriver");
}

#[test]
fn everything_is_checked_before_the_attachment_is_held() {
    check(
        "malformed",
        "fail: the attachment must name a PersistentVolume or an inline volume, and not both",
    );
    check(
        "inline",
        "fail: inline volumes are not supported: use a PersistentVolume",
    );
    check("node", "fail: PersistentVolume pv does not exist");
    check(
        "pv pv-deleting RWO node",
        "fail: PersistentVolume pv is being deleted",
    );
    check(
        "pv pv-foreign RWO node",
        "fail: PersistentVolume pv belongs to driver nfs.csi.k8s.io",
    );
    check(
        "pv-final node",
        "fail: PersistentVolume pv cannot be attached",
    );
    check(
        "pv-final RWO ROX node",
        "fail: PersistentVolume pv cannot be attached",
    );
    check(
        "pv-final RWO secret-missing node",
        "fail: secret ns/key for attaching does not exist",
    );
    check(
        "pv-final RWO secret-refused node",
        "fail: secret ns/key for attaching cannot be read: forbidden",
    );
    // Nothing is asked of the driver, so nobody needs the secret.
    check(
        "attached pv-final RWO secret-refused node",
        "nothing: AlreadyAttached",
    );
    check(
        "pv-final RWO",
        "fail: node n1 does not run the driver: its CSINode has no entry for it",
    );
    // An old annotation is no node ID when attaching.
    check(
        "pv-final RWO ours noted",
        "fail: node n1 does not run the driver: its CSINode has no entry for it",
    );
}

#[test]
fn requests_follow_volume_and_driver() {
    let ready = "pv-final node ours noted";
    check(
        &format!("{ready} RWX"),
        "publish vol-1 on id-1 MultiNodeMultiWriter ro=false fs=ext4 secret=false",
    );
    check(
        &format!("{ready} RWO snmw"),
        "publish vol-1 on id-1 SingleNodeMultiWriter ro=false fs=ext4 secret=false",
    );
    check(
        &format!("{ready} RWO ro"),
        "publish vol-1 on id-1 SingleNodeWriter ro=false fs=ext4 secret=false",
    );
    check(
        &format!("{ready} RWO ro can-ro"),
        "publish vol-1 on id-1 SingleNodeWriter ro=true fs=ext4 secret=false",
    );
    check(
        &format!("{ready} RWO xfs"),
        "publish vol-1 on id-1 SingleNodeWriter ro=false fs=xfs secret=false",
    );
    check(
        &format!("{ready} RWO block"),
        "publish vol-1 on id-1 SingleNodeWriter ro=false fs=block secret=false",
    );
    check(
        &format!("{ready} RWO secret"),
        "publish vol-1 on id-1 SingleNodeWriter ro=false fs=ext4 secret=true",
    );
}

#[test]
fn drivers_without_publish_are_marked_only() {
    check("trivial pv RWO node", "mark attached");
    check("trivial attached", "nothing: AlreadyAttached");
    check("trivial deleting attached", "nothing: AlreadyReleased");
}

#[test]
fn detaching_needs_neither_volume_nor_csi_node() {
    check(
        "deleting attached ours pv-final RWO node",
        "unpublish vol-1 from id-1",
    );
    check("deleting attached ours noted", "unpublish vol-1 from id-1");
    check(
        "deleting ours noted pv-deleting",
        "unpublish vol-1 from id-1",
    );
    check("deleting attached", "nothing: AlreadyReleased");
    check("deleting attached foreign", "nothing: AlreadyReleased");
    check("deleting attached force noted", "unpublish vol-1 from id-1");
    check(
        "deleting ours",
        "fail: the volume handle is lost: PersistentVolume and annotation are gone",
    );
    check(
        "deleting ours pv-final",
        "fail: the CSI node ID of node n1 is lost: CSINode entry and annotation are gone",
    );
}

#[test]
fn detaching_asks_for_what_was_attached() {
    check(
        "deleting attached ours noted pv-again RWO node",
        "unpublish vol-1 from id-1",
    );
    check(
        "deleting attached ours noted pv-again pv-foreign node",
        "unpublish vol-1 from id-1",
    );
    // The secret of the later volume is none of its business.
    check(
        "deleting attached ours noted pv-again secret-missing node",
        "unpublish vol-1 from id-1",
    );
    check(
        "deleting attached ours noted pv-final secret-missing node",
        "fail: secret ns/key for attaching does not exist",
    );
    check(
        "deleting attached ours pv-foreign node",
        "fail: the volume handle is lost: PersistentVolume and annotation are gone",
    );
}

#[test]
fn answers_become_patches_in_order() {
    let error = RpcError {
        code: 8,
        message: "x".repeat(3000),
    };
    let attached = after_publish(
        Ok(BTreeMap::from([("device".to_owned(), "/dev/x".to_owned())])),
        Timestamp(5),
    );
    assert!(matches!(attached, AttachmentPatch::Attached { metadata } if metadata.len() == 1));
    let AttachmentPatch::AttachFailed { error: report } = after_publish(Err(&error), Timestamp(5))
    else {
        panic!("a failure is reported");
    };
    assert_eq!(
        (report.message.len(), report.code, report.at),
        (1024, Some(8), Timestamp(5))
    );

    let has = |word: &str| ["ours", "foreign", "deleting", "attached"].contains(&word);
    let patches = after_unpublish(&OURS.into(), &attachment(&has), Ok(()), Timestamp(5));
    let finalizers = vec!["other/finalizer".to_owned()];
    assert_eq!(
        patches,
        [
            AttachmentPatch::Finalizers { finalizers },
            AttachmentPatch::Detached
        ]
    );
    let failed = after_unpublish(&OURS.into(), &attachment(&has), Err(&error), Timestamp(5));
    let report = ErrorReport {
        message: "x".repeat(1024),
        at: Timestamp(5),
        code: None,
    };
    assert_eq!(failed, [AttachmentPatch::DetachFailed { error: report }]);
}

#[test]
fn some_errors_leave_the_outcome_open() {
    for (code, expected) in [
        (1, false),
        (4, false),
        (8, false),
        (10, false),
        (14, false),
        (5, true),
        (9, true),
        (13, true),
    ] {
        assert_eq!(
            RpcError {
                code,
                message: String::new()
            }
            .is_final(),
            expected,
            "code {code}"
        );
    }
}

#[test]
fn a_volume_is_let_go_when_nobody_names_it() {
    let check = |text: &str, attachments: &[&str], expected: Option<usize>| {
        let has = |word: &str| text.split_whitespace().any(|other| other == word);
        let volume = volume(&has);
        let attachments = attachments
            .iter()
            .map(|words| {
                let has = |word: &str| words.split_whitespace().any(|other| other == word);
                ("csi-1".into(), attachment(&has))
            })
            .collect();
        let patch = volume_finalizer_to_remove(&OURS.into(), &"pv".into(), &volume, &attachments);
        let index = patch.map(|patch| match patch {
            VolumePatch::Remove { index, .. } => index,
            other => panic!("{other:?}"),
        });
        assert_eq!(index, expected, "{text}");
    };
    check("pv-final pv-deleting", &[], Some(0));
    check("pv-others pv-final pv-deleting", &[], Some(1));
    check("pv-final", &[], None);
    check("pv-deleting", &[], None);
    check("pv-final pv-deleting", &["attached"], None);
    check("pv-final pv-deleting", &["deleting"], None);
    check("pv-final pv-deleting", &["inline"], Some(0));
    // Once migrated to us, and handed back.
    check("pv-final pv-foreign", &[], Some(0));
}

#[test]
fn the_drivers_list_is_compared_not_copied() {
    let check = |words: &str, published: &[(&str, &[&str])], expected: bool| {
        let has = |word: &str| words.split_whitespace().any(|other| other == word);
        let attachments = BTreeMap::from([("csi-1".into(), attachment(&has))]);
        let volumes = BTreeMap::from([("pv".into(), volume(&has))]);
        let published = published
            .iter()
            .map(|(handle, nodes)| {
                (
                    (*handle).into(),
                    nodes.iter().map(|node| (*node).to_owned()).collect(),
                )
            })
            .collect();
        let found = out_of_step(
            &OURS.into(),
            &attachments,
            &volumes,
            &BTreeMap::new(),
            &published,
        );
        assert_eq!(!found.is_empty(), expected, "{words}");
    };
    check("attached noted", &[("vol-1", &["id-1"])], false);
    check("attached noted", &[("vol-1", &["id-2"])], true);
    check("attached noted", &[("vol-1", &[])], true);
    check("noted", &[("vol-1", &["id-1"])], true);
    check("noted", &[("vol-1", &[])], false);
    check(
        "attached noted pv-again",
        &[("vol-1", &["id-1"]), ("vol-2", &[])],
        false,
    );
    // Not on the list, or not to be told: no verdict.
    check("attached noted", &[], false);
    check("attached", &[("vol-1", &[])], false);
    check("attached noted other-driver", &[("vol-1", &[])], false);
}
