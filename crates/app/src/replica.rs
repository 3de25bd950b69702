//! `lariat replica`: a process that serves replicas from a folder.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use replica::{KeyPolicy, ServerConfig};

use crate::output::tell;
use crate::secret::SecretArgument;

#[derive(Subcommand)]
pub(crate) enum ReplicaCommand {
    /// Serve the replicas in a folder to engines, until stopped
    Serve(ServeArguments),
}

#[derive(Args)]
pub(crate) struct ServeArguments {
    /// Folder on the disk that holds the replicas, one folder each
    #[arg(long, env = "LARIAT_REPLICA_DIR", value_name = "DIR")]
    dir: PathBuf,

    /// Address to serve on; port 0 picks a free one
    #[arg(
        long,
        env = "LARIAT_REPLICA_LISTEN",
        default_value = "127.0.0.1:0",
        value_name = "ADDR:PORT"
    )]
    listen: SocketAddr,

    #[command(flatten)]
    secret: SecretArgument,

    /// Refuse lines that are not encrypted; encrypted ones are always taken
    #[arg(long)]
    require_tls: bool,
}

pub(crate) fn run(command: ReplicaCommand) -> Result<()> {
    let ReplicaCommand::Serve(arguments) = command;
    let mut config = ServerConfig::new(arguments.dir.clone());
    config.listen = arguments.listen;
    config.requires_tls = arguments.require_tls;
    // Whoever knows the secret may also make a volume: that is what `engine run --size` does.
    config.keys = KeyPolicy::Derived {
        secret: arguments.secret.read_or_make()?,
        clients_may_create: true,
    };
    replica::server::serve(config, |server| {
        tell!(
            "serving {} at {}",
            arguments.dir.display(),
            server.local_addr()
        );
    })?;
    Ok(())
}
