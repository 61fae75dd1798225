//! Reads a counter as the script stores it. `lua/README.md` describes the bytes.

use crate::algorithm::CountState;
use crate::quota::Algorithm;

/// Takes a counter of a fixed number of fields from the front of bytes. `None` if too few are left, or the algorithm has no
/// such counter; within, `None` if a number is not whole or too large.
#[inline]
pub(super) fn take(algorithm: Algorithm, bytes: &mut &[u8]) -> Option<Option<CountState>> {
    // The sizes of the numbers behind the generation.
    let sizes: &[usize] = match algorithm {
        Algorithm::FixedWindow => &[8, 4],
        Algorithm::SlidingCounter => &[8, 4, 4],
        Algorithm::Gcra => &[8, 4, 8, 4, 4],
        _ => return None,
    };
    let generation = number(bytes.split_off(..8)?);
    let (mut numbers, mut are_whole) = ([0; 5], true);
    for (place, size) in numbers.iter_mut().zip(sizes) {
        match number(bytes.split_off(..*size)?) {
            Some(number) => *place = number,
            None => are_whole = false,
        }
    }
    let numbers = numbers.get(..sizes.len()).filter(|_| are_whole);
    let counter = generation.zip(numbers);
    Some(
        counter.and_then(|(generation, numbers)| {
            CountState::of_counter(algorithm, generation, numbers)
        }),
    )
}

/// Returns the whole number of a double, which has eight bytes, or of an integer of four.
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

/// Returns the bits of the double of a whole number below 2^53.
pub(super) fn double_of(number: u64) -> u64 {
    let Some(exponent) = number.checked_ilog2() else {
        return 0;
    };
    let fraction = number << MANTISSA.saturating_sub(exponent) & ((1 << MANTISSA) - 1);
    (ONE + u64::from(exponent)) << MANTISSA | fraction
}

/// Returns the whole number, below 2^53, of a double with these bits.
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
            assert_eq!(double_of(number), (number as f64).to_bits());
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
        let read = |algorithm, end: usize| {
            let mut bytes = &data[..end];
            take(algorithm, &mut bytes)?.map(|_| bytes.len())
        };
        assert_eq!(read(Algorithm::FixedWindow, 25), Some(5));
        assert_eq!(read(Algorithm::SlidingCounter, 25), Some(1));
        assert_eq!(read(Algorithm::Gcra, 25), None);
        assert_eq!(read(Algorithm::SlidingLog, 25), None);
        for end in 0..20 {
            assert_eq!(read(Algorithm::FixedWindow, end), None);
        }
        let gcra = [&data[..16], &[0; 20]].concat();
        assert!(take(Algorithm::Gcra, &mut &*gcra).unwrap().is_some());
    }
}
