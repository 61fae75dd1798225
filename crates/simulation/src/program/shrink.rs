//! Makes a failing world smaller: fewer faults, fewer clients, fewer processes, less time.

use super::world_process;
use crate::world::Plan;

/// A world needs the time in which faults have ended, and a second before.
const SHORTEST: u64 = 4_500;

/// Returns the smallest plan that was found in which a promise breaks.
pub(super) fn shrink(plan: &Plan) -> Option<Plan> {
    let mut smallest = plan.clone();
    smallest.traced = None;
    if !fails(&smallest) {
        return None;
    }
    loop {
        let candidates = smaller(&smallest);
        let found = candidates.into_iter().find(fails);
        match found {
            Some(plan) => smallest = plan,
            None => return Some(smallest),
        }
        println!("fails with less: {smallest}");
    }
}

fn fails(plan: &Plan) -> bool {
    !world_process::run(plan).violations.is_empty()
}

/// Returns the plans that leave one thing out.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    for load in [plan.load / 2, plan.load / 4 * 3, plan.load - 1_000] {
        plans.push(Plan {
            load,
            ..plan.clone()
        });
    }
    plans.retain(|shorter| shorter.load >= SHORTEST);
    if plan.processes > 1 {
        plans.push(Plan {
            processes: plan.processes - 1,
            ..plan.clone()
        });
    }
    for fault in &plan.faults {
        let mut without = plan.clone();
        without.faults.remove(fault);
        plans.push(without);
    }
    for client in plan.clients.iter().filter(|_| plan.clients.len() > 1) {
        let mut without = plan.clone();
        without.clients.remove(client);
        plans.push(without);
    }
    plans
}
