//! What shares of one limit get, alone and together: one with a reserve, one with a bound.

use tollgate::{Error, Key, MemoryStore, Quota, RateLimiter, Share};

use crate::drawing::{Anchor, Drawing, Tone, grouped};

const LIMIT: u32 = 1_000;
const RESERVE: u32 = 200;
const BOUND: u32 = 400;

/// In the order in which they ask, each for the whole limit. `None` belongs to no share.
const ASKING: [Option<&str>; 3] = [Some("export"), None, Some("critical")];

const LEFT: u32 = 8;

/// Returns how many units each gets.
async fn admitted(asking: &[Option<&str>]) -> Result<Vec<u32>, Error> {
    let shares = [
        Share::of("critical").reserve(RESERVE),
        Share::of("export").at_most(BOUND),
    ];
    // An hour in place of a second, so that no unit returns meanwhile.
    let quota = Quota::per_hour(LIMIT).shares(shares);
    let limiter = RateLimiter::new(MemoryStore::new(), quota).name("service");
    let mut admitted = Vec::new();
    for share in asking {
        let mut units = 0;
        for _ in 0..LIMIT {
            let level = limiter.level(Key::global());
            let level = match share {
                Some(share) => level.share(share),
                None => level,
            };
            units += u32::from(RateLimiter::check_all([level]).await?.is_allowed());
        }
        admitted.push(units);
    }
    Ok(admitted)
}

fn name(share: Option<&str>) -> &str {
    share.unwrap_or("others")
}

pub(crate) async fn drawn() -> Result<String, Error> {
    let mut drawing = Drawing::default();
    let title = format!(
        "{} a second: critical ≥ {RESERVE}, export ≤ {BOUND}",
        grouped(LIMIT)
    );
    drawing.title(22, &title);
    let mut y = 44;
    for share in ASKING {
        let text = format!("only {} asks", name(share));
        drawing.text(
            (LEFT, y),
            Anchor::Start,
            Tone::Soft,
            &text.replace("others asks", "others ask"),
        );
        draw(&mut drawing, y + 8, &admitted(&[share]).await?, &[share]);
        y += 56;
    }
    drawing.text(
        (LEFT, y),
        Anchor::Start,
        Tone::Soft,
        "all ask for everything, critical last",
    );
    draw(&mut drawing, y + 8, &admitted(&ASKING).await?, &ASKING);
    Ok(drawing.into_svg(y + 44))
}

/// Draws the limit, and what of it each gets.
fn draw(drawing: &mut Drawing, y: u32, admitted: &[u32], asking: &[Option<&str>]) {
    drawing.bar((LEFT, y), (pixels(LIMIT), 24), Tone::Edge);
    let mut x = LEFT;
    for (units, share) in admitted.iter().zip(asking) {
        let tone = match share {
            Some("critical") => Tone::Bad,
            _ => Tone::Good,
        };
        drawing.bar((x, y), (pixels(*units) - 2, 24), tone);
        // A narrow bar has no room for the name, which its color tells.
        let text = match pixels(*units) {
            0..80 => grouped(*units),
            _ => format!("{} {}", name(*share), grouped(*units)),
        };
        drawing.paper_text((x + 6, y + 17), &text);
        x += pixels(*units);
    }
}

fn pixels(units: u32) -> u32 {
    units * 340 / LIMIT
}
