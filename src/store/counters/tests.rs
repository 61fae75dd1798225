//! The counts of a key, of several quotas, by the public methods of `Counters`.

use super::*;
use crate::key::Key;
use crate::quota::Quotas;
use crate::store::requests::Subject;

const NOW: u64 = 1_700_000_000_000_000;
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

struct Counted {
    limiter: Key,
    key: Key,
    /// The share that asks. Of another name than any share if none does.
    share: &'static str,
    counters: Counters,
}

impl Counted {
    fn new() -> Self {
        Self {
            limiter: Key::from("search"),
            key: Key::from("ada"),
            share: "",
            counters: Counters::new(),
        }
    }

    fn check(&mut self, quotas: &Quotas, cost: u32, now: u64) -> Answer {
        let check = Subject::new(&self.limiter, &self.key, quotas)
            .in_share(self.share)
            .check(cost);
        self.counters.check(check, Source::Other, now)
    }

    fn used(&mut self, quotas: &Quotas, now: u64) -> Vec<u32> {
        let answer = self.check(quotas, 0, now);
        answer.quotas().iter().map(|quota| quota.used()).collect()
    }

    fn refund(&mut self, quotas: &Quotas, answer: &Answer, units: u32, now: u64) {
        let refund = Subject::new(&self.limiter, &self.key, quotas)
            .in_share(self.share)
            .refund(answer, 5, units);
        self.counters.adjust(refund, now);
    }

    fn credit(&mut self, quotas: &Quotas, units: u32, now: u64) {
        let credit = Subject::new(&self.limiter, &self.key, quotas)
            .in_share(self.share)
            .adjust(Change::Credit { units });
        self.counters.adjust(credit, now);
    }

    fn reset(&mut self, quotas: &Quotas) {
        let reset = Subject::new(&self.limiter, &self.key, quotas)
            .in_share(self.share)
            .adjust(Change::Reset);
        self.counters.adjust(reset, 0);
    }
}

fn quotas(text: &str) -> Quotas {
    text.parse().unwrap()
}

#[test]
fn counters_take_at_most_80_bytes() {
    let size = size_of::<Counters>();
    assert!(size <= 80, "{size} bytes");
}

#[test]
fn all_windows_of_a_log_share_its_units_and_a_check_charges_them_once() {
    let (mut subject, list) = (Counted::new(), quotas("100/hour, 5/second, 50/minute"));
    assert!(subject.check(&list, 3, NOW).is_admitted());
    assert_eq!(subject.used(&list, NOW), [3, 3, 3]);
    assert_eq!(subject.used(&quotas("7/day"), NOW), [3]);
    let later = NOW + SECOND;
    assert!(subject.check(&list, 3, later).is_admitted());
    assert_eq!(subject.used(&list, later), [6, 3, 6]);
    assert_eq!(subject.counters.counts.len(), 1);
    // A limiter that asks the short window only.
    assert_eq!(subject.used(&quotas("5/second"), later), [3]);
}

#[test]
fn a_list_of_any_algorithms_is_charged_as_a_whole_or_not_at_all() {
    let (mut subject, list) = (
        Counted::new(),
        quotas(
            "5/second, 9/minute, 9/minute sliding-buckets:10, 9/hour sliding-buckets:600, 8/minute fixed-window, \
             7/minute sliding-counter, 9/minute sorted-set-log, 9/hour gcra, 6/hour gcra",
        ),
    );
    assert!(subject.check(&list, 4, NOW).is_admitted());
    assert_eq!(subject.used(&list, NOW), [4; 9]);
    let refused = subject.check(&list, 3, NOW + 2 * SECOND);
    let admits: Vec<_> = refused
        .quotas()
        .iter()
        .map(|quota| quota.is_admitted())
        .collect();
    assert_eq!(
        admits,
        [true, true, true, true, true, true, true, true, false]
    );
    assert_eq!(subject.used(&list, NOW + 2 * SECOND)[1..], [4; 8]);
    // The two lists of buckets have one length.
    assert_eq!(subject.counters.counts.len(), 6);
}

