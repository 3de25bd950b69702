//! What is told while work goes on: lines on standard error. Standard output is for answers.

use std::error::Error;
use std::fmt;
use std::io::IsTerminal as _;

use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::{RecordFields, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

/// Warnings, but for those about connections: whoever asked gets that error, and says it in a sentence.
const QUIET: &str = "warn,kube_client::client::builder=off,rustls_platform_verifier=off";

/// `LARIAT_LOG` says how much is told.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("LARIAT_LOG").unwrap_or_else(|_| EnvFilter::new(QUIET));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .fmt_fields(Sentences)
        // Colours are for people; files and log collectors keep the escapes.
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Fields as usual, but for errors: those of the API's client print the structure that they hold, and all print each of
/// their reasons twice.
struct Sentences;

impl<'writer> FormatFields<'writer> for Sentences {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = ErrorsAsSentences(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct ErrorsAsSentences<'writer>(DefaultVisitor<'writer>);

impl Visit for ErrorsAsSentences<'_> {
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let told = events::sentence(value);
        self.0.record_debug(field, &format_args!("{told}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_is_told_in_words_and_once() {
        let paper = Paper::default();
        let writer = paper.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(Sentences)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        let status = kube::core::Status::failure("pods is forbidden", "Forbidden").with_code(403);
        let error = kube::Error::Api(Box::new(status));
        let watching = kube::runtime::watcher::Error::InitialListFailed(error);
        tracing::subscriber::with_default(subscriber, || {
            let error = &watching as &dyn Error;
            tracing::warn!(node.name = %"n1", error, pods = 3, "cannot watch");
        });
        let told = String::from_utf8(paper.0.lock().expect("no panic").clone()).expect("text");
        assert_eq!(
            told,
            " WARN cannot watch node.name=n1 error=failed to perform initial object list: pods is forbidden pods=3\n"
        );
    }
}
