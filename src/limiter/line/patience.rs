//! How long a call for several keys lets others pass where it has room, while it lacks another key.

use std::time::Duration;

use tokio::time::Instant;

use super::line_key::LineKey;

/// The shortest time for which a call lets others pass before it stands at all its keys.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// The patience of a call for several keys. It ends when each of its keys has had room for the call, but not all of them in the
/// same moment: then calls for each key alone could take it every time. A key that never has room, as that of a tenant at its
/// own limit, keeps nobody from the others.
///
/// Then the call stands at all its keys, for as long as it has let others pass. If one lacks room for so long, its patience
/// begins again, and is twice as long the next time. So it is admitted in the end, however long others keep their slots.
#[derive(Default)]
pub(super) struct Patience {
    /// When the call let others pass first.
    since: Option<Instant>,
    /// The keys that had room for the call since it last stood at all of them.
    passed: Vec<LineKey>,
    /// Until when it stands at all its keys.
    ends_at: Option<Instant>,
}

impl Patience {
    pub(super) fn let_pass(&mut self, key: LineKey, now: Instant) {
        self.since.get_or_insert(now);
        if !self.passed.contains(&key) {
            self.passed.push(key);
        }
    }

    /// Returns the time until which the call stands at all its keys. `None` if it stands where it lacks room.
    pub(super) fn stands_at_all_until(&mut self, keys: usize, now: Instant) -> Option<Instant> {
        if self.ends_at.is_some_and(|ends_at| ends_at <= now) {
            self.ends_at = None;
            self.passed.clear();
        }
        let since = self.since?;
        let waited = now.saturating_duration_since(since);
        if self.ends_at.is_none() && self.passed.len() >= keys && waited >= PATIENCE {
            self.ends_at = Some(now + waited);
        }
        self.ends_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::RateLimiter;
    use crate::limiter::asked_level::AskedLevel;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    #[test]
    fn a_call_stands_at_all_its_keys_when_each_had_room_and_for_as_long_as_it_let_others_pass() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
        let [one, other] = ["ada", "bob"].map(|key| AskedLevel::new(&limiter, key, 1).want().line);
        let began = Instant::now();
        let mut patience = Patience::default();
        for second in 0..10 {
            // A key without room ends nobody's patience, however long that takes.
            let now = began + second * PATIENCE;
            patience.let_pass(one, now);
            assert_eq!(patience.stands_at_all_until(2, now), None);
        }
        let now = began + 10 * PATIENCE;
        patience.let_pass(other, now);
        let ends_at = now + 10 * PATIENCE;
        assert_eq!(patience.stands_at_all_until(2, now), Some(ends_at));
        let before = ends_at - Duration::from_millis(1);
        assert_eq!(patience.stands_at_all_until(2, before), Some(ends_at));
        // Another key has lacked room for so long: both have to have room again.
        assert_eq!(patience.stands_at_all_until(2, ends_at), None);
        patience.let_pass(one, ends_at);
        assert_eq!(patience.stands_at_all_until(2, ends_at), None);
        patience.let_pass(other, ends_at);
        let ends_at = Some(ends_at + 20 * PATIENCE);
        assert_eq!(
            patience.stands_at_all_until(2, began + 20 * PATIENCE),
            ends_at
        );
    }

    #[test]
    fn a_call_lets_others_pass_for_a_second_at_least() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
        let [one, other] = ["ada", "bob"].map(|key| AskedLevel::new(&limiter, key, 1).want().line);
        let began = Instant::now();
        let mut patience = Patience::default();
        patience.let_pass(one, began);
        patience.let_pass(other, began);
        let before = began + PATIENCE - Duration::from_millis(1);
        assert_eq!(patience.stands_at_all_until(2, before), None);
        let now = began + PATIENCE;
        assert_eq!(patience.stands_at_all_until(2, now), Some(now + PATIENCE));
    }
}