#[test]
fn a_refund_gives_units_back_once_for_all_windows_of_a_log() {
    for list in [
        "9/second, 90/minute",
        "9/minute sliding-buckets:10, 90/hour sliding-buckets:600",
    ] {
        let (mut subject, list) = (Counted::new(), quotas(list));
        let charged = subject.check(&list, 5, NOW);
        assert!(subject.check(&list, 4, NOW).is_admitted());
        let ends = subject.counters.expires_at();
        subject.refund(&list, &charged, 3, NOW + SECOND / 2);
        assert_eq!(subject.used(&list, NOW + SECOND / 2), [6, 6]);
        // The time to live stays.
        assert_eq!(subject.counters.expires_at(), ends);
        subject.refund(&list, &charged, 2, NOW + SECOND / 2);
        assert_eq!(subject.used(&list, NOW + SECOND / 2), [4, 4]);
    }
}

#[test]
fn a_credit_gives_room_in_every_window() {
    let (mut subject, list) = (Counted::new(), quotas("2000/day, 5/second"));
    for _ in 0..100 {
        assert!(subject.check(&list, 1, NOW).is_admitted());
        subject.credit(&quotas("2000/day"), 1, NOW);
    }
    assert!(subject.check(&list, 3, NOW - HOUR).is_admitted());
    assert!(subject.check(&list, 5, NOW).is_admitted());
    assert!(!subject.check(&list, 1, NOW).is_admitted());
    let ends = subject.counters.expires_at();
    subject.credit(&list, 2, NOW);
    assert_eq!(subject.used(&list, NOW), [6, 3]);
    assert_eq!(subject.counters.expires_at(), ends);
    subject.credit(&list, 100, NOW);
    assert!(subject.counters.is_empty());
}

#[test]
fn a_reset_forgets_a_log_with_all_its_windows_and_no_other_count() {
    let (mut subject, list) = (
        Counted::new(),
        quotas("5/second, 9/hour, 9/hour fixed-window"),
    );
    assert!(subject.check(&list, 4, NOW).is_admitted());
    subject.reset(&quotas("1/minute"));
    assert_eq!(subject.used(&list, NOW), [0, 0, 4]);
    subject.reset(&list);
    assert!(subject.counters.is_empty());
}

#[test]
fn no_refund_of_buckets_takes_units_that_were_charged_after_a_reset_or_a_credit() {
    let (mut subject, list) = (Counted::new(), quotas("9/minute sliding-buckets:6"));
    let lost = subject.check(&list, 5, NOW);
    subject.reset(&list);
    let kept = subject.check(&list, 5, NOW + 1);
    subject.refund(&list, &lost, 5, NOW + 2);
    assert_eq!(subject.used(&list, NOW + 2), [5]);
    subject.credit(&list, 1, NOW + 2);
    assert!(subject.check(&list, 3, NOW + 3).is_admitted());
    subject.refund(&list, &kept, 5, NOW + 3);
    assert_eq!(subject.used(&list, NOW + 3), [7]);
}

#[test]
fn logs_and_counters_live_for_as_long_as_each_needs() {
    let mut subject = Counted::new();
    let two_windows_and_a_second = |window: u64| Some(NOW + 2 * window + SECOND);
    assert!(
        subject
            .check(&quotas("5/minute gcra"), 1, NOW)
            .is_admitted()
    );
    let ends = subject.counters.expires_at();
    assert_eq!(ends, two_windows_and_a_second(MINUTE));
    assert!(
        subject
            .check(&quotas("5/hour, 5/second"), 1, NOW)
            .is_admitted()
    );
    let ends = subject.counters.expires_at();
    assert_eq!(ends, two_windows_and_a_second(HOUR));
    // Counts of a short window die first.
    let later = NOW + 2 * MINUTE + SECOND;
    subject.counters.remove_dead(later - 1_000);
    assert_eq!(subject.counters.counts.len(), 2);
    subject.counters.remove_dead(later);
    assert_eq!(subject.counters.counts.len(), 1);
    // A charge renews if less is left than it may count.
    assert!(
        subject
            .check(&quotas("5/hour"), 1, NOW + HOUR)
            .is_admitted()
    );
    assert_eq!(subject.counters.expires_at(), ends);
    let later = NOW + HOUR + 2 * SECOND;
    assert!(subject.check(&quotas("5/hour"), 1, later).is_admitted());
    assert_eq!(
        subject.counters.expires_at(),
        Some(later + 2 * HOUR + SECOND)
    );
}

