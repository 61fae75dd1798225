//! The fields of calls, in the order in which they travel. The headers in `lua/` list the same names.

/// The fields of a call: of the call, of each list of quotas and each quota in it, of each group and each of its levels, and
/// of each key of an entry.
pub(super) const CALL_FIELDS: [&str; 3] = ["values", "groups", "number"];
pub(super) const LIST_FIELDS: [&str; 6] = ["quotas", "kind", "is_long", "bucket", "ttl", "is_soft"];
pub(super) const QUOTA_FIELDS: [&str; 4] = ["algorithm", "limit", "window", "header"];
pub(super) const GROUP_FIELDS: [&str; 8] = [
    "is_usual",
    "length",
    "entries",
    "count",
    "more",
    "eighths",
    "levels",
    "is_shared",
];
pub(super) const LEVEL_FIELDS: [&str; 2] = ["list", "cost"];
pub(super) const KEY_FIELDS: [&str; 1] = ["value"];

/// The fields of a refund, a credit or a reset behind the lists, and the fields of each quota.
pub(super) const CHANGE_FIELDS: [&str; 5] = ["what", "units", "time", "cost", "refundable"];
pub(super) const RECEIPT_FIELDS: [&str; 2] = ["generation", "position"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::script::{header, source};

    #[test]
    fn the_headers_of_the_scripts_list_the_same_fields() {
        let call = source("call");
        let call = header(&call).remove("ARGV").unwrap();
        let of_call = [
            ("call", &CALL_FIELDS[..]),
            ("list", &LIST_FIELDS),
            ("quota", &QUOTA_FIELDS),
            ("group", &GROUP_FIELDS),
            ("level", &LEVEL_FIELDS),
            ("key", &KEY_FIELDS),
        ]
        .map(|(of, fields)| format!("{of}: {}", fields.join(", ")));
        assert_eq!(call, of_call);
        let refund = source("refund");
        let refund = header(&refund).remove("ARGV").unwrap();
        let change = format!("then {}", CHANGE_FIELDS.join(", "));
        assert!(refund[0].ends_with(&change), "{refund:?}");
        assert_eq!(refund[1], format!("quota: {}", RECEIPT_FIELDS.join(", ")));
    }
}
