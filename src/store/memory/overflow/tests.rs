//! Tests of a flood of new keys: clients in other networks keep their limits.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::clock::TestClock;
use crate::key::peer_ip;
use crate::limiter::RateLimiter;
use crate::quota::{Algorithm, Quota};
use crate::store::memory::memory_store::MemoryStore;
use crate::store::memory::overflow::*;

const LIMIT: u32 = 10;
const HOUR: Duration = Duration::from_secs(3_600);

/// More keys than the store has room for.
const FLOOD: u32 = 3_000;
const MAX_KEYS: usize = 1_000;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> Key {
    peer_ip().of(IpAddr::from(Ipv4Addr::new(a, b, c, d)))
}

/// The client `n` of an IPv6 /48.
fn v6(site: u16, n: u32) -> Key {
    let [high, low] = [n >> 16, n & 0xffff].map(|half| u16::try_from(half).unwrap());
    let address = Ipv6Addr::new(0x2001, 0xdb8, site, low, high, 0, 0, 1);
    peer_ip().of(IpAddr::from(address))
}

struct Flooded {
    clock: TestClock,
    store: MemoryStore,
    limiter: RateLimiter,
}

impl Flooded {
    /// Creates a store that clients in two IPv6 /48 networks have filled with keys near their limit.
    fn new(algorithm: Algorithm) -> Self {
        let clock = TestClock::new();
        let store = MemoryStore::build(MAX_KEYS, Clock::Test(clock.clone()), "memory");
        let quota = Quota::per_hour(LIMIT).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store.clone(), quota);
        let flooded = Self {
            clock,
            store,
            limiter,
        };
        for client in 0..FLOOD {
            let site = if client % 2 == 0 { 1 } else { 2 };
            let _ = flooded.charge(&v6(site, client), LIMIT - 2);
        }
        assert_eq!(flooded.store.len(), MAX_KEYS);
        flooded
    }

    fn charge(&self, key: &Key, cost: u32) -> bool {
        let decision = block_on(self.limiter.check_n(key, cost));
        decision.expect("a decision").is_allowed()
    }

    fn used(&self, key: &Key) -> u32 {
        block_on(self.limiter.peek(key)).expect("a look").used()
    }
}

#[test]
fn a_flood_from_two_networks_does_not_affect_clients_in_others() {
    let flooded = Flooded::new(Algorithm::SlidingLog);
    for network in 0..50 {
        let client = v4(198, 51, network, 7);
        assert!((0..LIMIT).all(|_| flooded.charge(&client, 1)), "{network}");
        assert!(!flooded.charge(&client, 1), "{network}");
    }
    // The flood itself is refused, because its networks have used their limits.
    let admitted = (FLOOD..2 * FLOOD).filter(|client| flooded.charge(&v6(1, *client), 1));
    assert!(admitted.count() <= 2);
}

#[test]
fn clients_of_one_network_share_its_limit() {
    let flooded = Flooded::new(Algorithm::SlidingLog);
    let admitted = (0..=255).filter(|client| flooded.charge(&v4(198, 51, 100, *client), 1));
    assert_eq!(admitted.count(), 10);
    let admitted = (0..100).filter(|client| flooded.charge(&v6(3, *client), 1));
    assert_eq!(admitted.count(), 10);
}

#[test]
fn a_client_gets_no_second_limit_when_there_is_room_again() {
    for algorithm in Algorithm::ALL {
        let algorithm = algorithm.with_buckets(10);
        let flooded = Flooded::new(algorithm);
        flooded.clock.advance(HOUR / 2);
        let client = v4(198, 51, 100, 7);
        assert!(flooded.charge(&client, LIMIT));
        // Half an hour later, the flood's units have returned, but not the client's.
        flooded.clock.advance(HOUR / 2 + Duration::from_secs(1));
        let held = flooded.used(&client);
        assert!(
            held > 0 || algorithm == Algorithm::FixedWindow,
            "{algorithm}"
        );
        flooded.store.remove_dead();
        let left = block_on(flooded.limiter.peek(&client)).unwrap().remaining();
        assert_eq!(left, LIMIT - held, "{algorithm}");
        let neighbour = v4(198, 51, 100, 8);
        assert_eq!(flooded.used(&neighbour), held, "{algorithm}");
        // Once these have returned too, each client has its own count.
        flooded.clock.advance(3 * HOUR);
        assert!(flooded.charge(&client, LIMIT));
        assert_eq!(flooded.used(&neighbour), 0, "{algorithm}");
    }
}

