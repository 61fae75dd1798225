//! Errors and warnings have a code: in the text, from `code()`, and as a field of the line.

use std::time::Duration;

use http::Request;
use tollgate::key::{self, PeerAddr};
use tollgate::store::from_url;
use tollgate::{
    BlockRule, ConfigError, Error, ErrorKind, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    RedisStore, Reservation,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::ok;
use crate::support::log;

const HOUR: Duration = Duration::from_secs(3_600);

fn limiter(quota: Quota) -> RateLimiter {
    RateLimiter::new(MemoryStore::new(), quota)
}

fn layer(limit: u32) -> RateLimitLayer {
    RateLimitLayer::from(limiter(Quota::per_hour(limit))).key(key::global())
}

fn is_at_the_end(text: &str, code: &str) {
    assert!(text.ends_with(&format!(" [{code}]")), "{text}");
}

#[test]
fn an_error_of_any_store_has_the_code_of_its_kind() {
    for (kind, code) in [
        (ErrorKind::CostExceedsLimit, "tollgate::E001"),
        (ErrorKind::CostTooLarge, "tollgate::E002"),
        (ErrorKind::Timeout, "tollgate::E003"),
        (ErrorKind::QueueTimeout, "tollgate::E004"),
        (ErrorKind::Unavailable, "tollgate::E005"),
        (ErrorKind::Misconfigured, "tollgate::E006"),
        (ErrorKind::Full, "tollgate::E007"),
        (ErrorKind::InvalidReply, "tollgate::E008"),
        (ErrorKind::Unsupported, "tollgate::E009"),
        (ErrorKind::QuotasUnknown, "tollgate::E010"),
        (ErrorKind::MaxWait, "tollgate::E011"),
    ] {
        let error = Error::new(kind, "it is down");
        assert_eq!((error.code(), error.kind()), (code, kind));
        assert_eq!(error.to_string(), format!("it is down [{code}]"));
    }
}

#[tokio::test]
async fn an_error_of_a_limiter_has_a_code_at_the_end_of_its_text() {
    let down = RedisStore::open("redis://127.0.0.1:1").expect("a URL");
    let down = RateLimiter::new(down, Quota::per_hour(9));
    let in_flight = limiter(Quota::in_flight(5));
    let (one, other) = (limiter(Quota::per_hour(5)), limiter(Quota::per_hour(5)));
    let together = || RateLimiter::check_all([one.level("ada"), other.level("ada")]);
    let first_of_slots = || RateLimiter::check_first([[in_flight.level("ada")]]);
    let mut charged = one.check("ada").await.expect("a decision");
    let log = limiter(Quota::per_hour(1_000_000));
    let leased = limiter(Quota::per_hour(9).soft()).lease(HOUR);
    let soft_beside_held =
        limiter(Quota::per_hour(9).soft()).reserve_lease(Duration::from_secs(15));
    let mut errors = vec![
        (one.check_n("ada", 6).await.err(), "tollgate::E001"),
        (log.check_n("ada", 100_001).await.err(), "tollgate::E002"),
        (in_flight.check("ada").await.err(), "tollgate::E014"),
        (
            charged.settle_level(&one.clone().name("b"), 1).await.err(),
            "tollgate::E015",
        ),
        (first_of_slots().await.err(), "tollgate::E016"),
        (soft_beside_held.check("ada").await.err(), "tollgate::E017"),
        (together().await.err(), "tollgate::E205"),
        (leased.check("ada").await.err(), "tollgate::E206"),
        (down.check("ada").await.err(), "tollgate::E101"),
    ];
    for _ in 0..4 {
        let _ = down.check("ada").await;
    }
    errors.push((down.check("ada").await.err(), "tollgate::E012"));
    for (error, code) in errors {
        let error = error.expect(code);
        assert_eq!(error.code(), code, "{error}");
        is_at_the_end(&error.to_string(), code);
    }
}

#[test]
fn an_error_of_a_configuration_has_a_code_at_the_end_of_its_text() {
    let rule = || BlockRule::refusals(5).within(Duration::ZERO).validated();
    let errors: [(Option<ConfigError>, &str); 5] = [
        (Quota::try_new(1, Duration::ZERO).err(), "tollgate::E201"),
        ("5/fortnight".parse::<Quota>().err(), "tollgate::E202"),
        (from_url("http://a").err(), "tollgate::E203"),
        (key::client_ip().checked().err(), "tollgate::E204"),
        (rule().err(), "tollgate::E207"),
    ];
    for (error, code) in errors {
        let error = error.expect(code);
        assert_eq!(error.code(), code, "{error}");
        is_at_the_end(&error.to_string(), code);
    }
}

/// Returns the lines while requests from these addresses pass a layer, to a service that settles.
async fn said_of(layer: RateLimitLayer, settle: fn(&Reservation)) -> Vec<String> {
    log::keep();
    let service = layer.layer(service_fn(move |request: Request<()>| {
        if let Some(reservation) = request.extensions().get() {
            settle(reservation);
        }
        ok(request)
    }));
    for client in 1..=50 {
        let request = Request::get("/").header("x-forwarded-for", "-");
        let request = request.extension(PeerAddr(([10, 0, 0, client], 5_000).into()));
        let request = request.body(()).expect("a request");
        let _ = service.clone().oneshot(request).await;
    }
    log::kept()
}

#[tokio::test]
async fn a_warning_has_its_code_as_a_field() {
    let by_peer = |limiter: RateLimiter| RateLimitLayer::from(limiter).key(key::peer_ip());
    let trusting = key::client_ip().behind("10.0.0.0/8");
    let full = RateLimiter::new(MemoryStore::with_max_keys(1), Quota::per_hour(1));
    let down = RedisStore::open("redis://127.0.0.1:1").expect("a URL");
    let down = RateLimitLayer::new(down, Quota::per_hour(9)).key(key::global());
    let elsewhere = limiter(Quota::per_hour(9)).name("elsewhere");
    let nothing: fn(&Reservation) = |_| {};
    let one: fn(&Reservation) = |reservation| reservation.settle(1);
    let another: fn(&Reservation) = |reservation| {
        let another = limiter(Quota::per_hour(1)).name("another");
        reservation.settle_level(&another, 1);
    };
    for (layer, settle, code) in [
        (layer(9).key(trusting), nothing, "tollgate::W002"),
        (
            layer(9).key(key::client_ip().hops(2)),
            nothing,
            "tollgate::W003",
        ),
        (layer(9).key(key::peer_ip()), nothing, "tollgate::W004"),
        (layer(9).key(key::path()), nothing, "tollgate::W005"),
        (
            layer(9).key(key::extension::<String>()),
            nothing,
            "tollgate::W006",
        ),
        (layer(9).key(key::client_ip()), nothing, "tollgate::W007"),
        (layer(0), nothing, "tollgate::W008"),
        (layer(9).cost(|_| 0).reserve(), one, "tollgate::W009"),
        (layer(9).reserve(), another, "tollgate::W010"),
        (by_peer(full), nothing, "tollgate::W023"),
        (layer(9).cost(|_| 10), nothing, "tollgate::E001"),
        (
            layer(1_000_000).cost(|_| 100_001),
            nothing,
            "tollgate::E002",
        ),
        (down, nothing, "tollgate::E101"),
        (
            layer(9).and(elsewhere, key::global()),
            nothing,
            "tollgate::E205",
        ),
    ] {
        let log = said_of(layer, settle).await;
        let has_code = |line: &String| line.contains(&format!("code=\"{code}\""));
        assert!(log.iter().any(has_code), "{code}: {log:#?}");
    }
    log::keep();
    let _ = key::client_ip().behind("0.0.0.0/0");
    let log = log::kept();
    assert!(log[0].contains("code=\"tollgate::W001\""), "{log:#?}");
}
