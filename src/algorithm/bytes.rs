//! The bytes of stored states: whole numbers in as few bytes as they need, one field after the other.
//!
//! Part of the format that [`Counters::to_bytes`](crate::store::protocol::Counters::to_bytes) describes: a change of a field needs a
//! new version there.

use crate::quota::{Algorithm, ShareId};

/// A value that is written as bytes and read back.
pub(crate) trait Bytes {
    fn write(&self, bytes: &mut Vec<u8>);

    /// Takes the value from the front. `None` if the bytes are none of this type.
    fn read(bytes: &mut &[u8]) -> Option<Self>
    where
        Self: Sized;
}

/// Implements [`Bytes`] for a struct, field by field.
macro_rules! impl_bytes {
    ($type:ident $(<$parameter:ident>)? { $($field:tt),* $(; $rest:expr)? }) => {
        impl $(<$parameter: Bytes>)? Bytes for $type $(<$parameter>)? {
            fn write(&self, bytes: &mut Vec<u8>) {
                $(self.$field.write(bytes);)*
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Bytes::read(bytes)?,)* $(..$rest)? })
            }
        }
    };
}

pub(super) use impl_bytes;

impl Bytes for u8 {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.push(*self);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        bytes.split_off_first().copied()
    }
}

/// Seven bits a byte, the lowest first. The highest bit says that another byte follows.
impl Bytes for u64 {
    #[expect(clippy::cast_possible_truncation, reason = "the lowest seven bits")]
    fn write(&self, bytes: &mut Vec<u8>) {
        let mut left = *self;
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let mut value = 0;
        for shift in (0..Self::BITS).step_by(7) {
            let byte = u8::read(bytes)?;
            let part = Self::from(byte & 0x7f);
            let shifted = part << shift;
            if shifted >> shift != part {
                return None;
            }
            value |= shifted;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// Written as a number of 64 bits, which takes no more bytes.
macro_rules! impl_bytes_as_u64 {
    ($($type:ty)*) => {$(
        impl Bytes for $type {
            fn write(&self, bytes: &mut Vec<u8>) {
                u64::from(*self).write(bytes);
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                Self::try_from(u64::read(bytes)?).ok()
            }
        }
    )*};
}

impl_bytes_as_u64!(u16 u32);

impl<const N: usize> Bytes for [u8; N] {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (value, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*value)
    }
}

impl<T: Bytes> Bytes for Vec<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        (self.len() as u64).write(bytes);
        self.iter().for_each(|value| value.write(bytes));
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let length = u64::read(bytes)?;
        // Each value takes a byte or more, so that a length of foreign bytes reserves no memory.
        if length > bytes.len() as u64 {
            return None;
        }
        (0..length).map(|_| T::read(bytes)).collect()
    }
}

impl<T: Bytes> Bytes for Option<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        u8::from(self.is_some()).write(bytes);
        if let Some(value) = self {
            value.write(bytes);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        match u8::read(bytes)? {
            0 => Some(None),
            1 => T::read(bytes).map(Some),
            _ => None,
        }
    }
}

impl<T: Bytes> Bytes for Box<T> {
    fn write(&self, bytes: &mut Vec<u8>) {
        T::write(self, bytes);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        T::read(bytes).map(Self::new)
    }
}

impl Bytes for ShareId {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.bytes().write(bytes);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Bytes::read(bytes).and_then(Self::from_bytes)
    }
}

impl Bytes for Algorithm {
    fn write(&self, bytes: &mut Vec<u8>) {
        let number: u8 = match self {
            Self::SlidingLog => 0,
            Self::SortedSetLog => 1,
            Self::SlidingBuckets(_) => 2,
            Self::SlidingCounter => 3,
            Self::FixedWindow => 4,
            Self::Gcra => 5,
            Self::InFlight => 6,
            Self::Total => 7,
            Self::Held => 8,
        };
        number.write(bytes);
        if let Self::SlidingBuckets(buckets) = self {
            buckets.write(bytes);
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(match u8::read(bytes)? {
            0 => Self::SlidingLog,
            1 => Self::SortedSetLog,
            2 => Self::SlidingBuckets(u16::read(bytes)?),
            3 => Self::SlidingCounter,
            4 => Self::FixedWindow,
            5 => Self::Gcra,
            6 => Self::InFlight,
            7 => Self::Total,
            8 => Self::Held,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: &impl Bytes) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_number_takes_as_many_bytes_as_it_needs_and_is_read_back() {
        for (number, length) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (300, 2),
            (1 << 56, 9),
            (u64::MAX, 10),
        ] {
            let written = bytes(&number);
            assert_eq!(written.len(), length, "{number}");
            let mut rest = &written[..];
            assert_eq!(u64::read(&mut rest), Some(number));
            assert!(rest.is_empty());
            assert_eq!(u64::read(&mut &written[..length - 1]), None);
        }
    }

    #[test]
    fn numbers_that_are_too_large_for_their_type_are_refused() {
        assert_eq!(u16::read(&mut &bytes(&70_000_u64)[..]), None);
        assert_eq!(u32::read(&mut &bytes(&(1_u64 << 32))[..]), None);
        let more_than_64_bits = [[0xff; 9].as_slice(), &[0x02]].concat();
        assert_eq!(u64::read(&mut &more_than_64_bits[..]), None);
        assert_eq!(u64::read(&mut &[0xff; 20][..]), None);
    }

    #[test]
    fn a_list_that_is_longer_than_the_bytes_is_refused() {
        assert_eq!(Vec::<u64>::read(&mut &bytes(&u64::MAX)[..]), None);
        assert_eq!(Vec::<u64>::read(&mut &[2, 7][..]), None);
        assert_eq!(Vec::<u64>::read(&mut &[2, 7, 8][..]), Some(vec![7, 8]));
    }
}
