//! A region: a process with a limiter, which asks at random times, and prints what it was answered.

use std::env;
use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Builder;
use tollgate::{FailurePolicy, Quota, RateLimiter, RedisStore, Source};

pub(crate) const REGIONS: usize = 5;
pub(crate) const LIMIT: u32 = 600;
pub(crate) const WINDOW: Duration = Duration::from_secs(20);
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Well above the longest round trip.
const DEADLINE: Duration = Duration::from_secs(1);

/// How regions share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Each check asks the home store.
    Home,
    /// Leases of the home store. A region that is cut off refuses.
    LeaseOrRefuse,
    /// Leases of the home store. A region that is cut off counts in its memory, with its part of the limit.
    LeaseOrFallBack,
    /// A store in each region, with its part of the limit.
    Divided,
    /// A store in each region, with the whole limit.
    Each,
}

impl Way {
    pub(crate) const ALL: [Self; 5] = [
        Self::Home,
        Self::LeaseOrRefuse,
        Self::LeaseOrFallBack,
        Self::Divided,
        Self::Each,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Home => "home store",
            Self::LeaseOrRefuse => "leases",
            Self::LeaseOrFallBack => "leases, or a fifth in memory",
            Self::Divided => "divided by five",
            Self::Each => "a limit for each region",
        }
    }

    pub(crate) fn has_home(self) -> bool {
        !matches!(self, Self::Divided | Self::Each)
    }

    fn limiter(self, url: &str) -> RateLimiter {
        let replicas = u32::try_from(REGIONS).expect("few regions");
        let limit = match self {
            Self::Divided => LIMIT / replicas,
            _ => LIMIT,
        };
        let store = RedisStore::open(url).expect("a URL").deadline(DEADLINE);
        let limiter = RateLimiter::new(store, Quota::new(limit, WINDOW));
        match self {
            Self::LeaseOrRefuse => limiter.lease(LEASE),
            Self::LeaseOrFallBack => limiter
                .lease(LEASE)
                .on_failure(FailurePolicy::fall_back().replicas(replicas)),
            Self::Home | Self::Divided | Self::Each => limiter,
        }
    }
}

/// What a region does, as it travels in its environment.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) url: String,
    pub(crate) way: Way,
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) lasts: Duration,
    pub(crate) seed: u64,
}

const VARIABLE: &str = "TOLLGATE_BENCH_REGION";

pub(crate) fn is_region() -> bool {
    env::var(VARIABLE).is_ok()
}

impl Orders {
    pub(crate) fn variable(&self) -> (&'static str, String) {
        let way = Way::ALL.iter().position(|way| *way == self.way);
        let text = format!(
            "{} {} {} {} {}",
            self.url,
            way.expect("one of all"),
            self.rate,
            self.lasts.as_millis(),
            self.seed
        );
        (VARIABLE, text)
    }

    fn read() -> Self {
        let text = env::var(VARIABLE).expect("orders");
        let words: Vec<&str> = text.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().expect("a number");
        Self {
            url: words[0].to_owned(),
            way: Way::ALL[usize::try_from(number(1)).expect("a way")],
            rate: words[2].parse().expect("a rate"),
            lasts: Duration::from_millis(number(3)),
            seed: number(4),
        }
    }
}

/// How a request was answered, as its region prints it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// Microseconds of the system's clock.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_admitted: bool,
}

impl Answered {
    fn print(self) {
        println!("{} {} {}", self.start, self.end, u8::from(self.is_admitted));
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(|word| word.parse::<u64>().ok());
        Some(Self {
            start: numbers.next()??,
            end: numbers.next()??,
            is_admitted: numbers.next()?? == 1,
        })
    }
}

/// Asks until its time is over, and prints all answers. It begins when its input ends, as all regions do.
pub(crate) fn run() {
    let orders = Orders::read();
    let runtime = Builder::new_current_thread().enable_all().build();
    let answers = runtime.expect("a runtime").block_on(async {
        let limiter = orders.way.limiter(&orders.url);
        // Connects.
        let _ = limiter.peek("warm-up").await;
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let began = Instant::now();
        let mut random = Random(orders.seed);
        let mut tasks = Vec::new();
        let mut due = Duration::ZERO;
        loop {
            due += Duration::from_secs_f64(random.exponential() / orders.rate);
            if due > orders.lasts {
                break;
            }
            tokio::time::sleep_until((began + due).into()).await;
            tasks.push(tokio::spawn(ask(limiter.clone())));
        }
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.expect("a task"));
        }
        answers
    });
    answers.into_iter().for_each(Answered::print);
}

async fn ask(limiter: RateLimiter) -> Answered {
    let start = unix_micros();
    let decision = limiter.check("all").await;
    let is_admitted =
        decision.is_ok_and(|decision| decision.is_allowed() && decision.source() != Source::None);
    Answered {
        start,
        end: unix_micros(),
        is_admitted,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the regions of a row share this clock"
)]
pub(crate) fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("a time after 1970");
    u64::try_from(since.as_micros()).expect("a time of this age")
}

struct Random(u64);

impl Random {
    /// A number above 0, of a mean of 1.
    fn exponential(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = ((self.0 >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -uniform.ln()
    }
}
