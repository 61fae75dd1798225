//! The shares that the page offers, and the share of each request.

use tollgate::{Algorithm, Quota, Share};

/// The names, in the order of the page. Requests of the last one have no share.
pub(crate) const SHARES: [&str; 3] = ["critical", "batch", "other"];

/// The shares of ten requests, as indexes into [`SHARES`]: one is critical, six are batch.
const TURNS: [usize; 10] = [1, 2, 1, 1, 0, 1, 2, 1, 1, 2];

/// Divides the limit. Only some algorithms can; the others count all requests alike.
pub(crate) fn divide(quota: Quota) -> Quota {
    let limit = quota.limit();
    let shares = [
        Share::of(SHARES[0]).reserve(limit / 5),
        Share::of(SHARES[1]).at_most(limit / 2),
    ];
    match quota.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) => quota.shares(shares),
        _ => quota,
    }
}

/// Returns the share of the request that is sent after so many others.
pub(crate) fn share_of(sent: u64) -> usize {
    usize::try_from(sent % 10).map_or(0, |turn| TURNS[turn])
}
