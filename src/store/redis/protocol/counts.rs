//! The values that count the quotas of a check: which quotas share one, and in which order the script has them.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::packed_counter;
use crate::algorithm::{QuotaCheck, time_to_live_millis};
use crate::decision::Holding;
use crate::quota::{Algorithm, Quota, ShareId};
use crate::store::requests::Subject;

/// A value that counts quotas of a limiter and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store::redis) enum Value {
    /// The holders of units, in front of the counts beside which they are held.
    Held,
    /// All counters.
    Row,
    /// All exact logs.
    Log,
    /// The logs of buckets of this length.
    Buckets { length: u64 },
    /// The sorted sets of this window.
    SortedSet { window: u64 },
    /// The holders of the slots of all quotas in flight.
    InFlight,
}

impl Value {
    pub(super) fn new(quota: &Quota, lease: u64) -> Self {
        let window = quota.counted_micros(lease);
        match quota.algorithm() {
            Algorithm::SlidingLog => Self::Log,
            Algorithm::SlidingBuckets(_) => Self::Buckets {
                length: window.div_ceil(quota.algorithm().parts()),
            },
            Algorithm::SortedSetLog => Self::SortedSet { window },
            Algorithm::SlidingCounter
            | Algorithm::FixedWindow
            | Algorithm::Gcra
            | Algorithm::Total => Self::Row,
            Algorithm::InFlight => Self::InFlight,
            Algorithm::Held => Self::Held,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Row => "counters",
            Self::Log | Self::Buckets { .. } => "log",
            Self::SortedSet { .. } => "sorted_set",
            Self::InFlight => "in_flight",
        }
    }

    fn kind_beside_held(self) -> &'static str {
        match self {
            Self::Row => "counters_beside",
            Self::Log | Self::Buckets { .. } => "log_beside",
            // No units are held beside these.
            Self::Held | Self::SortedSet { .. } | Self::InFlight => self.kind(),
        }
    }

    pub(super) fn has_holders(self) -> bool {
        matches!(self, Self::InFlight | Self::Held)
    }

    /// Whether the script of slots decides it, which has no other algorithm.
    pub(super) fn is_decided_with_slots(self) -> bool {
        matches!(self, Self::InFlight | Self::Log | Self::Buckets { .. })
    }

    /// The length of a bucket, or 0.
    pub(super) fn bucket(self) -> u64 {
        match self {
            Self::Buckets { length } => length,
            _ => 0,
        }
    }
}

/// The name of a value of a limiter and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store::redis) struct ValueName {
    pub(super) value: Value,
    /// The window and the number of a soft quota, which has a value of its own.
    pub(super) soft: Option<(u64, u8)>,
}

impl ValueName {
    fn new(quota: &Quota, lease: u64) -> Self {
        Self {
            value: Value::new(quota, lease),
            soft: quota.soft_count(),
        }
    }
}

impl From<Value> for ValueName {
    fn from(value: Value) -> Self {
        Self { value, soft: None }
    }
}

/// The most units of a log that is read whole. Of a longer one, the script reads pages.
const MAX_WHOLE: u32 = 1_000;

