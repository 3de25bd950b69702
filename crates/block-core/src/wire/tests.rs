use bytes::Bytes;
use proptest::prelude::*;

use super::request::{ExtentScope, RebuildLayer};
use super::*;
use crate::epoch::Epoch;
use crate::names::{ReplicaName, SnapshotName, VolumeName};

fn snapshot(name: &str) -> SnapshotName {
    SnapshotName::new(name).expect("a name")
}

fn sync_meta() -> SyncMeta {
    let member = |name: &str| ReplicaName::new(name).expect("a name");
    SyncMeta {
        replica: member("r1"),
        generation: 9,
        in_sync: vec![member("r1"), member("r2")],
        clean: true,
    }
}

fn requests() -> Vec<Request> {
    let layer = RebuildLayer {
        name: snapshot("b"),
        parent: Some(snapshot("a")),
        created_unix_ms: 5,
        user_created: true,
        removed: false,
        size_bytes: 1 << 30,
    };
    let name = snapshot("snap-1");
    vec![
        Request::Hello(Hello {
            versions: (1, 3),
            volume: VolumeName::new("pvc-1").expect("a name"),
            nonce: [7; 32],
        }),
        Request::Prove([9; 32]),
        Request::CreateVolume {
            size_bytes: 1 << 40,
        },
        Request::OpenVolume { session: 3 },
        Request::Read {
            offset_bytes: 512,
            length_bytes: 4096,
        },
        Request::Write {
            offset_bytes: 8192,
            data: Bytes::from(vec![3; 4096]),
            flags: Flags::FORCE_UNIT_ACCESS,
        },
        Request::WriteZeroes {
            offset_bytes: 0,
            length_bytes: 1 << 35,
            flags: Flags::NONE,
        },
        Request::Discard {
            offset_bytes: 0,
            length_bytes: 1 << 35,
        },
        Request::Flush,
        Request::SnapshotCreate {
            name: name.clone(),
            created_unix_ms: 77,
            user_created: true,
        },
        Request::SnapshotDelete { name: name.clone() },
        Request::SnapshotRevert { name: name.clone() },
        Request::SnapshotPurge,
        Request::SnapshotDigest {
            name: name.clone(),
            recompute: true,
        },
        Request::SnapshotPrepare,
        Request::VolumeDigest,
        Request::Expand {
            size_bytes: 1 << 41,
        },
        Request::ListLayers,
        Request::LayerExtents {
            name: name.clone(),
            scope: ExtentScope::View,
            from_offset_bytes: 4096,
        },
        Request::ReadLayer {
            name: name.clone(),
            offset_bytes: 0,
            length_bytes: 1 << 20,
        },
        Request::LayerHashes {
            name: name.clone(),
            offset_bytes: 0,
            length_bytes: 1 << 30,
        },
        Request::RebuildBegin {
            size_bytes: 1 << 30,
            layers: vec![layer],
            head_parent: Some(snapshot("b")),
        },
        Request::RebuildWrite {
            name: name.clone(),
            offset_bytes: 4096,
            data: Bytes::from(vec![1; 8192]),
        },
        Request::RebuildMark {
            name: name.clone(),
            offset_bytes: 0,
            length_bytes: 4096,
            kind: Some(ExtentKind::Zero),
        },
        Request::RebuildVerify {
            name,
            digest: [4; 32],
        },
        Request::RebuildCommit,
        Request::Status,
        Request::SetMeta(sync_meta()),
        Request::Goodbye {
            reason: GoodbyeReason::TooSlow,
            text: "no frame for 10 s".to_owned(),
        },
    ]
}

