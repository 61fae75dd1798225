//! Four processes on one Redis. It answers a check when the charge is on disk.

use std::time::Duration;

use tollgate::Quota;

use super::crowd::Crowd;
use super::hammer::{Load, Pace, TASKS, hammer};
use super::tree::{Level, Tree, algorithm, lasting};
use crate::suite::{PATIENCE, beside_others, report, told};
use crate::support::node::Node;

const NAMES: [&str; 4] = ["user", "team", "tenant", "service"];
const KEYS: [usize; 4] = [32, 8, 2, 1];
const PROCESSES: u64 = 4;

/// Redis has a charge in its file before it replies.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// A tree, whose number keeps its counts apart.
fn tree(number: usize, quotas: impl Fn(usize) -> Vec<Quota>) -> Tree {
    let level = |level: usize| {
        let keys = (0..KEYS[level]).map(|key| key.to_string()).collect();
        Level::new(format!("{}{number}", NAMES[level]), keys, quotas(level))
    };
    Tree((0..4).map(level).collect())
}

/// Trees that have all algorithms. In a short window, each level refuses now and then.
fn mixed_trees() -> Vec<Tree> {
    let short = |level: usize, index: usize| {
        let quota = Quota::new([4, 9, 24, 40][level], Duration::from_millis(300));
        quota.with_algorithm(algorithm(index))
    };
    let two_quotas = |number| {
        tree(number, |level| {
            let index = level + 2 * number;
            vec![short(level, index), lasting(100_000, algorithm(index + 3))]
        })
    };
    let one_quota = tree(3, |level| vec![lasting(100_000, algorithm(level))]);
    (0..3).map(two_quotas).chain([one_quota]).collect()
}

#[test]
fn processes_and_redis_are_killed_and_no_level_exceeds_its_limit_or_is_charged_alone() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    beside_others(async {
        let mut redis = Node::start(&DURABLE);
        let load = Load {
            url: redis.url(),
            trees: mixed_trees(),
            max_cost: 3,
            cancelled: 0,
            pace: Pace::default(),
            deadline: None,
        };
        let test = "levels::processes::processes_and_redis_are_killed_and_no_level_exceeds_its_limit_or_is_charged_alone";
        let mut crowd = Crowd::start(test, load, PROCESSES);
        for _ in 0..2 {
            crowd.admits(60).await;
            crowd.replace_one();
            crowd.admits(60).await;
            redis.kill();
            crowd.fails().await;
            redis.restart();
            crowd.admits(60).await;
            crowd.replace_one();
            redis.kill();
            redis.restart();
        }
        crowd
            .until("each level refuses", |all| {
                let refuses = |level: usize| all.iter().any(|notes| notes.refused[level] > 0);
                (0..4).all(refuses)
            })
            .await;
        crowd.admits(60).await;
        for (number, (notes, counted)) in crowd.end().await.into_iter().enumerate() {
            notes.assert_no_span_exceeds_a_limit();
            notes.assert_levels_count_the_same(&counted);
            let stranded = notes.stranded(&counted);
            report(
                14,
                "several keys: 4 processes and Redis killed 4 times each",
                &format!(
                    "tree {number}: {} units admitted, refused by {:?} of {NAMES:?}, {} checks failed, {} units charged for answers that were lost",
                    notes.total(),
                    notes.refused,
                    notes.failed,
                    stranded[0],
                ),
                "no level above its limit in any window; all levels count the same checks",
            );
            // A process that was killed had one check in flight for each task.
            let lost = 4 * TASKS * 3;
            assert!(stranded[0] <= notes.unknown + lost, "{stranded:?}");
        }
    });
}

/// A tree for each level, which is its bottleneck.
fn narrow_trees() -> Vec<Tree> {
    let narrow = |number: usize| {
        tree(number, |level| {
            let limit = if level == number {
                [10, 40, 160, 320][level]
            } else {
                100_000
            };
            vec![lasting(limit, algorithm(level + number))]
        })
    };
    (0..4).map(narrow).collect()
}

#[test]
fn processes_are_admitted_exactly_the_limit_of_the_level_that_is_the_bottleneck() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    beside_others(async {
        let redis = Node::start(&[]);
        let load = Load {
            url: redis.url(),
            trees: narrow_trees(),
            max_cost: 1,
            cancelled: 0,
            pace: Pace::default(),
            // A check whose answer is not waited for may not be charged either, and would end the load too early.
            deadline: Some(PATIENCE),
        };
        let test = "levels::processes::processes_are_admitted_exactly_the_limit_of_the_level_that_is_the_bottleneck";
        let crowd = Crowd::start(test, load.clone(), PROCESSES);
        crowd
            .until("each bottleneck refuses", |all| {
                let mut all = all.iter().enumerate();
                all.all(|(number, notes)| {
                    notes.total() + notes.unknown >= 320 && notes.refused[number] > 100
                })
            })
            .await;
        for (number, (notes, counted)) in crowd.end().await.into_iter().enumerate() {
            let level = &load.trees[number].0[number];
            let limit = level.lasting_limit();
            assert_eq!(counted[number], vec![limit; KEYS[number]]);
            notes.assert_levels_count_the_same(&counted);
            // A check whose deadline passed may have been charged.
            let stranded = notes.stranded(&counted);
            assert!(
                stranded.iter().all(|units| *units <= notes.unknown),
                "{}: {stranded:?} of {}",
                NAMES[number],
                notes.unknown
            );
            let refused = notes.refused.iter().enumerate();
            assert!(
                refused
                    .clone()
                    .all(|(level, refused)| (level == number) == (*refused > 0))
            );
        }
    });
}
