//! Checks with several quotas, and checks that charge several units, in the steady state.

use crate::args::Args;
use crate::contestant::Contestant;
use crate::sample::{Sample, Samples};
use crate::steady::{Load, Steady};
use crate::support::redis_server::RedisServer;
use crate::support::spent::Meter;
use crate::support::table::{self, beside, median};

/// About ten charges of a key are live.
const ONE_UNIT: Load = Load {
    tasks: 64,
    keys: 1_024,
    live: 10,
    quotas: 1,
    cost: 1,
};

const FOUR_QUOTAS: Load = Load {
    quotas: 4,
    ..ONE_UNIT
};

const HUNDRED_UNITS: Load = Load {
    cost: 100,
    ..ONE_UNIT
};

/// Few charges, because a log with an entry per unit takes milliseconds for each.
const TEN_THOUSAND_UNITS: Load = Load {
    keys: 16,
    live: 2,
    cost: 10_000,
    ..ONE_UNIT
};

/// The tasks and the columns of each table. A call with 64 charges of 10 000 units could exceed the deadline.
const TABLES: [(usize, &[(&str, Load)]); 3] = [
    (64, &BY_MANY),
    (512, &BY_MANY),
    (
        8,
        &[("one unit", ONE_UNIT), ("10 000 units", TEN_THOUSAND_UNITS)],
    ),
];

const BY_MANY: [(&str, Load); 3] = [
    ("one unit", ONE_UNIT),
    ("one unit, four quotas", FOUR_QUOTAS),
    ("100 units", HUNDRED_UNITS),
];

pub(crate) async fn print(server: &RedisServer, args: &Args) {
    println!(
        "\n### Quotas and costs\n\nIn the steady state; Redis CPU µs per decision, next to a check of one unit \
         by one quota."
    );
    for (tasks, charges) in TABLES {
        let charges = charges.iter().map(|(name, load)| {
            let load = Load { tasks, ..*load };
            (*name, load)
        });
        let charges: Vec<_> = charges.collect();
        let title = format!("Quotas and costs; {tasks} at a time");
        print_table(&title, server, &charges, args).await;
    }
}

/// Charges take turns within each round, and contestants within each charge.
async fn print_table(title: &str, server: &RedisServer, charges: &[(&str, Load)], args: &Args) {
    let mut contestants = Contestant::algorithms(server);
    contestants.extend(Contestant::natives(server).await);
    contestants.push(Contestant::textbook(server).await);
    let mut meter = Meter::new(server.connect());
    // By charge, then by contestant.
    let mut loads = Vec::new();
    for (_, load) in charges {
        let mut of_charge = Vec::new();
        for contestant in &contestants {
            of_charge.push(if contestant.supports(load.quotas, load.cost) {
                Some(Steady::new(server, contestant, *load, args).await)
            } else {
                None
            });
        }
        let samples = contestants.iter().map(|one| (one.name, vec![]));
        loads.push((of_charge, Samples(samples.collect())));
    }
    for _ in 0..args.rounds {
        for at in 0..contestants.len() {
            for (of_charge, Samples(samples)) in &mut loads {
                if let Some(load) = &mut of_charge[at] {
                    samples[at].1.push(load.turn(&mut meter, args).await);
                }
            }
        }
    }
    for ((name, _), (_, samples)) in charges.iter().zip(&loads) {
        samples.warn(&format!("{name}; {title}"));
    }
    let mut head = vec!["a check of".to_owned()];
    for (name, _) in charges {
        head.extend([(*name).to_owned(), "×".to_owned()]);
    }
    let cpu = |sample: &Sample| sample.spent.cpu;
    let (_, Samples(one_unit)) = &loads[0];
    let row = |(at, contestant): (usize, &Contestant)| {
        let mut row = vec![contestant.name.to_owned()];
        for (_, Samples(samples)) in &loads {
            let (samples, base) = (&samples[at].1, &one_unit[at].1);
            if samples.is_empty() {
                row.extend([String::new(), String::new()]);
                continue;
            }
            let pairs = samples.iter().zip(base);
            let ratios = pairs.map(|(own, one)| cpu(own) / cpu(one));
            row.extend(beside(median(samples.iter().map(cpu)), median(ratios)));
        }
        row
    };
    let rows: Vec<_> = contestants.iter().enumerate().map(row).collect();
    table::print(title, &head, &rows);
}
