//! The layer around a client: which key it pauses, what it sends, and in which order those that wait are sent.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::time::Instant;
use tollgate::RedisStore;
use tollgate::store::TestStore;
use tollgate::{
    ErrorKind, FailurePolicy, Headers, Key, MemoryStore, OutboundLayer, Quota, RateLimitLayer,
    RateLimiter, Rejection, RejectionReason, Source, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::redis_server::RedisServer;
use crate::support::relay::Relay;

const SECOND: Duration = Duration::from_secs(1);

type Body = Empty<bytes::Bytes>;

/// An upstream that keeps the paths and times of its requests. It answers `/refuse` with a 429, and a wait of 20 s.
#[derive(Clone, Default)]
struct Upstream(Arc<Mutex<Vec<(String, Instant)>>>);

impl Upstream {
    fn received(&self) -> Vec<(String, Instant)> {
        self.0.lock().expect("a list").clone()
    }

    async fn send(&self, layer: &OutboundLayer, url: &str) -> Response<()> {
        let received = Arc::clone(&self.0);
        let upstream = service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            received
                .lock()
                .expect("a list")
                .push((path.clone(), Instant::now()));
            let response = Response::builder().header("x-ratelimit-limit", "7");
            let response = match path.as_str() {
                "/refuse" => response.status(429).header("retry-after", "20"),
                "/refuse-all" => response
                    .status(429)
                    .header("retry-after", "20")
                    .header("x-ratelimit-global", "true"),
                _ => response,
            };
            let response = response.body(Body::new()).expect("a response");
            async { Ok::<_, Infallible>(response) }
        });
        let request = Request::get(url).body(Body::new()).expect("a request");
        let response = layer.layer(upstream).oneshot(request).await;
        response.expect("an answer").map(drop)
    }
}

fn limiter(quota: Quota) -> RateLimiter {
    RateLimiter::new(MemoryStore::new(), quota).name("upstream")
}

