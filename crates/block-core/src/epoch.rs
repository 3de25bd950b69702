//! Epochs: which engine incarnation a replica obeys.

use std::fmt;

/// The number of one engine incarnation of a volume, larger than all before it.
///
/// Epoch 0 is nobody's: a replica that no engine ever opened has accepted it, and connections that only look
/// (status, immutable layers) carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

impl Epoch {
    pub const NONE: Self = Self(0);
}

impl fmt::Display for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// One hold of an engine on a replica: its epoch, and which of its connections it is.
///
/// An engine numbers its connections to a replica, and a newer one ends the hold of all before it: what they had sent and
/// is still on its way will not run behind what the newer one sends. No number is used twice, also not by a process that is started
/// again with its epoch. Only tools that connect once, with 0, share a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenure {
    pub epoch: Epoch,
    pub session: u64,
}

impl From<Epoch> for Tenure {
    fn from(epoch: Epoch) -> Self {
        Self { epoch, session: 0 }
    }
}

/// What a replica does with an engine that wants to open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochDecision {
    /// Larger than everything before: make it durable, wait out older work, then answer.
    Advance { from: Epoch, to: Epoch },
    /// The same incarnation again, after a broken line: wait out what came before it, then answer.
    Rejoin,
}

/// Why a replica refuses an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochRefusal {
    #[error("epoch {offered} is stale: epoch {accepted} was accepted")]
    Stale { offered: Epoch, accepted: Epoch },
    #[error(
        "connection {offered} of epoch {epoch} is superseded: connection {accepted} was opened"
    )]
    Superseded {
        epoch: Epoch,
        offered: u64,
        accepted: u64,
    },
    #[error("epoch 0 cannot open a volume")]
    None,
}

/// Decides whether an engine may open a replica with `offered` after `accepted`.
pub fn accept_tenure(accepted: Tenure, offered: Tenure) -> Result<EpochDecision, EpochRefusal> {
    if offered.epoch == Epoch::NONE {
        return Err(EpochRefusal::None);
    }
    match offered.epoch.cmp(&accepted.epoch) {
        std::cmp::Ordering::Less => Err(stale(accepted, offered)),
        std::cmp::Ordering::Equal
            if offered.session < accepted.session
                || (offered.session == accepted.session && offered.session != 0) =>
        {
            Err(superseded(accepted, offered))
        }
        std::cmp::Ordering::Equal => Ok(EpochDecision::Rejoin),
        std::cmp::Ordering::Greater => Ok(EpochDecision::Advance {
            from: accepted.epoch,
            to: offered.epoch,
        }),
    }
}

/// Decides whether one request of an opened connection may still run. Only the newest epoch's newest connection may.
pub fn check_tenure(accepted: Tenure, carried: Tenure) -> Result<(), EpochRefusal> {
    if carried.epoch == Epoch::NONE {
        return Err(EpochRefusal::None);
    }
    // Larger ones than accepted would mean that the connection never opened the volume: refuse them alike.
    if carried.epoch != accepted.epoch {
        Err(stale(accepted, carried))
    } else if carried.session != accepted.session {
        Err(superseded(accepted, carried))
    } else {
        Ok(())
    }
}

fn stale(accepted: Tenure, offered: Tenure) -> EpochRefusal {
    EpochRefusal::Stale {
        offered: offered.epoch,
        accepted: accepted.epoch,
    }
}

fn superseded(accepted: Tenure, offered: Tenure) -> EpochRefusal {
    EpochRefusal::Superseded {
        epoch: offered.epoch,
        offered: offered.session,
        accepted: accepted.session,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenure(epoch: u64, session: u64) -> Tenure {
        Tenure {
            epoch: Epoch(epoch),
            session,
        }
    }

    #[test]
    fn only_the_newest_incarnation_is_obeyed() {
        let check =
            |accepted: u64, offered: u64| accept_tenure(tenure(accepted, 8), tenure(offered, 9));
        assert_eq!(
            check(0, 1),
            Ok(EpochDecision::Advance {
                from: Epoch(0),
                to: Epoch(1)
            })
        );
        assert_eq!(check(7, 7), Ok(EpochDecision::Rejoin));
        assert_eq!(
            check(7, 6),
            Err(EpochRefusal::Stale {
                offered: Epoch(6),
                accepted: Epoch(7)
            })
        );
        assert_eq!(check(0, 0), Err(EpochRefusal::None));
        assert_eq!(check_tenure(tenure(7, 9), tenure(7, 9)), Ok(()));
        for carried in [0, 6, 8] {
            let refused = check_tenure(tenure(7, 9), tenure(carried, 9));
            assert!(refused.is_err(), "{carried}");
        }
    }

    #[test]
    fn only_the_newest_connection_of_an_epoch_is_obeyed() {
        let accepted = tenure(7, 2);
        let superseded = |offered| {
            Err(EpochRefusal::Superseded {
                epoch: Epoch(7),
                offered,
                accepted: 2,
            })
        };
        for session in [1, 2] {
            let decision = accept_tenure(accepted, tenure(7, session));
            assert_eq!(decision.map(drop), superseded(session));
        }
        let rejoin = Ok(EpochDecision::Rejoin);
        assert_eq!(accept_tenure(accepted, tenure(7, 3)), rejoin);
        assert_eq!(accept_tenure(tenure(7, 0), tenure(7, 0)), rejoin, "tools");
        // A newer engine begins to count anew.
        assert!(accept_tenure(accepted, tenure(8, 1)).is_ok());
        assert_eq!(check_tenure(accepted, tenure(7, 2)), Ok(()));
        for session in [1, 3] {
            let checked = check_tenure(accepted, tenure(7, session));
            assert_eq!(checked, superseded(session));
        }
    }
}
