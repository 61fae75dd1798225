//! What Redis stores for slots, and how it is read.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::prelude::*;
use redis::Commands;
use tollgate::store::Store;
use tollgate::store::protocol::{Answers, Change, Holding, StoreFuture, Subject};
use tollgate::{ErrorKind, Key, Quota, Quotas, RedisStore};

use crate::support::redis_server::{RedisServer, times_to_live};
use crate::support::stored::{double, double_at};
use crate::support::{ask, holds_for_any, runtime, store_on};

const LEASE: Duration = Duration::from_secs(15);
const NAME: &str = "tollgate:v3:{jobs,ada}:slots";
const ENTRY: usize = 48;

fn holding(holder: u8, sequence: u64, held: u32, wanted: u32) -> Holding {
    Holding::new([holder; 16], sequence, held, wanted, LEASE)
}

/// Starts a check of the key.
fn start(store: &RedisStore, quotas: &Quotas, cost: u32, holding: &Holding) -> StoreFuture {
    let [limiter, key] = ["jobs", "ada"].map(Key::from);
    let check = Subject::new(&limiter, &key, quotas)
        .check(cost)
        .with_holding(holding);
    ask(store, &[check])
}

async fn check(store: &RedisStore, quotas: &Quotas, holding: &Holding) -> Answers {
    start(store, quotas, 1, holding).await.expect("an answer")
}

/// Starts checks while a first one is in flight, so that they share a call. Returns their answers.
async fn check_together(
    store: &RedisStore,
    quotas: &Quotas,
    holdings: impl IntoIterator<Item = (Holding, u32)>,
) -> Vec<Answers> {
    let first = start(store, quotas, 0, &holding(99, 1, 0, 0));
    let holdings = holdings.into_iter();
    let mut started: Vec<Pin<Box<StoreFuture>>> = holdings
        .map(|(holding, cost)| Box::pin(start(store, quotas, cost, &holding)))
        .collect();
    let mut cx = Context::from_waker(Waker::noop());
    for check in &mut started {
        assert!(check.as_mut().poll(&mut cx).is_pending());
    }
    first.await.expect("an answer");
    let mut answers = Vec::new();
    for check in started {
        answers.push(check.await.expect("an answer"));
    }
    answers
}

