//! Prints what is stored for a limiter and a key. `lua/README.md` describes the bytes.

use std::fmt::Write;

/// The length of a section's header.
const HEADER: usize = 11;

/// The runs of a segment.
const SEGMENT: usize = 64;

/// Describes a value, one line for each count. `None` if it is not of this format.
pub(crate) fn describe(value: &[u8]) -> Option<String> {
    let (expires, mut rest) = split(value, 4)?;
    let mut text = format!("expires at {} s\n", number(expires));
    let mut headers = Vec::new();
    loop {
        let (header, behind) = split(rest, HEADER)?;
        rest = behind;
        let length = number(&header[9..]);
        headers.push((header, usize::try_from(length).ok()?));
        if length == 0 {
            break;
        }
    }
    for (header, length) in headers {
        let length = if length == 0 { rest.len() } else { length };
        let (data, behind) = split(rest, length)?;
        let (window, buckets) = (number(&header[1..7]), number(&header[7..9]));
        let count = match header[0] {
            b'l' => log(data, window)?,
            b'f' => numbers("fixed_window", data, &["window", "count"], "dd4")?,
            b'c' => {
                let names = ["window", "previous", "count"];
                numbers("sliding_counter", data, &names, "dd44")?
            }
            b'b' => format!("{}, {buckets} a window", self::buckets(data)?),
            b'g' => {
                let names = ["time", "level", "rest", "flowed in", "rate"];
                numbers("gcra", data, &names, "dd4d44")?
            }
            b'j' => journal(data)?,
            _ => return None,
        };
        writeln!(text, "window {window} us: {count}").ok()?;
        rest = behind;
    }
    Some(text)
}

fn log(data: &[u8], window: u64) -> Option<String> {
    let (_, rest) = split(data, 16)?;
    let list = number(&data[8..12]);
    let width = if window > 1 << 30 { 6 } else { 4 };
    let mut text = String::from("sliding_log");
    if list < 2 {
        runs(&mut text, data, rest, width, list == 1)?;
        return Some(text);
    }
    let (form, rest) = split(rest, 1)?;
    let has_unit_runs = form[0] > 1;
    let run = if has_unit_runs { width } else { width + 4 };
    let (segment, newest) = split(rest, 16 + SEGMENT * run)?;
    runs(&mut text, segment, &segment[16..], width, has_unit_runs)?;
    write!(text, ", then a list until {list} s").ok()?;
    runs(&mut text, data, newest, width, form[0] % 2 == 1)?;
    Some(text)
}

/// Describes runs whose first 16 bytes are `head`. The times of runs have `width` bytes.
fn runs(
    text: &mut String,
    head: &[u8],
    mut rest: &[u8],
    width: usize,
    has_unit_runs: bool,
) -> Option<()> {
    let (base, mut before) = (double(&head[..8])?, number(&head[12..16]));
    while !rest.is_empty() {
        let (time, behind) = split(rest, width)?;
        let time = base + number(time);
        let (position, behind) = if has_unit_runs {
            ((before + 1) % (1 << 32), behind)
        } else {
            let (position, behind) = split(behind, 4)?;
            (number(position), behind)
        };
        let units = (position + (1 << 32) - before) % (1 << 32);
        write!(text, ", {units} at {time}").ok()?;
        (before, rest) = (position, behind);
    }
    Some(())
}

/// The newest units of all logs.
fn journal(data: &[u8]) -> Option<String> {
    let (base, mut rest) = split(data, 8)?;
    let (base, mut text) = (double(base)?, String::from("journal"));
    while !rest.is_empty() {
        let (time, behind) = split(rest, 4)?;
        write!(text, ", 1 at {}", base + number(time)).ok()?;
        rest = behind;
    }
    Some(text)
}

fn buckets(data: &[u8]) -> Option<String> {
    let (head, mut rest) = split(data, 20)?;
    let base = double(&head[8..16])?;
    let mut text = format!("sliding_buckets, generation {}", double(&head[..8])?);
    while !rest.is_empty() {
        let (bucket, behind) = split(rest, 6)?;
        let (later, count) = (number(&bucket[..2]), number(&bucket[2..]));
        write!(text, ", {count} in bucket {}", base + later).ok()?;
        rest = behind;
    }
    Some(text)
}

/// Describes numbers, the first of which is a generation: `d` for a double, `4` for four bytes.
fn numbers(algorithm: &str, data: &[u8], names: &[&str], form: &str) -> Option<String> {
    let (mut rest, mut text) = (data, String::from(algorithm));
    for (name, form) in std::iter::once(&"generation")
        .chain(names)
        .zip(form.chars())
    {
        let (field, behind) = split(rest, if form == 'd' { 8 } else { 4 })?;
        let value = if form == 'd' {
            double(field)?
        } else {
            number(field)
        };
        write!(text, ", {name} {value}").ok()?;
        rest = behind;
    }
    while !rest.is_empty() {
        let (hole, behind) = split(rest, 12)?;
        let [start, end, units] = [&hole[..4], &hole[4..8], &hole[8..]].map(number);
        write!(text, ", {units} given back of {start} to {end}").ok()?;
        rest = behind;
    }
    Some(text)
}

fn split(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8])> {
    (at > 0).then(|| bytes.split_at_checked(at)).flatten()
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A whole number that is stored as a double.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole"
)]
fn double(bytes: &[u8]) -> Option<u64> {
    let double = f64::from_be_bytes(bytes.try_into().ok()?);
    (double >= 0.0).then_some(double as u64)
}
