//! Quotas in code and as text.

use std::time::Duration;

use tollgate::{Algorithm, ConfigError, MemoryStore, Quota, Quotas, RateLimitLayer, RateLimiter};

#[test]
fn quotas_are_constants_lists_or_references() {
    const BURST: Quota = Quota::new(5, Duration::from_secs(10));
    const LISTED: &[Quota; 2] = &[Quota::per_second(5), BURST];
    let list = vec![Quota::per_second(5), BURST];
    let quotas = Quotas::from(LISTED);
    for limiter in [
        RateLimiter::new(MemoryStore::new(), LISTED),
        RateLimiter::new(MemoryStore::new(), list.as_slice()),
        RateLimiter::new(MemoryStore::new(), list),
        RateLimiter::new(MemoryStore::new(), &quotas),
    ] {
        assert_eq!(limiter.quotas(), &quotas);
    }
}

#[test]
fn text_of_a_configuration_is_passed_by_reference() -> Result<(), ConfigError> {
    let setting = String::from("100/minute, 5/second");
    let layer = RateLimitLayer::try_new(MemoryStore::new(), &setting)?;
    assert_eq!(layer.limiter().quotas(), &Quotas::try_from(&*setting)?);

    let algorithm: Algorithm = "gcra".parse()?;
    let quota = Quota::per_minute(60).with_algorithm(algorithm);
    assert_eq!(quota, "60/minute gcra".parse()?);
    Ok(())
}

#[test]
fn no_quotas_are_an_error_at_startup() {
    let error = RateLimitLayer::try_new(MemoryStore::new(), Vec::new()).unwrap_err();
    assert!(error.to_string().contains("at least one quota"), "{error}");
}
