//! One operation at a time for each volume. A second one is refused, as CSI asks, and never queued: its
//! caller comes back by itself, and a queue would outlive the callers in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

/// The volumes at work, each with the call that has it.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    calls_by_volume: Arc<Mutex<HashMap<String, &'static str>>>,
}

/// Holds a volume until it is dropped, which also happens when the caller goes away.
#[derive(Debug)]
pub struct Guard {
    table: InFlight,
    volume: String,
}

impl InFlight {
    /// Takes the volume for this call, or says which call has it.
    pub fn begin(&self, volume: &str, call: &'static str) -> Result<Guard, Status> {
        let mut calls = self
            .calls_by_volume
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = calls.get(volume) {
            return Err(Status::aborted(format!(
                "operation already in progress: {other} of volume {volume} has not ended; call again"
            )));
        }
        calls.insert(volume.to_owned(), call);
        Ok(Guard {
            table: self.clone(),
            volume: volume.to_owned(),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut calls = self
            .table
            .calls_by_volume
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        calls.remove(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn one_call_a_volume() {
        let table = InFlight::default();
        let first = table.begin("a", "CreateVolume").expect("nobody has it");
        let refused = table.begin("a", "DeleteVolume").expect_err("it is taken");
        assert_eq!(refused.code(), Code::Aborted);
        assert!(refused.message().contains("CreateVolume of volume a"));
        let _other = table.begin("b", "DeleteVolume").expect("another volume");
        drop(first);
        let _again = table.begin("a", "DeleteVolume").expect("free again");
    }
}
