//! A process that is stopped again and again, as one at its limit of CPU is, while Postgres is healthy.

use std::thread;

use tokio::runtime::Builder;
use tollgate::{FailurePolicy, Quota, RateLimiter};
use tollgate_postgres::PostgresStore;

use crate::process::{Process, argument, report};
use crate::server::Server;
use crate::standing_still::{LIMIT, PAUSES, Pauses, use_up};

const SCHEMA: &str = "stopped";

#[test]
fn a_process_that_stands_still_admits_the_limit() {
    const TEST: &str = "stopped::a_process_that_stands_still_admits_the_limit";
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    if let Some(url) = argument() {
        let [admitted, undecided] = runtime.block_on(async {
            // The default deadline.
            let store = PostgresStore::open(&url).unwrap().schema(SCHEMA);
            let name = std::process::id().to_string();
            let limiter = RateLimiter::new(store, Quota::per_day(LIMIT)).name(&*name);
            use_up(&limiter.on_failure(FailurePolicy::fall_back())).await
        });
        return report(format_args!(
            "{admitted} admitted, {undecided} without Postgres"
        ));
    }
    let server = Server::shared();
    runtime.block_on(server.store(SCHEMA));
    let reports: Vec<_> = thread::scope(|scope| {
        let each = PAUSES.each_ref().map(|pauses| {
            let process = Process::of(TEST, &server.url());
            scope.spawn(|| pauses.stop(process))
        });
        let ended = each.into_iter().map(|one| one.join().unwrap());
        ended.collect()
    });
    for (report, Pauses { of, every }) in reports.iter().zip(&PAUSES) {
        println!("stopped for {of:?} of {every:?}: {report}");
    }
    for report in reports {
        assert_eq!(report, format!("{LIMIT} admitted, 0 without Postgres"));
    }
}