#[test]
fn a_look_after_a_step_back_moves_units_to_now() {
    for list in [
        "5/minute",
        "5/minute sliding-buckets:60",
        "5/minute gcra",
        "5/minute sliding-counter",
    ] {
        let (mut subject, list) = (Counted::new(), quotas(list));
        assert!(subject.check(&list, 5, NOW).is_admitted());
        let earlier = NOW - 10 * HOUR;
        assert_eq!(subject.used(&list, earlier), [5]);
        // They were moved by the look, so they have returned before their time.
        assert_eq!(subject.used(&list, NOW - 9 * HOUR), [0]);
    }
}

#[test]
fn a_check_that_asks_for_more_gets_at_most_its_eighths_of_what_all_quotas_have_left() {
    let list = quotas("90/second, 49/minute, 1000/hour gcra");
    for (units, eighths, granted) in [(50, 1, 6), (50, 5, 30), (20, 5, 20), (50, 8, 48)] {
        let mut subject = Counted::new();
        let check = Subject::new(&subject.limiter, &subject.key, &list)
            .in_share(subject.share)
            .check(1);
        let answer =
            subject
                .counters
                .check(check.with_extra_units(units, eighths), Source::Other, NOW);
        assert_eq!(answer.extra_units(), granted);
        assert_eq!(subject.used(&list, NOW), [1 + granted; 3]);
    }
    // A part below an eighth, or above all, is none.
    for (eighths, granted) in [(0, 6), (9, 48)] {
        let subject = Counted::new();
        let check = Subject::new(&subject.limiter, &subject.key, &list).check(1);
        let check = check.with_extra_units(50, eighths);
        assert_eq!(check.granted_extra_units(48), granted);
    }
}

#[test]
fn a_check_that_is_refused_gets_no_more() {
    let (mut subject, list) = (Counted::new(), quotas("49/minute, 1000/hour gcra"));
    assert!(subject.check(&list, 7, NOW).is_admitted());
    let refused = Subject::new(&subject.limiter, &subject.key, &list)
        .in_share(subject.share)
        .check(43);
    let answer = subject
        .counters
        .check(refused.with_extra_units(50, 8), Source::Other, NOW);
    assert_eq!((answer.is_admitted(), answer.extra_units()), (false, 0));
}

#[test]
fn a_soft_quota_keeps_no_key_that_other_keys_need_the_room_of() {
    let mut subject = Counted::new();
    let list = quotas("100/hour, 5/hour soft, 5/hour gcra soft");
    for _ in 0..6 {
        assert!(subject.check(&list, 1, NOW).is_admitted());
    }
    assert_eq!(subject.counters.used_part(NOW), 62);
    let only_soft = quotas("1/day soft");
    let mut subject = Counted::new();
    for _ in 0..3 {
        assert!(subject.check(&only_soft, 1, NOW).is_admitted());
    }
    assert_eq!(subject.counters.used_part(NOW), 0);
    // It is kept as long as there is room.
    assert!(!subject.counters.is_empty());
}

#[test]
fn a_share_that_has_used_little_lets_no_key_go_that_another_has_used_up() {
    for (text, charged) in [
        ("1000/minute live>=900", [("live", 900), ("other", 1)]),
        ("1000/minute batch<=100", [("other", 940), ("batch", 1)]),
    ] {
        let (mut subject, list) = (Counted::new(), quotas(text));
        for (share, cost) in charged {
            subject.share = share;
            assert!(subject.check(&list, cost, NOW).is_admitted());
        }
        assert!(subject.counters.used_part(NOW) > 512, "{text}");
    }
}

/// A step of the model of soft quotas: a check of a cost, a refund of an earlier check, or a step of the clock.
type SoftStep = (u32, Option<(usize, u32)>, u64);

