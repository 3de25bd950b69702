//! kill -9 of a real replica process in the middle of writes: everything that was answered is there after it.
//!
//! This target starts itself again as the server (`kill serve FOLDER`), so it has a `main` of its own.

mod support;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use block_core::wire::{Flags, Reply, Request, RequestId};
use block_core::{Epoch, SnapshotName};
use replica::client::Client;
use replica::{ReplicaServer, ReplicaSpec, ServerConfig};
use support::{BLOCK, ServerProcess, key, next_random, volume};

const BLOCKS: u64 = 256;
const ROUNDS: u64 = 12;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == "serve") {
        return serve(Path::new(&arguments[2]));
    }
    answered_writes_survive_kill()?;
    println!("answered_writes_survive_kill ... ok");
    Ok(())
}

fn serve(folder: &Path) -> Result<()> {
    replica::server::serve(ServerConfig::new(folder.to_owned()), |server| {
        println!("{}", server.local_addr());
    })?;
    Ok(())
}

fn answered_writes_survive_kill() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let spec = ReplicaSpec {
        volume: volume(),
        key: key(),
        size_bytes: BLOCKS * BLOCK as u64,
    };
    let server = ReplicaServer::bind(ServerConfig::new(folder.path().to_owned()))?;
    server.create_volume(&spec)?;
    server.shutdown();
    let mut seed = 0x5eed_0001_u64;
    let mut certain: BTreeMap<u64, u8> = BTreeMap::new();
    let mut unanswered_total = 0;
    for round in 1..=ROUNDS {
        let server = ServerProcess::start(folder.path())?;
        let mut client =
            Client::connect(server.address, &volume(), &key(), Duration::from_secs(20))?;
        client.open(Epoch(round))?;
        for (block, tag) in &certain {
            let found = client.read(block * BLOCK as u64, BLOCK as u64)?;
            ensure!(
                found[..] == [*tag; BLOCK],
                "round {round}: block {block} is {} and not {tag}",
                found[0]
            );
        }
        if round % 3 == 0 {
            let name = SnapshotName::new(&format!("r{round}"))?;
            client.done(Request::SnapshotCreate {
                name,
                created_unix_ms: 0,
                user_created: true,
            })?;
        }
        let answers = 100 + next_random(&mut seed) % 400;
        let unanswered = write_until(&mut client, &mut certain, answers, &mut seed)?;
        server.kill()?;
        // What was not answered may be there or not; nobody may rely on it, so it is not looked at.
        for block in &unanswered {
            certain.remove(block);
        }
        unanswered_total += unanswered.len();
    }
    ensure!(
        unanswered_total > 0,
        "every kill came after all writes: it tests nothing"
    );
    ensure!(
        certain.len() as u64 > BLOCKS / 2,
        "too few blocks were looked at"
    );
    Ok(())
}

/// Keeps many writes under way until so many were answered. Returns the blocks of those that were not.
fn write_until(
    client: &mut Client,
    certain: &mut BTreeMap<u64, u8>,
    answers: u64,
    seed: &mut u64,
) -> Result<Vec<u64>> {
    let mut under_way: HashMap<RequestId, (u64, u8)> = HashMap::new();
    let mut answered = 0;
    while answered < answers {
        while under_way.len() < 32 {
            let (block, tag) = (next_random(seed) % BLOCKS, next_random(seed) as u8);
            if under_way.values().any(|(busy, _)| *busy == block) {
                continue;
            }
            let data = vec![tag; BLOCK].into();
            let write = Request::Write {
                offset_bytes: block * BLOCK as u64,
                data,
                flags: Flags::NONE,
            };
            under_way.insert(client.send(write)?, (block, tag));
        }
        let (id, reply) = client.receive()?;
        ensure!(reply == Reply::Done, "{reply:?}");
        let (block, tag) = under_way.remove(&id).context("a reply to nothing")?;
        certain.insert(block, tag);
        answered += 1;
    }
    Ok(under_way.into_values().map(|(block, _)| block).collect())
}
