//! Random numbers that a seed repeats.

/// A generator of random numbers: splitmix64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Each part of a world draws from a stream of its own, so that one more draw in a client does not change the faults.
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        let seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d);
        Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or 0 if the bound is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or_default()
    }

    /// Returns `true` in one of `of` cases.
    pub(crate) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Returns an item of a list, which must not be empty.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// Returns a generator for one more part.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }
}