proptest::proptest! {
    /// The model: the quotas that refuse decide alone, and each soft quota is a limit of its own that is asked about what
    /// they admit.
    #[test]
    fn a_soft_quota_counts_what_it_would_admit_if_it_refused(
        algorithm in proptest::sample::select([Algorithm::ALL, &[Algorithm::Total]].concat()),
        limits in proptest::array::uniform4(0..12_u32),
        steps in proptest::collection::vec(soft_step(), 1..80),
    ) {
        let [hard, soft, equal, long] = limits;
        let window = |limit, seconds| {
            let window = std::time::Duration::from_secs(seconds);
            match algorithm {
                Algorithm::Total => Quota::total(limit, window),
                algorithm => Quota::new(limit, window).with_algorithm(algorithm),
            }
        };
        let all = [window(hard + 5, 10), window(soft, 10), window(equal, 10), window(long, 60)];
        let model = all.clone().map(Quotas::from);
        let [refusing, soft @ ..] = all;
        let list: Quotas = [refusing].into_iter().chain(soft.map(Quota::soft)).collect();
        let (mut subject, mut models) = (Counted::new(), [(); 4].map(|()| Counted::new()));
        let (mut now, mut admitted) = (NOW, Vec::new());
        for (cost, refund, pause) in steps {
            now += pause;
            let answer = subject.check(&list, cost, now);
            let expected = models[0].check(&model[0], cost, now);
            proptest::prop_assert_eq!(answer.is_admitted(), expected.is_admitted());
            proptest::prop_assert_eq!(answer.quotas()[0].wait(), expected.quotas()[0].wait());
            let mut answers = vec![expected.clone()];
            for (index, (own, quotas)) in models.iter_mut().zip(&model).enumerate().skip(1) {
                // A check that the others refuse is not charged.
                let asked = if expected.is_admitted() { cost } else { 0 };
                let of_model = own.check(quotas, asked, now);
                let answer = answer.quotas()[index];
                proptest::prop_assert!(answer.is_admitted() && answer.retry_after().is_none());
                if expected.is_admitted() {
                    proptest::prop_assert_eq!(answer.is_exceeded(), !of_model.is_admitted());
                }
                proptest::prop_assert_eq!(answer.used(), of_model.quotas()[0].used());
                answers.push(of_model);
            }
            if answer.is_admitted() && cost > 0 {
                admitted.push((cost, answer, answers));
            }
            if let Some((index, units)) = refund && !admitted.is_empty() {
                let index = index % admitted.len();
                let (cost, answer, answers) = admitted.swap_remove(index);
                let units = units.min(cost);
                refund_of(&mut subject, &list, cost, &answer, units, now);
                for ((own, quotas), answer) in models.iter_mut().zip(&model).zip(&answers) {
                    if answer.is_admitted() {
                        refund_of(own, quotas, cost, answer, units, now);
                    }
                }
            }
        }
    }
}

fn soft_step() -> impl proptest::strategy::Strategy<Value = SoftStep> {
    let pause = proptest::prop_oneof![
        3 => proptest::strategy::Just(0),
        3 => 1..3 * SECOND,
        1 => 0..2 * MINUTE,
    ];
    let refund = proptest::option::weighted(0.2, (0..100_usize, 1..9_u32));
    (0..9_u32, refund, pause)
}

fn refund_of(
    subject: &mut Counted,
    quotas: &Quotas,
    cost: u32,
    answer: &Answer,
    units: u32,
    now: u64,
) {
    let refund = Subject::new(&subject.limiter, &subject.key, quotas)
        .in_share(subject.share)
        .refund(answer, cost, units);
    subject.counters.adjust(refund, now);
}

/// A list of quotas of every algorithm, some with shares, soft quotas and slots.
const LISTS: [&str; 10] = [
    "9/second, 40/minute",
    "9/second critical>=3 batch<=4, 40/minute",
    "9/second sliding-buckets:7",
    "9/second sorted-set-log",
    "9/second sliding-counter, 30/minute gcra",
    "9/second fixed-window, 5/second soft",
    "9/second gcra, 7/second sliding-counter soft",
    "4 in-flight, 20/second",
    "9/second sliding-buckets:4 a>=2 b<=5, 9/second gcra",
    "9 total:1s, 7 total:3s soft, 9/second fixed-window",
];

