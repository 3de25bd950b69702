//! No device at all: the volume is held for restore, clone, rebuild or maintenance.

use super::{Endpoint, Frontend, FrontendState, Resize};
use crate::io::{Outcome, Request, RequestId};
use crate::poller::Readiness;

#[derive(Debug, Default)]
pub struct NoFrontend {
    closed: bool,
}

impl Frontend for NoFrontend {
    fn state(&self) -> FrontendState {
        if self.closed {
            FrontendState::Closed
        } else {
            FrontendState::Ready {
                endpoint: Endpoint::Nowhere,
            }
        }
    }

    fn ready(&mut self, _: Readiness, _: &mut Vec<Request>) {}

    fn complete(&mut self, _: RequestId, _: Outcome) {}

    fn flush(&mut self) {}

    fn begin_close(&mut self) {
        self.closed = true;
    }

    fn resize(&mut self) -> Option<&mut dyn Resize> {
        None
    }

    fn abandon(self: Box<Self>) {}
}
