//! The times of a 429: no field of it tells a shorter wait than another one, or than any layer knows.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Empty;
use proptest::prelude::*;
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};
use tollgate::store::TestClock;
use tollgate::{
    Headers, IetfDraft, Key, Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, Rejection,
    RejectionReason, Source, key,
};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::algorithms::algorithms;
use crate::support::{block_on, holds_for_any};

type Service = BoxCloneSyncService<Request<()>, Response<Empty<Bytes>>, Infallible>;

/// Later than any wait, and earlier than now.
const A_UNIX_TIME: u64 = 1_000_000_000;

fn dialects() -> Vec<Headers> {
    let drafts = [
        IetfDraft::Draft03,
        IetfDraft::Draft06,
        IetfDraft::Draft07,
        IetfDraft::Draft11,
    ];
    let x_ratelimit = Headers::x_ratelimit();
    let delta = x_ratelimit.clone().delta_reset();
    let drafts = drafts.map(Headers::ietf);
    let both = drafts.clone().map(|draft| x_ratelimit.clone().and(draft));
    let of_one = [Headers::none(), x_ratelimit, delta].into_iter();
    of_one.chain(drafts).chain(both).collect()
}

/// A service that answers with this status and these headers.
fn service(status: StatusCode, headers: &[(&'static str, &'static str)]) -> Service {
    let headers = headers.to_vec();
    BoxCloneSyncService::new(service_fn(move |_: Request<()>| {
        let response = Response::builder().status(status);
        let response = headers.iter().fold(response, |response, (name, value)| {
            response.header(*name, *value)
        });
        std::future::ready(Ok(response.body(Empty::new()).unwrap()))
    }))
}

/// Puts a layer around a service.
fn around(layer: &RateLimitLayer, inner: Service) -> Service {
    let service = layer.layer(inner);
    BoxCloneSyncService::new(service.map_response(|response| response.map(|_| Empty::new())))
}

fn per(limit: u32, seconds: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(seconds))
}

/// A limiter by a clock that stands still.
fn limiter(store: &MemoryStore, name: &str, quota: Quota) -> RateLimiter {
    RateLimiter::new(store.clone(), quota).name(name)
}

fn layer(limiter: RateLimiter, headers: &Headers) -> RateLimitLayer {
    let layer = RateLimitLayer::from(limiter).key(key::global());
    layer.headers(headers.clone())
}

async fn ask(service: &Service) -> Response<Empty<Bytes>> {
    service.clone().oneshot(Request::new(())).await.unwrap()
}

/// The times that a response tells, in seconds from now: `Retry-After`, and the resets by their fields.
#[derive(Debug)]
struct Times {
    retry_after: Option<u64>,
    resets: Vec<(&'static str, u64)>,
}

impl Times {
    /// Reads the times of a response that was written after `asked_at`, in seconds of Unix time.
    fn of(headers: &HeaderMap, asked_at: u64) -> Self {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        let number = |name: &str| text(name).map(|text| text.parse::<u64>().expect(text));
        let mut resets = Vec::new();
        if let Some(reset) = number("x-ratelimit-reset") {
            let from_now = if reset > A_UNIX_TIME {
                reset - asked_at
            } else {
                reset
            };
            resets.push(("x-ratelimit-reset", from_now));
        }
        resets.extend(number("ratelimit-reset").map(|reset| ("ratelimit-reset", reset)));
        let lines: Vec<_> = headers.get_all("ratelimit").iter().collect();
        let is_list = lines.iter().any(|line| line.as_bytes().starts_with(b"\""));
        let integer = |item: &BareItem| match item {
            BareItem::Integer(integer) => u64::try_from(i64::from(*integer)).unwrap(),
            other => panic!("{other:?}"),
        };
        if is_list {
            let lists = lines.iter().map(|line| {
                let list: List = Parser::new(line.as_bytes()).parse().unwrap();
                list
            });
            let windows = lists.flatten().filter_map(|entry| match entry {
                ListEntry::Item(item) => item.params.get("t").map(integer),
                ListEntry::InnerList(list) => panic!("{list:?}"),
            });
            resets.extend(windows.max().map(|window| ("t", window)));
        } else if let [line] = &lines[..] {
            let members: Dictionary = Parser::new(line.as_bytes()).parse().unwrap();
            let Some(ListEntry::Item(reset)) = members.get("reset") else {
                panic!("{line:?}");
            };
            resets.push(("reset", integer(&reset.bare_item)));
        }
        Self {
            retry_after: number("retry-after"),
            resets,
        }
    }

