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

/// What a replica does with an engine that wants to open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochDecision {
    /// Larger than everything before: make it durable, wait out older work, then answer.
    Advance { from: Epoch, to: Epoch },
    /// The same incarnation again, such as a second connection or one after a broken line.
    Rejoin,
}

/// Why a replica refuses an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EpochRefusal {
    #[error("epoch {offered} is stale: epoch {accepted} was accepted")]
    Stale { offered: Epoch, accepted: Epoch },
    #[error("epoch 0 cannot open a volume")]
    None,
}

/// Decides whether an engine of epoch `offered` may open a replica that has accepted `accepted`.
pub fn accept_epoch(accepted: Epoch, offered: Epoch) -> Result<EpochDecision, EpochRefusal> {
    if offered == Epoch::NONE {
        return Err(EpochRefusal::None);
    }
    match offered.cmp(&accepted) {
        std::cmp::Ordering::Less => Err(EpochRefusal::Stale { offered, accepted }),
        std::cmp::Ordering::Equal => Ok(EpochDecision::Rejoin),
        std::cmp::Ordering::Greater => Ok(EpochDecision::Advance {
            from: accepted,
            to: offered,
        }),
    }
}

/// Decides whether one request of an opened connection may still run. Only the newest epoch may.
pub fn check_epoch(accepted: Epoch, carried: Epoch) -> Result<(), EpochRefusal> {
    if carried == Epoch::NONE {
        return Err(EpochRefusal::None);
    }
    // A larger one than accepted would mean that the connection never opened the volume: refuse it alike.
    if carried == accepted {
        Ok(())
    } else {
        Err(EpochRefusal::Stale {
            offered: carried,
            accepted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_incarnation_is_obeyed() {
        let check = |accepted: u64, offered: u64| accept_epoch(Epoch(accepted), Epoch(offered));
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
        assert_eq!(check_epoch(Epoch(7), Epoch(7)), Ok(()));
        for carried in [0, 6, 8] {
            assert!(check_epoch(Epoch(7), Epoch(carried)).is_err(), "{carried}");
        }
    }
}
