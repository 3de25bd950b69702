//! Lists: the arguments that all of them take, and how their rows are shown, once or until interrupted.

use anyhow::Result;
use clap::Args;
use futures::Stream;

use super::{OutputArgument, Row, show, watch};
use crate::client::ApiArguments;

/// What can be said of any list.
#[derive(Args)]
pub(crate) struct Listing {
    /// Show changes until interrupted
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    pub api: ApiArguments,
    #[command(flatten)]
    output: OutputArgument,
}

impl Listing {
    /// Shows the rows that `fetch` yields; with `--watch` again after each of the `changes`, which are looked for only then.
    pub(crate) async fn show<R: Row, C: Stream<Item = ()> + Unpin>(
        &self,
        mut fetch: impl AsyncFnMut() -> Result<Vec<R>>,
        changes: impl FnOnce() -> C,
    ) -> Result<()> {
        let format = self.output.output;
        if self.watch {
            watch::follow(changes(), fetch, format).await
        } else {
            show(&fetch().await?, format)
        }
    }
}
