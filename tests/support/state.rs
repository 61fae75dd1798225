//! Prints what is stored for a limiter and a key. `lua/README.md` describes the bytes.

use std::fmt::Write;

/// Describes a log, a row of counters or the holders of slots, one line for each run, counter or holder. `None` if it is none
/// of them.
pub(crate) fn describe(value: &[u8]) -> Option<String> {
    count(value).or_else(|| holders(value))
}

fn count(value: &[u8]) -> Option<String> {
    let mut rest = value;
    let expires = number(&mut rest, 4)?;
    let text = row(rest).or_else(|| log(rest))?;
    Some(format!("expires at {expires} s\n{text}"))
}

fn holders(value: &[u8]) -> Option<String> {
    let mut text = String::new();
    let mut rest = value.strip_prefix(b"i")?;
    while !rest.is_empty() {
        let [first, second] = [number(&mut rest, 8)?, number(&mut rest, 8)?];
        let sequence = double(&mut rest)?;
        let [slots, lease] = [number(&mut rest, 4)?, number(&mut rest, 4)?];
        let ends = double(&mut rest)?;
        writeln!(
            text,
            "holder {first:016x}{second:016x}, sequence {sequence}: {slots} slots until {ends} us, lease {lease} ms"
        )
        .ok()?;
    }
    (!text.is_empty()).then_some(text)
}

fn log(mut rest: &[u8]) -> Option<String> {
    let mut text = String::new();
    let generation = double(&mut rest)?;
    rest = rest.strip_prefix(b"l")?;
    let (longest, largest) = (double(&mut rest)?, number(&mut rest, 4)?);
    writeln!(
        text,
        "longest window {longest} us, largest limit {largest} in it"
    )
    .ok()?;
    if generation > 0 {
        writeln!(text, "buckets, generation {generation}").ok()?;
    }
    let mut before = number(&mut rest, 4)?;
    while !rest.is_empty() {
        let (time, position) = (double(&mut rest)?, number(&mut rest, 4)?);
        let units = (position + (1 << 32) - before) % (1 << 32);
        writeln!(text, "{units} units at {time} us").ok()?;
        before = position;
    }
    Some(text)
}

fn row(mut rest: &[u8]) -> Option<String> {
    let mut text = String::new();
    let length = usize::try_from(number(&mut rest, 2)?).ok()?;
    let (headers, mut rest) = rest.split_at_checked(length)?;
    // An exact log has zeros here.
    headers.first()?;
    for header in headers.chunks(7) {
        let (code, mut window) = header.split_first()?;
        // A number has eight bytes as a double, or four.
        let (algorithm, names): (_, &[(&str, usize)]) = match code {
            b'f' => ("fixed_window", &[("window", 8), ("count", 4)]),
            b'c' => (
                "sliding_counter",
                &[("window", 8), ("previous", 4), ("count", 4)],
            ),
            b'g' => (
                "gcra",
                &[
                    ("time", 8),
                    ("level", 4),
                    ("rest", 8),
                    ("flowed in", 4),
                    ("rate", 4),
                ],
            ),
            b't' => ("total", &[("count", 4)]),
            _ => return None,
        };
        let window = number(&mut window, 6)?;
        write!(text, "window {window} us: {algorithm}").ok()?;
        for (name, size) in [("generation", 8)].iter().chain(names) {
            let value = match size {
                8 => double(&mut rest)?,
                _ => number(&mut rest, *size)?,
            };
            write!(text, ", {name} {value}").ok()?;
        }
        text.push('\n');
    }
    while !rest.is_empty() {
        let window = number(&mut rest, 6)?;
        let [start, end, units] = [(); 3].map(|()| number(&mut rest, 4));
        writeln!(
            text,
            "window {window} us: {} given back of {} to {}",
            units?, start?, end?
        )
        .ok()?;
    }
    Some(text)
}

/// Takes a number of so many bytes.
fn number(rest: &mut &[u8], bytes: usize) -> Option<u64> {
    let (taken, behind) = rest.split_at_checked(bytes)?;
    *rest = behind;
    let add = |number, byte: &u8| number << 8 | u64::from(*byte);
    Some(taken.iter().fold(0, add))
}

/// Takes a whole number that is stored as a double.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole"
)]
fn double(rest: &mut &[u8]) -> Option<u64> {
    let double = f64::from_bits(number(rest, 8)?);
    (double >= 0.0).then_some(double as u64)
}