/// The quotas of a check that one value counts.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Count<'a> {
    pub(in crate::store::redis) name: ValueName,
    /// In the order of the script, each with its index in the list of the check.
    pub(super) quotas: SmallVec<[(usize, &'a Quota); 1]>,
    /// The share that asks, if a quota of this count has it.
    share: Option<ShareId>,
    /// How much longer than its window a unit counts, in microseconds.
    lease: u64,
    /// The message of the holder that asks for slots or units.
    pub(super) holding: Option<&'a Holding>,
    /// Whether units are held beside it.
    is_beside_held: bool,
    /// How many counts stand beside these units that are held.
    beside: u32,
}

impl<'a> Count<'a> {
    /// Counts of one kind of value have the same order in every list of quotas.
    pub(in crate::store::redis) fn all(subject: Subject<'a>) -> SmallVec<[Self; 1]> {
        let quotas = subject.quotas;
        let lease = subject.lease_micros;
        let mut counts = SmallVec::<[Self; 1]>::new();
        for quota in quotas.iter().enumerate() {
            let name = ValueName::new(quota.1, lease);
            match counts.iter_mut().find(|count| count.name == name) {
                Some(count) => count.quotas.push(quota),
                None => counts.push(Self {
                    name,
                    quotas: SmallVec::from_iter([quota]),
                    share: quotas.share_of_count(quota.1, subject.share, lease),
                    lease,
                    holding: None,
                    is_beside_held: false,
                    beside: 0,
                }),
            }
        }
        for Self { name, quotas, .. } in &mut counts {
            match name.value {
                // The lowest limit first, which charges a counter that several quotas share.
                Value::Row => {
                    quotas.sort_by_key(|(_, quota)| (header(quota, lease), quota.limit()));
                }
                // The longest window first, which decides how long runs are kept.
                _ => quotas.sort_by_key(|(_, quota)| {
                    Reverse((quota.counted_micros(lease), quota.limit()))
                }),
            }
        }
        counts.sort_by_key(|count| count.name);
        counts
    }

    /// Returns the counts of a check with the message of its holder. What is held stands in front of the other counts.
    pub(super) fn with_holders(
        subject: Subject<'a>,
        holding: Option<&'a Holding>,
    ) -> SmallVec<[Self; 1]> {
        let mut counts = Self::all(subject);
        for count in &mut counts {
            count.is_beside_held = subject.quotas.has_held();
            count.holding =
                holding.filter(|_| count.is_beside_held || count.name.value.has_holders());
        }
        if let Some(quota) = subject.quotas.held() {
            let held = Self {
                name: Value::Held.into(),
                quotas: SmallVec::from_iter([(subject.quotas.len(), quota)]),
                share: None,
                lease: 0,
                holding,
                is_beside_held: false,
                beside: u32::try_from(counts.len()).unwrap_or(u32::MAX),
            };
            counts.insert(0, held);
        }
        counts
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.is_beside_held {
            self.name.value.kind_beside_held()
        } else {
            self.name.value.kind()
        }
    }

    /// Returns the limit of a quota of this count, as the script has it: of held units, how many counts stand beside them.
    pub(super) fn script_limit(&self, quota: &Quota) -> u32 {
        if self.name.value == Value::Held {
            self.beside
        } else {
            quota.limit()
        }
    }

    /// Whether checks take units that are held beside it, so that it is not charged.
    pub(super) fn is_held_from(&self) -> bool {
        self.is_beside_held && self.holding.is_some()
    }

    /// Returns the header of a quota of this count, for slots and held units the message of the holder, and then the shares.
    pub(super) fn header(&self, quota: &Quota) -> Header {
        let mut header = match (self.name.value, self.holding) {
            (Value::InFlight | Value::Held, Some(holding)) => message(holding),
            _ => header(quota, self.lease),
        };
        if self.have_shares() {
            if self.name.value == Value::InFlight {
                header.resize(MESSAGE, 0);
            }
            push_shares(self.share, quota, &mut header);
        }
        header
    }

    /// The quotas of a row, those that one counter counts together.
    pub(super) fn by_counter(&self) -> impl Iterator<Item = &[(usize, &'a Quota)]> {
        self.quotas
            .chunk_by(|(_, quota), (_, next)| self.header(quota) == self.header(next))
    }

    fn have_shares(&self) -> bool {
        self.quotas().any(|quota| !quota.share_list().is_none())
    }

    pub(super) fn quotas(&self) -> impl Iterator<Item = &'a Quota> {
        self.quotas.iter().map(|(_, quota)| *quota)
    }

    pub(super) fn quota_check<'q>(&self, quota: &'q Quota, cost: u32, time: u64) -> QuotaCheck<'q> {
        QuotaCheck::new(quota, self.share, self.lease, cost, time)
    }

    pub(super) fn counted_micros(&self, quota: &Quota) -> u64 {
        quota.counted_micros(self.lease)
    }

    pub(super) fn is_soft(&self) -> bool {
        self.name.soft.is_some()
    }

    /// Returns whether the value is read in pages, as the script needs them.
    pub(super) fn is_long(&self) -> bool {
        self.name.value == Value::Log && self.quotas().any(|quota| quota.limit() > MAX_WHOLE)
    }

    /// Returns whether the script does not read the value before it decides.
    pub(super) fn is_apart(&self) -> bool {
        self.is_long() || matches!(self.name.value, Value::SortedSet { .. })
    }

    pub(super) fn ttl_millis(&self) -> u64 {
        let longest = self
            .quotas()
            .map(|quota| quota.longest_counted_micros(self.lease))
            .max();
        time_to_live_millis(longest.unwrap_or_default())
    }

    /// Returns whether the loop of a script may decide a check: it computes in microseconds, not in longer ticks.
    pub(super) fn is_usual(&self) -> bool {
        /// A double holds every integer below this number.
        const EXACT: u64 = 1 << 53;
        let [(_, quota)] = &*self.quotas else {
            return false;
        };
        let parts = u64::from(quota.limit()).saturating_mul(self.counted_micros(quota));
        let is_exact = match quota.algorithm() {
            Algorithm::SlidingCounter | Algorithm::Gcra => parts < EXACT,
            _ => true,
        };
        is_exact
            && !self.name.value.has_holders()
            && !self.is_beside_held
            && !self.is_apart()
            && !self.is_soft()
            && !self.have_shares()
            && quota.calendar().is_none()
            && !quota.is_total()
    }
}

