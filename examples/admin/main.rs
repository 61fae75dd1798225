//! A web page for operators, to look up, reset, credit and block keys: `cargo run --example admin`
//!
//! It runs a service with limits on one port and the page on another. With a Redis, a change on the page
//! applies to all processes: run `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example admin` in two
//! terminals.
//!
//! A request for `/export` holds a slot for a minute: while it runs, look up its key at the limiter `exports`.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TOLLGATE_ADMIN_TOKEN` | the token for the page, at least 16 characters | random at each start, and printed |
//! | `TOLLGATE_ADMIN_ADDR` | the address of the page | port 3001 of this machine |
//! | `TOLLGATE_ADMIN_PLAIN_HTTP` | `allow` serves the page, which has no TLS, to other machines | refuses to start |
//! | `TOLLGATE_ADMIN_HOST` | a host name that requests for the page may have | an IP address or `localhost` only |

mod blocks;
mod failure;
mod key_form;
mod limiter;
mod login;
mod page;
mod router;
#[path = "../support/store.rs"]
mod store;
#[path = "../support/mod.rs"]
mod support;
mod token;

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;
use std::{env, io};

use axum::{Router, routing::get};
use key_form::KeyForm;
use limiter::Limiter;
use token::Token;
use tollgate::{BlockRule, Quota, RateLimitLayer, key};

/// How many keys each limiter tracks. With 100, every key that causes more than 1 % of the refusals is listed.
const TRACKED: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let (token, shown) = token()?;
    let store = store::open(|redis| redis.prefix("shop"))?;

    let site = RateLimitLayer::new(store.clone(), "10/hour".parse::<Quota>()?)
        .name("site")
        .track_rejected_keys(TRACKED)
        // The page shows and lifts these blocks, too.
        .block_after(BlockRule::refusals(100).doubling());
    let api_key = key::header("x-api-key");
    let search = RateLimitLayer::new(
        store.clone(),
        [Quota::per_second(5), Quota::per_hour(1_000)],
    )
    .name("search")
    .key(api_key.clone())
    .track_rejected_keys(TRACKED);
    let tenant = key::header("x-tenant-id").plain();
    let user = key::header("x-user-id").plain();
    let exports = RateLimitLayer::new(store.clone(), Quota::in_flight(2))
        .name("exports")
        .key(api_key.clone())
        .track_rejected_keys(TRACKED);
    let reports = RateLimitLayer::new(store, Quota::per_hour(100))
        .name("reports")
        .key((tenant.clone(), user.clone()))
        .track_rejected_keys(TRACKED);
    // The text by which an operator names a key, for the extractor of each layer.
    let by_address = KeyForm::address(|address| key::peer_ip().of(address));
    let by_api_key = || KeyForm::header("x-api-key", api_key.clone());
    let by_user = KeyForm::header("x-tenant-id", tenant).and(KeyForm::header("x-user-id", user));
    let limiters = vec![
        Limiter::new("site", site.limiter().admin(), vec![by_address]),
        Limiter::new("search", search.limiter().admin(), vec![by_api_key()]),
        Limiter::new("exports", exports.limiter().admin(), vec![by_api_key()]),
        Limiter::new("reports", reports.limiter().admin(), vec![by_user]),
    ];

    // Two listeners, so that clients of the service cannot reach the page.
    let listener = support::listen().await?;
    let admin = support::listen_by("TOLLGATE_ADMIN_ADDR", 3_001).await?;
    let (address, page_address) = (listener.local_addr()?, admin.local_addr()?);
    require_loopback(page_address)?;
    println!("Listening on {address}. Try:");
    println!(
        "  for i in $(seq 12); do curl -so /dev/null -w '%{{http_code}} ' http://{address}/; done"
    );
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search");
    println!("Then open the page at http://{page_address}/ with the token {shown}");

    let host = env::var("TOLLGATE_ADMIN_HOST").ok();
    let page = router::router(limiters, &token, host.as_deref());
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }).layer(site))
        .route("/search", get(|| async { "found\n" }).layer(search))
        .route("/export", get(export).layer(exports))
        .route("/reports", get(|| async { "a report\n" }).layer(reports));
    // The site and the login use the peer address as the key. This adds it to each request.
    let serve = |listener, app: Router| {
        axum::serve(
            listener,
            app.into_make_service_with_connect_info::<SocketAddr>(),
        )
        .into_future()
    };
    tokio::try_join!(serve(listener, app), serve(admin, page))?;
    Ok(())
}

/// Answers slowly: its slot is held until the end.
async fn export() -> &'static str {
    tokio::time::sleep(Duration::from_secs(60)).await;
    "exported\n"
}

/// Returns the token, and what to print of it: never a token from the environment, because output may end up in
/// a log.
fn token() -> Result<(Token, String), Box<dyn Error>> {
    match env::var("TOLLGATE_ADMIN_TOKEN") {
        Ok(text) if !text.trim().is_empty() => {
            let token = Token::new(&text);
            let token = token.map_err(|error| format!("TOLLGATE_ADMIN_TOKEN: {error}"))?;
            Ok((token, "in the variable TOLLGATE_ADMIN_TOKEN".to_owned()))
        }
        _ => {
            let token = Token::random()?;
            let shown = token.as_str().to_owned();
            Ok((token, shown))
        }
    }
}

/// Refuses an address that other machines can reach: the page has no TLS, so that anyone on the way could read
/// the token and use it.
fn require_loopback(page_address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let allowed = env::var("TOLLGATE_ADMIN_PLAIN_HTTP").is_ok_and(|value| value == "allow");
    if allowed || page_address.ip().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "refusing to serve plain HTTP on {page_address}, where others could read the token on its way: listen on \
         127.0.0.1 and use a tunnel or a proxy with TLS, or set TOLLGATE_ADMIN_PLAIN_HTTP=allow"
    )
    .into())
}
