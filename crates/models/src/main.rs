//! Explores the models, and prints what was found.

use std::env;
use std::process::ExitCode;

use tollgate_models::{Case, Report, cases};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let model = arguments.next();
    let depth = arguments.next().and_then(|depth| depth.parse().ok());
    let mut is_sound = true;
    for case in cases() {
        if model.as_ref().is_some_and(|model| model != case.model) {
            continue;
        }
        let report = match depth.filter(|_| case.fault.is_none()) {
            Some(depth) => case.explore_to(depth),
            None => case.explore(),
        };
        is_sound &= report.broken.is_some() == case.fault.is_some();
        print(&case, &report);
    }
    ExitCode::from(u8::from(!is_sound))
}

fn print(case: &Case, report: &Report) {
    let Report {
        states,
        depth,
        time,
        ..
    } = report;
    let name = case.fault.as_deref().unwrap_or(case.name);
    let all = if report.is_complete { "all" } else { "not all" };
    println!(
        "{}: {name}: {states} states, {all}, {depth} steps, {time:.1?}",
        case.model
    );
    for unreached in &report.unreached {
        println!("    not reached: {unreached}");
    }
    if let Some(broken) = &report.broken {
        println!(
            "    broken after {} steps: {}",
            broken.steps.len(),
            broken.promise
        );
        for step in &broken.steps {
            println!("        {step}");
        }
    }
}