    /// Returns a field whose reset is before the end of `Retry-After`.
    fn contradiction(&self) -> Option<&'static str> {
        let wait = self.retry_after?;
        let mut resets = self.resets.iter();
        resets
            .find(|(_, reset)| *reset < wait)
            .map(|(name, _)| *name)
    }
}

#[expect(clippy::disallowed_methods, reason = "headers tell a Unix time")]
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Asks, and reads the times of the response.
async fn times(service: &Service) -> (StatusCode, Times) {
    let asked_at = unix_time();
    let response = ask(service).await;
    (response.status(), Times::of(response.headers(), asked_at))
}

#[tokio::test]
async fn an_inner_refusal_tells_the_wait_of_the_layer_outside_in_each_field() {
    for of_inner in dialects() {
        for of_outer in [of_inner.clone(), Headers::none(), Headers::x_ratelimit()] {
            let store = MemoryStore::with_clock(TestClock::new());
            let inner = layer(limiter(&store, "inner", per(1, 5)), &of_inner);
            let outer = layer(limiter(&store, "outer", per(2, 60)), &of_outer);
            let nested = around(&outer, around(&inner, service(StatusCode::OK, &[])));
            assert_eq!(times(&nested).await.0, 200);
            let (status, times) = times(&nested).await;
            assert_eq!((status.as_u16(), times.retry_after), (429, Some(60)));
            let context = format!("{of_inner:?} in {of_outer:?}: {times:?}");
            assert!(
                times
                    .resets
                    .iter()
                    .all(|(_, reset)| (60..=61).contains(reset)),
                "{context}"
            );
            assert_eq!(
                times.resets.is_empty(),
                of_inner == Headers::none(),
                "{context}"
            );
        }
    }
}

#[tokio::test]
async fn a_refusal_by_a_hidden_level_tells_no_reset_before_its_wait() {
    for headers in dialects() {
        let store = MemoryStore::with_clock(TestClock::new());
        let hidden = limiter(&store, "capacity", per(1, 61));
        let user = limiter(&store, "user", per(9, 10));
        let level = Level::new(hidden.clone(), key::global()).hidden();
        let layer = layer(user, &headers).and_level(level);
        let alone = around(&layer, service(StatusCode::OK, &[]));
        // Nothing is used of the visible limit, so that its own reset is now.
        assert!(hidden.check(Key::global()).await.unwrap().is_allowed());
        let (status, times) = times(&alone).await;
        assert_eq!((status.as_u16(), times.retry_after), (429, Some(61)));
        let context = format!("{headers:?}: {times:?}");
        assert_eq!(
            times.resets.is_empty(),
            headers == Headers::none(),
            "{context}"
        );
        assert!(
            times
                .resets
                .iter()
                .all(|(_, reset)| (61..=62).contains(reset)),
            "{context}"
        );
    }
}

#[tokio::test]
async fn a_block_of_an_inner_key_and_a_hidden_outer_limit_agree() {
    for headers in dialects() {
        let store = MemoryStore::with_clock(TestClock::new());
        let blocked = limiter(&store, "inner", per(9, 5));
        let block = Duration::from_secs(30);
        blocked.admin().block(Key::global(), block).await.unwrap();
        let inner = layer(blocked, &headers);
        let outer = layer(limiter(&store, "outer", per(1, 90)), &headers).hidden();
        let nested = around(&outer, around(&inner, service(StatusCode::OK, &[])));
        let (status, times) = times(&nested).await;
        assert_eq!((status.as_u16(), times.retry_after), (429, Some(90)));
        assert_eq!(times.contradiction(), None, "{headers:?}: {times:?}");
    }
}

