//! A volume by hand for the tests of this crate: `replica` serves replicas, `run` runs an engine, and the rest
//! speaks to a running one.
//!
//! ```text
//! cargo run --example volume -- replica DIR 127.0.0.1:9601
//! cargo run --example volume -- run VOLUME --size 1073741824 --frontend fuse --replica a=127.0.0.1:9601 ...
//! cargo run --example volume -- status VOLUME
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::control::client::ControlClient;
use engine::control::{Answer, Command};
use engine::frontend::keeper::Keeper;
use engine::inspect::Inspection;
use engine::run::{RunMode, RunOptions, control_path, prepare};

const SECRET: &[u8] = b"by hand";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["replica", folder, listen] => serve_replica(Path::new(folder), listen),
        ["keeper", path] => {
            let _keeper = Keeper::start(Path::new(path), Duration::from_secs(60))?;
            loop {
                std::thread::park();
            }
        }
        ["run", volume, options @ ..] => run(volume, options),
        ["salvage", volume, replicas @ ..] => {
            let replicas: Vec<String> = replicas.iter().map(ToString::to_string).collect();
            let inspection = Inspection::new(volume, SECRET, false, &replicas)?;
            println!("{:#?}", inspection.salvage()?);
            Ok(())
        }
        [verb, volume, rest @ ..] => command(verb, volume, rest),
        _ => bail!(
            "usage: replica DIR ADDRESS | run VOLUME ... | status|snapshot|snapshots|delete|revert|purge|expand|rebuild|remove|shutdown VOLUME ... | salvage VOLUME REPLICA..."
        ),
    }
}

fn serve_replica(folder: &Path, listen: &str) -> Result<()> {
    let mut config = replica::ServerConfig::new(folder.to_owned());
    config.listen = listen.parse().context("the address to listen on")?;
    config.keys = replica::KeyPolicy::Derived {
        secret: SECRET.to_vec(),
        clients_may_create: true,
    };
    let server = replica::ReplicaServer::bind(config)?;
    println!("serving {} at {}", folder.display(), server.local_addr());
    server.wait();
    Ok(())
}

fn run(volume: &str, words: &[&str]) -> Result<()> {
    let mut options = RunOptions::by_hand(volume);
    options.secret = SECRET.to_vec();
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            bail!("{} needs a value", pair[0])
        };
        match *name {
            "--size" => options.size_bytes = Some(value.parse().context("--size is in bytes")?),
            "--replica" => options.replicas.push((*value).to_owned()),
            "--frontend" => options.frontend = value.parse()?,
            "--sector" => options.sector_bytes = value.parse()?,
            "--runtime-dir" => options.runtime_dir = value.into(),
            "--device-dir" => options.device_dir = value.into(),
            "--record" => {
                options.mode = RunMode::ByHand {
                    record: value.into(),
                }
            }
            "--detect-zeroes" => options.detect_zeroes = value.parse()?,
            "--tls" => options.tls = value.parse()?,
            "--keeper" => options.keeper = Some(value.into()),
            "--deadline-ms" => options.job_deadline = Duration::from_millis(value.parse()?),
            "--open-grace-ms" => options.open_grace = Duration::from_millis(value.parse()?),
            "--rebuild-rate" => options.rebuild_bytes_per_second_max = value.parse()?,
            other => bail!("{other} is not an option"),
        }
    }
    let ended = prepare(&options)?.run()?;
    println!("ended, clean: {}", ended.clean);
    Ok(())
}

fn command(verb: &str, volume: &str, rest: &[&str]) -> Result<()> {
    let runtime_dir =
        std::env::var("LARIAT_RUNTIME_DIR").unwrap_or_else(|_| engine::run::RUNTIME_DIR.into());
    let mut client = ControlClient::connect(&control_path(&PathBuf::from(runtime_dir), volume))?;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_millis();
    let command = match (verb, rest) {
        ("status", []) => Command::Status,
        ("snapshot", [name]) => Command::Snapshot {
            name: (*name).into(),
            created_unix_ms: u64::try_from(now_ms)?,
        },
        ("snapshots", []) => Command::ListSnapshots,
        ("delete", [name]) => Command::DeleteSnapshot {
            name: (*name).into(),
        },
        ("revert", [name]) => Command::Revert {
            name: (*name).into(),
        },
        ("purge", []) => Command::Purge,
        ("expand", [size]) => Command::Expand {
            size_bytes: size.parse()?,
        },
        ("rebuild", [replica]) => {
            let to = engine::run::parse_replica(replica)?;
            Command::Rebuild {
                name: to.name.to_string(),
                address: to.address,
            }
        }
        ("remove", [name]) => Command::RemoveReplica {
            name: (*name).into(),
        },
        ("shutdown", []) => Command::Shutdown,
        _ => bail!("{verb} with {rest:?} is not a command"),
    };
    match client.command(command)? {
        Answer::Done => println!("done"),
        Answer::Status(status) => println!("{}", serde_json::to_string_pretty(&status)?),
        Answer::Snapshots(snapshots) => println!("{}", serde_json::to_string_pretty(&snapshots)?),
    }
    Ok(())
}
