//! What a disk holds up that takes its time to flush, and what not.

use std::net::SocketAddr;
use std::time::Duration;

use block_core::wire::{Flags, Reply, Request, RequestId, SyncMeta, VolumeKey};
use block_core::{Epoch, ReplicaName, SnapshotName, VolumeName};

use super::{POOL_THREADS, ReplicaServer, SYNC_THREADS, ServerConfig};
use crate::client::Client;
use crate::store::ReplicaSpec;

const PATIENCE: Duration = Duration::from_secs(10);
const PIECE: usize = 1 << 20;

fn open(address: SocketAddr, volume: &VolumeName, key: &VolumeKey) -> Client {
    let mut client = Client::connect(address, volume, key, PATIENCE).expect("a connection");
    client.open(Epoch(1)).expect("an epoch");
    client
}

fn write(at: usize, flags: Flags) -> Request {
    Request::Write {
        offset_bytes: (at * PIECE) as u64,
        data: vec![at as u8; PIECE].into(),
        flags,
    }
}

/// More flushes and expansions than there are threads, and more data than a connection may have in flight: pings are answered, on the
/// connection that flushes and on that of another volume, and so is what needs a little of the disk.
#[test]
fn slow_flushes_hold_up_nothing_but_flushes() {
    let folder = tempfile::tempdir().expect("a folder");
    let server =
        ReplicaServer::bind(ServerConfig::new(folder.path().to_owned())).expect("a server");
    let key = VolumeKey::from_bytes([7; 32]);
    let volumes = ["slow", "other"].map(|name| VolumeName::new(name).expect("a name"));
    for volume in &volumes {
        let spec = ReplicaSpec {
            volume: volume.clone(),
            key: key.clone(),
            size_bytes: 64 << 20,
        };
        server.create_volume(&spec).expect("a volume");
    }
    let [mut slow, mut other] = volumes
        .each_ref()
        .map(|volume| open(server.local_addr(), volume, &key));
    let replica = server.replica(&volumes[0]).expect("a replica");
    let held = replica.hold_flushes();
    let mut waiting: Vec<RequestId> = Vec::new();
    for _ in 0..POOL_THREADS + SYNC_THREADS {
        waiting.push(slow.send(Request::Flush).expect("a request"));
        let size_bytes = 128 << 20;
        waiting.push(
            slow.send(Request::Expand { size_bytes })
                .expect("a request"),
        );
    }
    for at in 0..32 {
        let request = write(at, Flags::FORCE_UNIT_ACCESS);
        waiting.push(slow.send(request).expect("a request"));
    }
    for client in [&mut slow, &mut other] {
        let status = client.call(Request::Status).expect("an answer");
        assert!(matches!(status, Reply::Status(_)), "{status:?}");
        let layers = client.call(Request::ListLayers).expect("an answer");
        assert!(matches!(layers, Reply::Layers(_)), "{layers:?}");
    }
    slow.done(write(40, Flags::NONE)).expect("a plain write");
    let snapshot = SnapshotName::new("s").expect("a name");
    let member = ReplicaName::new("r").expect("a name");
    for short in [
        Request::SnapshotCreate {
            name: snapshot.clone(),
            created_unix_ms: 0,
            user_created: true,
        },
        Request::SetMeta(SyncMeta {
            replica: member.clone(),
            generation: 1,
            in_sync: vec![member],
            clean: false,
        }),
        Request::SnapshotDelete { name: snapshot },
    ] {
        slow.done(short).expect("what has a deadline");
    }
    assert!(!slow.has_reply(), "nothing else is answered yet");
    drop(held);
    while !waiting.is_empty() {
        let (id, reply) = slow.receive().expect("an answer");
        assert!(matches!(reply, Reply::Done), "{reply:?}");
        waiting.retain(|other| *other != id);
    }
    for at in 0..32 {
        let found = slow.read((at * PIECE) as u64, 512).expect("a read");
        assert_eq!(found[..], [at as u8; 512]);
    }
}
