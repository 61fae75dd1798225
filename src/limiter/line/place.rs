//! The place of a call in its lines: waits for its turn, and takes in what its attempt has brought.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::line_key::LineKey;
pub(crate) use super::lines::Want;
use super::lines::{
    LINES, LinesState, MAX_STEP, Refusal, RefusedCall, Room, SlotWait, TooLate, Turn, WaitBounds,
    Wants, WhyTooLate, Woken,
};
use super::standing::Ticket;
use crate::decision::{LevelDecision, Record, Source};
use crate::key::{Fingerprint, Key};
use crate::limiter::decision::DecisionView;
use crate::limiter::limiter::RateLimiter;
use crate::limiter::record::OwnedRecord;
use crate::quota::{Quotas, ShareId};
use crate::random::random;
use crate::store::Subject;
use crate::telemetry::{PermitMeter, PermitWait};

/// Longer than any call waits.
const FOREVER: Duration = Duration::from_secs(36_525 * 86_400);

/// The place of a call that may wait. It leaves its lines when this is dropped.
pub(crate) struct Place {
    pub(in crate::limiter) ticket: Ticket,
    since: Instant,
    bounds: WaitBounds,
    is_in_line: bool,
    timer: Option<Pin<Box<Sleep>>>,
    /// The wait for slots. `None` if the call takes none. As long as it is there, answers may let the call stand in line.
    for_slots: Option<Arc<PermitWait>>,
}

impl Want {
    /// A share of the quotas has a line of its own.
    pub(crate) fn new(owned: &OwnedRecord) -> Self {
        let limiter = &owned.limiter;
        let Record {
            key,
            cost,
            slots,
            share,
            is_held,
            ..
        } = &owned.record;
        let quotas = owned.quotas();
        let share = *share;
        let line = LineKey::new(limiter, key, quotas.known_share(share));
        let has_slots = quotas.has_slots();
        // Units that are held come back at any time, as slots do.
        let needs = Room {
            units: quotas
                .rates()
                .next()
                .map_or(0, |_| if *is_held { 0 } else { *cost }),
            slots: match (has_slots, *is_held) {
                (true, _) => *slots,
                (false, true) => *cost,
                (false, false) => 0,
            },
        };
        let slots_of = (has_slots || *is_held).then(|| {
            let fingerprint = Subject::new(&limiter.0.scope, key, quotas).fingerprint();
            Self::table_id(fingerprint, quotas.known_slot_share(share))
        });
        Self {
            line,
            needs,
            slots_of,
        }
    }

    /// The id of a key in the table of permits: each share of a process is a holder, with messages of its own.
    pub(in crate::limiter) fn table_id(key: Fingerprint, share: Option<ShareId>) -> Fingerprint {
        share.map_or(key, |share| {
            let number = u32::from_be_bytes(share.bytes());
            Fingerprint::of_number(number.into()).within(key)
        })
    }
}

impl LineKey {
    fn new(limiter: &RateLimiter, key: &Key, share: Option<ShareId>) -> Self {
        Self {
            limiter: limiter.0.facts.id,
            key: key.fingerprint(),
            share,
        }
    }
}

pub(in crate::limiter) fn wake_first(limiter: &RateLimiter, key: &Key, quotas: &Quotas) {
    change_lines(limiter, key, quotas, |lines, key| {
        lines.returned(key, Instant::now());
    });
}

pub(in crate::limiter) fn forget_room(limiter: &RateLimiter, key: &Key, quotas: &Quotas) {
    change_lines(limiter, key, quotas, LinesState::forget_room);
}

fn change_lines(
    limiter: &RateLimiter,
    key: &Key,
    quotas: &Quotas,
    change: impl Fn(&mut LinesState, LineKey),
) {
    if LINES.are_empty() {
        return;
    }
    LINES.with(|lines| {
        for share in quotas.shares_and_none() {
            change(lines, LineKey::new(limiter, key, share));
        }
    });
}

impl Place {
    pub(crate) fn new(
        max_wait: Duration,
        max_calls: Option<usize>,
        longest_attempt: Duration,
    ) -> Self {
        let since = Instant::now();
        Self {
            ticket: LINES.ticket(),
            since,
            bounds: WaitBounds {
                until: since + max_wait.min(FOREVER),
                max_calls: max_calls.unwrap_or(usize::MAX),
                longest_attempt,
            },
            is_in_line: false,
            timer: None,
            for_slots: None,
        }
    }

    pub(crate) fn waits_for_slots(&mut self, limiters: impl IntoIterator<Item = PermitMeter>) {
        self.for_slots = Some(Arc::new(PermitWait::begin(limiters)));
    }

    pub(in crate::limiter) fn slot_wait(&self) -> Option<SlotWait> {
        let wait = self.for_slots.as_ref()?;
        Some(SlotWait {
            wait: Arc::downgrade(wait),
            bounds: self.bounds,
        })
    }

    pub(crate) async fn turn(
        &mut self,
        wants: impl IntoIterator<Item = Want>,
    ) -> Result<(), TooLate> {
        if !self.is_in_line && !LINES.are_empty() {
            self.enter(wants);
        }
        if self.is_in_line {
            poll_fn(|cx| self.poll_turn(cx)).await
        } else {
            Ok(())
        }
    }