#[tokio::test]
async fn a_key_has_one_string_with_an_entry_of_48_bytes_for_each_holder() {
    let server = RedisServer::start();
    let (store, quotas) = (store_on(&server), Quotas::from(Quota::in_flight(9)));
    let _ = check(&store, &quotas, &holding(7, 300, 2, 3)).await;
    let other = Holding::new([8; 16], 5, 0, 1, Duration::from_secs(60));
    let _ = check(&store, &quotas, &other).await;

    let mut connection = server.connect();
    let keys = times_to_live(&mut connection);
    let [(key, millis)] = keys.as_slice() else {
        panic!("{keys:?}");
    };
    assert_eq!(key, NAME);
    // Twice the longest lease, and a second.
    assert!((120_000..=121_000).contains(millis), "{millis}");
    let value: Vec<u8> = connection.get(NAME).unwrap();
    let (mark, entries) = value.split_first().unwrap();
    assert_eq!(*mark, b'h');
    let (micros, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    for (entry, (holder, sequence, slots, lease)) in entries
        .chunks(ENTRY)
        .zip([(7, 300, 5_u32, 15_000_u32), (8, 5, 1, 60_000)])
    {
        let mut expected = vec![holder; 16];
        expected.extend(double(sequence));
        expected.extend(slots.to_be_bytes());
        expected.extend(lease.to_be_bytes());
        // Nobody spends slots.
        expected.extend(double(0));
        assert_eq!(entry[..40], expected);
        let ends = double_at(entry, 40) / 1_000_000;
        let most = micros + u64::from(lease) / 1_000;
        assert!((most - 10..=most).contains(&ends), "{ends} of {most}");
    }
    assert_eq!(entries.len(), 2 * ENTRY);
}

/// Before, slots had entries of 40 bytes in a value of their own, behind the name in these tests but for its end.
#[tokio::test]
async fn slots_of_processes_with_the_former_format_are_left_alone() {
    let server = RedisServer::start();
    let (store, quotas) = (store_on(&server), Quotas::from(Quota::in_flight(3)));
    let mut connection = server.connect();
    let former = NAME.replace(":slots", ":in_flight");
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    let mut value = vec![b'i'];
    value.extend([5; 16]);
    value.extend(double(8));
    value.extend(3_u32.to_be_bytes());
    value.extend(15_000_u32.to_be_bytes());
    value.extend(double((seconds + 15) * 1_000_000));
    let () = connection.set_ex(&former, &value, 31).unwrap();
    // While both run, each format has its own slots: at most twice the limit.
    let used = async |message| {
        let answers = check(&store, &quotas, &message).await;
        (answers.are_admitted(), answers[0].quotas()[0].used())
    };
    assert_eq!(used(holding(5, 1, 0, 3)).await, (true, 3));
    assert_eq!(used(holding(6, 1, 0, 1)).await, (false, 3));
    assert_eq!(connection.get::<_, Vec<u8>>(&former).unwrap(), value);
    let living: i64 = connection.ttl(&former).unwrap();
    assert!((1..=31).contains(&living), "{living}");
}

#[tokio::test]
async fn a_refusal_writes_only_what_is_stated() {
    let server = RedisServer::start();
    let quotas = Quotas::from([Quota::in_flight(3), Quota::per_hour(2)]);
    let store = store_on(&server);
    let mut connection = server.connect();
    let mut stored = || -> Vec<u8> { connection.get(NAME).unwrap() };
    let _ = check(&store, &quotas, &holding(1, 1, 0, 2)).await;
    let before = stored();
    for refused in [holding(2, 1, 1, 3), holding(1, 0, 2, 1).stated()] {
        assert!(!check(&store, &quotas, &refused).await.are_admitted());
        assert_eq!(stored(), before);
    }
    let refused = holding(2, 2, 1, 3).stated();
    assert!(!check(&store, &quotas, &refused).await.are_admitted());
    assert_eq!(stored().len(), 1 + 2 * ENTRY);
    // The rate refuses.
    let _ = check(&store, &quotas, &holding(1, 2, 2, 0)).await;
    let before = stored();
    let refused = holding(1, 3, 1, 0);
    assert!(!check(&store, &quotas, &refused).await.are_admitted());
    assert_ne!(stored(), before);
}

#[tokio::test]
async fn sixty_four_checks_of_one_message_in_one_call_are_granted_what_fits() {
    let server = RedisServer::start();
    let store = store_on(&server);
    for (quotas, fits) in [
        (Quotas::from(Quota::in_flight(50)), 24),
        (
            Quotas::from([Quota::in_flight(50), Quota::per_hour(17)]),
            17,
        ),
    ] {
        let _: () = redis::cmd("FLUSHALL").query(&mut server.connect()).unwrap();
        let _ = check(&store, &quotas, &holding(2, 1, 1, 0)).await;
        // Some ask for another cost, and so in an entry of their own, of the same message.
        let message = holding(1, 5, 1, 2);
        let cost = |place: u32| u32::from(place % 32 < 16);
        let messages = (0..64).map(|place| (message, cost(place)));
        let answers = check_together(&store, &quotas, messages).await;
        let used_before = answers.iter().zip(0..).map(|(answers, place)| {
            let slots = answers[0].quotas()[0];
            (slots.used(), answers.are_admitted(), cost(place))
        });
        let (mut slots, mut units) = (2, 0);
        for (used, is_admitted, cost) in used_before {
            let is_free = slots + 2 <= 50 && (units + cost <= 17 || quotas.len() == 1);
            assert_eq!(is_admitted, is_free, "{slots} {units}");
            slots += if is_free { 2 } else { 0 };
            units += if is_free { cost } else { 0 };
            assert_eq!(used, slots);
        }
        assert!(slots >= 2 + 2 * fits, "{slots}");
        let value: Vec<u8> = server.connect().get(NAME).unwrap();
        let own = value[1..].chunks(ENTRY).find(|entry| entry[0] == 1);
        let own = own.expect("an entry");
        assert_eq!(own[24..28], (slots - 1).to_be_bytes());
    }
}

#[tokio::test]
async fn a_change_of_rates_leaves_slots_alone_and_one_of_slots_sends_no_call() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let slots = Quotas::from(Quota::in_flight(3));
    let both = Quotas::from([Quota::in_flight(3), Quota::per_hour(9)]);
    let _ = check(&store, &both, &holding(1, 1, 0, 2)).await;
    let mut connection = server.connect();
    let before: Vec<u8> = connection.get(NAME).unwrap();
    let [limiter, key] = ["jobs", "ada"].map(Key::from);
    crate::support::costs::forget_calls(&mut connection);
    let reset = Subject::new(&limiter, &key, &slots).adjust(Change::Reset);
    store.adjust(reset).await.unwrap();
    let credit = Subject::new(&limiter, &key, &slots).adjust(Change::Credit { units: 1 });
    store.adjust(credit).await.unwrap();
    let calls = crate::support::costs::calls(&mut connection);
    assert!(!calls.contains_key("evalsha"), "{calls:?}");
    let reset = Subject::new(&limiter, &key, &both).adjust(Change::Reset);
    store.adjust(reset).await.unwrap();
    let keys = times_to_live(&mut connection);
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(connection.get::<_, Vec<u8>>(NAME).unwrap(), before);
}

