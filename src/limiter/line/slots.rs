//! The lines as the table of permits knows them, which takes in the answers about slots.

use std::sync::Weak;

use tokio::time::Instant;

use super::lines::{LINES, LineKey, Room, State, Ticket, Want, Wants, Woken};
use super::place::Presence;

/// Returns the ticket of a call that does not wait.
pub(in crate::limiter) fn ticket() -> Ticket {
    LINES.ticket()
}

/// Returns whether an earlier call waits for any of these keys.
pub(in crate::limiter) fn is_behind(ticket: Ticket, wants: &Wants, may_wait: bool) -> bool {
    let is_behind = |lines: &mut State| lines.is_behind(ticket, wants, may_wait);
    !LINES.are_empty() && LINES.change(is_behind).0
}

/// Takes in the answer to a call: what it left of each key, and which of them have refused it. A refused call that may wait
/// stands in line from now on, if it is there.
pub(in crate::limiter) fn take_in(
    ticket: Ticket,
    answers: &[(Want, Option<Room>, bool)],
    presence: Option<&Weak<Presence>>,
) -> Woken {
    let is_refused = answers.iter().any(|(.., is_refused)| *is_refused);
    if LINES.are_empty() && !(is_refused && presence.is_some()) {
        return Woken::default();
    }
    let now = Instant::now();
    let ((), woken) = LINES.change(|lines| {
        let waits = presence.is_some_and(|presence| presence.strong_count() > 0);
        lines.take_in(ticket, answers, waits, now);
    });
    woken
}

/// Takes in that slots of a key were given back. Returns whether a call of this process asks for them now. If other processes
/// share the slots, they get one from time to time.
pub(in crate::limiter) fn returned(key: LineKey, slots: u32, is_shared: bool) -> (bool, Woken) {
    if LINES.are_empty() {
        return (false, Woken::default());
    }
    let now = Instant::now();
    LINES.change(|lines| lines.returned_slots(key, slots, is_shared, now))
}
