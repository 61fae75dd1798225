//! The units that count while requests reserve an estimate and settle, one of them far above it.

use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{Error, MemoryStore, Quota, RateLimiter};

use crate::drawing::{Anchor, Drawing, Tone, grouped};

const LIMIT: u32 = 10_000;
const ESTIMATE: u32 = 1_000;
const USED: u32 = 640;
const OVERRUN: u32 = 12_000;

/// The seconds of the picture.
const END: u32 = 110;
const FIRST_SETTLED: u32 = 12;
const SECOND_RESERVED: u32 = 20;
const SECOND_SETTLED: u32 = 35;

const LEFT: u32 = 56;
const BOTTOM: u32 = 250;

#[derive(Clone, Copy)]
struct Moment {
    used: u32,
    is_refused: bool,
}

/// Returns what counts in each second.
async fn counted() -> Result<Vec<Moment>, Error> {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let tokens = RateLimiter::new(store, Quota::per_minute(LIMIT)).name("tokens");
    let mut moments = Vec::new();
    let mut reserved = Some(tokens.check_n("team", ESTIMATE).await?);
    for second in 0..=END {
        match second {
            FIRST_SETTLED => settle(reserved.take(), USED).await?,
            SECOND_RESERVED => reserved = Some(tokens.check_n("team", ESTIMATE).await?),
            SECOND_SETTLED => settle(reserved.take(), OVERRUN).await?,
            _ => {}
        }
        let looked = tokens.peek("team").await?;
        moments.push(Moment {
            used: looked.used(),
            is_refused: looked.remaining() < ESTIMATE,
        });
        clock.advance(Duration::from_secs(1));
    }
    Ok(moments)
}

async fn settle(reserved: Option<tollgate::Decision>, used: u32) -> Result<(), Error> {
    match reserved {
        Some(decision) => decision.settle(used).await,
        None => Ok(()),
    }
}

fn x(second: u32) -> u32 {
    LEFT + second * 270 / END
}

fn y(units: u32) -> u32 {
    BOTTOM - units * 150 / OVERRUN
}

pub(crate) async fn drawn() -> Result<String, Error> {
    let moments = counted().await?;
    let mut drawing = Drawing::default();
    let title = format!("{} tokens a minute: what counts", grouped(LIMIT));
    drawing.title(22, &title);

    let refused: Vec<_> = (0..)
        .zip(&moments)
        .filter(|(_, moment)| moment.is_refused)
        .map(|(second, _)| second)
        .collect();
    if let [first, .., last] = refused.as_slice() {
        let width = x(last + 1) - x(*first);
        drawing.bar((x(*first), 72), (width, BOTTOM - 72), Tone::Edge);
        let text = format!("refused, for {} s", last + 1 - first);
        drawing.text(
            (x(*first) + 6, BOTTOM - 12),
            Anchor::Start,
            Tone::Ink,
            &text,
        );
    }
    for units in [0, LIMIT] {
        drawing.dashed((LEFT, y(units)), (x(END), y(units)), Tone::Soft);
        drawing.text(
            (LEFT - 6, y(units) + 4),
            Anchor::End,
            Tone::Soft,
            &grouped(units),
        );
    }
    let mut before = 0;
    for (second, moment) in (0..).zip(&moments) {
        drawing.line(
            (x(second), y(before)),
            (x(second), y(moment.used)),
            Tone::Good,
        );
        drawing.line(
            (x(second), y(moment.used)),
            (x(second + 1), y(moment.used)),
            Tone::Good,
        );
        before = moment.used;
    }
    for second in (0..=END).step_by(30) {
        let text = format!("{second} s");
        drawing.text((x(second), BOTTOM + 18), Anchor::Middle, Tone::Soft, &text);
    }
    let notes = [
        (
            50,
            x(0),
            format!(
                "{} reserved, {USED} used: the rest returns",
                grouped(ESTIMATE)
            ),
        ),
        (
            66,
            x(0),
            format!(
                "{} reserved, {} used: all is charged",
                grouped(ESTIMATE),
                grouped(OVERRUN)
            ),
        ),
    ];
    for (y, x, note) in notes {
        drawing.text((x, y), Anchor::Start, Tone::Ink, &note);
    }
    Ok(drawing.into_svg(BOTTOM + 30))
}
