//! An error as a person reads it: in an event, in the answer of a call, on a terminal.

use std::error::Error;

use kube::core::Status;

/// The whole chain, once: what failed, and why, on one line.
///
/// A refusal is told in the API's own words. The client shows it as its own data structure, and errors around it repeat that.
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return refusal(status);
    }
    let text = error.to_string();
    let Some(source) = error.source() else {
        return text;
    };
    let why = sentence(source);
    // Some errors repeat their reason in their own text.
    match text.strip_suffix(&source.to_string()) {
        Some(own) => own.to_owned() + &why,
        None => format!("{text}: {why}"),
    }
}

/// What the API said. A gateway before it may have said nothing but a number.
fn refusal(status: &Status) -> String {
    let words = [&status.message, &status.reason];
    match words.into_iter().find(|words| !words.is_empty()) {
        Some(words) => words.clone(),
        None => format!("refused with the status {}", status.code),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// An error of ours: its own words, and why.
    #[derive(Debug)]
    struct Link(&'static str, Option<Box<dyn Error>>);

    impl fmt::Display for Link {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            match (self.0.strip_suffix("{}"), &self.1) {
                (Some(own), Some(source)) => write!(formatter, "{own}{source}"),
                _ => formatter.write_str(self.0),
            }
        }
    }

    impl Error for Link {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref()
        }
    }

    fn link(words: &'static str, source: impl Error + 'static) -> Link {
        Link(words, Some(Box::new(source)))
    }

    fn refused(message: &str, reason: &str) -> kube::Error {
        let status = Status::failure(message, reason).with_code(403);
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words_and_every_reason_once() {
        let forbidden = || refused("pods is forbidden", "Forbidden");
        let broken = || kube::Error::ReadEvents(std::io::Error::other("no route"));
        let rows = [
            (Link("it is broken", None), "it is broken"),
            (
                link("cannot read", forbidden()),
                "cannot read: pods is forbidden",
            ),
            (
                link("cannot read: {}", forbidden()),
                "cannot read: pods is forbidden",
            ),
            (link("{}", forbidden()), "pods is forbidden"),
            // As errors of watches do: the repeated text is two links deep.
            (
                link("a", link("the list failed: {}", link("{}", forbidden()))),
                "a: the list failed: pods is forbidden",
            ),
            (
                link("cannot watch", broken()),
                "cannot watch: Error reading events stream: no route",
            ),
            (
                link("volume \"v\" : {}", Link("no", None)),
                "volume \"v\" : no",
            ),
            (
                link("cannot read", refused("", "Forbidden")),
                "cannot read: Forbidden",
            ),
            (
                link("cannot read", refused("", "")),
                "cannot read: refused with the status 403",
            ),
        ];
        for (error, expected) in rows {
            assert_eq!(sentence(&error), expected);
        }
    }
}
