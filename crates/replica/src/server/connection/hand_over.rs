//! Requests that the connection's own thread does not do, and who does them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block_core::epoch::Tenure;
use block_core::wire::{Failure, Header, Kind, Reply, Request, StatusCode};

use super::Connection;
use crate::disk::real::RealDisk;
use crate::server::handshake::Ending;
use crate::server::or_abort;
use crate::server::perform::{self, perform};
use crate::server::replies::Answer;
use crate::store::{Replica, StoreError};

/// What a request counts for that waits for a sync: nothing but itself.
const SYNC_BYTES: usize = 256;

impl Connection<'_> {
    pub(super) fn hand_over(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        request: Request,
        payload_bytes: usize,
    ) -> Result<(), Ending> {
        let bytes = payload_bytes + perform::reply_bytes(header);
        let run = self.begin_job(replica, header, request, bytes)?;
        self.shared.pool.run(Box::new(run));
        Ok(())
    }

    pub(super) fn hand_over_sync(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        request: Request,
    ) -> Result<(), Ending> {
        let run = self.begin_job(replica, header, request, SYNC_BYTES)?;
        self.shared.syncs.run(Box::new(run));
        Ok(())
    }

    /// Waits until there may be one more, and makes it. Nobody works for a client that takes no replies, however many of its
    /// requests are here already.
    fn begin_job(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        request: Request,
        bytes: usize,
    ) -> Result<impl FnOnce() + Send + use<>, Ending> {
        // While this waits, replies to what is done already must not.
        self.send_replies()?;
        self.replies.begin_job(bytes);
        if let Some(error) = self.replies.broken() {
            self.replies.end_job(bytes);
            return Err(Ending::not_taken(error));
        }
        let (job, replies) = (self.job(replica, header, request), self.replies.clone());
        Ok(move || job().send_for_job(&replies, bytes))
    }

    pub(super) fn hand_over_long(
        &mut self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        request: Request,
    ) -> Result<(), Ending> {
        if let Some(error) = self.replies.broken() {
            return Err(Ending::not_taken(error));
        }
        let busy = |text: &str| Reply::Failed(Failure::new(StatusCode::Busy, text));
        if !self.replies.begin_long_job() {
            let _ = self.answer(
                header,
                busy("too many long operations on this connection"),
                self.tenure.epoch,
            );
            return Ok(());
        }
        let (job, replies) = (self.job(replica, header, request), self.replies.clone());
        let replica = replica.clone();
        let run = move || {
            or_abort(|| {
                job().send(&replies);
                // Writers may be held back until the reply is there, and files of terabytes are not removed in a moment.
                replica.remove_leftovers();
            });
            replies.end_long_job();
        };
        if std::thread::Builder::new()
            .name("replica-long".to_owned())
            .spawn(run)
            .is_err()
        {
            self.replies.end_long_job();
            let _ = self.answer(
                header,
                busy("no thread could be started"),
                self.tenure.epoch,
            );
        }
        Ok(())
    }

    /// What a request stands on: nothing, if it only looks.
    pub(super) fn tenure_of(&self, header: &Header) -> Tenure {
        Tenure {
            epoch: header.epoch,
            ..self.tenure
        }
    }

    fn job(
        &self,
        replica: &Arc<Replica<RealDisk>>,
        header: &Header,
        request: Request,
    ) -> impl FnOnce() -> Answer + use<> {
        let (replica, header, tenure) = (replica.clone(), *header, self.tenure_of(header));
        let shared = self.shared.clone();
        move || {
            let result = perform(&replica, tenure, request);
            let ending = result.as_ref().err().and_then(StoreError::ends_connection);
            let counters = &shared.counters;
            if result.is_err() {
                counters.failures.fetch_add(1, Relaxed);
            } else if header.kind == Kind::Flush {
                counters.flushes.fetch_add(1, Relaxed);
            }
            let reply = result.unwrap_or_else(|error| Reply::Failed(error.failure()));
            let frame = reply.into_frame(&header, replica.accepted_epoch());
            Answer { frame, ending }
        }
    }
}