fn replies() -> Vec<(Kind, u64, Reply)> {
    let layer = LayerInfo {
        layer: LayerRef::Snapshot(snapshot("a")),
        parent: None,
        created_unix_ms: 1,
        user_created: false,
        removed: true,
        size_bytes: 1 << 30,
        allocated_bytes: 4096,
        digest: Some([8; 32]),
    };
    let head = LayerInfo {
        layer: LayerRef::Head,
        parent: Some(snapshot("a")),
        digest: None,
        ..layer.clone()
    };
    let extent = |offset_bytes, kind| Extent {
        offset_bytes,
        length_bytes: 4096,
        kind,
    };
    let status = ReplicaStatus {
        volume: VolumeName::new("v").expect("a name"),
        mode: ReplicaMode::Rebuilding,
        size_bytes: 1 << 30,
        accepted_epoch: Epoch(3),
        sync_epoch: Epoch(2),
        sync: Some(sync_meta()),
        allocated_bytes: 12288,
        layers: 3,
        purge_done_bytes: 1,
        purge_total_bytes: 2,
        older_silent_us: 5_000_000,
        host_boot: [7; 16],
        restarted_since_opened: true,
        fault: "fdatasync failed".to_owned(),
    };
    vec![
        (
            Kind::Hello,
            0,
            Reply::Challenge(Challenge {
                version: 1,
                nonce: [1; 32],
                proof: [2; 32],
            }),
        ),
        (
            Kind::Prove,
            0,
            Reply::Welcome(Welcome {
                payload_bytes_max: 1 << 20,
                in_flight_bytes_max: 8 << 20,
                mode: ReplicaMode::Ready,
                size_bytes: 1 << 30,
                accepted_epoch: Epoch(4),
            }),
        ),
        (Kind::Write, 4096, Reply::Done),
        (Kind::Read, 512, Reply::Data(Bytes::from(vec![5; 512]))),
        (Kind::SnapshotDigest, 0, Reply::Digest([6; 32])),
        (Kind::VolumeDigest, 0, Reply::Digest([7; 32])),
        (Kind::ListLayers, 0, Reply::Layers(vec![layer, head])),
        (
            Kind::LayerExtents,
            0,
            Reply::Extents(ExtentPage {
                extents: vec![extent(0, ExtentKind::Data), extent(8192, ExtentKind::Zero)],
                next_offset_bytes: Some(12288),
            }),
        ),
        (
            Kind::LayerHashes,
            0,
            Reply::Hashes(vec![None, Some([1; 32])]),
        ),
        (
            Kind::RebuildBegin,
            0,
            Reply::RebuildPlan(RebuildPlanReply {
                existing: vec![snapshot("x")],
            }),
        ),
        (Kind::Status, 0, Reply::Status(status)),
        (
            Kind::Write,
            4096,
            Reply::Failed(Failure::new(StatusCode::NoSpace, "disk is full")),
        ),
    ]
}

fn all_frames() -> Vec<Frame> {
    let asked = requests()
        .into_iter()
        .zip(1..)
        .map(|(request, id)| request.into_frame(RequestId(id), Epoch(12)));
    let answered = replies()
        .into_iter()
        .zip(1..)
        .map(|((kind, length_bytes, reply), id)| {
            let request = Header {
                length_bytes,
                ..Header::request(kind, RequestId(id), Epoch(12))
            };
            reply.into_frame(&request, Epoch(13))
        });
    asked.chain(answered).collect()
}