#[tokio::test]
async fn a_429_of_the_service_tells_the_wait_of_the_layer_and_the_layer_that_of_the_service() {
    for headers in dialects() {
        for (of_service, used, expected) in [("90", 1, 90), ("3", 9, 60)] {
            let store = MemoryStore::with_clock(TestClock::new());
            let own = limiter(&store, "own", per(9, 60));
            if used > 1 {
                assert!(
                    own.check_n(Key::global(), used - 1)
                        .await
                        .unwrap()
                        .is_allowed()
                );
            }
            let answer = service(
                StatusCode::TOO_MANY_REQUESTS,
                &[("retry-after", of_service)],
            );
            let gateway = around(&layer(own, &headers), answer);
            let (_, times) = times(&gateway).await;
            assert_eq!(times.retry_after, Some(expected), "{headers:?}");
            assert_eq!(times.contradiction(), None, "{headers:?}: {times:?}");
        }
        // Numbers of the service stay as they are.
        let store = MemoryStore::with_clock(TestClock::new());
        let own = layer(limiter(&store, "own", per(1, 60)), &headers);
        let answer = service(
            StatusCode::TOO_MANY_REQUESTS,
            &[
                ("retry-after", "3"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "3"),
            ],
        );
        let response = ask(&around(&own, answer)).await;
        let told = ["retry-after", "x-ratelimit-reset"].map(|name| &response.headers()[name]);
        assert_eq!(told, ["3", "3"]);
    }
}

#[tokio::test]
async fn a_rejection_by_a_handler_tells_the_wait_of_the_layer_outside() {
    for headers in dialects() {
        let store = MemoryStore::with_clock(TestClock::new());
        let checked = limiter(&store, "handler", per(1, 5));
        let own = headers.clone();
        let handler = service_fn(move |_: Request<()>| {
            let (checked, headers) = (checked.clone(), own.clone());
            async move {
                let decision = checked.check(Key::global()).await.unwrap();
                let response = match decision.or_reject() {
                    Ok(_) => Response::new(Bytes::new()),
                    Err(rejection) => rejection.response(&headers, tollgate::plain_text()),
                };
                Ok(response.map(|_| Empty::new()))
            }
        });
        let outer = layer(limiter(&store, "outer", per(2, 60)), &headers);
        let nested = around(&outer, BoxCloneSyncService::new(handler));
        assert_eq!(times(&nested).await.0, 200);
        let (status, times) = times(&nested).await;
        assert_eq!((status.as_u16(), times.retry_after), (429, Some(60)));
        assert_eq!(times.contradiction(), None, "{headers:?}: {times:?}");
    }
}

/// A level of a layer.
#[derive(Clone, Debug)]
struct AnyLevel {
    quotas: Vec<Quota>,
    is_hidden: bool,
}

#[derive(Clone, Debug)]
struct AnyLayer {
    first: AnyLevel,
    others: Vec<AnyLevel>,
    dialect: usize,
}

#[derive(Clone, Debug)]
enum Act {
    Ask,
    Advance(Duration),
    /// Blocks the key of a layer's own limit.
    Block(usize, Duration),
    /// Charges a layer's own limit without a request.
    Charge(usize, u32),
}

fn any_level() -> impl Strategy<Value = AnyLevel> {
    let algorithms: Vec<_> = algorithms(3).collect();
    let algorithm = prop::sample::select(algorithms);
    let millis = prop_oneof![Just(1_000), 1_001..5_000_u64, 5_000..90_000_u64];
    let quota = (0..5_u32, millis, algorithm).prop_map(|(limit, millis, algorithm)| {
        Quota::new(limit.max(1), Duration::from_millis(millis)).with_algorithm(algorithm)
    });
    let slots = Just(Quota::in_flight(1));
    let quota = prop_oneof![9 => quota, 1 => slots];
    let quotas = prop::collection::vec(quota, 1..3);
    (quotas, prop::bool::weighted(0.3))
        .prop_map(|(quotas, is_hidden)| AnyLevel { quotas, is_hidden })
}

fn any_layer() -> impl Strategy<Value = AnyLayer> {
    let others = prop::collection::vec(any_level(), 0..3);
    let dialect = 0..dialects().len();
    (any_level(), others, dialect).prop_map(|(first, others, dialect)| AnyLayer {
        first,
        others,
        dialect,
    })
}

fn any_act() -> impl Strategy<Value = Act> {
    let time = (1..40_000_u64).prop_map(Duration::from_millis);
    prop_oneof![
        12 => Just(Act::Ask),
        3 => time.clone().prop_map(Act::Advance),
        1 => (0..3_usize, time).prop_map(|(layer, time)| Act::Block(layer, time)),
        1 => (0..3_usize, 1..9_u32).prop_map(|(layer, units)| Act::Charge(layer, units)),
    ]
}

