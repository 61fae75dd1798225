//! Every promise holds in all states of the protocols as they are, and each planted fault breaks one.

mod leases;
mod line;
mod slot_line;
mod slots;

use tollgate_models::{Case, cases};

/// Asserts that no promise breaks in the case of this name.
fn holds(model: &str, name: &str) {
    let is_it = |case: &Case| case.model == model && case.name == name && case.fault.is_none();
    let case = cases()
        .into_iter()
        .find(is_it)
        .expect("a case of this name");
    let report = case.explore();
    println!(
        "{case:?}: {} states, {} steps, {:.1?}",
        report.states, report.depth, report.time
    );
    assert!(report.broken.is_none(), "{:#?}", report.broken);
    assert_eq!(report.unreached, [""; 0], "the model is too small");
    match case.depth {
        Some(depth) => assert_eq!(report.depth, depth),
        None => assert!(report.is_complete),
    }
}

/// Asserts that each case without a fault has a test.
fn are_all(model: &str, names: &[&str]) {
    let sound = cases()
        .into_iter()
        .filter(|case| case.model == model && case.fault.is_none());
    assert_eq!(sound.map(|case| case.name).collect::<Vec<_>>(), names);
}

/// Asserts that these are the planted faults of a model, and which promise each breaks by how many steps.
fn breaks(model: &str, expected: &[(&str, &str, usize)]) {
    let faulty = cases()
        .into_iter()
        .filter(|case| case.model == model && case.fault.is_some());
    let found: Vec<_> = faulty
        .map(|case| {
            let broken = case.explore().broken;
            let broken = broken.unwrap_or_else(|| panic!("{case:?} breaks nothing"));
            (
                case.fault.unwrap_or_default(),
                broken.promise,
                broken.steps.len(),
            )
        })
        .collect();
    let found = found
        .iter()
        .map(|(fault, promise, steps)| (&**fault, *promise, *steps));
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

/// Makes a test of each case without a fault.
macro_rules! sound {
    ($model:literal: $($test:ident = $name:literal,)*) => {
        $(#[test]
        fn $test() {
            crate::holds($model, $name);
        })*

        #[test]
        fn each_case_has_a_test() {
            crate::are_all($model, &[$($name),*]);
        }
    };
}
pub(crate) use sound;
