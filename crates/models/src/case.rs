//! Cases: a model of some size, with or without a planted fault, and what the checker found in it.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// A model of some size, which can be explored.
pub struct Case {
    /// The model: `slots`, `leases`, `line` or `slot_line`.
    pub model: &'static str,
    /// The size of the model.
    pub name: &'static str,
    /// The planted fault, which the checker has to find.
    pub fault: Option<String>,
    /// The number of steps to which it is explored. `None` if it has an end: then every state is explored.
    pub depth: Option<usize>,
    explore: Box<dyn Fn(Option<usize>) -> Report + Send + Sync>,
}

/// The findings of the checker in a case.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The different states.
    pub states: usize,
    /// The most steps to a state.
    pub depth: usize,
    /// Whether every state was explored, and not only those of a depth.
    pub is_complete: bool,
    /// The time that it took.
    pub time: Duration,
    /// The shortest trace that breaks a promise, if there is one.
    pub broken: Option<Counterexample>,
    /// The situations that the model has to reach, but does not.
    pub unreached: Vec<&'static str>,
}

/// A trace that breaks a promise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Counterexample {
    /// The promise.
    pub promise: &'static str,
    /// The steps.
    pub steps: Vec<String>,
}

impl Case {
    pub(crate) fn new<M>(
        of: (&'static str, &'static str),
        fault: Option<String>,
        depth: Option<usize>,
        model: M,
    ) -> Self
    where
        M: Model + Clone + Send + Sync + 'static,
        M::State: Hash + Send + Sync + Clone + PartialEq + Debug + 'static,
        M::Action: Clone + PartialEq + Debug,
    {
        let (of_model, name) = of;
        Self {
            model: of_model,
            name,
            fault,
            depth,
            explore: Box::new(move |depth| explore(&model, depth)),
        }
    }

    /// Explores the states, the nearest first.
    #[must_use]
    pub fn explore(&self) -> Report {
        (self.explore)(self.depth)
    }

    /// Explores the states to another depth.
    #[must_use]
    pub fn explore_to(&self, depth: usize) -> Report {
        (self.explore)(Some(depth))
    }
}

/// Returns a model with a change.
pub(crate) fn with<M>(mut model: M, change: impl FnOnce(&mut M)) -> M {
    change(&mut model);
    model
}

/// Sets an entry, if there is one.
pub(crate) fn set<T>(entries: &mut [T], at: usize, value: T) {
    if let Some(entry) = entries.get_mut(at) {
        *entry = value;
    }
}

impl Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("model", &self.model)
            .field("name", &self.name)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

/// Explores a model. If a promise breaks, looks for a shorter trace: the checker reports the last one of the states at hand.
fn explore<M>(model: &M, depth: Option<usize>) -> Report
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + PartialEq + Debug + 'static,
    M::Action: Clone + PartialEq + Debug,
{
    let mut report = explore_once(model, depth);
    while let Some(broken) = &report.broken {
        let nearer = explore_once(model, broken.steps.len().checked_sub(1));
        if nearer.broken.is_none() {
            break;
        }
        report = nearer;
    }
    report
}

/// Explores a model with one thread: so the order is always the same, each state is reached by the fewest steps, and the depth
/// is exact.
fn explore_once<M>(model: &M, depth: Option<usize>) -> Report
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + PartialEq + Debug + 'static,
    M::Action: Clone + PartialEq + Debug,
{
    let start = Instant::now();
    // The checker counts states from 1, and does not look at those of the last depth.
    let target = depth.map_or(0, |depth| depth + 2);
    let checker = model.clone().checker().target_max_depth(target);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs();
    let checker = checker.join();
    let time = start.elapsed();
    let mut found = checker.discoveries();
    let mut broken = Vec::new();
    let mut unreached = Vec::new();
    for property in model.properties() {
        let path = found.remove(property.name);
        match (property.expectation, path) {
            (stateright::Expectation::Sometimes, None) => unreached.push(property.name),
            (stateright::Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let steps = path.into_actions();
                broken.push(Counterexample {
                    promise: property.name,
                    steps: steps.iter().map(|step| format!("{step:?}")).collect(),
                });
            }
        }
    }
    let reached = checker.max_depth();
    let is_complete = target == 0 || reached < target;
    Report {
        states: checker.unique_state_count(),
        depth: reached - if is_complete { 1 } else { 2 },
        is_complete,
        time,
        broken: broken.into_iter().min_by_key(|broken| broken.steps.len()),
        unreached,
    }
}
