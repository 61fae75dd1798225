//! The fields of calls and replies, in the order in which they travel. The headers in `lua/` list the
//! same names.

/// The fields of a call for checks: of the call; of each list of quotas and quota in it; of
/// each run, of its levels, and of the keys of a level.
pub(super) const CALL_FIELDS: [&str; 2] = ["quota_lists", "values"];
pub(super) const QUOTA_LIST_FIELDS: [&str; 1] = ["quotas"];
pub(super) const QUOTA_FIELDS: [&str; 7] = [
    "algorithm",
    "buckets",
    "counter",
    "extra",
    "limit",
    "window",
    "ttl",
];
pub(super) const RUN_FIELDS: [&str; 4] = ["entries", "count", "more", "levels"];
pub(super) const LEVEL_FIELDS: [&str; 2] = ["quota_list", "cost"];
pub(super) const PLACE_FIELDS: [&str; 2] = ["value", "extra"];

/// The arguments of a refund, for each count.
pub(super) const REFUND_FIELDS: [&str; 12] = [
    "algorithm",
    "buckets",
    "extra",
    "limit",
    "window",
    "ttl",
    "units",
    "time",
    "generation",
    "position",
    "cost",
    "refundable",
];

/// The arguments of a credit: of the call, and for each count.
pub(super) const CREDIT_FIELDS: [&str; 1] = ["units"];
pub(super) const CREDIT_COUNT_FIELDS: [&str; 6] =
    ["algorithm", "buckets", "extra", "limit", "window", "ttl"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::redis::script::{header, source};

    /// The fields of a reply: of the call, of each entry, and of each quota of an admitted check, with
    /// the receipt of a counter, and of a refused one.
    const REPLY_FIELDS: [&str; 1] = ["time"];
    const ENTRY_REPLY_FIELDS: [&str; 1] = ["admitted"];
    const ADMITTED_FIELDS: [&str; 2] = ["used", "reset"];
    const RECEIPT_FIELDS: [&str; 2] = ["generation", "position"];
    const REFUSED_FIELDS: [&str; 3] = ["used", "wait", "reset"];

    /// The list in the lines `field   of: a, b, c` of a header.
    fn documented<'a>(
        header: &BTreeMap<&str, Vec<&'a str>>,
        field: &str,
        of: &str,
    ) -> Vec<&'a str> {
        let lines = header[field].iter();
        let lists = lines.filter_map(|line| line.strip_prefix(of)?.strip_prefix(": "));
        let fields = lists.flat_map(|list| list.split(','));
        let fields = fields.map(str::trim).filter(|field| !field.is_empty());
        fields.collect()
    }

    #[test]
    fn the_headers_list_the_fields_that_are_encoded_and_decoded() {
        let decide = header(source("decide"));
        let arguments = |of| documented(&decide, "ARGV", of);
        assert_eq!(arguments("call"), CALL_FIELDS);
        assert_eq!(arguments("quota_list"), QUOTA_LIST_FIELDS);
        assert_eq!(arguments("quota"), QUOTA_FIELDS);
        assert_eq!(arguments("run"), RUN_FIELDS);
        assert_eq!(arguments("level"), LEVEL_FIELDS);
        assert_eq!(arguments("place"), PLACE_FIELDS);
        let replied = |of| documented(&decide, "reply", of);
        assert_eq!(replied("call"), REPLY_FIELDS);
        assert_eq!(replied("entry"), ENTRY_REPLY_FIELDS);
        assert_eq!(replied("admitted"), ADMITTED_FIELDS);
        assert_eq!(replied("receipt"), RECEIPT_FIELDS);
        assert_eq!(replied("refused"), REFUSED_FIELDS);
        let refund = header(source("refund"));
        assert_eq!(documented(&refund, "ARGV", "count"), REFUND_FIELDS);
        let credit = header(source("credit"));
        assert_eq!(documented(&credit, "ARGV", "call"), CREDIT_FIELDS);
        assert_eq!(documented(&credit, "ARGV", "count"), CREDIT_COUNT_FIELDS);
    }

    #[test]
    fn the_scripts_read_as_many_arguments_as_their_headers_list() {
        let reads = |file: &str, text: &str| source(file).matches(text).count();
        let of_call = reads("decide", "args[1]") + reads("decide", "args[2]");
        assert_eq!(of_call, CALL_FIELDS.len());
        assert_eq!(reads("decide", "local at = 3\n"), 1);
        // A list is read at `at`, its quotas at the `at` behind it, a run at the `at` behind those, and behind it
        // its only level and place.
        let steps = [
            QUOTA_FIELDS.len(),
            QUOTA_LIST_FIELDS.len(),
            RUN_FIELDS.len(),
            LEVEL_FIELDS.len() + PLACE_FIELDS.len(),
        ];
        for fields in steps {
            assert_eq!(
                reads("decide", &format!("at = at + {fields}\n")),
                steps.iter().filter(|step| **step == fields).count(),
                "{fields}"
            );
        }
        let level = format!("at = at + {}\n", LEVEL_FIELDS.len());
        assert_eq!(reads("levels", &level), 1);
        let place = format!(
            "place = place + {} * number_of_levels\n",
            PLACE_FIELDS.len()
        );
        assert_eq!(reads("levels", &place), 1);
        assert_eq!(reads("refund", "ARGV[at"), REFUND_FIELDS.len());
        assert_eq!(reads("credit", "ARGV[1]"), CREDIT_FIELDS.len());
        assert_eq!(reads("credit", "ARGV[at"), CREDIT_COUNT_FIELDS.len());
    }
}
