//! Checks of several keys: all of them are charged, or none.
//!
//! 1. A level is a limiter, a key, a cost and quotas. A check has one or more levels.
//! 2. All levels have the same store, and no two have the same limiter and key.
//! 3. The check is admitted if every level admits its cost. Then every level is charged.
//! 4. If one level refuses, no level is charged.
//! 5. A level without quotas admits. It is not counted.
//! 6. If a key is blocked, or remembered as refused, the store is not asked.
//! 7. The store decides all levels in one atomic step, if their keys are in one [group](crate::Store::atomic_group).
//! 8. On a cluster, groups are asked in turn, each is charged, and refunded if a later one refuses. A task does
//!    this, so that it goes on if the caller is dropped. A lost reply or a crash strands a charge for its window.
//! 9. If a group fails, a closed level fails the check. Open levels admit. Levels that fall back are decided
//!    together by the counts of this process.
//! 10. The waits and counts of a level that was not asked are unknown, so the reported wait is a lower bound.

mod check_all;
mod failure;
mod in_turn;
mod level_check;
mod start;
mod tree;

pub(crate) use check_all::record_levels;
pub use level_check::LevelCheck;
pub(crate) use start::start_levels;
pub(crate) use tree::{LevelsError, LevelsProgress, PendingLevels};