#[tokio::test(start_paused = true)]
async fn a_refusal_pauses_its_host_and_no_other() {
    let (upstream, layer) = (
        Upstream::default(),
        OutboundLayer::new(limiter(Quota::per_second(100))).wait_up_to(5 * SECOND),
    );
    let refused = upstream.send(&layer, "http://a.example/refuse").await;
    assert_eq!(refused.status(), 429);
    // As the upstream has written it.
    assert_eq!(refused.headers()["x-ratelimit-limit"], "7");
    assert_eq!(refused.headers().len(), 2);
    assert!(refused.extensions().get::<Rejection>().is_none());
    // It would have to wait for too long, so it is not sent.
    let rejected = upstream.send(&layer, "http://A.example:8080/").await;
    assert_eq!(rejected.status(), 429);
    let rejection = rejected.extensions().get::<Rejection>();
    let Some(RejectionReason::Refused(decision)) = rejection.map(Rejection::reason) else {
        panic!("{rejection:?}");
    };
    assert_eq!(decision.source(), Source::Paused);
    assert_eq!(
        upstream.send(&layer, "http://b.example/").await.status(),
        200
    );
    assert_eq!(upstream.received().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_another_limit_pauses_that_one_instead() {
    for (path, is_global) in [("/refuse", false), ("/refuse-all", true)] {
        let store = MemoryStore::new();
        let own = RateLimiter::new(store.clone(), Quota::per_second(100)).name("own");
        let global = RateLimiter::new(store, Quota::per_second(100)).name("global");
        let levels = RateLimitLayer::from(own.clone())
            .key(key::from_fn(|parts| {
                parts.uri.host().unwrap_or_default().to_owned()
            }))
            .and(global.clone(), key::global());
        let layer = OutboundLayer::from(levels).pause_instead(global.clone(), |head| {
            let is_global = head.headers.contains_key("x-ratelimit-global");
            is_global.then(Key::global)
        });
        let upstream = Upstream::default();
        let refused = upstream
            .send(&layer, &format!("http://a.example{path}"))
            .await;
        assert_eq!(refused.status(), 429);
        let source = async |limiter: &RateLimiter, key: Key| {
            limiter.check(key).await.expect("a decision").source()
        };
        let is_own_paused = source(&own, Key::from("a.example")).await == Source::Paused;
        let is_global_paused = source(&global, Key::global()).await == Source::Paused;
        assert_eq!((is_own_paused, is_global_paused), (!is_global, is_global));
        // A request of another host has the global level, too.
        let other = upstream.send(&layer, "http://b.example/").await.status();
        assert_eq!(other, if is_global { 429 } else { 200 });
    }
}

/// How a request is answered while the next calls of the store fail, and how long that took.
async fn during_outage(
    failures: usize,
    layer: impl FnOnce(RateLimiter) -> OutboundLayer,
) -> (u16, Duration, usize) {
    let store = TestStore::new();
    store.fail_next(failures, ErrorKind::Unavailable);
    let upstream = Upstream::default();
    let layer = layer(RateLimiter::new(store, Quota::per_second(100))).wait_up_to(5 * SECOND);
    let began = Instant::now();
    let response = upstream.send(&layer, "http://a.example/").await;
    let sent = upstream.received().len();
    (response.status().as_u16(), began.elapsed(), sent)
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_through_an_outage_if_its_limiter_does() {
    let waits = |limiter: RateLimiter| OutboundLayer::new(limiter.wait_through_outages());
    let (status, waited, sent) = during_outage(3, waits).await;
    assert_eq!((status, sent), (200, 1));
    assert!(waited > SECOND / 20 && waited < SECOND, "{waited:?}");
    // Longer than a request waits.
    let (status, waited, sent) = during_outage(1_000, waits).await;
    assert_eq!((status, sent), (503, 0));
    assert!(waited >= 5 * SECOND && waited < 6 * SECOND, "{waited:?}");
    // A policy that decides leaves nothing to wait for, and without the setting the process counts alone.
    for layer in [
        |limiter: RateLimiter| {
            let limiter = limiter.on_failure(FailurePolicy::open());
            OutboundLayer::new(limiter.wait_through_outages())
        },
        OutboundLayer::new,
    ] {
        let (status, waited, sent) = during_outage(1_000, layer).await;
        assert_eq!((status, waited, sent), (200, Duration::ZERO, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_host_have_one_key() {
    let (upstream, layer) = (
        Upstream::default(),
        OutboundLayer::new(limiter(Quota::per_second(100))).wait_up_to(SECOND),
    );
    upstream.send(&layer, "/refuse").await;
    assert_eq!(
        upstream
            .send(&layer, "/package.Service/Method")
            .await
            .status(),
        429
    );
    assert_eq!(upstream.received().len(), 1);
}

/// Whether a refusal of one request pauses the other one. A request is a URL, and a `Host`.
async fn share_a_key(requests: [(&str, &str); 2]) -> bool {
    let layer = OutboundLayer::new(limiter(Quota::per_second(100))).wait_up_to(SECOND);
    let client = layer.layer(service_fn(|_: Request<Body>| async {
        let response = Response::builder().status(429).header("retry-after", "20");
        Ok::<_, Infallible>(response.body(Body::new()).expect("a response"))
    }));
    let mut is_sent = true;
    for (url, host) in requests {
        let request = Request::get(url).header("host", host).body(Body::new());
        let response = client.clone().oneshot(request.expect("a request")).await;
        let extensions = response.expect("an answer").into_parts().0.extensions;
        is_sent = extensions.get::<Rejection>().is_none();
    }
    !is_sent
}

#[tokio::test(start_paused = true)]
async fn the_key_is_the_host_however_it_is_written() {
    let spellings = [
        ("a.example", "A.Example."),
        ("a.example", "a.example:80"),
        ("a.example:8080", "a.example.:443"),
        ("a.example", "user:word@a.example:8080"),
        ("192.0.2.1", "192.0.2.1:8080"),
        ("[2001:db8::1]", "[2001:DB8::1]:8080"),
        ("[2001:db8::1]:80", "user@[2001:db8::1]:8080"),
    ];
    let others = [
        ("a.example", "b.example"),
        ("a.example", "a.example.org"),
        ("192.0.2.1:80", "192.0.2.2:80"),
        ("[2001:db8::1]:8080", "[2001:db8::2]:8080"),
        ("[2001:db8::1]", "[2001:db8::2]"),
        ("user@a.example", "user@b.example"),
    ];
    let all = spellings.map(|pair| (pair, true)).into_iter();
    for ((one, other), expected) in all.chain(others.map(|pair| (pair, false))) {
        let [one_url, other_url] = [one, other].map(|host| format!("http://{host}/"));
        for requests in [
            [("/", one), ("/", other)],
            [(&one_url, "c.example"), (&other_url, "d.example")],
            [("/", one), (&other_url, "d.example")],
        ] {
            assert_eq!(share_a_key(requests).await, expected, "{requests:?}");
        }
    }
    // What is no host is none.
    for none in ["", ":8080", "a:b:c", "[2001:db8::1", "user@"] {
        let requests = [("/", none), ("/", "")];
        assert!(share_a_key(requests).await, "{none}");
        let requests = [("/", none), ("/", "a.example")];
        assert!(!share_a_key(requests).await, "{none}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_is_what_a_closure_reads() {
    let key = key::from_fn(|parts| parts.uri.query().map(Key::from));
    let layer = OutboundLayer::new(limiter(Quota::per_second(100)));
    let (upstream, layer) = (Upstream::default(), layer.key(key).wait_up_to(SECOND));
    upstream.send(&layer, "http://a.example/refuse?ada").await;
    assert_eq!(
        upstream
            .send(&layer, "http://b.example/?ada")
            .await
            .status(),
        429
    );
    assert_eq!(
        upstream
            .send(&layer, "http://a.example/?bob")
            .await
            .status(),
        200
    );
}

#[tokio::test]
async fn a_request_that_waits_is_sent_when_the_pause_has_ended() {
    let limiter = limiter(Quota::per_second(100));
    let layer = OutboundLayer::new(limiter.clone());
    let upstream = Upstream::default();
    let begin = Instant::now();
    limiter.pause("a.example", SECOND);
    assert_eq!(
        upstream.send(&layer, "http://a.example/").await.status(),
        200
    );
    let waited = begin.elapsed();
    // Plus a turn: one hundredth of a second at most.
    assert!(waited >= SECOND, "{waited:?}");
    assert!(waited < 2 * SECOND, "{waited:?}");
}

#[tokio::test]
async fn those_that_wait_are_sent_in_order_and_at_the_rate_of_the_limit() {
    let limiter = limiter(Quota::per_second(20));
    let layer = OutboundLayer::new(limiter.clone());
    let upstream = Upstream::default();
    let pause = limiter.pause("a.example", SECOND);
    let until = Instant::now() + pause;
    let mut tasks = Vec::new();
    for number in 0..16 {
        let (upstream, layer) = (upstream.clone(), layer.clone());
        tasks.push(tokio::spawn(async move {
            let url = format!("http://a.example/{number}");
            upstream.send(&layer, &url).await.status()
        }));
        tokio::task::yield_now().await;
    }
    for task in tasks {
        assert_eq!(task.await.expect("an answer"), 200);
    }
    let received = upstream.received();
    let paths: Vec<_> = received.iter().map(|(path, _)| path.clone()).collect();
    let expected: Vec<_> = (0..16).map(|number| format!("/{number}")).collect();
    assert_eq!(paths, expected);
    for (number, (_, at)) in (0_u32..).zip(&received) {
        // A twentieth of a second apart, give or take a timer's millisecond. None comes earlier, and the phase of this
        // process is at most one step.
        let earliest = until + number * SECOND / 20;
        assert!(
            *at + SECOND / 500 >= earliest,
            "{number}: {:?}",
            earliest - *at
        );
    }
}

#[tokio::test]
async fn jobs_wait_for_the_end_of_a_pause_in_order() {
    let limiter = limiter(Quota::per_second(20));
    limiter.pause("ada", SECOND);
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (limiter, order) = (limiter.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let decision = limiter.until_ready("ada", 1, 10 * SECOND).await;
            assert!(decision.expect("a decision").is_allowed());
            order.lock().expect("a list").push(number);
        }));
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.expect("an end");
    }
    assert_eq!(*order.lock().expect("a list"), (0..8).collect::<Vec<_>>());
    // A wait that is too long ends at once, with the whole wait.
    limiter.pause("ada", 20 * SECOND);
    let decision = limiter.until_ready("ada", 1, 10 * SECOND).await;
    let decision = decision.expect("a decision");
    assert_eq!(decision.source(), Source::Paused);
    assert!(decision.retry_after() > Some(19 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_by_another_layer_of_the_client_is_not_the_upstreams_answer() {
    let quota = Quota::new(1, 60 * SECOND);
    let inner = RateLimitLayer::new(MemoryStore::new(), quota)
        .key(key::global())
        .headers(Headers::none());
    let limiter = limiter(Quota::per_second(100));
    let client = inner.layer(service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::new()))
    }));
    let client = OutboundLayer::new(limiter.clone()).layer(client);
    for status in [200, 429, 429] {
        let request = Request::get("http://a.example/").body(Body::new());
        let response = client.clone().oneshot(request.expect("a request")).await;
        assert_eq!(response.expect("an answer").status(), status);
    }
    assert!(
        limiter
            .check("a.example")
            .await
            .expect("a decision")
            .is_allowed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_layer_with_all_settings_observes_too() {
    let limiter = limiter(Quota::per_minute(100));
    let layer = RateLimitLayer::from(limiter.clone())
        .key(key::global())
        .headers(Headers::x_ratelimit())
        .cost(|_| 10)
        .settle(|_, _, _| 3)
        .reserve();
    let (upstream, layer) = (Upstream::default(), OutboundLayer::from(layer));
    let refused = upstream.send(&layer, "http://a.example/refuse").await;
    assert_eq!(refused.headers().len(), 2);
    let peeked = limiter.peek(Key::global()).await.expect("a decision");
    assert_eq!(peeked.used(), 3);
    let source = limiter
        .check(Key::global())
        .await
        .expect("a decision")
        .source();
    assert_eq!(source, Source::Paused);
}

/// A service behind a [`RateLimitLayer`], as its clients see it: the answer has crossed a network.
#[tokio::test]
async fn a_refusal_of_tollgate_by_grpc_pauses_its_clients() {
    let quota = Quota::new(1, 20 * SECOND);
    let limit = RateLimitLayer::new(MemoryStore::new(), quota).key(key::global());
    let limit = limit.headers(Headers::none()).grpc();
    let app = Router::new().fallback(|| async {}).layer(limit);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a free port");
    let url = format!(
        "http://{}/a.B/C",
        listener.local_addr().expect("an address")
    );
    tokio::spawn(async { axum::serve(listener, app).await });

    let layer = OutboundLayer::new(limiter(Quota::per_second(100))).wait_up_to(SECOND);
    let client = reqwest::Client::new();
    let client = layer.layer(service_fn(move |request: Request<reqwest::Body>| {
        let client = client.clone();
        async move {
            let response = client.execute(request.try_into()?).await;
            response.map(Response::from)
        }
    }));
    let mut answers = Vec::new();
    for _ in 0..4 {
        let request = Request::post(&url).header("content-type", "application/grpc");
        let request = request.body(reqwest::Body::default()).expect("a request");
        let response = client.clone().oneshot(request).await.expect("an answer");
        let rejection = response.extensions().get::<Rejection>();
        let wait = rejection.map(|rejection| rejection.retry_after().expect("a wait"));
        answers.push((response.headers().contains_key("grpc-status"), wait));
    }
    assert_eq!(answers[..2], [(false, None), (true, None)]);
    for (_, wait) in &answers[2..] {
        let wait = wait.expect("a request that was not sent");
        assert!(wait > 10 * SECOND && wait <= 20 * SECOND, "{wait:?}");
    }
}

/// The channel of tonic and reqwest are services that the layer wraps.
#[tokio::test]
async fn clients_of_other_crates_can_be_wrapped() {
    let layer = OutboundLayer::new(limiter(Quota::per_second(100)));
    let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
    let channel = layer.layer(channel);
    let request = Request::get("/package.Service/Method").body(tonic::body::Body::empty());
    assert!(channel.oneshot(request.expect("a request")).await.is_err());
}

/// A check that waits for Redis while another answer of the upstream arrives.
#[tokio::test]
async fn what_is_admitted_after_a_refusal_was_told_is_not_sent_and_not_charged() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let store = RedisStore::open(&relay.url())
        .expect("a URL")
        .deadline(10 * SECOND);
    let limiter = RateLimiter::new(store, Quota::per_hour(100)).name("upstream");
    for key in ["layer.example", "job"] {
        let _ = limiter.peek(key).await.expect("a decision");
    }
    relay.set_round_trip(SECOND / 2);
    let (layer, upstream) = (OutboundLayer::new(limiter.clone()), Upstream::default());
    let begin = Instant::now();
    let pause = async {
        tokio::time::sleep(SECOND / 10).await;
        for key in ["layer.example", "job"] {
            limiter.pause(key, 2 * SECOND);
        }
    };
    let job = async {
        let decision = limiter.until_ready("job", 1, 30 * SECOND).await;
        assert!(decision.expect("a decision").is_allowed());
        Instant::now()
    };
    let send = upstream.send(&layer, "http://layer.example/");
    let (response, job, ()) = tokio::join!(send, job, pause);
    assert_eq!(response.status(), 200);
    let received = upstream.received();
    assert_eq!(received.len(), 1);
    for at in [received[0].1, job] {
        let waited = at - begin;
        assert!(waited >= 21 * SECOND / 10, "{waited:?}");
    }
    // The refund runs in the background.
    tokio::time::sleep(2 * SECOND).await;
    for key in ["layer.example", "job"] {
        assert_eq!(
            limiter.peek(key).await.expect("a decision").used(),
            1,
            "{key}"
        );
    }
}