/// Layers around a service, the first outermost, by a clock that the test moves.
struct Nested {
    clock: TestClock,
    limiters: Vec<RateLimiter>,
    service: Service,
}

impl Nested {
    fn new(layers: &[AnyLayer], has_one_dialect: bool) -> Self {
        let (clock, dialects) = (TestClock::new(), dialects());
        let store = MemoryStore::with_clock(clock.clone());
        let (mut limiters, mut nested) = (Vec::new(), service(StatusCode::OK, &[]));
        for (place, of_layer) in layers.iter().enumerate().rev() {
            let limiter_of = |level: &AnyLevel, name: String| {
                RateLimiter::new(store.clone(), level.quotas.clone()).name(name)
            };
            let first = limiter_of(&of_layer.first, format!("layer {place}"));
            let dialect = if has_one_dialect {
                layers[0].dialect
            } else {
                of_layer.dialect
            };
            let mut layer = layer(first.clone(), &dialects[dialect]);
            if of_layer.first.is_hidden {
                layer = layer.hidden();
            }
            for (number, level) in of_layer.others.iter().enumerate() {
                let limiter = limiter_of(level, format!("layer {place}, level {number}"));
                let own = Level::new(limiter, key::global());
                layer = layer.and_level(if level.is_hidden { own.hidden() } else { own });
            }
            limiters.push(first);
            nested = around(&layer, nested);
        }
        limiters.reverse();
        Self {
            clock,
            limiters,
            service: nested,
        }
    }

    async fn act(&self, act: &Act) -> Result<(), TestCaseError> {
        let limiter = |layer: usize| &self.limiters[layer % self.limiters.len()];
        match act {
            Act::Ask => return self.ask().await,
            Act::Advance(time) => self.clock.advance(*time),
            Act::Block(layer, time) => {
                limiter(*layer)
                    .admin()
                    .block(Key::global(), *time)
                    .await
                    .unwrap();
            }
            Act::Charge(layer, units) => {
                limiter(*layer).charge(Key::global(), *units).await.unwrap();
            }
        }
        Ok(())
    }

    /// Asks. After a 429, waits as long as it says: then no limit refuses that was asked before.
    async fn ask(&self) -> Result<(), TestCaseError> {
        let asked_at = unix_time();
        let response = ask(&self.service).await;
        let times = Times::of(response.headers(), asked_at);
        let Some(rejection) = response.extensions().get::<Rejection>() else {
            prop_assert_eq!(times.retry_after, None);
            return Ok(());
        };
        prop_assert_eq!(response.status(), 429);
        let context = format!("{:?} {:?}", rejection.limiter(), response.headers());
        prop_assert_eq!(times.contradiction(), None, "{}", context);
        let Some(wait) = times.retry_after else {
            return Ok(());
        };
        prop_assert!(
            wait >= rejection.retry_after().unwrap().as_secs(),
            "{}",
            context
        );
        self.clock.advance(Duration::from_secs(wait));
        let again = ask(&self.service).await;
        if let Some(refused) = again.extensions().get::<Rejection>() {
            // The layers inside were not asked before, nor were the quotas behind a block and the levels beside it.
            let layer_of = |rejection: &Rejection| rejection.limiter()[..7].to_owned();
            let (before, now) = (layer_of(rejection), layer_of(refused));
            let was_blocked = matches!(
                rejection.reason(),
                RejectionReason::Refused(decision)
                    if decision.levels().any(|level| !level.is_asked() || level.source() == Source::Block)
            );
            prop_assert!(
                now > before || now == before && was_blocked,
                "{}: then {}",
                context,
                refused
            );
        }
        Ok(())
    }
}

#[test]
fn no_429_contradicts_itself() {
    let input = (
        prop::collection::vec(any_layer(), 1..4),
        any::<bool>(),
        prop::collection::vec(any_act(), 1..25),
    );
    holds_for_any(2_000, &input, |(layers, has_one_dialect, acts)| {
        let nested = Nested::new(&layers, has_one_dialect);
        block_on(async {
            for act in &acts {
                nested.act(act).await?;
            }
            Ok(())
        })
    });
}
