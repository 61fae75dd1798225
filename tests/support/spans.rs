//! The admissions of a run, and the most units in any span of time.

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

    /// From before the first check that was admitted to after the last.
    pub(crate) fn lasted(&self) -> Duration {
        let first = self.0.iter().map(|admission| admission.start).min();
        let last = self.0.iter().map(|admission| admission.end).max();
        last.unwrap_or_default() - first.unwrap_or_default()
    }

    /// The most units in any span so long. An admission counts only if all of it, from before the
    /// check to after the answer, lies inside: so no count is too high, whenever the store decided.
    pub(crate) fn most_within(&self, span: Duration) -> u64 {
        let within = |(index, first): (usize, &Admission)| {
            let until = first.start + span;
            let started = self.0[index..]
                .iter()
                .take_while(|admission| admission.start <= until);
            let inside = started.filter(|admission| admission.end <= until);
            inside.map(|admission| u64::from(admission.units)).sum()
        };
        self.0.iter().enumerate().map(within).max().unwrap_or(0)
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
    assert_eq!(admissions.lasted(), millis(20));
    let spans = [0, 1, 7, 12, 15, 19, 20].map(|span| admissions.most_within(millis(span)));
    assert_eq!(spans, [0, 1, 4, 5, 6, 6, 7]);
}
