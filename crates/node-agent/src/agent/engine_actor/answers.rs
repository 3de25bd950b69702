//! Answers to what the engine proposes, also while its actor waits for something else.

use std::pin::pin;

use super::{Actor, LOOK_AGAIN};
use crate::agent::AgentError;
use crate::agent::engine_plan::Wanted;
use crate::agent::relay::{Recorded, verdict};

impl Actor {
    /// Waits for what takes its time, and answers the engine meanwhile: users who are dropped and devices that are closed write
    /// out what they have first, and such a write may wait for just an answer. None if the engine is gone before it is done.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                // An engine that ends in order says so before it is gone.
                biased;
                done = &mut work => return Some(done),
                attended = self.attend() => attended?,
            }
        }
    }

    /// Waits until the engine may want an answer, and gives it. None if there is no engine any more.
    async fn attend(&mut self) -> Option<()> {
        let process = self.process.as_mut()?;
        tokio::select! {
            // An error: the connection is closed for good.
            _ = process.pushed.changed() => {}
            () = self.wake.notified() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        let is_closed = process.pushed.borrow_and_update().closed;
        if is_closed && !self.reconnect().await {
            return None;
        }
        if let Err(error) = self.answer().await {
            tracing::warn!(volume.name = %self.volume, error = &error as &dyn std::error::Error, "cannot answer an engine that is to end");
        }
        Some(())
    }

    /// Shows an open proposal to those who record it, and answers one that they have recorded. All else can wait.
    async fn answer(&mut self) -> Result<(), AgentError> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        // One that is too busy to say how it is will be asked again.
        if let Ok(status) = process.connection.status().await {
            process.status = status;
        }
        if process.status.proposal.is_none() {
            return Ok(());
        }
        let objects = self.objects();
        let wanted: Vec<Wanted> = objects.iter().map(Wanted::read).collect();
        self.relay(&wanted).await?;
        self.report_all(&objects).await
    }

    /// Answers an open proposal, if the API has an answer; says whether it had.
    pub(super) async fn relay(&self, wanted: &[Wanted]) -> Result<bool, AgentError> {
        let Some(process) = &self.process else {
            return Ok(false);
        };
        let open = process.status.proposal.as_ref();
        let proposal = process.pushed.borrow().proposal.clone();
        let proposal = proposal.filter(|proposal| {
            open.is_some_and(|open| {
                open.generation == proposal.generation && open.in_sync == proposal.in_sync
            })
        });
        let own = wanted
            .iter()
            .find(|engine| engine.epoch == process.record.epoch);
        let (Some(proposal), Some(own)) = (proposal, own) else {
            return Ok(false);
        };
        let volume = self.volume().await?;
        let recorded = volume.as_ref().and_then(Recorded::in_volume);
        let copy = Recorded::in_engine(own);
        let Some(verdict) = verdict(&proposal, &copy, recorded.as_ref()) else {
            return Ok(false);
        };
        tracing::info!(volume.name = %self.volume, generation = proposal.generation, ?verdict, "answering a proposal");
        let told = process
            .connection
            .commit(proposal.generation, verdict)
            .await;
        if let Err(error) = told {
            tracing::warn!(volume.name = %self.volume, error = &error as &dyn std::error::Error, "cannot answer a proposal");
        }
        Ok(true)
    }
}
