//! Quotas in code, as text and in configurations.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::{Algorithm, MemoryStore, Plan, Quota, Quotas, RateLimitLayer, RateLimiter};

use super::Done;

#[test]
fn a_quota_is_a_constant() {
    const SEARCH: Quota = Quota::per_minute(30);
    const BURST: Quota = Quota::new(5, Duration::from_secs(10));
    const EXPORT: Quota = Quota::per_hour(20).with_algorithm(Algorithm::Gcra);
    let quotas = Quotas::from([SEARCH, BURST, EXPORT]);
    assert_eq!(quotas.len(), 3);
}

#[test]
fn a_rate_with_a_burst() {
    const API: Quota = Quota::per_second(10).burst(50);
    assert_eq!(API.to_string(), "50/5s gcra");
}

#[test]
fn quotas_of_a_constant_list() {
    const QUOTAS: &[Quota; 2] = &[Quota::per_second(5), Quota::per_day(1_000)];
    let _limiter = RateLimiter::new(MemoryStore::new(), QUOTAS);
    let _layer = RateLimitLayer::new(MemoryStore::new(), &[Quota::per_second(5)]);
}

#[test]
fn quotas_of_a_constant_text() -> Done {
    const QUOTAS: &str = "5/second, 1000/day";
    let _layer = RateLimitLayer::try_new(MemoryStore::new(), QUOTAS)?;
    Ok(())
}

#[test]
fn a_quota_from_numbers_of_a_file() -> Done {
    let (limit, seconds) = (5, 10);
    let quota = Quota::try_new(limit, Duration::from_secs(seconds))?
        .with_algorithm(Algorithm::SlidingBuckets(60));
    assert_eq!(quota.to_string(), "5/10s sliding-buckets:60");
    Ok(())
}

#[test]
fn a_quota_is_parsed() -> Done {
    let quota: Quota = "100/minute".parse()?;
    assert_eq!(quota, Quota::per_minute(100));
    assert_eq!("100/s".parse::<Quota>()?, Quota::per_second(100));
    assert_eq!("100/min".parse::<Quota>()?, Quota::per_minute(100));
    assert_eq!("5/10 s".parse::<Quota>()?.window(), Duration::from_secs(10));
    Ok(())
}

#[test]
fn a_quota_is_parsed_by_from_str() -> Done {
    use std::str::FromStr;

    let quota = Quota::from_str("100/minute")?;
    assert_eq!(quota.limit(), 100);
    Ok(())
}

#[test]
fn quotas_are_parsed_from_one_text() -> Done {
    let quotas: Quotas = "100/minute; 5/second".parse()?;
    assert_eq!(quotas.len(), 2);
    let quotas = Quotas::try_from("100/minute, 5/second")?;
    assert_eq!(quotas.iter().map(Quota::limit).sum::<u32>(), 105);
    Ok(())
}

#[test]
fn a_limiter_from_text() -> Done {
    let limiter = RateLimiter::try_new(MemoryStore::new(), "100/minute; 5/second")?;
    assert_eq!(limiter.quotas().len(), 2);
    Ok(())
}

#[test]
fn a_layer_from_text_of_the_environment() -> Done {
    let setting = std::env::var("RATE_LIMIT").unwrap_or_else(|_| "100/minute".to_owned());
    let layer = RateLimitLayer::try_new(MemoryStore::new(), &setting)?;
    assert_eq!(layer.limiter().quotas().to_string(), "100/minute");
    let _by_value = RateLimitLayer::try_new(MemoryStore::new(), setting)?;
    Ok(())
}

#[test]
fn a_layer_from_text_that_is_wrong_is_an_error_at_startup() {
    let error = RateLimitLayer::try_new(MemoryStore::new(), "100 per minute").unwrap_err();
    assert!(error.to_string().contains("100/minute"), "{error}");
    let error = RateLimitLayer::try_new(MemoryStore::new(), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("at least one quota"), "{error}");
}

