//! An HTTP client that stays below the limit of an upstream: `cargo run --example outbound`
//!
//! The example starts an upstream that answers 5 requests per second and rejects the others. It sends 15
//! requests at once, first with a plain client, then with a client whose layer delays each request until it
//! is admitted.

use std::error::Error;
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use http::{Request, Response, StatusCode};
use reqwest::{Body, Client};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tollgate::{Headers, Key, MemoryStore, Quota, RateLimitLayer, key};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = upstream(Quota::per_second(5)).await?;

    // Makes reqwest a service of `http::Request`. The client of hyper-util is one already.
    let client = Client::new();
    let client = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            client
                .execute(request.try_into()?)
                .await
                .map(Response::from)
        }
    });

    // The upstream allows 5 per second. The window here is 20 % longer: requests take different times to
    // arrive, so those sent in two windows may reach the upstream within one.
    let limit = RateLimitLayer::new(
        MemoryStore::new(),
        Quota::new(5, Duration::from_millis(1_200)),
    )
    .name("upstream")
    .key(key::from_fn(|parts| parts.uri.host().map(Key::from)))
    .headers(Headers::none()) // leaves the headers of the upstream as they are
    .wait_up_to(Duration::from_secs(30));
    let limited = ServiceBuilder::new().layer(limit).service(client.clone());

    send(15, &url, client).await?;
    tokio::time::sleep(Duration::from_secs(1)).await; // one window of the upstream
    send(15, &url, limited).await
}

/// Sends requests at once, and prints how many were answered.
async fn send<S, B>(requests: usize, url: &str, client: S) -> Result<(), Box<dyn Error>>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Error + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let begin = Instant::now();
    let mut answers = JoinSet::new();
    for _ in 0..requests {
        let request = Request::get(url).body(Body::default())?;
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
    println!("{answered} answered, {rejected} rejected, in {seconds:.1} s");
    Ok(())
}

/// Starts an upstream with this limit for all its clients together, and returns its URL.
async fn upstream(limit: Quota) -> Result<String, Box<dyn Error>> {
    let limit = RateLimitLayer::new(MemoryStore::new(), limit)
        .name("api")
        .key(key::global());
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(url)
}
