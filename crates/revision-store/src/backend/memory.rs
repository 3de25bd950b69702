//! The back end of a store that need not outlive its process.

use std::sync::Arc;

use super::{Backend, BackendError, Compaction, Marks, Record};
use crate::{Event, Revision};

/// Keeps nothing: the store's own state already holds every object and the whole retained log.
pub(crate) struct MemoryBackend;

impl Backend for MemoryBackend {
    fn marks(&mut self) -> Result<Marks, BackendError> {
        Ok(Marks::default())
    }

    fn scan(
        &mut self,
        _after: Revision,
        _sink: &mut dyn FnMut(Record) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    fn commit(
        &mut self,
        _events: &[Arc<Event>],
        _compaction: Option<&Compaction>,
    ) -> Result<(), BackendError> {
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}
