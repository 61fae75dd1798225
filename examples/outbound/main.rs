//! HTTP clients that stay below the limit of an upstream, and obey its refusals: `cargo run --example outbound`
//!
//! The example starts an upstream that answers 5 requests per second and rejects the others. It sends 15
//! requests at once with a plain client. Then it sends them with reqwest and with hyper, each in a layer that delays a
//! request until it is admitted. Both share a limiter, as processes share one in Redis. At last, somebody else uses up the
//! limit of the upstream: its 429 pauses the next request.

use std::error::Error;
use std::time::{Duration, Instant};

use axum::{Router, body::Bytes, routing::get};
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tollgate::{Headers, MemoryStore, OutboundLayer, Quota, RateLimitLayer, RateLimiter, key};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = upstream(Quota::per_second(5)).await?;

    // Makes reqwest a service of `http::Request`.
    let client = reqwest::Client::new();
    let reqwest = service_fn(move |request: Request<reqwest::Body>| {
        let client = client.clone();
        async move {
            client
                .execute(request.try_into()?)
                .await
                .map(Response::from)
        }
    });
    // The client of hyper-util is one already.
    let hyper: HyperClient<_, Empty<Bytes>> =
        HyperClient::builder(TokioExecutor::new()).build_http();

    // The upstream allows 5 per second. The window here is 20 % longer: requests take different times to
    // arrive, so those sent in two windows may reach the upstream within one.
    let quota = Quota::new(5, Duration::from_millis(1_200));
    let limiter = RateLimiter::new(MemoryStore::new(), quota).name("upstream");
    let layer = OutboundLayer::new(limiter);
    let reqwest_in_turn = ServiceBuilder::new()
        .layer(layer.clone())
        .service(reqwest.clone());
    let hyper_in_turn = ServiceBuilder::new().layer(layer).service(hyper);

    send(15, "reqwest alone", &url, reqwest.clone()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await; // one window of the upstream
    send(15, "reqwest in turn", &url, reqwest_in_turn.clone()).await?;
    send(15, "hyper in turn", &url, hyper_in_turn).await?;

    // Somebody else uses the same account.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..5 {
        let request = Request::get(&url).body(reqwest::Body::default())?;
        reqwest.clone().oneshot(request).await?;
    }
    let request = || Request::get(&url).body(reqwest::Body::default());
    let refused = reqwest_in_turn.clone().oneshot(request()?).await?;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let begin = Instant::now();
    let answered = reqwest_in_turn.oneshot(request()?).await?;
    assert_eq!(answered.status(), StatusCode::OK);
    let seconds = begin.elapsed().as_secs_f32();
    println!("paused: 1 refused by the upstream, 1 answered after {seconds:.1} s");
    Ok(())
}

/// Sends requests at once, and prints how many were answered.
async fn send<S, A, B>(
    requests: usize,
    name: &str,
    url: &str,
    client: S,
) -> Result<(), Box<dyn Error>>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Error + Send + 'static,
    S::Future: Send,
    A: Default + Send + 'static,
    B: Send + 'static,
{
    let begin = Instant::now();
    let mut answers = JoinSet::new();
    for _ in 0..requests {
        let request = Request::get(url).body(A::default())?;
        answers.spawn(client.clone().oneshot(request));
    }
    let (mut answered, mut rejected) = (0, 0);
    while let Some(answer) = answers.join_next().await {
        match answer??.status() {
            StatusCode::TOO_MANY_REQUESTS => rejected += 1,
            _ => answered += 1,
        }
    }
    let seconds = begin.elapsed().as_secs_f32();
    println!("{name}: {answered} answered, {rejected} rejected, in {seconds:.1} s");
    Ok(())
}

/// Starts an upstream with this limit for all its clients together, and returns its URL.
async fn upstream(limit: Quota) -> Result<String, Box<dyn Error>> {
    let limit = RateLimitLayer::new(MemoryStore::new(), limit)
        .name("api")
        .key(key::global())
        // Only `Retry-After`. Each answer with a reset in whole seconds would pause for longer than its window.
        .headers(Headers::none());
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(url)
}
