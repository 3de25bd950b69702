//! `lariat why`: one chain of causes, and an exit code that says how it stands.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use diagnose::{Index, render_why};

use crate::exit::Outcome;
use crate::gather::{Source, resolve};
use crate::output::{self, AnswerArgument};
use crate::{complete, runtime};

#[derive(Args)]
pub(crate) struct WhyArguments {
    /// A volume, a claim or a pod: NAME, NAMESPACE/NAME, or volume/…, pvc/…, pod/…
    #[arg(value_name = "VOLUME|PVC|POD", add = complete::subjects())]
    pub subject: String,

    #[command(flatten)]
    pub source: Source,

    #[command(flatten)]
    pub output: AnswerArgument,
}

pub(crate) fn run(arguments: &WhyArguments) -> Result<ExitCode> {
    let look = runtime::block_on(arguments.source.look())?;
    let index = Index::new(&look.dump, look.at);
    let subject = resolve(&index, &arguments.subject)?;
    let chain = diagnose::why(&index, &subject);
    let text = || render_why(&chain, look.at);
    output::say(&output::answer(&chain, arguments.output.output, text)?)?;
    // A verdict that rests on what was not read is none.
    let code = if chain.unread.is_empty() {
        chain.verdict.exit_code()
    } else {
        Outcome::Incomplete as u8
    };
    Ok(ExitCode::from(code))
}
