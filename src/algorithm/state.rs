//! The stored state of one count of a key, for any algorithm.

use std::ops::{Deref, DerefMut};

use super::algorithm_state::AlgorithmState;
use super::bytes::Bytes;
use super::counter_state::CounterState;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::holds::Holds;
use super::log::Log;
use super::sliding_counter::SlidingCounter;
use super::sorted_set_log::SortedSetLog;
use super::total::Total;
use crate::quota::Algorithm;

/// The state of a log, or of a counter of one algorithm and window.
#[derive(Clone, Debug)]
pub(crate) enum CountState {
    /// The log of `SlidingLog` and of `SlidingBuckets`.
    Log(Log),
    SortedSetLog(SortedSetLog),
    SlidingCounter(CounterState<SlidingCounter>),
    FixedWindow(CounterState<FixedWindow>),
    Gcra(CounterState<Gcra>),
    Total(CounterState<Total>),
    /// The holders of slots.
    InFlight(Holds),
    /// The holders of units.
    Held(Holds),
}

/// Creates the state of an algorithm from an expression that any state is made by.
macro_rules! with_algorithm {
    ($algorithm:expr, $state:expr) => {
        match $algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) => Self::Log($state),
            Algorithm::SortedSetLog => Self::SortedSetLog($state),
            Algorithm::SlidingCounter => Self::SlidingCounter($state),
            Algorithm::FixedWindow => Self::FixedWindow($state),
            Algorithm::Gcra => Self::Gcra($state),
            Algorithm::Total => Self::Total($state),
            Algorithm::InFlight => Self::InFlight($state),
            Algorithm::Held => Self::Held($state),
        }
    };
}

impl CountState {
    /// Takes the state of an algorithm from the front of the bytes. `None` if they are none.
    pub(crate) fn read(algorithm: Algorithm, bytes: &mut &[u8]) -> Option<Self> {
        let mut state = with_algorithm!(algorithm, Bytes::read(bytes)?);
        if let Self::Held(holds) = &mut state {
            holds.read_spent(bytes)?;
        }
        Some(state)
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        Bytes::write(&**self, bytes);
        if let Self::Held(holds) = self {
            holds.write_spent(bytes);
        }
    }

    pub(crate) fn empty(algorithm: Algorithm) -> Self {
        with_algorithm!(algorithm, Default::default())
    }

    /// Creates the state of a counter from its numbers, in the order of the script; `None` for another algorithm, or
    /// if numbers are missing or too large.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn from_counter(
        algorithm: Algorithm,
        generation: u64,
        numbers: &[u64],
    ) -> Option<Self> {
        let mut state = Self::empty(algorithm);
        state.set_numbers(generation, numbers)?;
        Some(state)
    }

    pub(crate) fn holds(&mut self) -> Option<&mut Holds> {
        match self {
            Self::InFlight(holds) | Self::Held(holds) => Some(holds),
            _ => None,
        }
    }
}

/// Returns a reference to the state of any algorithm.
macro_rules! any_state {
    ($count:expr) => {
        match $count {
            Self::Log(state) => state,
            Self::SortedSetLog(state) => state,
            Self::SlidingCounter(state) => state,
            Self::FixedWindow(state) => state,
            Self::Gcra(state) => state,
            Self::Total(state) => state,
            Self::InFlight(state) | Self::Held(state) => state,
        }
    };
}

impl Deref for CountState {
    type Target = dyn AlgorithmState;

    #[inline]
    fn deref(&self) -> &Self::Target {
        any_state!(self)
    }
}

impl DerefMut for CountState {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        any_state!(self)
    }
}