#[test]
fn keys_without_an_address_share_a_few_counts() {
    let flooded = Flooded::new(Algorithm::SlidingLog);
    let admitted = (0..5_000).filter(|user| flooded.charge(&Key::from(format!("user:{user}")), 1));
    let shared = u32::try_from(SHARED_COUNTS).unwrap();
    assert_eq!(admitted.count(), usize::try_from(shared * LIMIT).unwrap());
    // These counts are apart from the counts of networks.
    assert!(flooded.charge(&v4(198, 51, 100, 7), LIMIT));
}

#[test]
fn a_tuple_key_with_an_address_is_counted_with_its_network() {
    let flooded = Flooded::new(Algorithm::SlidingLog);
    let search = Key::from("/search").and(v4(198, 51, 100, 1));
    let export = Key::from("/export").and(v4(198, 51, 100, 2));
    assert!(flooded.charge(&search, 6));
    assert!(flooded.charge(&export, 4));
    assert!(!flooded.charge(&v4(198, 51, 100, 3), 1));
}

#[test]
fn units_charged_to_a_shared_count_are_returned_to_it() {
    let flooded = Flooded::new(Algorithm::Gcra);
    let one = v4(198, 51, 100, 1);
    let other = v4(198, 51, 100, 2);
    let mut decision = block_on(flooded.limiter.check_n(&one, 6)).unwrap();
    assert!(flooded.charge(&other, 4));
    block_on(decision.refund(6)).unwrap();
    assert_eq!([flooded.used(&one), flooded.used(&other)], [4, 4]);
    block_on(flooded.limiter.admin().credit(&one, 1)).unwrap();
    assert_eq!(flooded.used(&other), 3);
    block_on(flooded.limiter.admin().reset(&one)).unwrap();
    assert_eq!(flooded.used(&other), 0);
}

#[test]
fn networks_without_room_share_counts_and_keep_them() {
    let flooded = Flooded::new(Algorithm::SlidingLog);
    let network = |network: u16| {
        let [high, low] = network.to_be_bytes();
        v4(100, high, low, 1)
    };
    let networks = u16::try_from(4 * MAX_KEYS / KEYS_PER_NETWORK).unwrap();
    let admitted = (0..networks).filter(|at| flooded.charge(&network(*at), LIMIT));
    let own = MAX_KEYS / KEYS_PER_NETWORK - 2;
    let shared = usize::try_from(SHARED_COUNTS).unwrap();
    let admitted = admitted.count();
    assert!((own..=own + shared).contains(&admitted), "{admitted}");
    // No network gets a second limit.
    let again = (0..networks).filter(|at| flooded.charge(&network(*at), LIMIT));
    assert_eq!(again.count(), 0);
}

#[test]
fn a_shared_count_admits_its_limit_to_any_number_of_threads() {
    let flooded = Flooded::new(Algorithm::SlidingLog);
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|thread| {
                let flooded = &flooded;
                let admitted = move |client: &u8| {
                    let key = v4(198, 51, 100, client.wrapping_mul(16).wrapping_add(thread));
                    flooded.charge(&key, 1)
                };
                scope.spawn(move || (0..200).filter(admitted).count())
            })
            .collect();
        let admitted = threads.into_iter().map(|thread| thread.join().unwrap());
        admitted.sum()
    });
    assert_eq!(admitted, 10);
}
