//! A client that keeps under the limit of an upstream: `cargo run --example outbound`
//!
//! The upstream, which is started here too, answers 5 requests a second and refuses the others. The same
//! 15 requests are sent to it at once by a plain client, and by one whose layer has each wait for its
//! turn. It ends by itself.

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

    // reqwest as a service of requests as the crate `http` has them. (hyper-util's client is one already.)
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

    // Some are longer on their way than others, so those of two windows may arrive within one: what the
    // upstream grants in a second, this takes a fifth longer for.
    let limit = RateLimitLayer::new(
        MemoryStore::new(),
        Quota::new(5, Duration::from_millis(1_200)),
    )
    .name("upstream")
    .key(key::from_fn(|parts| parts.uri.host().map(Key::from)))
    .headers(Headers::none()) // those of the upstream are left as it sent them
    .wait_up_to(Duration::from_secs(30));
    let patient = ServiceBuilder::new().layer(limit).service(client.clone());

    send(15, &url, client).await?;
    tokio::time::sleep(Duration::from_secs(1)).await; // until the upstream has forgotten those
    send(15, &url, patient).await
}

/// Sends so many requests at once, and tells what came of them.
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
    let (mut answered, mut refused) = (0, 0);
    while let Some(answer) = answers.join_next().await {
        match answer??.status() {
            StatusCode::TOO_MANY_REQUESTS => refused += 1,
            _ => answered += 1,
        }
    }
    let seconds = begin.elapsed().as_secs_f32();
    println!("{answered} answered, {refused} refused, in {seconds:.1} s");
    Ok(())
}

/// Starts an upstream with this limit, for all its clients together.
async fn upstream(limit: Quota) -> Result<String, Box<dyn Error>> {
    let limit = RateLimitLayer::new(MemoryStore::new(), limit).key(key::global());
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(url)
}
