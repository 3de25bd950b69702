//! Chance that a seed repeats.

/// Splitmix64: small, and good enough to choose requests with.
pub struct Dice(u64);

/// What [`Dice::one`] chooses from.
type Maker<'a, T> = &'a dyn Fn(&mut Dice) -> T;

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a small number");
        usize::try_from(self.next() % limit).expect("below a usize")
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Makes one of several; the first half of the time, so that valid objects are common.
    pub fn one<T>(&mut self, makers: &[Maker<'_, T>]) -> T {
        let index = if self.chance(50) {
            0
        } else {
            self.below(makers.len())
        };
        makers[index](self)
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn a_seed_gives_the_same_numbers() {
        let roll = |seed| {
            let mut dice = Dice::new(seed);
            (0..8).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(roll(1), roll(1));
        assert_ne!(roll(1), roll(2));
    }
}
