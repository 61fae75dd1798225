//! A page to peek at keys, and to reset, credit and block them: `cargo run --example admin`
//!
//! Beside it a service with limits, on another port. Do what the first lines say. On a Redis, what is
//! done on the page of one process holds in all:
//! `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example admin`, in two terminals.
//! `TOLLGATE_ADMIN_TOKEN` is the token, in place of one that is drawn with each start, and
//! `TOLLGATE_ADMIN_ADDR` where the page is, port 3001 of this machine unless said otherwise.
//! Set `TOLLGATE_ADMIN_HOST` if requests name another host than an address or `localhost`.

mod login;
mod page;
mod router;
#[path = "../support/mod.rs"]
mod support;

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::{env, io};

use axum::{Router, routing::get};
use tollgate::{Quota, RateLimitLayer, key, store};

/// Tells about any key that makes up a hundredth of all refusals.
const TRACKED: NonZeroUsize = NonZeroUsize::new(100).expect("more than none");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    let store = store::from_url(&url)?;

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

    // Two listeners: who reaches the service does not reach the page.
    let listener = support::listen().await?;
    let admin = support::listen_by("TOLLGATE_ADMIN_ADDR", 3_001).await?;
    let (address, of_page) = (listener.local_addr()?, admin.local_addr()?);
    println!("Listening on {address}. Try:");
    println!(
        "  for i in $(seq 12); do curl -so /dev/null -w '%{{http_code}} ' http://{address}/; done"
    );
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search");
    let token = token()?;
    println!(
        "Then look after the keys at http://{of_page}/ with the token {}",
        token.shown()
    );

    let host = env::var("TOLLGATE_ADMIN_HOST").ok();
    let page = router::router(limiters, token.text(), host.as_deref());
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }).layer(site))
        .route("/search", get(|| async { "found\n" }).layer(search));
    // Both count by address, which axum tells only so.
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

/// The token, and whether it was drawn here.
struct Token {
    text: String,
    is_drawn: bool,
}

fn token() -> Result<Token, getrandom::Error> {
    if let Ok(text) = env::var("TOLLGATE_ADMIN_TOKEN")
        && !text.trim().is_empty()
    {
        let text = text.trim().to_owned();
        return Ok(Token {
            text,
            is_drawn: false,
        });
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    let text = format!("{:032x}", u128::from_ne_bytes(bytes));
    Ok(Token {
        text,
        is_drawn: true,
    })
}

impl Token {
    fn text(&self) -> &str {
        &self.text
    }

    /// The text that may be printed to a terminal, which may be a log.
    fn shown(&self) -> &str {
        if self.is_drawn {
            &self.text
        } else {
            "in TOLLGATE_ADMIN_TOKEN"
        }
    }
}
