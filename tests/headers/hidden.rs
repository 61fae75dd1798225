//! Hidden levels: what clients are told is the same as without them, byte by byte, but for the times of a 429.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http_body_util::{BodyExt, Full};
use tollgate::store::TestClock;
use tollgate::{
    DecisionView, Headers, IetfDraft, Key, Level, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    Rejection, Share, key, problem_json,
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// A name and a limit that no response may tell.
const NAME: &str = "capacity";
const LIMIT: u32 = 2;

fn dialects() -> [Headers; 7] {
    let x_ratelimit = Headers::x_ratelimit().delta_reset();
    let drafts = [
        IetfDraft::Draft03,
        IetfDraft::Draft06,
        IetfDraft::Draft07,
        IetfDraft::Draft11,
    ];
    let [draft_03, draft_06, draft_07, draft_11] = drafts.map(Headers::ietf);
    let both = x_ratelimit.clone().and(draft_11.clone());
    [
        Headers::none(),
        x_ratelimit,
        draft_03,
        draft_06,
        draft_07,
        draft_11,
        both,
    ]
}

/// A store whose time stands still, so that all responses to the same requests are equal.
fn store() -> MemoryStore {
    MemoryStore::with_clock(TestClock::new())
}

/// The visible limit: `limit` per hour.
fn visible(store: &MemoryStore, name: &str, limit: u32) -> RateLimitLayer {
    RateLimitLayer::new(store.clone(), Quota::per_hour(limit))
        .name(name)
        .key(key::global())
}

/// The hidden limit, for a level. It refuses the third request.
fn capacity(store: &MemoryStore) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_minute(LIMIT)).name(NAME)
}

/// The hidden limit, as a layer of its own.
fn hidden_layer(store: &MemoryStore, headers: Headers) -> RateLimitLayer {
    let layer = RateLimitLayer::from(capacity(store)).key(key::global());
    layer.headers(headers).hidden()
}

fn with_hidden_level(layer: RateLimitLayer, store: &MemoryStore) -> RateLimitLayer {
    layer.and_level(Level::new(capacity(store), key::global()).hidden())
}

/// The headers and the body that a client sees.
#[derive(Debug, PartialEq)]
struct Shown {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Shown {
    fn lines(&self) -> Vec<String> {
        let lines = self.headers.iter();
        let lines = lines.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        lines.collect()
    }

    fn tells_nothing_of_the_hidden_limit(&self) {
        let text = format!("{:?} {:?}", self.lines(), self.body);
        for secret in [NAME, "=2", ": 2", "limit=2", " 2 "] {
            assert!(!text.contains(secret), "{secret:?} in {text}");
        }
    }
}

async fn ask<S, B>(service: &S) -> Shown
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
    B: axum::body::HttpBody<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let request = Request::post("/").header("content-type", "application/grpc");
    let response = service.clone().oneshot(request.body(()).unwrap()).await;
    let (head, body) = response.unwrap().into_parts();
    Shown {
        status: head.status.as_u16(),
        headers: head.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

async fn ok(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("ok")))
}

async fn asked_of(layer: &RateLimitLayer) -> Shown {
    ask(&layer.layer(service_fn(ok))).await
}

#[tokio::test]
async fn an_admission_and_a_visible_refusal_are_as_without_the_hidden_level() {
    for headers in dialects() {
        let (alone, beside) = (store(), store());
        let alone = visible(&alone, "user", 1).headers(headers.clone());
        let beside = with_hidden_level(visible(&beside, "user", 1), &beside).headers(headers);
        for status in [200, 429] {
            let (shown, expected) = (asked_of(&beside).await, asked_of(&alone).await);
            assert_eq!(shown.status, status);
            assert_eq!(shown, expected);
        }
    }
}

