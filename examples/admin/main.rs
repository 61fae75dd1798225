//! A web page for operators, to look up, reset, credit and block keys: `cargo run --example admin`
//!
//! It runs a service with limits on one port and the page on another. With a Redis, a change on the page
//! applies to all processes: run `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example admin` in two
//! terminals.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TOLLGATE_ADMIN_TOKEN` | the token for the page | random at each start, and printed |
//! | `TOLLGATE_ADMIN_ADDR` | the address of the page | port 3001 of this machine |
//! | `TOLLGATE_ADMIN_HOST` | a host name that requests for the page may have | an IP address or `localhost` only |

mod login;
mod page;
mod router;
#[path = "../support/store.rs"]
mod store;
#[path = "../support/mod.rs"]
mod support;

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::{env, io};

use axum::{Router, routing::get};
use tollgate::{Quota, RateLimitLayer, key};

/// How many keys each limiter tracks. With 100, every key that causes more than 1 % of the refusals is listed.
const TRACKED: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let store = store::open(|redis| redis.prefix("shop"))?;

    let site = RateLimitLayer::new(store.clone(), "10/hour".parse::<Quota>()?)
        .name("site")
        .track_refused(TRACKED);
    let search = RateLimitLayer::new(store, [Quota::per_second(5), Quota::per_hour(1_000)])
        .name("search")
        .key(key::header("x-api-key"))
        .track_refused(TRACKED);
    let limiters = [&site, &search].map(|layer| layer.limiter().admin());
    let limiters = ["site", "search"]
        .map(str::to_owned)
        .into_iter()
        .zip(limiters);

    // Two listeners, so that clients of the service cannot reach the page.
    let listener = support::listen().await?;
    let admin = support::listen_by("TOLLGATE_ADMIN_ADDR", 3_001).await?;
    let (address, page_address) = (listener.local_addr()?, admin.local_addr()?);
    println!("Listening on {address}. Try:");
    println!(
        "  for i in $(seq 12); do curl -so /dev/null -w '%{{http_code}} ' http://{address}/; done"
    );
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search");
    let token = token()?;
    println!(
        "Then open the page at http://{page_address}/ with the token {}",
        token.shown()
    );

    let host = env::var("TOLLGATE_ADMIN_HOST").ok();
    let page = router::router(limiters, token.text(), host.as_deref());
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }).layer(site))
        .route("/search", get(|| async { "found\n" }).layer(search));
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

struct Token {
    text: String,
    is_generated: bool,
}

fn token() -> Result<Token, getrandom::Error> {
    if let Ok(text) = env::var("TOLLGATE_ADMIN_TOKEN")
        && !text.trim().is_empty()
    {
        let text = text.trim().to_owned();
        return Ok(Token {
            text,
            is_generated: false,
        });
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    let text = format!("{:032x}", u128::from_ne_bytes(bytes));
    Ok(Token {
        text,
        is_generated: true,
    })
}

impl Token {
    fn text(&self) -> &str {
        &self.text
    }

    /// Returns what to print: never a token from the environment, because output may end up in a log.
    fn shown(&self) -> &str {
        if self.is_generated {
            &self.text
        } else {
            "in the variable TOLLGATE_ADMIN_TOKEN"
        }
    }
}
