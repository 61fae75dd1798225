//! Shedding by priority: prefetches come twelve times as often as usual, and users have a reserve.

use std::time::{Duration, Instant};

use tollgate::{Acquired, Key, Quota, RateLimiter, Share};

use crate::support::args::Args;
use crate::support::redis_server::RedisServer;
use crate::support::table::{self, short};
use crate::traffic::{self, Answer, Call, Traffic, admissions};
use crate::{over, percent, store};

/// Requests a second of both processes together.
const USERS: u32 = 600;
const PREFETCHES: u32 = 200;
/// How many times its usual rate the prefetches reach.
const SPIKE: u32 = 12;

/// The limit of requests a second has room for both kinds on a usual day. Users ask at random moments: in some seconds
/// they are more than 600, and never more than the reserve.
const LIMIT: u32 = 1_000;
const RESERVE: u32 = 750;

/// The slots of requests that take 100 ms each: the same with 60 users' requests at a time on average.
const SLOTS: u32 = 130;
const RESERVED_SLOTS: u32 = 105;
const HELD: Duration = Duration::from_millis(100);

const SECOND: Duration = Duration::from_secs(1);
const PROCESSES: u32 = 2;
const USER: &str = "user";
const PREFETCH: &str = "prefetch";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    OneLimit,
    Shares,
    OneLimitOfSlots,
    SharesOfSlots,
}

const WAYS: [Way; 4] = [
    Way::OneLimit,
    Way::Shares,
    Way::OneLimitOfSlots,
    Way::SharesOfSlots,
];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::OneLimit => "1 000 a second",
            Self::Shares => "1 000 a second, of which 750 are reserved for users",
            Self::OneLimitOfSlots => "130 at the same time",
            Self::SharesOfSlots => "130 at the same time, of which 105 are reserved for users",
        }
    }

    fn has_slots(self) -> bool {
        matches!(self, Self::OneLimitOfSlots | Self::SharesOfSlots)
    }

    /// Returns the most admissions in any second, or the most slots that were held at the same time: each one from the
    /// answer on, for [`HELD`].
    fn most(self, calls: impl Iterator<Item = Call>) -> u64 {
        let has_slots = self.has_slots();
        let counted = calls.map(|call| match has_slots {
            true => Call {
                start: call.end,
                ..call
            },
            false => call,
        });
        let counted: Vec<_> = counted.collect();
        let span = if has_slots { HELD } else { SECOND };
        admissions(&counted).most_within(span)
    }

    fn quota(self) -> Quota {
        let reserve = |units| [Share::of(USER).reserve(units)];
        match self {
            Self::OneLimit => Quota::per_second(LIMIT),
            Self::Shares => Quota::per_second(LIMIT).shares(reserve(RESERVE)),
            Self::OneLimitOfSlots => Quota::in_flight(SLOTS),
            Self::SharesOfSlots => Quota::in_flight(SLOTS).shares(reserve(RESERVED_SLOTS)),
        }
    }
}

/// The calls of a run: of users, and of prefetches.
struct Calls {
    users: Vec<Call>,
    prefetches: Vec<Call>,
}

pub(crate) async fn print(args: &Args) {
    // The usual traffic, and then the spike: twice as long.
    let (usual, end) = (args.span * 2, args.span * 6);
    let mut rows = Vec::new();
    for way in WAYS {
        let calls = measure(way, usual, end).await;
        let mut row = vec![way.name().to_owned()];
        for of in [&calls.users, &calls.prefetches] {
            row.push(short(admitted(of, Duration::ZERO, usual)));
            row.push(short(admitted(of, usual, end)));
        }
        row.push(way.most(asked(&calls.users)).to_string());
        let most = way.most(calls.users.into_iter().chain(calls.prefetches));
        row.push(most.to_string());
        let limit = if way.has_slots() { SLOTS } else { LIMIT };
        row.push(short(over(most, limit)));
        rows.push(row);
    }
    let head = "limit of both kinds|users admitted, usual traffic, %|users, spike, %\
                |prefetches, usual traffic, %|prefetches, spike, %|most asked by users at a time\
                |most admitted at a time|over the limit, %";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let title = format!(
        "Shedding by priority: {USERS} requests of users a second, {PREFETCHES} prefetches a second in {usual:?} of usual \
         traffic, and {SPIKE} × as many in {:?} of a spike",
        end - usual
    );
    table::print(&title, &head, &rows);
}

async fn measure(way: Way, usual: Duration, end: Duration) -> Calls {
    let redis = RedisServer::start();
    let (mut users, mut prefetches) = (Vec::new(), Vec::new());
    let limiters = (0..PROCESSES).map(|_| RateLimiter::new(store(&redis.url()), way.quota()));
    let limiters: Vec<_> = limiters.collect();
    for limiter in &limiters {
        // Connects.
        let _ = limiter.peek("warm-up").await.expect("Redis answers");
    }
    let begin = Instant::now();
    for limiter in limiters {
        let traffic = |rate: u32, from| Traffic {
            rate: rate / PROCESSES,
            callers: rate / PROCESSES,
            keys: 1,
            from,
            until: end,
        };
        let ask = |share: &'static str| {
            let limiter = limiter.clone();
            move |_| ask(limiter.clone(), share, way.has_slots())
        };
        users.push(traffic(USERS, Duration::ZERO).start(begin, ask(USER)));
        let usually = traffic(PREFETCHES, Duration::ZERO);
        prefetches.push(usually.start(begin, ask(PREFETCH)));
        let more = traffic(PREFETCHES * (SPIKE - 1), usual);
        prefetches.push(more.start(begin, ask(PREFETCH)));
    }
    let users = traffic::join(users).await;
    let prefetches = traffic::join(prefetches).await;
    Calls { users, prefetches }
}

/// One request. It holds its slot, if it takes one, for as long as it is served.
async fn ask(limiter: RateLimiter, share: &str, has_slots: bool) -> Answer {
    let check = [limiter.level(Key::global()).share(share)];
    if !has_slots {
        let decision = RateLimiter::check_all(check).await.expect("Redis answers");
        return match decision.is_allowed() {
            true => Answer::Admitted,
            false => Answer::Refused,
        };
    }
    let acquired = RateLimiter::try_acquire_all(check).await;
    match acquired.expect("Redis answers") {
        Acquired::Permit(permit) => {
            tokio::spawn(async move {
                tokio::time::sleep(HELD).await;
                drop(permit);
            });
            Answer::Admitted
        }
        Acquired::Refused(_) => Answer::Refused,
    }
}

/// Returns how many of the calls that began in this time were admitted, in percent.
fn admitted(calls: &[Call], from: Duration, until: Duration) -> f64 {
    let own = calls.iter().filter(|call| call.began_within(from, until));
    let (mut all, mut admitted) = (0, 0);
    for call in own {
        all += 1;
        admitted += u64::from(call.is_admitted());
    }
    percent(admitted, all)
}

/// The calls, as if all had been admitted.
fn asked(calls: &[Call]) -> impl Iterator<Item = Call> {
    calls.iter().map(|call| Call {
        answer: Answer::Admitted,
        ..*call
    })
}