#[test]
fn foreign_bytes_fail_their_own_entry_and_are_not_overwritten() {
    let server = RedisServer::start();
    let runtime = runtime();
    let (store, quotas) = (store_on(&server), Quotas::from(Quota::in_flight(9)));
    let connection = RefCell::new(server.connect());
    let lengths = prop_oneof![
        0..110_usize,
        Just(1),
        Just(1 + ENTRY),
        Just(1 + 2 * ENTRY),
        Just(ENTRY)
    ];
    let bytes = lengths.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
    let run = |(mut bytes, is_marked): (Vec<u8>, bool)| {
        if let (true, Some(first)) = (is_marked, bytes.first_mut()) {
            *first = b'h';
        }
        let mut connection = connection.borrow_mut();
        let () = connection.set_ex(NAME, &bytes, 3_600).unwrap();
        let [jobs, ada, bob] = ["jobs", "ada", "bob"].map(Key::from);
        let message = holding(1, 1, 1, 0).stated();
        let levels = [&ada, &bob].map(|key| Subject::new(&jobs, key, &quotas).check(1));
        runtime.block_on(async {
            let look = ask(&store, &[Subject::new(&jobs, &bob, &quotas).check(0)]);
            let [spoiled, other] = levels.map(|check| ask(&store, &[check.with_holding(&message)]));
            look.await.expect("an answer");
            other.await.expect("an answer");
            let error = spoiled.await.expect_err("foreign bytes");
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
            assert!(error.to_string().contains("WRONGTYPE"), "{error}");
            let after: Vec<u8> = connection.get(NAME).unwrap();
            assert_eq!(after, bytes);
        });
        Ok(())
    };
    holds_for_any(300, &(bytes, any::<bool>()), run);
    // A key of another type.
    let mut connection = server.connect();
    let _: () = connection.del(NAME).unwrap();
    let _: () = connection.rpush(NAME, 1).unwrap();
    let refused = runtime.block_on(async { start(&store, &quotas, 1, &holding(1, 1, 0, 1)).await });
    let error = refused.unwrap_err();
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
}

#[tokio::test]
async fn a_full_server_refuses_new_holders_of_a_new_key_but_hears_what_is_held() {
    let server = RedisServer::start();
    let (store, quotas) = (store_on(&server), Quotas::from(Quota::in_flight(9)));
    let _ = check(&store, &quotas, &holding(1, 1, 0, 2)).await;
    let mut connection = server.connect();
    for (name, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "1")] {
        crate::support::redis_server::run(&mut connection, &["CONFIG", "SET", name, value]);
    }
    let renewed = check(&store, &quotas, &holding(1, 2, 1, 0)).await;
    assert_eq!(renewed[0].quotas()[0].used(), 1);
    let key = Key::from("bob");
    let limiter = Key::from("jobs");
    let message = holding(1, 3, 0, 1);
    let new = Subject::new(&limiter, &key, &quotas)
        .check(1)
        .with_holding(&message);
    let error = ask(&store, &[new]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
}
