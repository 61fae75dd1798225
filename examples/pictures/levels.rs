//! Levels against nested layers: who is charged for requests that a tenant's limit refuses.

use tollgate::{Error, Key, MemoryStore, Quota, RateLimiter};

use crate::drawing::{Anchor, Drawing, Tone};

const REQUESTS: u32 = 10;
const TENANT: u32 = 4;

/// The pixels of one charged request.
const UNIT: u32 = 20;
const LEFT: u32 = 70;

struct Limits {
    user: RateLimiter,
    service: RateLimiter,
    tenant: RateLimiter,
}

impl Limits {
    fn new() -> Self {
        let store = MemoryStore::new();
        let limiter = |limit| RateLimiter::new(store.clone(), Quota::per_hour(limit));
        Self {
            user: limiter(100).name("user"),
            service: limiter(1_000).name("service"),
            tenant: limiter(TENANT).name("tenant"),
        }
    }

    fn all(&self) -> [(&'static str, &RateLimiter, Key); 3] {
        [
            ("user", &self.user, Key::from("ada")),
            ("service", &self.service, Key::global()),
            ("tenant", &self.tenant, Key::from("acme")),
        ]
    }

    /// Checks as nested layers do: from the outside to the one that refuses.
    async fn nested(&self) -> Result<(), Error> {
        for (_, limiter, key) in self.all() {
            if !limiter.check(key).await?.is_allowed() {
                break;
            }
        }
        Ok(())
    }

    async fn together(&self) -> Result<(), Error> {
        let levels = self.all().map(|(_, limiter, key)| limiter.level(key));
        RateLimiter::check_all(levels).await.map(drop)
    }

    async fn charged(&self) -> Result<Vec<(&'static str, u32)>, Error> {
        let mut charged = Vec::new();
        for (name, limiter, key) in self.all() {
            charged.push((name, limiter.peek(key).await?.used()));
        }
        Ok(charged)
    }
}

pub(crate) async fn drawn() -> Result<String, Error> {
    let layers = Limits::new();
    let levels = Limits::new();
    for _ in 0..REQUESTS {
        layers.nested().await?;
        levels.together().await?;
    }

    let mut drawing = Drawing::default();
    let title = format!("{REQUESTS} requests, and the tenant may send {TENANT}");
    drawing.title(22, &title);
    let text = "Nested layers: each one on the way is charged";
    drawing.text((8, 52), Anchor::Start, Tone::Ink, text);
    draw(&mut drawing, 64, &layers.charged().await?);
    let text = "Levels of one layer: all are charged, or none";
    drawing.text((8, 164), Anchor::Start, Tone::Ink, text);
    draw(&mut drawing, 176, &levels.charged().await?);
    drawing.bar((LEFT, 262), (10, 10), Tone::Good);
    drawing.text((LEFT + 16, 272), Anchor::Start, Tone::Soft, "served");
    drawing.bar((LEFT + 80, 262), (10, 10), Tone::Bad);
    let text = "refused, yet charged";
    drawing.text((LEFT + 96, 272), Anchor::Start, Tone::Soft, text);
    Ok(drawing.into_svg(284))
}

/// Draws a bar for each limit. What is charged beyond the served requests is lost.
fn draw(drawing: &mut Drawing, top: u32, charged: &[(&str, u32)]) {
    let served = charged.iter().map(|(_, units)| *units).min();
    let served = served.unwrap_or_default();
    let mut y = top;
    for (name, units) in charged {
        drawing.text((LEFT - 8, y + 14), Anchor::End, Tone::Soft, name);
        drawing.bar((LEFT, y), (served * UNIT, 18), Tone::Good);
        let lost = units.saturating_sub(served);
        drawing.bar((LEFT + served * UNIT, y), (lost * UNIT, 18), Tone::Bad);
        let end = LEFT + units * UNIT + 8;
        drawing.text((end, y + 14), Anchor::Start, Tone::Ink, &units.to_string());
        y += 26;
    }
}
