//! Two bursts, each as large as the limit: one just before an edge of aligned windows, one just after it. A fixed
//! window admits both.

use std::time::Duration;

use axum::body::Bytes;
use futures_util::future::join_all;
use http_body_util::channel::Sender;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tollgate::{Quota, Quotas};

use crate::report::micros;
use crate::settings::Settings;
use crate::stream::{Batch, Counts, send_line};
use crate::traffic::Traffic;

/// The most requests of one burst.
const MAX_BURST: u32 = 1_000;

/// Shorter windows end before a busy machine has sent a burst. Nobody waits for longer ones.
const WINDOWS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long after the edge the second burst begins. The edge is known to within a round trip to the store.
const LAG: Duration = Duration::from_millis(100);

/// Returns why a burst across the edge is not offered, or `None` if it is.
pub(crate) fn why_off(quotas: &Quotas, cost: u32) -> Option<&'static str> {
    let [shortest, longest] = WINDOWS;
    let Some(quota) = only(quotas) else {
        return Some("Enter one quota to fire a burst across its edge.");
    };
    if quota.window() < shortest || quota.window() > longest {
        Some("Enter a window of 1 s to 1 min to fire a burst across its edge.")
    } else if !(1..=MAX_BURST).contains(&burst(quota, cost)) {
        Some("Enter a limit of 1 to 1,000 requests to fire a burst across its edge.")
    } else {
        None
    }
}

fn only(quotas: &Quotas) -> Option<&Quota> {
    let mut quotas = quotas.iter();
    quotas.next().filter(|_| quotas.next().is_none())
}

/// Returns the number of requests that use up a quota.
fn burst(quota: &Quota, cost: u32) -> u32 {
    quota.limit() / cost
}

/// Reports when the edge comes, waits for it, and sends both bursts. The last line has the counts, as in a stream.
pub(crate) async fn run(
    traffic: &Traffic,
    settings: &Settings,
    mut stop: oneshot::Receiver<()>,
    mut page: Sender<Bytes>,
) {
    let mut counts = Counts::default();
    let found = traffic.until_edge(settings).await;
    if let Some((quota, until)) = only(&settings.quotas).zip(found) {
        let burst = burst(quota, settings.cost);
        let lead = Duration::from_millis(500 + u64::from(burst)).min(quota.window() / 4);
        let mut edge = Instant::now() + until;
        if until < lead {
            edge += quota.window();
        }
        let wait = edge.saturating_duration_since(Instant::now());
        if send_line(&mut page, &json!({ "edge_in": micros(wait) }))
            .await
            .is_err()
        {
            return;
        }
        for time in [edge - lead, edge + LAG] {
            tokio::select! {
                _ = &mut stop => break,
                () = sleep_until(time) => {}
            }
            let fired = join_all((0..burst).map(|_| traffic.fire(settings))).await;
            let mut batch = Batch::default();
            for fired in fired {
                counts.add(fired.seen);
                batch.add(fired);
            }
            let report = batch.report(traffic, settings).await;
            if send_line(&mut page, &report).await.is_err() {
                return;
            }
        }
    }
    // Fails if the page disconnected.
    let _ = send_line(&mut page, &json!({ "done": counts.to_json() })).await;
}
