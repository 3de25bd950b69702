//! What is run, and what came of it.

mod api;
mod benchmark;
mod csi_sanity;
mod differential;
mod kubernetes;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

/// One suite. Running it needs nothing but this repository, Go, and the network or a filled cache.
pub struct Suite {
    /// As given on the command line.
    pub name: &'static str,
    /// Whether it runs when no suite is named.
    pub by_default: bool,
    /// An error means that the suite could not do its work; it counts as a failure.
    pub run: fn() -> LocalBoxFuture<'static, Result<Outcome>>,
}

/// All suites, quick ones first.
pub const ALL: &[Suite] = &[
    Suite {
        name: "api",
        by_default: true,
        run: || api::run().boxed_local(),
    },
    Suite {
        name: "differential",
        by_default: true,
        run: || differential::run().boxed_local(),
    },
    Suite {
        name: "csi-sanity",
        by_default: true,
        run: || csi_sanity::run().boxed_local(),
    },
    Suite {
        name: "kubernetes",
        by_default: true,
        run: || kubernetes::run().boxed_local(),
    },
    Suite {
        name: "benchmark",
        by_default: false,
        run: || benchmark::run().boxed_local(),
    },
];

/// How many checks passed, and what each failed one says.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many checks passed.
    pub passed: usize,
    /// One text for each check that failed.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Notes one failed check.
    pub fn fail(&mut self, what: String) {
        self.failures.push(what);
    }
}
