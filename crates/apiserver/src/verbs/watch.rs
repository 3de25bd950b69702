//! GET with `watch=true`: what changes, as it changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use revision_store::{Event, Object as Stored, Range, ReadError, Revision, WatchError, Watcher};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::Call;
use super::list::{Selection, options_forbidden, parse_version};
use crate::core::{is_converted, read, read_error, type_meta};
use crate::negotiate::Shape;
use crate::object;
use crate::request::Query;
use crate::status::ApiError;
use crate::table::{self, IncludeObject};

/// How often a watcher that asked for bookmarks gets one, so that it can resume near the present.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);

/// A watch that names no time-out ends after this long; clients then start it anew.
const WATCH_TIMEOUT: Duration = Duration::from_secs(45 * 60);

/// The parameters of a watch.
#[derive(Clone, Debug)]
pub struct WatchParameters {
    pub selection: Selection,
    start: Start,
    bookmarks: bool,
    timeout: Duration,
    pub include_object: IncludeObject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Everything there is, as ADDED, then what happens; with a bookmark in between if asked for.
    State {
        not_older_than: Revision,
        marked: bool,
    },
    /// Only what happened after this revision.
    After(Revision),
}

impl WatchParameters {
    pub fn parse(query: &Query, call: &Call) -> Result<Self, ApiError> {
        let selection = Selection::parse(query, &call.resource, call.name.as_deref())?;
        let bookmarks = query.flag("allowWatchBookmarks")?;
        let version = parse_version(query)?.unwrap_or(Revision(0));
        let start = match query.get("sendInitialEvents") {
            Some(_) if query.get("resourceVersionMatch") != Some("NotOlderThan") => {
                return Err(options_forbidden(
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            Some(_) if query.flag("sendInitialEvents")? => Start::State {
                not_older_than: version,
                marked: bookmarks,
            },
            Some(_) => Start::After(version),
            None if query.get("resourceVersionMatch").is_some() => {
                return Err(options_forbidden(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            None if version.0 == 0 => Start::State {
                not_older_than: version,
                marked: false,
            },
            None => Start::After(version),
        };
        let timeout = query
            .number("timeoutSeconds")?
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0);
        let timeout = timeout
            .map_or(WATCH_TIMEOUT, Duration::from_secs)
            .min(WATCH_TIMEOUT * 2);
        let include_object = IncludeObject::parse(query.get("includeObject"))?;
        Ok(Self {
            selection,
            start,
            bookmarks,
            timeout,
            include_object,
        })
    }
}

impl Call {
    /// The lines of a watch. Errors before the first event are answers of their own, except history
    /// that is gone: clients expect that one as an event.
    pub fn watch(
        &self,
        parameters: WatchParameters,
        shape: Shape,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, ApiError> {
        let store = &self.core.store;
        let prefix = self.resource.key_prefix_in(self.namespace.as_deref());
        let mut encoder = Encoder {
            call: self.clone(),
            selection: parameters.selection,
            shape,
            include_object: parameters.include_object,
            header_sent: false,
        };
        let mut ready = VecDeque::new();
        let source = match parameters.start {
            Start::State {
                not_older_than,
                marked,
            } => {
                if not_older_than > store.current_revision() {
                    return Err(read_error(ReadError::Future {
                        requested: not_older_than,
                        current: store.current_revision(),
                    }));
                }
                let page = store.range(&Range::prefix(&prefix)).map_err(read_error)?;
                ready.extend(
                    page.objects
                        .iter()
                        .filter_map(|stored| encoder.initial(stored)),
                );
                if marked {
                    ready.push_back(encoder.bookmark(page.revision, true));
                }
                store.watch(&prefix, page.revision)
            }
            Start::After(revision) => store.watch(&prefix, revision),
        };
        let watcher = match source {
            Ok(watcher) => Some(watcher),
            Err(error @ ReadError::Future { .. }) => return Err(read_error(error)),
            Err(error @ ReadError::Compacted { .. }) => {
                ready.push_back(encoder.failure(&read_error(error)));
                None
            }
        };
        let now = Instant::now();
        let mut bookmark_timer = interval_at(now + BOOKMARK_INTERVAL, BOOKMARK_INTERVAL);
        bookmark_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let state = Watching {
            watcher,
            encoder,
            ready,
            bookmark_timer: parameters.bookmarks.then_some(bookmark_timer),
            ends_at: now + parameters.timeout,
            _open: self.core.metrics.watch_opened(),
        };
        Ok(stream::unfold(state, |mut state| async move {
            let line = state.next_line().await?;
            Some((line, state))
        }))
    }
}

/// A running watch: what is ready to be sent, and where more comes from.
struct Watching {
    /// Gone when the watch has failed and only its last words remain to be sent.
    watcher: Option<Watcher>,
    encoder: Encoder,
    ready: VecDeque<Bytes>,
    bookmark_timer: Option<Interval>,
    ends_at: Instant,
    _open: crate::metrics::OpenWatch,
}

enum Next {
    Event(Result<Arc<Event>, WatchError>),
    Bookmark,
    TimeOut,
}

impl Watching {
    async fn next_line(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            match self.next().await? {
                Next::Event(Ok(event)) => self.ready.extend(self.encoder.event(&event)),
                Next::Event(Err(error @ WatchError::Lagged { .. })) => {
                    self.watcher = None;
                    let gone = ApiError::expired(format!("too old resource version: {error}"));
                    self.ready.push_back(self.encoder.failure(&gone));
                }
                Next::Event(Err(WatchError::Closed)) | Next::TimeOut => return None,
                Next::Bookmark => {
                    let seen = self.watcher.as_ref()?.progress();
                    self.ready.push_back(self.encoder.bookmark(seen, false));
                }
            }
        }
    }

    async fn next(&mut self) -> Option<Next> {
        let watcher = self.watcher.as_mut()?;
        let bookmark = async {
            match &mut self.bookmark_timer {
                Some(timer) => timer.tick().await,
                None => std::future::pending().await,
            }
        };
        // In this order: events that are there come before a bookmark that says all were seen.
        Some(tokio::select! {
            biased;
            event = watcher.next() => Next::Event(event),
            _ = bookmark => Next::Bookmark,
            () = tokio::time::sleep_until(self.ends_at) => Next::TimeOut,
        })
    }
}

/// Turns store events into lines of the shape and selection that one client asked for.
struct Encoder {
    call: Call,
    selection: Selection,
    shape: Shape,
    include_object: IncludeObject,
    /// A table's columns are sent with its first event only.
    header_sent: bool,
}

impl Encoder {
    fn initial(&mut self, stored: &Stored) -> Option<Bytes> {
        self.selects(stored)
            .then(|| self.shown("ADDED", stored, stored.mod_revision))
    }

    /// What a selective watcher sees depends on what it could see before.
    fn event(&mut self, event: &Event) -> Option<Bytes> {
        let before = event.previous().filter(|stored| self.selects(stored));
        let after = event.object().filter(|stored| self.selects(stored));
        let (kind, stored) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
        };
        Some(self.shown(kind, stored, event.revision))
    }

    fn selects(&self, stored: &Stored) -> bool {
        self.selection.is_everything() || self.selection.matches(&self.call.resource, stored)
    }

    /// As text where it is sent as it is stored.
    fn shown(&mut self, kind: &str, stored: &Stored, revision: Revision) -> Bytes {
        let resource = &self.call.resource;
        if self.shape == Shape::Object && !is_converted(resource) {
            return self.spliced(kind, stored, revision);
        }
        let mut object = read(resource, stored);
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        self.shaped(kind, object)
    }

    fn spliced(&self, kind: &str, stored: &Stored, revision: Revision) -> Bytes {
        let resource = &self.call.resource;
        let api_version = resource.api_version();
        let mut line = Vec::with_capacity(stored.value.len() + 128);
        line.extend_from_slice(br#"{"type":""#);
        line.extend_from_slice(kind.as_bytes());
        line.extend_from_slice(br#"","object":"#);
        object::splice(
            &stored.value,
            revision.0,
            Some(type_meta(&api_version, resource)),
            &mut line,
        );
        line.extend_from_slice(b"}\n");
        line.into()
    }

    fn shaped(&mut self, kind: &str, object: Value) -> Bytes {
        let resource = &self.call.resource;
        let object = match self.shape {
            Shape::Object => object,
            Shape::Metadata => table::partial_metadata(&object),
            Shape::Table => {
                let version = object["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                let now = self.call.core.clock();
                let mut table = table::table(resource, &[object], self.include_object, now);
                table["metadata"] = json!({"resourceVersion": version});
                if self.header_sent {
                    table["columnDefinitions"] = Value::Null;
                }
                self.header_sent = true;
                table
            }
        };
        line(kind, &object)
    }

    /// "You have seen everything up to here."
    fn bookmark(&self, revision: Revision, ends_initial_events: bool) -> Bytes {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.shape {
            Shape::Object => json!({
                "kind": self.call.resource.kind,
                "apiVersion": self.call.resource.api_version(),
                "metadata": metadata,
            }),
            Shape::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            Shape::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": revision.to_string()},
                "columnDefinitions": null,
                "rows": [{"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                }}],
            }),
        };
        line("BOOKMARK", &object)
    }

    fn failure(&self, error: &ApiError) -> Bytes {
        line("ERROR", &error.to_status())
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": kind, "object": object}).to_string();
    text.push('\n');
    text.into()
}