/// The header of a quota in a call.
pub(super) type Header = SmallVec<[u8; 16]>;

/// Returns the bytes that name a counter in its row, or the longest window of a log.
fn header(quota: &Quota, lease: u64) -> Header {
    let window = quota.counted_micros(lease);
    match quota.algorithm() {
        Algorithm::FixedWindow => counter_header(b'f', window),
        Algorithm::SlidingCounter => counter_header(b'c', window),
        Algorithm::Gcra => counter_header(b'g', window),
        // One count for any idle time.
        Algorithm::Total => counter_header(b't', 0),
        Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) => {
            let mut header = Header::new();
            header.push(b'l');
            header.extend_from_slice(&double(window));
            header
        }
        Algorithm::SortedSetLog | Algorithm::InFlight | Algorithm::Held => Header::new(),
    }
}

fn counter_header(code: u8, window: u64) -> Header {
    let [_, _, micros @ ..] = window.to_be_bytes();
    let mut header = Header::new();
    header.push(code);
    header.extend_from_slice(&micros);
    header
}

fn push_shares(asking: Option<ShareId>, quota: &Quota, header: &mut Header) {
    header.extend_from_slice(&asking.map_or([0; 4], ShareId::bytes));
    for share in quota.share_list().iter() {
        header.extend_from_slice(&share.id.bytes());
        for number in [share.reserve, share.most] {
            header.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn double(number: u64) -> [u8; 8] {
    packed_counter::double_bits(number).to_be_bytes()
}

/// The length of a message. In front of shares, one of zeros stands for none.
const MESSAGE: usize = 49;

/// Returns the message of a holder, as `holds.lua` reads it. What the holder wants is the cost.
fn message(holding: &Holding) -> Header {
    let mut message = Header::from_slice(&holding.holder);
    message.extend_from_slice(&double(holding.sequence));
    message.extend_from_slice(&holding.held.to_be_bytes());
    message.extend_from_slice(&holding.lease_millis().to_be_bytes());
    message.extend_from_slice(&double(holding.spent));
    message.extend_from_slice(&double(holding.acknowledged));
    message.push(holding.is_written_if_refused().into());
    message
}