/// Counters that are stored and read back before each step answer as those that stay in memory.
#[test]
fn counters_are_the_same_after_they_were_stored_as_bytes() {
    use proptest::prelude::*;
    let steps = proptest::collection::vec((0..6_u8, 0..3_u8, 0..4_u32, 0..700_000_u64), 1..60);
    let seen = std::cell::Cell::new(0_u32);
    proptest!(|(list in 0..LISTS.len(), steps in steps)| {
        let list = quotas(LISTS[list]);
        let (mut kept, mut stored) = (Counted::new(), Counted::new());
        let (mut now, mut charged) = (NOW, Vec::<(Answer, &str)>::new());
        for (step, share, cost, wait) in steps {
            let bytes = stored.counters.to_bytes();
            prop_assert_eq!(&bytes, &kept.counters.to_bytes());
            stored.counters = Counters::from_bytes(&bytes).unwrap();
            prop_assert_eq!(&stored.counters.to_bytes(), &bytes);
            seen.set(seen.get() + u32::from(!stored.counters.is_empty()));
            // The clock steps back now and then.
            now = if step == 5 { now - wait / 3 } else { now + wait };
            let asking = ["", "critical", "a"][usize::from(share)];
            (kept.share, stored.share) = (asking, asking);
            let holding = Holding::new([share; 16], u64::from(cost) + now, cost, 1, std::time::Duration::from_secs(2));
            for subject in [&mut kept, &mut stored] {
                match step {
                    0 => subject.credit(&list, cost, now),
                    1 if !charged.is_empty() => {
                        let (answer, share) = &charged[usize::try_from(wait).unwrap() % charged.len()];
                        subject.share = share;
                        subject.refund(&list, answer, cost, now);
                        subject.share = asking;
                    }
                    2 if cost == 3 => subject.reset(&list),
                    _ => {}
                }
            }
            let answers = [&mut kept, &mut stored].map(|subject| {
                let check = Subject::new(&subject.limiter, &subject.key, &list).in_share(subject.share).check(cost).with_holding(&holding);
                subject.counters.check(check, Source::Other, now)
            });
            prop_assert_eq!(&answers[0], &answers[1]);
            let [answer, _] = answers;
            if answer.is_admitted() {
                charged.push((answer, asking));
            }
        }
    });
    assert!(seen.get() > 1_000, "{}", seen.get());
}

