//! Replicas that are served elsewhere than before.
//!
//! An agent that is started again may get another address, and a replica that nobody can stand in for is waited for as long as
//! it takes; so the engine, which was told where to look at its start, has to be told again.

use block_core::ReplicaName;

use super::{Action, EngineCore};
use crate::control::CommandError;

impl EngineCore {
    pub(super) fn set_address(&mut self, name: &str, address: String) -> Result<(), CommandError> {
        let name = ReplicaName::new(name).map_err(|error| CommandError::new(error.to_string()))?;
        let member = self
            .find_member(&name)
            .ok_or_else(|| CommandError::new(format!("the volume has no replica {name}")))?;
        // A repeat must not cut short an attempt that is under way.
        if self.members[member.position()].to.address == address {
            return Ok(());
        }
        if self.members[member.position()].move_to(address, self.now) {
            self.out.push(Action::Disconnect {
                member,
                reason: "it is served elsewhere".to_owned(),
            });
        }
        self.connect_missing();
        Ok(())
    }
}