#[tokio::test]
async fn a_hidden_refusal_tells_its_wait_and_the_units_that_are_visibly_left() {
    let expected: [&[&str]; 7] = [
        &[],
        &[
            "x-ratelimit-limit: 60",
            "x-ratelimit-remaining: 58",
            "x-ratelimit-reset: 3600",
        ],
        &[
            "ratelimit-limit: 60, 60;w=3600",
            "ratelimit-remaining: 58",
            "ratelimit-reset: 3600",
        ],
        &[
            "ratelimit-policy: 60;w=3600",
            "ratelimit-limit: 60",
            "ratelimit-remaining: 58",
            "ratelimit-reset: 3600",
        ],
        &[
            "ratelimit-policy: 60;w=3600",
            "ratelimit: limit=60, remaining=58, reset=3600",
        ],
        &[
            r#"ratelimit-policy: "user";q=60;w=3600"#,
            r#"ratelimit: "user";r=58;t=3600"#,
        ],
        &[
            "x-ratelimit-limit: 60",
            "x-ratelimit-remaining: 58",
            "x-ratelimit-reset: 3600",
            r#"ratelimit-policy: "user";q=60;w=3600"#,
            r#"ratelimit: "user";r=58;t=3600"#,
        ],
    ];
    for (headers, expected) in dialects().into_iter().zip(expected) {
        let store = store();
        let layer = with_hidden_level(visible(&store, "user", 60), &store).headers(headers);
        asked_of(&layer).await;
        asked_of(&layer).await;
        let refused = asked_of(&layer).await;
        assert_eq!(
            (refused.status, &*refused.body),
            (429, &b"rate limit exceeded\n"[..])
        );
        let of_rejections = [
            "content-type: text/plain; charset=utf-8",
            "cache-control: no-store",
            "retry-after: 60",
        ];
        assert_eq!(refused.lines(), [&of_rejections, expected].concat());
        refused.tells_nothing_of_the_hidden_limit();
    }
}

#[tokio::test]
async fn a_layer_with_only_a_hidden_limit_writes_no_header_of_a_limit() {
    for headers in dialects() {
        let layer = hidden_layer(&store(), headers);
        for _ in 0..LIMIT {
            assert_eq!(asked_of(&layer).await.lines(), [""; 0]);
        }
        let refused = asked_of(&layer).await;
        assert_eq!(refused.status, 429);
        let names: Vec<_> = refused.headers.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["content-type", "cache-control", "retry-after"]);
    }
}

#[tokio::test]
async fn inside_of_a_visible_layer_a_hidden_one_neither_adds_nor_replaces_fields() {
    for headers in dialects() {
        let (alone, both) = (store(), store());
        let outer = |store| visible(store, "outer", 9).headers(headers.clone());
        let alone = outer(&alone).layer(service_fn(ok));
        let inner = hidden_layer(&both, headers.clone()).layer(service_fn(ok));
        let nested = outer(&both).layer(inner);
        for _ in 0..LIMIT {
            assert_eq!(ask(&nested).await, ask(&alone).await);
        }
        // The outer layer has charged the request that the inner one refuses, and has 6 units left.
        let (refused, admitted) = (ask(&nested).await, ask(&alone).await);
        assert_eq!((refused.status, admitted.status), (429, 200));
        assert_eq!(refused.headers["retry-after"], "60");
        for (name, value) in &admitted.headers {
            assert_eq!(refused.headers.get(name), Some(value), "{name}");
        }
        let others = refused.headers.len() - admitted.headers.len();
        assert_eq!(others, 3, "{refused:?}");
        refused.tells_nothing_of_the_hidden_limit();
    }
}

#[tokio::test]
async fn around_a_visible_layer_a_hidden_one_neither_adds_nor_replaces_fields() {
    for headers in dialects() {
        let (alone, both) = (store(), store());
        let inner = |store| {
            let inner = visible(store, "inner", 1).headers(headers.clone());
            inner.layer(service_fn(ok))
        };
        let alone = inner(&alone);
        let nested = hidden_layer(&both, headers.clone()).layer(inner(&both));
        assert_eq!(ask(&nested).await, ask(&alone).await);
        // The inner layer refuses, and its headers stay.
        let (refused, expected) = (ask(&nested).await, ask(&alone).await);
        assert_eq!(refused.status, 429);
        assert_eq!(refused.headers["retry-after"], "3600");
        assert_eq!(refused, expected);
        // The hidden layer refuses, and the inner one is not asked.
        let refused = ask(&nested).await;
        assert_eq!(refused.status, 429);
        let names: Vec<_> = refused.headers.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["content-type", "cache-control", "retry-after"]);
    }
}

#[tokio::test]
async fn a_hidden_outer_limit_without_units_lengthens_the_times_and_nothing_else() {
    let (alone, both) = (store(), store());
    let inner = |store| {
        let inner = visible(store, "inner", 1).headers(dialects()[6].clone());
        inner.layer(service_fn(ok))
    };
    let alone = inner(&alone);
    let day = RateLimiter::new(both.clone(), Quota::per_day(LIMIT)).name(NAME);
    let outer = RateLimitLayer::from(day).key(key::global()).hidden();
    let nested = outer.headers(dialects()[6].clone()).layer(inner(&both));
    assert_eq!(ask(&nested).await, ask(&alone).await);
    let (refused, expected) = (ask(&nested).await, ask(&alone).await);
    assert_eq!(refused.headers["retry-after"], "86400");
    let lengthened = |line: String| match line.starts_with("ratelimit-policy") {
        true => line,
        false => line.replace("3600", "86400"),
    };
    let expected = expected.lines().into_iter().map(lengthened);
    assert!(expected.eq(refused.lines()), "{refused:?}");
}