#[test]
fn bytes_that_are_no_counters_are_refused() {
    let mut subject = Counted::new();
    let list = quotas("9/second, 9/minute gcra, 9/minute sliding-buckets:7");
    assert!(subject.check(&list, 2, NOW).is_admitted());
    let bytes = subject.counters.to_bytes();
    assert!(Counters::from_bytes(&bytes).is_ok());
    for end in 0..bytes.len() {
        assert!(Counters::from_bytes(&bytes[..end]).is_err(), "{end}");
    }
    for (index, bit) in (0..bytes.len()).flat_map(|index| (0..8).map(move |bit| (index, bit))) {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1 << bit;
        assert!(Counters::from_bytes(&damaged).is_err(), "{index} {bit}");
    }
    assert!(Counters::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    let mut newer = bytes;
    newer[1] = 2;
    let error = Counters::from_bytes(&newer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidReply);
    assert!(error.concerns_one_check());
    assert!(error.to_string().contains("update tollgate"), "{error}");
}

#[cfg(feature = "serde")]
#[test]
fn serde_writes_and_reads_the_bytes() {
    let mut subject = Counted::new();
    let list = quotas("9/second, 9/minute gcra, 4 in-flight");
    assert!(subject.check(&list, 2, NOW).is_admitted());
    let bytes = subject.counters.to_bytes();
    let written = serde_json::to_value(&subject.counters).unwrap();
    assert_eq!(written, serde_json::to_value(&bytes).unwrap());
    let read: Counters = serde_json::from_value(written).unwrap();
    assert_eq!(read.to_bytes(), bytes);
    let error = serde_json::from_str::<Counters>("[1, 2, 3]").unwrap_err();
    assert!(error.to_string().contains("no counters"), "{error}");
}

#[test]
fn what_a_holder_has_spent_is_stored_with_its_units() {
    let lease = std::time::Duration::from_secs(9);
    let list = quotas("60 total:9h").with_held(lease);
    let say = |subject: &mut Counted, sequence| {
        let holding = Holding::new([7; 16], sequence, 3, 0, lease).with_spent(5, 0);
        let check = Subject::new(&subject.limiter, &subject.key, &list).check(0);
        let check = check.with_holding(&holding);
        let answer = subject.counters.check(check, Source::Other, NOW);
        let used = answer.quotas().iter().map(QuotaAnswer::used);
        used.collect::<Vec<_>>()
    };
    let mut subject = Counted::new();
    let said = say(&mut subject, 1);
    subject.counters = Counters::from_bytes(&subject.counters.to_bytes()).unwrap();
    // Nothing is charged twice.
    assert_eq!(say(&mut subject, 2), said);
}

#[test]
fn an_entry_ends_with_its_lease_unless_something_was_spent() {
    let lease = std::time::Duration::from_secs(9);
    let list = quotas("60 total:9h").with_held(lease);
    for (spent, sequence_is_known) in [(0, false), (5, true)] {
        let mut subject = Counted::new();
        let mut say = |sequence, now| {
            let holding = Holding::new([7; 16], sequence, 3, 0, lease).with_spent(spent, 0);
            let check = Subject::new(&subject.limiter, &subject.key, &list).check(0);
            let check = check.with_holding(&holding);
            subject.counters.check(check, Source::Other, now)
        };
        assert!(say(2, NOW).is_admitted());
        // A message that is older, and later than the lease.
        let late = say(1, NOW + 9 * SECOND);
        assert_eq!(late.is_admitted(), !sequence_is_known, "{spent}");
    }
}

/// Databases have such bytes: a change of the format needs another version.
#[test]
fn bytes_of_version_1_stay_readable() {
    let lists = [
        "9/second",
        "9/minute gcra, 9/minute sliding-counter, 9/minute fixed-window",
        "9/minute sliding-buckets:7, 9/minute sorted-set-log",
        "9/second a>=2, 4 in-flight",
    ];
    let stored = lists.map(|list| {
        let (mut subject, list) = (Counted::new(), quotas(list));
        subject.share = "a";
        let lease = std::time::Duration::from_secs(9);
        let holding = Holding::new([7; 16], 1, 0, 2, lease);
        let check = Subject::new(&subject.limiter, &subject.key, &list)
            .in_share(subject.share)
            .check(5)
            .with_holding(&holding);
        let charged = subject.counters.check(check, Source::Other, NOW);
        assert!(subject.check(&list, 1, NOW + 300).is_admitted());
        subject.refund(&list, &charged, 1, NOW + 300);
        let hex = |byte: &u8| format!("{byte:02x}");
        subject
            .counters
            .to_bytes()
            .iter()
            .map(hex)
            .collect::<String>()
    });
    let version_1 = [
        "c70101000000b8e795ffbc31ab05c0843d090300008080f9c0c1c4820304ac020100f12fb842",
        "c7010305808ece1c00a8819dffbc31ab05ac82f9c0c1c482030409f4f8cd1c0601008080f9c0c1c4820303808ece1c00a8819dffbc31\
         ab0595aac10d00058080f9c0c1c4820304808ece1c00a8819dffbc31ab0595aac10d058080f9c0c1c482034d873511",
        "c701020201a5948b0400a8819dffbc31ab05808ece1c09028080f9c0c1c4820300bb96b102050001808ece1c00a8819dffbc31ab0580\
         8ece1c090300008080f9c0c1c4820304ac02010066ca591b",
        "c70102000000b8e795ffbc31ab05c0843d090300008080f9c0c1c4820304ac02010101e40c292c03000405060000b8e496ffbc31\
         ffff0301070707070707070707070707070707070102c0a8a504c0a89ec5c1c48203a2d41ac5",
    ];
    assert_eq!(stored, version_1);
}
