//! `docs/boundary.svg` matches the algorithms: runs the traffic of the example `boundary` again.

#[path = "../../examples/boundary/traffic.rs"]
mod traffic;

use tollgate::Algorithm;
use traffic::{ALGORITHMS, Admitted, LIMIT};

use crate::support::algorithms::promised;

/// The most requests in any span as long as the window. Both of those below twice the limit come as
/// near to it as whole requests can.
fn most(algorithm: Algorithm) -> u32 {
    let units = promised(algorithm, LIMIT);
    u32::try_from(units).expect("at most twice the limit")
}

#[tokio::test]
async fn bursts_at_the_edges_of_windows_are_admitted_as_promised() {
    for algorithm in ALGORITHMS {
        let admitted = Admitted::by(algorithm).await.expect("a decision");
        assert_eq!(admitted.most(), most(algorithm), "{algorithm:?}");
    }
}

#[tokio::test]
async fn the_picture_in_the_readme_shows_these_runs() {
    let picture = include_str!("../../docs/boundary.svg");
    for algorithm in ALGORITHMS {
        let admitted = Admitted::by(algorithm).await.expect("a decision");
        let shown = picture.contains(&format!("\n{}\n", admitted.caption()));
        // The two logs decide alike and share a panel.
        assert_eq!(shown, algorithm != Algorithm::SortedSetLog, "{algorithm:?}");
    }
}
