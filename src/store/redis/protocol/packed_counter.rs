//! Reads a counter as the script stores it. `lua/README.md` describes the bytes.

use crate::algorithm::CountState;
use crate::quota::Algorithm;

/// A counter at the front of bytes.
pub(super) enum TakenCounter {
    Counter(CountState),
    /// A number is not whole, or too large. What follows can be read.
    Nonsense,
    /// Too few bytes are left, or the algorithm has no such counter.
    Missing,
}

/// Takes a counter of a fixed number of fields from the front of bytes.
#[inline]
pub(super) fn take(algorithm: Algorithm, bytes: &mut &[u8]) -> TakenCounter {
    // The sizes of the numbers behind the generation.
    let sizes: &[usize] = match algorithm {
        Algorithm::FixedWindow => &[8, 4],
        Algorithm::SlidingCounter => &[8, 4, 4],
        Algorithm::Gcra => &[8, 4, 8, 4, 4],
        Algorithm::Total => &[4],
        _ => return TakenCounter::Missing,
    };
    let length = GENERATION + sizes.iter().sum::<usize>();
    let Some(fields) = bytes.split_off(..length) else {
        return TakenCounter::Missing;
    };
    match parse(algorithm, sizes, fields) {
        Some(counter) => TakenCounter::Counter(counter),
        None => TakenCounter::Nonsense,
    }
}

/// The size of a generation in bytes.
const GENERATION: usize = 8;

#[inline]
fn parse(algorithm: Algorithm, sizes: &[usize], mut fields: &[u8]) -> Option<CountState> {
    let generation = number(fields.split_off(..GENERATION)?)?;
    let mut numbers = [0; 5];
    for (place, size) in numbers.iter_mut().zip(sizes) {
        *place = number(fields.split_off(..*size)?)?;
    }
    CountState::from_counter(algorithm, generation, numbers.get(..sizes.len())?)
}

/// The whole number of a double, which has eight bytes, or of an integer of four.
#[inline]
fn number(field: &[u8]) -> Option<u64> {
    match field.try_into() {
        Ok(double) => whole(u64::from_be_bytes(double)),
        Err(_) => Some(u32::from_be_bytes(field.try_into().ok()?).into()),
    }
}

/// The bits of the mantissa that a double stores, and its exponent of 1.
const MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;
const ONE: u64 = 1_023;

/// The bits of the double of a whole number below 2^53.
pub(super) fn double_bits(number: u64) -> u64 {
    let Some(exponent) = number.checked_ilog2() else {
        return 0;
    };
    let fraction = number << MANTISSA.saturating_sub(exponent) & ((1 << MANTISSA) - 1);
    (ONE + u64::from(exponent)) << MANTISSA | fraction
}

/// `None` if the double with these bits is no whole number below 2^53.
fn whole(bits: u64) -> Option<u64> {
    let exponent = bits >> MANTISSA;
    let fraction = bits & ((1 << MANTISSA) - 1) | 1 << MANTISSA;
    match (bits, (ONE + u64::from(MANTISSA)).checked_sub(exponent)) {
        (0, _) => Some(0),
        (_, Some(shift)) if exponent >= ONE => {
            let number = fraction >> shift;
            (number << shift == fraction).then_some(number)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_double_is_a_whole_number_below_2_53_or_none() {
        #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
        for number in [0, 1, 2, 3, 5, 1_795_300_000_000_001, (1 << 53) - 1] {
            assert_eq!(whole((number as f64).to_bits()), Some(number));
            assert_eq!(double_bits(number), (number as f64).to_bits());
        }
        for number in [
            0.5,
            -1.0,
            -0.0,
            1.5,
            9_007_199_254_740_992.0,
            f64::NAN,
            f64::INFINITY,
        ] {
            assert_eq!(whole(number.to_bits()), None, "{number}");
        }
    }

    #[test]
    fn a_counter_is_read_with_all_its_fields_or_not_at_all() {
        let mut data = Vec::new();
        for double in [7.0_f64, 3.0] {
            data.extend(double.to_be_bytes());
        }
        data.extend([0, 0, 0, 2, 0, 0, 1, 0, 9]);
        assert_eq!(left(Algorithm::FixedWindow, &data[..25]), Some(5));
        assert_eq!(left(Algorithm::SlidingCounter, &data[..25]), Some(1));
        assert_eq!(left(Algorithm::Gcra, &data[..25]), None);
        assert_eq!(left(Algorithm::SlidingLog, &data[..25]), None);
        for end in 0..20 {
            assert_eq!(left(Algorithm::FixedWindow, &data[..end]), None);
        }
        let gcra = [&data[..16], &[0; 20]].concat();
        assert_eq!(left(Algorithm::Gcra, &gcra), Some(0));
    }

    /// How many bytes are left behind the counter.
    fn left(algorithm: Algorithm, mut bytes: &[u8]) -> Option<usize> {
        match take(algorithm, &mut bytes) {
            TakenCounter::Counter(_) => Some(bytes.len()),
            TakenCounter::Nonsense | TakenCounter::Missing => None,
        }
    }
}
