//! An outage of Redis: the deadline, the circuit breaker, the policy and the probe.

use crate::drawing::{Anchor, Drawing, Tone, WIDTH};

/// The phases: Redis answers, checks wait for the deadline, the circuit breaker is open, Redis answers again.
const EDGES: [u32; 5] = [8, 84, 150, 276, WIDTH - 8];

pub(crate) fn drawn() -> String {
    let mut drawing = Drawing::default();
    let [start, down, open, closed, end] = EDGES;
    drawing.title(22, "Redis goes away, and comes back");

    drawing.text((start, 48), Anchor::Start, Tone::Soft, "Redis");
    row(
        &mut drawing,
        56,
        &[
            (start, down, Tone::Good),
            (down, closed - 20, Tone::Bad),
            (closed - 20, end, Tone::Good),
        ],
    );
    drawing.text(
        (start, 98),
        Anchor::Start,
        Tone::Soft,
        "a check waits for it",
    );
    label(&mut drawing, 122, [start, down], "0.1 ms");
    label(&mut drawing, 122, [down, open], "100 ms");
    label(&mut drawing, 122, [open, closed], "not at all");
    label(&mut drawing, 122, [closed, end], "0.1 ms");
    drawing.text((start, 150), Anchor::Start, Tone::Soft, "and is decided by");
    row(
        &mut drawing,
        158,
        &[
            (start, down, Tone::Good),
            (down, closed, Tone::Edge),
            (closed, end, Tone::Good),
        ],
    );
    label(&mut drawing, 196, [start, down], "Redis");
    label(&mut drawing, 196, [down, closed], "the failure policy");
    label(&mut drawing, 196, [closed, end], "Redis");

    // Between the labels of the waits.
    for x in [down, open, closed] {
        drawing.dashed((x, 106), (x, 130), Tone::Soft);
    }
    let notes = [
        (226, "after five failures, the breaker opens"),
        (248, "every 100 to 500 ms, a probe asks Redis"),
        (270, "its answer closes the breaker"),
    ];
    for (y, note) in notes {
        drawing.text((down, y), Anchor::Start, Tone::Ink, note);
    }
    drawing.into_svg(286)
}

fn row(drawing: &mut Drawing, y: u32, phases: &[(u32, u32, Tone)]) {
    for (from, to, tone) in phases {
        drawing.bar((*from, y), (to - from, 20), *tone);
    }
}

fn label(drawing: &mut Drawing, y: u32, [from, to]: [u32; 2], text: &str) {
    drawing.text(((from + to) / 2, y), Anchor::Middle, Tone::Ink, text);
}