#[test]
fn several_quotas_in_an_array() {
    let quotas = [Quota::per_second(5), Quota::per_day(2_000)];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas);
    assert_eq!(limiter.quotas().len(), 2);
}

#[test]
fn a_rate_and_a_number_in_flight() -> Done {
    const STREAMS: Quota = Quota::in_flight(5).slot_lease(Duration::from_secs(60));
    let layer = RateLimitLayer::new(
        MemoryStore::new(),
        [Quota::per_minute(600), Quota::in_flight(5)],
    );
    assert_eq!(
        layer.limiter().quotas(),
        &"600/minute, 5 in-flight".parse()?
    );
    assert_eq!(STREAMS.to_string(), "5 in-flight:1m");
    assert_eq!(STREAMS.window(), Duration::from_secs(60));
    Ok(())
}

#[test]
fn several_quotas_in_a_vec_or_a_slice() {
    let limits = vec![Quota::per_second(5), Quota::per_day(2_000)];
    let _slice = RateLimiter::new(MemoryStore::new(), limits.as_slice());
    let limiter = RateLimiter::new(MemoryStore::new(), limits);
    assert_eq!(limiter.quotas().len(), 2);
}

#[test]
fn quotas_that_two_limiters_share_by_reference() {
    let quotas = Quotas::from(Quota::per_minute(60));
    let first = RateLimiter::new(MemoryStore::new(), &quotas);
    let second = RateLimiter::new(MemoryStore::new(), quotas);
    assert_eq!(first.quotas(), second.quotas());
}

#[test]
fn quotas_are_collected() {
    let quotas: Quotas = [1, 5, 9].into_iter().map(Quota::per_second).collect();
    assert_eq!(quotas.len(), 3);
}

#[test]
fn a_quota_is_named_by_a_string() {
    let name = format!("{}-burst", "search");
    let quota = Quota::per_second(5).with_name(&name);
    assert_eq!(quota.name(), Some("search-burst"));
    assert_eq!(Quota::per_second(5).with_name(name), quota);
    assert_eq!(Quota::per_second(5).with_name("search-burst"), quota);
}

#[test]
fn quotas_are_read_from_toml() -> Done {
    #[derive(Deserialize)]
    struct Config {
        search: Quota,
        api: Quotas,
        gold: Plan,
        staff: Plan,
    }

    let config: Config = toml::from_str(
        r#"
        search = "100/minute"
        api = ["5/second", { limit = 2000, window = "day", name = "daily" }]
        gold = "5000/hour"
        staff = "exempt"
        "#,
    )?;
    assert_eq!(config.search, Quota::per_minute(100));
    assert_eq!(config.api.len(), 2);
    assert_eq!(config.gold, Plan::Quotas(Quota::per_hour(5_000).into()));
    assert_eq!(config.staff, Plan::Exempt);
    Ok(())
}

#[test]
fn a_plan_is_stored_as_json() -> Done {
    #[derive(Serialize, Deserialize)]
    struct Tenant {
        plan: Plan,
    }

    let tenant = Tenant { plan: Plan::Exempt };
    let json = serde_json::to_string(&tenant)?;
    assert_eq!(json, r#"{"plan":"exempt"}"#);
    assert_eq!(serde_json::from_str::<Tenant>(&json)?.plan, Plan::Exempt);
    Ok(())
}

#[test]
fn a_plan_is_a_column_of_a_database() -> Done {
    let column = String::from("600/minute");
    let plan: Plan = column.parse()?;
    assert_eq!(plan, Plan::Quotas(Quota::per_minute(600).into()));
    Ok(())
}

#[test]
fn algorithms_by_name() -> Done {
    let algorithm: Algorithm = "gcra".parse()?;
    let quota = Quota::per_minute(60).with_algorithm(algorithm);
    assert_eq!(quota.algorithm(), Algorithm::Gcra);
    Ok(())
}
