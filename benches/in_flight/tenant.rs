//! One busy key of a tenant, one millisecond from Redis, and the checks of another limiter meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Acquired, Key, Quota, RateLimiter};

use crate::support::args::Args;
use crate::support::distance::Distance;
use crate::support::load::{self, Decide, Done, Load};
use crate::support::redis_server::RedisServer;
use crate::support::spent::{Meter, Spent};
use crate::support::table::{self, beside, median, short};
use crate::{runtime, store};

const ROUND_TRIP: Duration = Duration::from_millis(1);
const TASKS: usize = 64;
const USERS: usize = 10_000;

/// The tasks of the other limiter, and how long each rests between its checks. tokio's timers add up to a millisecond.
const OTHER_TASKS: usize = 8;
const REST: Duration = Duration::from_millis(2);

/// No check is refused.
const USER: Quota = Quota::per_second(1_000_000);
const RATE: Quota = Quota::per_second(100_000_000);
const SLOTS: Quota = Quota::in_flight(1_000);

/// What runs beside the checks of the other limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    /// A rate of the tenant in place of the slots.
    Rates,
    /// A rate of the user, and slots of the tenant.
    Slots,
    /// Slots of the user, and slots of the tenant.
    SlotsOfBoth,
}

const WAYS: [Way; 4] = [Way::Nothing, Way::Rates, Way::Slots, Way::SlotsOfBoth];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Rates => "a rate of the user, a rate of the tenant",
            Self::Slots => "a rate of the user, slots of the tenant",
            Self::SlotsOfBoth => "slots of the user, slots of the tenant",
        }
    }
}

/// Checks of two levels: each user in turn, and one tenant.
struct Tenant {
    user: RateLimiter,
    tenant: RateLimiter,
    users: Vec<Key>,
    acme: Key,
    takes_slots: bool,
}

impl Decide for Tenant {
    async fn decide(&self, key: usize) -> bool {
        let levels = [
            self.user.level(&self.users[key]),
            self.tenant.level(&self.acme),
        ];
        if self.takes_slots {
            let acquired = RateLimiter::try_acquire_all(levels).await;
            return matches!(acquired.expect("Redis answers"), Acquired::Permit(_));
        }
        let decision = RateLimiter::check_all(levels).await;
        decision.expect("Redis answers").is_allowed()
    }
}

/// Checks of another limiter, which are not many.
struct Other {
    limiter: RateLimiter,
    keys: Vec<Key>,
}

impl Decide for Other {
    async fn decide(&self, key: usize) -> bool {
        let decision = self.limiter.check(&self.keys[key]).await;
        decision.expect("Redis answers").is_allowed()
    }

    async fn rest(&self) -> bool {
        tokio::time::sleep(REST).await;
        true
    }
}

struct Sample {
    per_second: f64,
    spent: Spent,
    tail: [f64; 3],
    other: [f64; 3],
}

pub(crate) fn compare(args: &Args) {
    let mut samples = WAYS.map(|_| Vec::new());
    for _ in 0..args.rounds {
        for (way, of_way) in WAYS.into_iter().zip(&mut samples) {
            of_way.push(measure(way, args.span));
        }
    }
    let head =
        "beside the other limiter|a second|p50 µs|p99|Redis CPU µs|scripts|other: × p50|p50 µs|p99";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let rows = WAYS.into_iter().zip(&samples);
    let rows: Vec<_> = rows
        .map(|(way, own)| row(way.name(), own, &samples[0]))
        .collect();
    let title = format!(
        "One tenant, Redis {ROUND_TRIP:?} away, {TASKS} tasks; medians of {} rounds of {:?}",
        args.rounds, args.span
    );
    table::print(&title, &head, &rows);
}

fn measure(way: Way, span: Duration) -> Sample {
    let redis = RedisServer::start();
    let mut meter = Meter::new(redis.connect());
    let distance = Distance::to(redis.port(), ROUND_TRIP);
    let store = store(&distance.url());
    let keys = |count: usize| (0..count).map(|key| Key::from(key.to_string())).collect();
    let (user, tenant) = match way {
        Way::Nothing | Way::Rates => (USER, RATE),
        Way::Slots => (USER, SLOTS),
        Way::SlotsOfBoth => (SLOTS, SLOTS),
    };
    let busy = Arc::new(Tenant {
        user: RateLimiter::new(store.clone(), user).name("user"),
        tenant: RateLimiter::new(store.clone(), tenant).name("tenant"),
        users: keys(USERS),
        acme: Key::from("acme"),
        takes_slots: matches!(way, Way::Slots | Way::SlotsOfBoth),
    });
    let other = Arc::new(Other {
        limiter: RateLimiter::new(store, RATE).name("other"),
        keys: keys(USERS),
    });
    runtime().block_on(async {
        load_both(way, &busy, &other, span / 5).await;
        meter.begin();
        let (done, beside) = load_both(way, &busy, &other, span).await;
        let spent = meter.spent();
        let count = done
            .as_ref()
            .map_or(beside.decisions, |done| done.decisions);
        Sample {
            per_second: done.as_ref().map_or(0.0, Done::per_second),
            spent: spent.per(count),
            tail: done.map_or([0.0; 3], |done| done.latencies.tail()),
            other: beside.latencies.tail(),
        }
    })
}

/// Runs the checks of the other limiter, and those beside it.
async fn load_both(
    way: Way,
    busy: &Arc<Tenant>,
    other: &Arc<Other>,
    span: Duration,
) -> (Option<Done>, Done) {
    let load = |tasks| Load {
        tasks,
        keys: USERS,
        span,
    };
    let busy = async {
        match way {
            Way::Nothing => None,
            _ => Some(load::run(busy, load(TASKS)).await),
        }
    };
    let (busy, other) = tokio::join!(busy, load::run(other, load(OTHER_TASKS)));
    for done in busy.iter().chain([&other]) {
        assert_eq!(done.admitted, done.decisions, "a check was not admitted");
    }
    (busy, other)
}

fn row(name: &str, own: &[Sample], base: &[Sample]) -> Vec<String> {
    let of = |value: &dyn Fn(&Sample) -> f64| median(own.iter().map(value));
    let ratios = own.iter().zip(base);
    let ratios = ratios.map(|(own, base)| own.other[0] / base.other[0]);
    let [p50, ratio] = beside(of(&|sample| sample.other[0]), median(ratios));
    vec![
        name.to_owned(),
        short(of(&|sample| sample.per_second)),
        short(of(&|sample| sample.tail[0])),
        short(of(&|sample| sample.tail[1])),
        short(of(&|sample| sample.spent.cpu)),
        short(of(&|sample| sample.spent.scripts)),
        ratio,
        p50,
        short(of(&|sample| sample.other[1])),
    ]
}
