//! The rule of shares, which logs, buckets and slots in flight have in common.

use super::quota_check::QuotaCheck;
use crate::quota::ShareId;

/// Returns the units that the share that asks may still charge; below 0 if it uses more than it may now.
///
/// `used` are the units of all, and `used_by` those of one share. A charge is admitted up to the limit, up to the bound of
/// its share, and then up to its reserve or as long as it leaves to all others what they use and have reserved. The same
/// rule in Redis: `room_of` in `lua/shares.lua`.
pub(super) fn share_room(
    check: &QuotaCheck<'_>,
    used: u64,
    used_by: impl Fn(ShareId) -> u64,
) -> i64 {
    let limit = i64::from(check.limit);
    if check.shares.is_none() {
        return limit - signed(used);
    }
    let mut asking = None;
    let mut named = 0;
    let mut others = 0;
    for share in check.shares.iter() {
        let units = used_by(share.id);
        named += units;
        if check.share == Some(share.id) {
            asking = Some((units, share));
        } else {
            others += units.max(share.reserve.into());
        }
    }
    let without_share = used.saturating_sub(named);
    let mut own = without_share;
    let mut reserve = 0;
    let mut most = u32::MAX;
    if let Some((units, share)) = asking {
        others += without_share;
        own = units;
        reserve = share.reserve;
        most = share.most;
    }
    let shared = (limit - signed(others)).max(reserve.into());
    (limit - signed(used)).min(shared.min(most.into()) - signed(own))
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX / 4)
}