fn decode_all(bytes: &[u8], piece_bytes: usize) -> Result<Vec<Frame>, DecodeError> {
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece_bytes.max(1)) {
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

#[test]
fn every_kind_has_a_request_and_comes_back_as_it_was() {
    let sent = requests();
    let kinds: Vec<Kind> = sent.iter().map(Request::kind).collect();
    assert_eq!(kinds, Kind::ALL);
    for request in sent {
        let frame = request.clone().into_frame(RequestId(5), Epoch(6));
        assert_eq!(
            (frame.header.request_id, frame.header.epoch),
            (RequestId(5), Epoch(6))
        );
        assert_eq!(
            Request::from_frame(&frame.header, &frame.payload),
            Ok(request)
        );
        assert_eq!(
            Kind::from_code(frame.header.kind as u8),
            Some(frame.header.kind)
        );
    }
}

#[test]
fn every_reply_comes_back_as_it_was() {
    for (kind, length_bytes, reply) in replies() {
        let request = Header {
            length_bytes,
            ..Header::request(kind, RequestId(1), Epoch(2))
        };
        let frame = reply.clone().into_frame(&request, Epoch(3));
        assert_eq!(frame.header.request_id, RequestId(1));
        assert_eq!(Reply::from_frame(&frame.header, &frame.payload), Ok(reply));
        assert!(matches!(
            Request::from_frame(&frame.header, &frame.payload),
            Err(MessageError::UnexpectedReply { .. })
        ));
    }
}

#[test]
fn codes_are_stable_and_distinct() {
    for code in StatusCode::ALL {
        assert_eq!(StatusCode::from_code(*code as u16), Some(*code));
    }
    for reason in GoodbyeReason::ALL {
        assert_eq!(GoodbyeReason::from_code(*reason as u16), Some(*reason));
    }
    assert_eq!(
        (StatusCode::from_code(0), GoodbyeReason::from_code(0)),
        (None, None)
    );
}

#[test]
fn every_truncated_body_is_refused() {
    for frame in all_frames() {
        let whole = if frame.header.is_reply && frame.header.status != 0 {
            0
        } else {
            frame.payload.len()
        };
        for kept in 0..whole {
            let cut = frame.payload.slice(..kept);
            if frame.header.is_reply {
                assert!(
                    Reply::from_frame(&frame.header, &cut).is_err(),
                    "{:?} of {kept}",
                    frame.header.kind
                );
            } else {
                assert!(
                    Request::from_frame(&frame.header, &cut).is_err(),
                    "{:?} of {kept}",
                    frame.header.kind
                );
            }
        }
        let mut longer = frame.payload.to_vec();
        longer.push(0);
        if whole > 0 && !frame.header.is_reply {
            assert!(
                Request::from_frame(&frame.header, &longer.into()).is_err(),
                "{:?}",
                frame.header.kind
            );
        }
    }
}

#[test]
fn versions_are_negotiated_to_the_newest_common_one() {
    for (ours, theirs, wanted) in [
        ((1, 1), (1, 1), Some(1)),
        ((1, 3), (2, 5), Some(3)),
        ((2, 3), (1, 2), Some(2)),
        ((3, 4), (1, 2), None),
        ((1, 1), (5, 2), None),
    ] {
        assert_eq!(
            negotiate_version(ours, theirs),
            wanted,
            "{ours:?} {theirs:?}"
        );
    }
}

#[test]
fn proofs_bind_role_volume_versions_and_nonces() {
    let volume = VolumeName::new("v").expect("a name");
    let other = VolumeName::new("w").expect("a name");
    let key = VolumeKey::derive(b"secret", &volume);
    assert_ne!(key, VolumeKey::derive(b"secret", &other));
    let base = auth::Transcript {
        versions_offered: (1, 1),
        version_chosen: 1,
        volume: &volume,
        client_nonce: &[1; 32],
        replica_nonce: &[2; 32],
        line_binding: None,
    };
    assert_eq!(
        base.check_client_proof(&key, &base.client_proof(&key)),
        Ok(())
    );
    assert_eq!(
        base.check_replica_proof(&key, &base.replica_proof(&key)),
        Ok(())
    );
    assert!(
        base.check_client_proof(&key, &base.replica_proof(&key))
            .is_err(),
        "a reflected proof"
    );
    for changed in [
        auth::Transcript {
            volume: &other,
            ..base
        },
        auth::Transcript {
            client_nonce: &[3; 32],
            ..base
        },
        auth::Transcript {
            replica_nonce: &[3; 32],
            ..base
        },
        auth::Transcript {
            versions_offered: (1, 2),
            ..base
        },
        auth::Transcript {
            line_binding: Some(&[0; 32]),
            ..base
        },
    ] {
        assert!(
            changed
                .check_client_proof(&key, &base.client_proof(&key))
                .is_err()
        );
    }
    assert!(
        base.check_client_proof(&VolumeKey::from_bytes([0; 32]), &base.client_proof(&key))
            .is_err()
    );
}

/// A small generator with a printed seed: proptest's own would spend most of the run on shrinking state.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// One million frames, each with some bytes changed, cut off, added or with checksums repaired behind a change, go
/// through decoder and messages. Nothing panics and nothing is held beyond one frame.
#[test]
fn a_million_mutated_frames_are_refused_or_understood() {
    let originals: Vec<Vec<u8>> = all_frames().iter().map(Frame::to_vec).collect();
    let mut seed = 0x1a2b_3c4d_5e6f_7081;
    let (mut refused, mut understood, mut incomplete) = (0_u64, 0_u64, 0_u64);
    for turn in 0..1_000_000_u64 {
        let random = next_random(&mut seed);
        let mut bytes = originals[(random % originals.len() as u64) as usize].clone();
        mutate(&mut bytes, &mut seed, turn);
        match parse(&bytes) {
            Err(_) => refused += 1,
            Ok(Parsed::Incomplete { bytes_needed }) => {
                assert!(bytes_needed > bytes.len() && bytes_needed <= frame::FRAME_BYTES_MAX);
                incomplete += 1;
            }
            Ok(Parsed::Frame {
                header,
                payload,
                bytes_used,
            }) => {
                assert_eq!(bytes_used, HEADER_BYTES + payload.len());
                let payload = Bytes::copy_from_slice(payload);
                let sound = if header.is_reply {
                    Reply::from_frame(&header, &payload).is_ok()
                } else {
                    Request::from_frame(&header, &payload).is_ok()
                };
                if sound {
                    understood += 1;
                } else {
                    refused += 1;
                }
            }
        }
    }
    // Each outcome must really have been met, or the mutations test nothing.
    assert!(
        refused > 100_000 && understood > 10_000 && incomplete > 10_000,
        "{refused} {understood} {incomplete}"
    );
}

fn mutate(bytes: &mut Vec<u8>, seed: &mut u64, turn: u64) {
    for _ in 0..=next_random(seed) % 3 {
        let at = (next_random(seed) % bytes.len() as u64) as usize;
        match next_random(seed) % 8 {
            0 => bytes.truncate(at.max(1)),
            1 => bytes.extend_from_slice(&next_random(seed).to_le_bytes()),
            2 => bytes[at] ^= 1 << (next_random(seed) % 8),
            _ => {
                // Small offsets hit the header, where the interesting fields are.
                let at = at % bytes.len().min(120);
                bytes[at] = next_random(seed) as u8;
            }
        }
    }
    // Half of them get right checksums again, so that the code behind the checksum is reached.
    if turn.is_multiple_of(2) && bytes.len() >= HEADER_BYTES {
        if turn.is_multiple_of(4) {
            let payload_bytes = (bytes.len() - HEADER_BYTES) as u32;
            bytes[40..44].copy_from_slice(&payload_bytes.to_le_bytes());
            let payload_crc = crc32c::crc32c(&bytes[HEADER_BYTES..]);
            bytes[44..48].copy_from_slice(&payload_crc.to_le_bytes());
        }
        let header_crc = crc32c::crc32c(&bytes[..52]);
        bytes[52..56].copy_from_slice(&header_crc.to_le_bytes());
    }
}

proptest! {
    #[test]
    fn frames_survive_any_chunking(order in proptest::collection::vec(0_usize..41, 1..20), piece_bytes in 1_usize..9000) {
        let all = all_frames();
        prop_assert_eq!(all.len(), 41);
        let sent: Vec<Frame> = order.iter().map(|at| all[*at].clone()).collect();
        let bytes: Vec<u8> = sent.iter().flat_map(Frame::to_vec).collect();
        prop_assert_eq!(decode_all(&bytes, piece_bytes), Ok(sent));
    }

    #[test]
    fn any_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), piece_bytes in 1_usize..64) {
        let _ = decode_all(&bytes, piece_bytes);
    }
}
