//! Whole numbers in the texts of quotas.

use std::str::FromStr;

/// Accepts digits only, unlike `FromStr`, which accepts a sign.
pub(crate) fn parse_number<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}
