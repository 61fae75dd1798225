//! The admissions of a run, and the most units in any span of time.

use std::collections::BTreeMap;
use std::time::Duration;

/// Units that were admitted at some moment between two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    /// Since the traffic began.
    pub(crate) start: Duration,
    pub(crate) end: Duration,
    pub(crate) units: u32,
}

/// All admissions of one key, in the order in which they were asked for.
#[derive(Debug)]
pub(crate) struct Admissions(Vec<Admission>);

impl Admissions {
    pub(crate) fn new(mut admissions: Vec<Admission>) -> Self {
        admissions.sort_by_key(|admission| admission.start);
        Self(admissions)
    }

    pub(crate) fn total(&self) -> u64 {
        self.0
            .iter()
            .map(|admission| u64::from(admission.units))
            .sum()
    }

    /// Before the first check that was admitted.
    pub(crate) fn begin(&self) -> Duration {
        self.0.first().map(|first| first.start).unwrap_or_default()
    }

    /// From before the first check that was admitted to after the last.
    pub(crate) fn lasted(&self) -> Duration {
        let first = self.0.iter().map(|admission| admission.start).min();
        let last = self.0.iter().map(|admission| admission.end).max();
        last.unwrap_or_default() - first.unwrap_or_default()
    }

    /// The most units in any span so long. An admission counts only if all of it, from before the
    /// check to after the answer, lies inside: so no count is too high, whenever the store decided.
    pub(crate) fn most_within(&self, span: Duration) -> u64 {
        let mut by_end: Vec<&Admission> = self.0.iter().collect();
        by_end.sort_by_key(|admission| admission.end);
        let mut by_end = by_end.into_iter().peekable();
        let (mut inside, mut most) = (0, 0);
        for first in &self.0 {
            let until = first.start + span;
            while let Some(admission) = by_end.next_if(|admission| admission.end <= until) {
                // One that began earlier has no part in this span and the later ones.
                if admission.start >= first.start {
                    inside += u64::from(admission.units);
                }
            }
            most = most.max(inside);
            if first.end <= until {
                inside -= u64::from(first.units);
            }
        }
        most
    }

    /// The most units in any of the windows that divide the time, which begins at zero. An admission counts only
    /// if all of it lies inside.
    pub(crate) fn most_aligned(&self, window: Duration) -> u64 {
        let number = |time: Duration| time.as_micros() / window.as_micros();
        let mut of_windows = BTreeMap::new();
        for admission in &self.0 {
            if number(admission.start) == number(admission.end) {
                let units = of_windows.entry(number(admission.start)).or_insert(0);
                *units += u64::from(admission.units);
            }
        }
        of_windows.into_values().max().unwrap_or(0)
    }

    /// The units that were admitted for certain at a time.
    pub(crate) fn until(&self, time: Duration) -> u64 {
        let admissions = self.0.iter();
        let before = admissions.filter(|admission| admission.end <= time);
        before.map(|admission| u64::from(admission.units)).sum()
    }
}

#[test]
fn an_admission_counts_in_a_span_that_holds_all_of_it() {
    let millis = Duration::from_millis;
    let admission = |start, end, units| Admission {
        start: millis(start),
        end: millis(end),
        units,
    };
    let admissions = Admissions::new(vec![
        admission(10, 20, 2),
        admission(0, 1, 1),
        admission(5, 12, 4),
    ]);
    assert_eq!(admissions.total(), 7);
    assert_eq!(admissions.begin(), millis(0));
    assert_eq!(admissions.lasted(), millis(20));
    let spans = [0, 1, 7, 12, 15, 19, 20].map(|span| admissions.most_within(millis(span)));
    assert_eq!(spans, [0, 1, 4, 5, 6, 6, 7]);
    let aligned = [8, 12, 15, 21].map(|window| admissions.most_aligned(millis(window)));
    assert_eq!(aligned, [1, 1, 5, 7]);
    let until = [0, 1, 12, 19, 20].map(|time| admissions.until(millis(time)));
    assert_eq!(until, [0, 1, 5, 5, 7]);
}
