//! Levels of all kinds together: whatever they are, a request is answered, and leaves no slot.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response};
use futures_util::future::join_all;
use http_body_util::Full;
use proptest::prelude::*;
use tokio::time::timeout;
use tollgate::{
    Error, FailurePolicy, Key, Level, Plan, Quota, Quotas, RateLimitLayer, RateLimiter, Share, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::grouped::Grouped;

/// The limit of slots, which no rate has.
const SLOTS: u32 = 2;

/// How long requests wait that do.
const MAX_WAIT: Duration = Duration::from_millis(20);

/// The patience with a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A level of each request.
#[derive(Clone, Debug)]
struct Kind {
    group: usize,
    quotas: usize,
    policy: usize,
    /// Whether a layer finds no plan for it.
    is_plan_unknown: bool,
}

impl Kind {
    fn quotas(&self) -> Quotas {
        let slots = Quota::in_flight(SLOTS).slot_lease(Duration::from_secs(5));
        let rate = Quota::per_hour(6);
        match self.quotas {
            0 => Quotas::from(rate),
            1 => slots.into(),
            2 => vec![slots, rate].into(),
            3 => vec![rate.soft(), slots].into(),
            4 => slots.shares([Share::of("batch").at_most(1)]).into(),
            5 => rate.shares([Share::of("live").reserve(2)]).into(),
            _ => Quotas::from(Vec::new()),
        }
    }

    fn limiter(&self, index: usize, store: &Grouped) -> RateLimiter {
        let name = format!("level-{index}-{}", self.group);
        let limiter = RateLimiter::new(store.clone(), self.quotas());
        let limiter = limiter.name(name).max_wait(MAX_WAIT);
        match self.policy {
            0 => limiter,
            1 => limiter.on_failure(FailurePolicy::closed()),
            2 => limiter.on_failure(FailurePolicy::open()),
            3 => limiter.on_failure(FailurePolicy::fall_back()),
            _ => limiter.on_failure(FailurePolicy::fall_back().replicas(2)),
        }
    }
}

/// How a request takes its levels.
#[derive(Clone, Copy, Debug)]
enum Way {
    Acquire,
    TryAcquire,
    Layer,
    WaitingLayer,
}

/// Some requests at the same time.
#[derive(Clone, Debug)]
struct Requests {
    way: Way,
    /// When each of them is dropped, in microseconds.
    dropped_after: Vec<Option<u64>>,
    share: Option<&'static str>,
    lost: Option<u64>,
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = (
        1..3_usize,
        0..7_usize,
        0..5_usize,
        prop::bool::weighted(0.2),
    );
    let kind = kind.prop_map(|(group, quotas, policy, is_plan_unknown)| Kind {
        group,
        quotas,
        policy,
        is_plan_unknown,
    });
    prop::collection::vec(kind, 1..4)
}

fn requests() -> impl Strategy<Value = Vec<Requests>> {
    let ways = [Way::Acquire, Way::TryAcquire, Way::Layer, Way::WaitingLayer];
    let dropped_after = prop::collection::vec(prop::option::weighted(0.3, 0..2_000_u64), 1..5);
    let shares = [None, Some("batch"), Some("live")];
    let requests = (
        prop::sample::select(ways.to_vec()),
        dropped_after,
        prop::sample::select(shares.to_vec()),
        prop::option::weighted(0.2, 1..3_u64),
    );
    let requests = requests.prop_map(|(way, dropped_after, share, lost)| Requests {
        way,
        dropped_after,
        share,
        lost,
    });
    prop::collection::vec(requests, 1..4)
}

/// A service in front of which each of the levels stands, and their limiters.
struct Service {
    kinds: Vec<Kind>,
    store: Grouped,
    limiters: Vec<RateLimiter>,
}

impl Service {
    fn new(kinds: Vec<Kind>, knows_groups: bool) -> Self {
        let store = match knows_groups {
            true => Grouped::new(),
            false => Grouped::unaware(true),
        };
        let limiters = kinds.iter().enumerate();
        let limiters = limiters.map(|(index, kind)| kind.limiter(index, &store));
        Self {
            limiters: limiters.collect(),
            kinds,
            store,
        }
    }

    fn layer(&self, share: Option<&'static str>, max_wait: Duration) -> RateLimitLayer {
        let layer = RateLimitLayer::new(self.store.clone(), Vec::new())
            .key(key::global())
            .wait_up_to(max_wait);
        let levels = self.kinds.iter().zip(&self.limiters);
        let levels = levels.map(|(kind, limiter)| {
            let level = Level::new(limiter.clone(), key::global()).share(move |_| share);
            match kind.is_plan_unknown {
                true => level.quotas_for(|_, _| async { Err::<Plan, _>("no plan is known") }),
                false => level,
            }
        });
        levels.fold(layer, RateLimitLayer::and_level)
    }

    /// Takes the levels, and holds them for a moment.
    async fn request(&self, way: Way, share: Option<&'static str>) {
        let work = async || tokio::time::sleep(Duration::from_millis(1)).await;
        let levels = self.limiters.iter().map(|limiter| {
            let level = limiter.level(Key::global());
            match share {
                Some(share) => level.share(share),
                None => level,
            }
        });
        let max_wait = match way {
            Way::Acquire => {
                let _taken = RateLimiter::acquire_all(levels).await;
                return work().await;
            }
            Way::TryAcquire => {
                let _taken = RateLimiter::try_acquire_all(levels).await;
                return work().await;
            }
            Way::Layer => Duration::ZERO,
            Way::WaitingLayer => MAX_WAIT,
        };
        let handler = service_fn(async |_: Request<()>| {
            work().await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        });
        let layer = self.layer(share, max_wait);
        let _response = layer.layer(handler).oneshot(Request::new(())).await;
    }

    /// Sends requests at the same time. Each is answered, or dropped before.
    async fn send(&self, requests: &Requests) {
        if let Some(group) = requests.lost {
            self.store.lose(group);
        }
        let sent = requests.dropped_after.iter().map(async |dropped_after| {
            let request = self.request(requests.way, requests.share);
            match dropped_after {
                Some(micros) => {
                    let _ = timeout(Duration::from_micros(*micros), request).await;
                }
                None => timeout(PATIENCE, request).await.expect("an answer"),
            }
        });
        join_all(sent).await;
        self.store.find();
    }

    /// The slots that are taken, of all levels.
    async fn slots(&self) -> Result<u32, Error> {
        let mut slots = 0;
        for limiter in &self.limiters {
            let decision = limiter.peek(Key::global()).await?;
            let in_flight = decision.quotas().filter(|quota| quota.limit() == SLOTS);
            slots += in_flight.map(|quota| quota.used()).sum::<u32>();
        }
        Ok(slots)
    }

    /// Waits until no slot is taken, less than a lease.
    async fn until_free(&self) {
        for _ in 0..300 {
            // The circuit breaker sends a probe by this clock.
            self.store.clock.advance(Duration::from_millis(10));
            if self.slots().await.is_ok_and(|slots| slots == 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} slots stay taken", self.slots().await);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn whatever_levels_a_request_has_it_is_answered_and_leaves_no_slot(
        kinds in kinds(),
        knows_groups in prop::bool::weighted(0.8),
        requests in requests(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let service = Service::new(kinds, knows_groups);
            // One alone learns of the groups.
            let first = Requests { way: Way::TryAcquire, dropped_after: vec![None], share: None, lost: None };
            service.send(&first).await;
            for requests in &requests {
                service.send(requests).await;
            }
            service.until_free().await;
        });
    }
}