    fn enter(&mut self, wants: impl IntoIterator<Item = Want>) {
        self.is_in_line = LINES.with(|lines| {
            let wants: Wants = wants
                .into_iter()
                .filter(|want| lines.may_wait_for(want))
                .collect();
            let has_line = lines.has_line(&wants);
            if has_line {
                lines.join(self.ticket, wants, self.bounds, Instant::now());
            }
            has_line
        });
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TooLate>> {
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        let ticket = self.ticket;
        loop {
            let now = Instant::now();
            let at = match LINES.with(|lines| lines.poll(ticket, cx.waker(), runtime, now)) {
                Turn::Ask => return Poll::Ready(Ok(())),
                Turn::TooLate(too_late) => return Poll::Ready(Err(too_late)),
                Turn::Wait(at) => at,
            };
            if runtime.is_none() && self.for_slots.is_some() {
                // There are no timers. It is woken when this process gives slots back.
                return Poll::Pending;
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            timer.as_mut().reset(at);
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    pub(crate) fn admitted(&mut self, decision: &DecisionView) {
        if let Some(wait) = self.for_slots.take() {
            wait.succeed(self.since.elapsed());
        }
        self.is_in_line = false;
        if LINES.are_empty() {
            return;
        }
        let left: SmallVec<[_; 2]> = decision
            .wants()
            .zip(decision.levels())
            // The slots that are left were taken in with the answer.
            .filter(|(want, _)| want.slots_of.is_none())
            .map(|(want, level)| {
                let left = level
                    .quotas()
                    .map(|quota| (quota.quota().is_in_flight(), quota.remaining()));
                (want, Some(Room::from_quotas(left, level.has_held())), None)
            })
            .collect();
        LINES.take_in(self.ticket, &left, None, &mut Woken::default());
    }

    /// Takes in that an attempt was refused. The call waits for its next turn, or fails: then the refusal stands.
    pub(crate) fn refused(&mut self, decision: &DecisionView) -> Result<(), WhyTooLate> {
        let now = Instant::now();
        let mut wants = Wants::new();
        let mut refusals: SmallVec<[_; 2]> = SmallVec::new();
        let mut with_room = Wants::new();
        for (want, level) in decision.wants().zip(decision.levels()) {
            let is_refused = level.is_asked() && !level.is_allowed();
            if !want.needs.is_any() && !is_refused {
                continue;
            }
            wants.push(want);
            if is_refused {
                refusals.push((want, self.refusal(level, now)));
            } else if level.is_asked() {
                with_room.push(want);
            }
        }
        let mut fits_at = refusals
            .iter()
            .filter_map(|(_, refusal)| refusal.fits_at)
            .max();
        if fits_at.is_some() {
            // Meanwhile, others may have its other keys.
            refusals.retain(|(_, refusal)| refusal.fits_at.is_some());
        }
        if decision.retry_after().is_none() || self.bounds.until < fits_at.unwrap_or(now) {
            return Err(WhyTooLate::TurnTooLate);
        }
        // All processes see the end of a pause in the same moment.
        let longest_step = refusals
            .iter()
            .filter_map(|(_, refusal)| refusal.step)
            .max();
        if let (Some(fits_at), Some(step)) = (&mut fits_at, longest_step) {
            *fits_at += step.saturating_mul(random()) / u32::MAX;
        }
        self.is_in_line = true;
        let refused = RefusedCall {
            wants,
            bounds: self.bounds,
            refusals: &refusals,
            with_room: &with_room,
            fits_at,
        };
        LINES.with(|lines| lines.stand_refused(self.ticket, refused, now))
    }

    /// Leaves the lines, for a call that waits for something else. It may enter them again, at the same place.
    pub(crate) fn leave(&mut self) {
        self.is_in_line = false;
        if !LINES.are_empty() {
            LINES.with(|lines| lines.leave(self.ticket, Instant::now()));
        }
    }

    /// A refusal has no time if only slots are missing.
    fn refusal(&self, level: LevelDecision<'_>, now: Instant) -> Refusal {
        let is_paused = matches!(level.source(), Source::Paused | Source::Exhausted);
        let is_blocked = is_paused || level.source() == Source::Block;
        let longest = level
            .quotas()
            .filter(|quota| !quota.is_allowed() && (is_blocked || !quota.is_wait_estimated()))
            .max_by_key(|quota| quota.retry_after());
        let wait = longest.and_then(|quota| quota.retry_after());
        let rate = longest.map(|quota| (quota.limit(), quota.quota().window()));
        Refusal {
            ticket: self.ticket,
            fits_at: wait.and_then(|wait| now.checked_add(wait)),
            rate: rate.filter(|_| !is_blocked),
            step: is_paused.then(|| time_between_units(level)),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A call for slots stands in line before it knows, by an answer that is taken in before the lock here, or not at all.
        if self.for_slots.take().is_some() || !LINES.are_empty() {
            LINES.with(|lines| lines.leave(self.ticket, Instant::now()));
        }
    }
}

/// By the fastest rate of the level: the slower ones still allow a burst.
fn time_between_units(level: LevelDecision<'_>) -> Duration {
    level
        .quotas()
        .map(|quota| quota.quota())
        .filter(|quota| quota.is_rate())
        .filter_map(|quota| quota.window().checked_div(quota.limit()))
        .min()
        .unwrap_or_default()
        .min(MAX_STEP)
}

impl Room {
    /// A level without quotas needs nothing, and neither does a cost of 0.
    pub(super) fn is_any(self) -> bool {
        self.units > 0 || self.slots > 0
    }

    /// The least that is left of any quota, each of which `is_in_flight` or a rate. Without rates, or without slots, it is any
    /// number of them. Where units `are_held`, these are the slots.
    pub(in crate::limiter) fn from_quotas(
        quotas: impl IntoIterator<Item = (bool, u32)>,
        are_held: bool,
    ) -> Self {
        let mut room = Self {
            units: u32::MAX,
            slots: u32::MAX,
        };
        for (is_in_flight, left) in quotas {
            if is_in_flight || are_held {
                room.slots = left.min(room.slots);
            }
            if !is_in_flight {
                room.units = left.min(room.units);
            }
        }
        room
    }
}