#[tokio::test]
async fn problem_details_name_visible_policies_only() {
    let store = store();
    let layer = with_hidden_level(visible(&store, "user", 60), &store).responder(problem_json());
    asked_of(&layer).await;
    asked_of(&layer).await;
    let refused = asked_of(&layer).await;
    let expected = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"The same request can be satisfied in 60 s.","violated-policies":[]}"#;
    assert_eq!(refused.body, expected);
}

#[tokio::test]
async fn a_call_of_grpc_is_told_the_wait_only() {
    let store = store();
    let layer = with_hidden_level(visible(&store, "user", 60), &store)
        .headers(Headers::none())
        .grpc();
    asked_of(&layer).await;
    asked_of(&layer).await;
    let refused = asked_of(&layer).await;
    let lines = refused.lines();
    let [lines @ .., details, cache, retry] = &*lines else {
        panic!("{lines:?}");
    };
    assert_eq!(
        lines,
        [
            "content-type: application/grpc",
            "grpc-status: 8",
            "grpc-message: rate limit exceeded",
            "grpc-retry-pushback-ms: 60000",
        ]
    );
    assert_eq!(
        [cache, retry],
        ["cache-control: no-store", "retry-after: 60"]
    );
    let details = details.strip_prefix("grpc-status-details-bin: ").unwrap();
    let details = STANDARD_NO_PAD.decode(details).unwrap();
    let details = String::from_utf8_lossy(&details);
    assert!(details.contains("rate limit exceeded"), "{details}");
    assert!(!details.contains(NAME), "{details}");
}

#[tokio::test]
async fn no_body_names_the_bound_of_a_hidden_share() {
    let quota = Quota::per_hour(100).shares([Share::of("batch").at_most(7)]);
    let limiter = RateLimiter::new(store(), quota).name(NAME);
    let shared = RateLimitLayer::from(limiter)
        .key(key::global())
        .cost(|_| 50)
        .share(|_| Some("batch"));
    let texts = [
        ("the request costs 50, more than its ", false),
        ("rate limit exceeded\n", true),
    ];
    for (text, is_hidden) in texts {
        let layer = match is_hidden {
            true => shared.clone().hidden(),
            false => shared.clone(),
        };
        let refused = asked_of(&layer).await;
        assert!(refused.body.starts_with(text.as_bytes()), "{refused:?}");
        assert!(!refused.headers.contains_key("retry-after"));
        let problem = asked_of(&layer.clone().responder(problem_json())).await;
        let problem = String::from_utf8_lossy(&problem.body).into_owned();
        assert_eq!(problem.contains("50"), !is_hidden, "{problem}");
        assert_eq!(problem.contains("batch"), !is_hidden, "{problem}");
        let call = asked_of(&layer.grpc()).await;
        let message = call.headers["grpc-message"].to_str().unwrap();
        assert!(message.starts_with(text.trim_end()), "{message}");
    }
}

#[tokio::test]
async fn the_service_itself_sees_a_hidden_level() {
    let store = store();
    let layer = with_hidden_level(visible(&store, "user", 60), &store);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let decision = request.extensions().get::<DecisionView>().unwrap();
        let hidden: Vec<_> = decision.levels().map(|level| level.is_hidden()).collect();
        assert_eq!(hidden, [false, true]);
        assert_eq!(decision.limit(), LIMIT);
        ok(request).await
    }));
    ask(&service).await;
    ask(&service).await;
    let response = service.oneshot(Request::new(())).await.unwrap();
    let rejection = response.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection.limiter(), NAME);
    assert_eq!(rejection.to_string(), "rate limit exceeded");
}

#[tokio::test]
async fn a_handler_hides_a_level_of_its_own_check() {
    let store = store();
    let (user, capacity) = (
        RateLimiter::new(store.clone(), Quota::per_hour(60)).name("user"),
        capacity(&store),
    );
    let check = || {
        let levels = [user.level("ada"), capacity.level(Key::global()).hidden()];
        RateLimiter::check_all(levels)
    };
    let headers = Headers::x_ratelimit().delta_reset();
    let mut written = HeaderMap::new();
    assert!(check().await.unwrap().or_reject().is_ok());
    let admitted = check().await.unwrap();
    headers.write(admitted.view(), &mut written);
    assert_eq!(written["x-ratelimit-limit"], "60");
    let rejection = check().await.unwrap().or_reject().unwrap_err();
    let response = rejection.response(&headers, problem_json());
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(response.headers()["x-ratelimit-remaining"], "58");
    assert!(response.body().ends_with(br#""violated-policies":[]}"#));
}
