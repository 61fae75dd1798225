//! The rules of form for errors and log lines.

use crate::sources::Text;

/// Returns the rule that a text breaks.
pub(crate) fn broken(_text: &Text) -> Option<&'static str> {
    None
}
