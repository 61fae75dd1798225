//! Memory: whether there is room for counts, and what Redis evicts when there is none.

use crate::info::Info;
use crate::report::Finding;

/// The percentage of `maxmemory` from which on a server is nearly full.
const NEARLY_FULL_PERCENT: u64 = 80;

/// Examines whether there is room below `maxmemory`.
pub(crate) fn room(info: &Info) -> Finding {
    const TOPIC: &str = "memory";
    const REMEDY: &str = "raise maxmemory, or use a separate server for tollgate";
    let (Some(used), Some(max)) = (info.number("used_memory"), info.number("maxmemory")) else {
        return Finding::unknown(TOPIC, "the server does not report maxmemory");
    };
    let used_text = mebibytes(used);
    if max == 0 {
        return Finding::ok(TOPIC, format!("{used_text} used, without a maximum"));
    }
    let percent = percent_used(used, max);
    let text = format!("{used_text} used of {}, {percent} %", mebibytes(max));
    if percent >= 100 {
        let full = format!("{text}: there is no room for new counts, unless keys are evicted");
        Finding::problem(TOPIC, full).with_remedy(REMEDY)
    } else if percent >= NEARLY_FULL_PERCENT {
        Finding::warning(TOPIC, text).with_remedy(REMEDY)
    } else {
        Finding::ok(TOPIC, text)
    }
}

/// Examines whether keys are evicted before they expire.
pub(crate) fn eviction(info: &Info) -> Finding {
    const TOPIC: &str = "eviction";
    let Some(policy) = info.text("maxmemory_policy") else {
        return Finding::unknown(TOPIC, "the server does not report maxmemory-policy");
    };
    if policy == "noeviction" {
        return Finding::ok(TOPIC, "maxmemory-policy is noeviction: no count is evicted");
    }
    let max = info.number("maxmemory").unwrap_or_default();
    let evicted = info.number("evicted_keys").unwrap_or_default();
    let is_nearly_full = max > 0
        && percent_used(info.number("used_memory").unwrap_or_default(), max) >= NEARLY_FULL_PERCENT;
    let which = if policy.starts_with("volatile-") {
        "keys with a time to live, which all counts have"
    } else {
        "any key, counts included"
    };
    let text = format!(
        "maxmemory-policy is {policy}: when memory is full, Redis evicts {which}, and each evicted \
         count gives its client a fresh quota"
    );
    let finding = if evicted > 0 {
        Finding::problem(TOPIC, format!("{text}; {evicted} keys are evicted already"))
    } else if is_nearly_full {
        Finding::problem(TOPIC, format!("{text}; memory is nearly full"))
    } else if max == 0 {
        Finding::warning(
            TOPIC,
            format!("{text}; with maxmemory 0 nothing is evicted yet"),
        )
    } else {
        Finding::warning(TOPIC, text)
    };
    finding.with_remedy(
        "CONFIG SET maxmemory-policy noeviction; if a cache needs another policy, use a separate \
         server for tollgate",
    )
}

fn percent_used(used: u64, max: u64) -> u64 {
    used.saturating_mul(100) / max.max(1)
}

fn mebibytes(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    let tenths = bytes.saturating_mul(10) / MEBIBYTE;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    fn info(used: u64, max: u64, policy: &str, evicted: u64) -> Info {
        Info::parse(&format!(
            "used_memory:{used}\r\nmaxmemory:{max}\r\nmaxmemory_policy:{policy}\r\n\
             evicted_keys:{evicted}\r\n"
        ))
    }

    #[test]
    fn nearly_full_memory_is_a_warning_and_full_memory_a_problem() {
        for (used, max, severity) in [
            (50, 0, Severity::Ok),
            (79, 100, Severity::Ok),
            (80, 100, Severity::Warning),
            (99, 100, Severity::Warning),
            (100, 100, Severity::Problem),
            (950_000, 1, Severity::Problem),
        ] {
            let finding = room(&info(used, max, "noeviction", 0));
            assert_eq!(finding.severity, severity, "{}", finding.text);
        }
        let finding = room(&info(1_600_000, 2_097_152, "noeviction", 0));
        assert_eq!(finding.text, "1.5 MiB used of 2.0 MiB, 76 %");
    }

    #[test]
    fn an_evicting_policy_is_a_warning_until_it_evicts() {
        for (used, max, policy, evicted, severity) in [
            (99, 100, "noeviction", 7, Severity::Ok),
            (9, 0, "allkeys-lru", 0, Severity::Warning),
            (9, 100, "volatile-ttl", 0, Severity::Warning),
            (90, 100, "allkeys-lru", 0, Severity::Problem),
            (9, 100, "volatile-lru", 1, Severity::Problem),
        ] {
            let finding = eviction(&info(used, max, policy, evicted));
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert_eq!(finding.remedy.is_some(), severity > Severity::Ok);
        }
        let finding = eviction(&info(9, 100, "volatile-lru", 0));
        assert!(finding.text.contains("which all counts have"));
    }

    #[test]
    fn real_servers_report_both() {
        for text in [
            include_str!("../tests/info/redis-6.2.14.txt"),
            include_str!("../tests/info/redis-7.0.15.txt"),
            include_str!("../tests/info/valkey-8.0.1.txt"),
        ] {
            let info = Info::parse(text);
            assert_eq!(room(&info).severity, Severity::Ok);
            assert_eq!(eviction(&info).severity, Severity::Ok);
        }
        assert_eq!(room(&Info::default()).severity, Severity::Unknown);
        assert_eq!(eviction(&Info::default()).severity, Severity::Unknown);
    }
}
