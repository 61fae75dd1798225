//! The conformance kit.

use std::sync::{Arc, Mutex};

use tollgate_conformance::{Conformance, RowsConformance};
use tollgate_postgres::PostgresRows;

use crate::server::{Server, write_clock};

/// Runs the kit with a clock that stands still between its steps, so that waits are tested to the microsecond.
async fn run_kit(schema: &str, set: fn(PostgresRows) -> PostgresRows) {
    let server = Server::shared();
    let store = server.store_with(schema, set).await;
    let path = server.stop_clock(schema).await;
    let now = Arc::new(Mutex::new(1_800_000_000_000_000));
    let kit = Conformance::new(store).clock(move |step| {
        let mut now = now.lock().unwrap();
        *now += u64::try_from(step.as_micros()).unwrap();
        write_clock(&path, *now);
    });
    let report = kit.run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_rows_conform() {
    let server = Server::shared();
    server.store("kit_of_rows").await;
    let rows = [0, 1].map(|_| PostgresRows::new(server.pool(3)).schema("kit_of_rows"));
    let report = RowsConformance::new(rows).run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_store_conforms() {
    run_kit("kit", |rows| rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_logged_store_conforms() {
    run_kit("kit_logged", PostgresRows::logged).await;
}
