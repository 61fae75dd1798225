//! Several checks that are decided together.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::store::HashTags;
use tollgate::store::protocol::Answers;
use tollgate::store::protocol::Subject;
use tollgate::{Algorithm, Error, ErrorKind, Key, Quota, Quotas, RateLimiter, RedisStore};

use crate::support::ask;
use crate::support::costs::{algorithms, calls, forget_calls};
use crate::support::redis_server::{RedisServer, run};
use crate::support::store_on;
use crate::support::stored::name_of;

/// A limiter, a key, quotas and a cost.
type Level = (&'static str, String, Quotas, u32);

/// Decides these levels together.
async fn check_all(store: RedisStore, levels: Vec<Level>) -> Result<Answers, Error> {
    let keys: Vec<_> = levels
        .iter()
        .map(|(limiter, key, ..)| [Key::from(*limiter), Key::from(key.as_str())])
        .collect();
    let checks: Vec<_> = levels
        .iter()
        .zip(&keys)
        .map(|((.., quotas, cost), [limiter, key])| Subject::new(limiter, key, quotas).check(*cost))
        .collect();
    ask(&store, &checks).await
}

/// Checks trees at once, in their order.
async fn check_trees(
    store: &RedisStore,
    trees: impl IntoIterator<Item = Vec<Level>>,
) -> Vec<Result<Answers, Error>> {
    let trees = trees.into_iter();
    let checks: Vec<_> = trees
        .map(|tree| tokio::spawn(check_all(store.clone(), tree)))
        .collect();
    let mut answers = Vec::new();
    for check in checks {
        answers.push(check.await.unwrap());
    }
    answers
}

fn is_admitted(answers: &Answers) -> bool {
    answers.are_admitted()
}

/// A user, a team of four users, a tenant of sixteen, and the service.
fn tree(user: usize, [users, teams, tenants, service]: [&Quotas; 4]) -> Vec<Level> {
    let level =
        |limiter, key: usize, quotas: &Quotas| (limiter, key.to_string(), quotas.clone(), 1);
    vec![
        level("user", user, users),
        level("team", user / 4, teams),
        level("tenant", user / 16, tenants),
        level("service", 0, service),
    ]
}

async fn used(store: &RedisStore, limiter: &'static str, key: usize, quotas: &Quotas) -> u32 {
    let look = vec![(limiter, key.to_string(), quotas.clone(), 0)];
    let answers = check_all(store.clone(), look).await.unwrap();
    answers[0].quotas()[0].used()
}

#[tokio::test]
async fn checks_that_have_limiter_and_key_in_common_are_an_error_and_charge_nothing() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let (limiter, key) = (Key::from("default"), Key::from("ada"));
    let quotas = Quotas::from(Quota::per_hour(5));
    let check = Subject::new(&limiter, &key, &quotas).check(3);
    let error = ask(&store, &[check, check]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let used = RateLimiter::new(store, quotas.clone())
        .peek("ada")
        .await
        .unwrap()
        .used();
    assert_eq!(used, 0);
}

#[tokio::test]
async fn a_key_of_another_type_charges_none_of_the_checks() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let quotas = Quotas::from(Quota::new(5, Duration::from_secs(60)));
    let (limiter, keys) = (Key::from("default"), ["ada", "bob", "cem"].map(Key::from));
    let [ada, bob, cem] = keys
        .each_ref()
        .map(|key| Subject::new(&limiter, key, &quotas).check(2));
    let mut connection = server.connect();
    let stored = "tollgate:v3:{default,cem}:log";
    for (command, value) in [("SET", "x"), ("RPUSH", "x")] {
        run(&mut connection, &["DEL", stored]);
        run(&mut connection, &[command, stored, value]);
        let error = ask(&store, &[ada, bob, cem]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        assert_eq!(keys, [stored]);
    }
    let limiter = RateLimiter::new(store, quotas.clone());
    for key in ["ada", "bob"] {
        assert_eq!(limiter.peek(key).await.unwrap().used(), 0, "{key}");
    }
}

#[tokio::test]
async fn trees_of_shared_levels_share_calls_and_write_each_level_once() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let mut connection = server.connect();
    let quotas = Quotas::from(Quota::per_day(1_000).with_algorithm(Algorithm::SlidingCounter));
    let all = [&quotas; 4];
    // The keys are there, and the script is known.
    for answers in check_trees(&store, (0..64).map(|user| tree(user, all))).await {
        assert!(is_admitted(&answers.unwrap()));
    }
    forget_calls(&mut connection);
    for (user, answers) in check_trees(&store, (0..64).map(|user| tree(user, all)))
        .await
        .into_iter()
        .enumerate()
    {
        let answers = answers.unwrap();
        assert!(is_admitted(&answers), "{user}");
        assert_eq!(answers[0].quotas()[0].used(), 2);
        // In the order of arrival.
        assert_eq!(answers[3].quotas()[0].used() as usize, 65 + user);
    }
    let calls = calls(&mut connection);
    // The first is sent at once; the work of a call has room for about forty.
    assert!(calls["evalsha"] <= 3, "{calls:?}");
    let written = calls["setrange"];
    assert!((85..=64 + 3 * 22).contains(&written), "{calls:?}");
    assert_eq!(calls["mget"], calls["evalsha"]);
}

#[tokio::test]
async fn identical_trees_share_an_entry() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let mut connection = server.connect();
    let quotas = Quotas::from(Quota::per_day(150).with_algorithm(Algorithm::FixedWindow));
    let _ = check_trees(&store, [tree(0, [&quotas; 4])]).await;
    forget_calls(&mut connection);
    let answers = check_trees(&store, (0..200).map(|_| tree(0, [&quotas; 4]))).await;
    for (place, answers) in answers.into_iter().enumerate() {
        let answers = answers.unwrap();
        assert_eq!(is_admitted(&answers), place < 149, "{place}");
        let used = answers
            .iter()
            .map(|answer| answer.quotas()[0].used() as usize);
        assert_eq!(used.collect::<Vec<_>>(), [150.min(place + 2); 4], "{place}");
    }
    assert!(calls(&mut connection)["evalsha"] <= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_admit_exactly_the_limit_of_each_shared_level() {
    let server = RedisServer::start();
    for (_, algorithm) in algorithms() {
        let store = store_on(&server).prefix(format!("{algorithm:?}"));
        let per_day = |limit| Quotas::from(Quota::per_day(limit).with_algorithm(algorithm));
        // A tenant would admit 320, of which its teams admit 240 and the service 400 of two.
        let [users, teams, tenants, service] = [40, 60, 320, 400].map(per_day);
        let quotas = [&users, &teams, &tenants, &service];
        let mut tasks = JoinSet::new();
        for task in 0..32 {
            let (store, tree) = (store.clone(), tree(task, quotas));
            tasks.spawn(async move {
                let mut admitted = 0;
                for _ in 0..30 {
                    let answers = check_all(store.clone(), tree.clone()).await.unwrap();
                    admitted += u32::from(is_admitted(&answers));
                }
                (task, admitted)
            });
        }
        let (mut of_user, mut of_team) = ([0; 32], [0; 8]);
        for (task, admitted) in tasks.join_all().await {
            of_user[task] = admitted;
            of_team[task / 4] += admitted;
        }
        assert_eq!(of_user.iter().sum::<u32>(), 400, "{algorithm:?}");
        assert_eq!(used(&store, "service", 0, &service).await, 400);
        for (tenant, teams) in of_team.chunks(4).enumerate() {
            let admitted = teams.iter().sum::<u32>();
            assert_eq!(used(&store, "tenant", tenant, &tenants).await, admitted);
        }
        for (team, admitted) in of_team.into_iter().enumerate() {
            assert!(admitted <= 60, "{algorithm:?} {team}: {admitted}");
            assert_eq!(used(&store, "team", team, &teams).await, admitted);
        }
        for (user, admitted) in of_user.into_iter().enumerate() {
            assert_eq!(used(&store, "user", user, &users).await, admitted);
        }
    }
}

#[tokio::test]
async fn a_full_level_refuses_its_trees_and_no_others_of_the_call() {
    let server = RedisServer::start();
    let store = store_on(&server);
    for (_, algorithm) in algorithms() {
        let store = store.fork().prefix(format!("{algorithm:?}"));
        let per_day = |limit| Quotas::from(Quota::per_day(limit).with_algorithm(algorithm));
        let [users, teams, tenants, service] = [9, 3, 100, 100].map(per_day);
        let quotas = [&users, &teams, &tenants, &service];
        for call in 0..2 {
            let answers = check_trees(&store, (0..20).map(|user| tree(user, quotas))).await;
            let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
            for (team, answers) in answers.chunks(4).enumerate() {
                let admitted = answers.iter().filter(|answers| is_admitted(answers));
                // The second call finds no room.
                let expected = if call == 0 { 3 } else { 0 };
                assert_eq!(admitted.count(), expected, "{algorithm:?} {call} {team}");
                for refused in answers.iter().filter(|answers| !is_admitted(answers)) {
                    let admits = refused.iter().map(|answer| answer.is_admitted());
                    assert_eq!(admits.collect::<Vec<_>>(), [true, false, true, true]);
                }
            }
            assert_eq!(
                used(&store, "service", 0, &service).await,
                15,
                "{algorithm:?}"
            );
            let mut of_users = 0;
            for user in 0..4 {
                of_users += used(&store, "user", user, &users).await;
            }
            assert_eq!(of_users, 3, "{algorithm:?}");
        }
    }
}

#[tokio::test]
async fn a_level_of_another_type_fails_its_trees_and_no_others_of_the_call() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let mut connection = server.connect();
    for (_, algorithm) in algorithms() {
        run(&mut connection, &["FLUSHALL"]);
        let quotas = Quotas::from(Quota::per_day(100).with_algorithm(algorithm));
        let day = Duration::from_secs(86_400);
        let key = name_of("{team,1}", algorithm, day);
        run(&mut connection, &["RPUSH", &key, "x"]);
        // Users and the service are there already, tenants are not.
        let known = (0..12).map(|user| {
            let [user, _, _, service] = <[Level; 4]>::try_from(tree(user, [&quotas; 4])).unwrap();
            vec![user, service]
        });
        for answers in check_trees(&store, known).await {
            assert!(is_admitted(&answers.unwrap()));
        }
        let answers = check_trees(&store, (0..12).map(|user| tree(user, [&quotas; 4]))).await;
        for (user, answers) in answers.into_iter().enumerate() {
            match answers {
                Ok(answers) => assert!(is_admitted(&answers) && user / 4 != 1, "{user}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
                    assert_eq!(user / 4, 1, "{algorithm:?} {user}");
                }
            }
        }
        assert_eq!(
            used(&store, "service", 0, &quotas).await,
            20,
            "{algorithm:?}"
        );
        assert_eq!(used(&store, "tenant", 0, &quotas).await, 8);
        for user in 0..12 {
            let expected = 1 + u32::from(user / 4 != 1);
            assert_eq!(
                used(&store, "user", user, &quotas).await,
                expected,
                "{user}"
            );
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_fails_its_call_and_frees_nothing() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let user = ["ACL", "SETUSER", "limiter", "on", ">pw", "~*", "+@all"];
    run(&mut connection, &user);
    let url = server.url().replace("redis://", "redis://limiter:pw@");
    let store = RedisStore::open(&url)
        .unwrap()
        .deadline(Duration::from_secs(10));
    let quotas = |algorithm| Quotas::from(Quota::per_day(100).with_algorithm(algorithm));
    let [counter, log] = [Algorithm::Gcra, Algorithm::SlidingLog].map(quotas);
    // Counters are written by SETRANGE, logs by APPEND.
    let trees = || (0..12).map(|user| tree(user, [&counter, &log, &log, &counter]));
    for answers in check_trees(&store, trees()).await {
        assert!(is_admitted(&answers.unwrap()));
    }
    for denied in ["-append", "-setrange"] {
        run(&mut connection, &["ACL", "SETUSER", "limiter", denied]);
        for answers in check_trees(&store, trees()).await {
            let error = answers.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        }
        run(&mut connection, &["ACL", "SETUSER", "limiter", "+@all"]);
    }
    for answers in check_trees(&store, trees()).await {
        assert!(is_admitted(&answers.unwrap()));
    }
    // Twelve checks before, twelve after, and up to 24 that failed and may have been charged.
    for (limiter, keys, quotas) in [
        ("user", 12, &counter),
        ("team", 3, &log),
        ("tenant", 1, &log),
        ("service", 1, &counter),
    ] {
        let of_key = 12 / u32::try_from(keys).unwrap();
        for key in 0..keys {
            let used = used(&store, limiter, key, quotas).await;
            let range = 2 * of_key..=4 * of_key;
            assert!(range.contains(&used), "{limiter} {key}: {used}");
        }
    }
}

#[tokio::test]
async fn a_long_log_is_a_level_like_others() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let [many, few] = [10_000, 100].map(|limit| Quotas::from(Quota::per_day(limit)));
    // So long that it is read in pages.
    for call in 0..600 {
        let trees = (0..3).map(|user| tree(user, [&many; 4]));
        for answers in check_trees(&store, trees).await {
            assert!(is_admitted(&answers.unwrap()), "{call}");
        }
    }
    assert_eq!(used(&store, "service", 0, &many).await, 1_800);
    assert_eq!(used(&store, "user", 2, &many).await, 600);
    // The limit is low now, so that it is read whole.
    let trees = (0..3).map(|user| tree(user, [&few; 4]));
    for answers in check_trees(&store, trees).await {
        let used = answers.unwrap();
        let used = used.iter().map(|answer| answer.quotas()[0].used());
        assert_eq!(used.collect::<Vec<_>>(), [600, 1_800, 1_800, 1_800]);
    }
}

#[tokio::test]
async fn trees_wait_for_the_server_and_know_when_it_is_gone() {
    let mut server = RedisServer::start();
    let store = store_on(&server);
    let quotas = Quotas::from(Quota::per_day(100));
    let trees = || (0..12).map(|user| tree(user, [&quotas; 4]));
    run(&mut server.connect(), &["SCRIPT", "FLUSH"]);
    for answers in check_trees(&store, trees()).await {
        assert!(is_admitted(&answers.unwrap()));
    }
    let port = server.port();
    server.kill();
    for answers in check_trees(&store, trees()).await {
        let kind = answers.unwrap_err().kind();
        let lost = [ErrorKind::Unavailable, ErrorKind::Timeout];
        assert!(lost.contains(&kind), "{kind:?}");
    }
    let _server = RedisServer::spawn(port);
    let mut answers = check_trees(&store, trees()).await;
    for _ in 0..100 {
        if answers.iter().all(Result::is_ok) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        answers = check_trees(&store, trees()).await;
    }
    panic!("{answers:?}");
}

#[tokio::test]
async fn a_tree_whose_callers_have_gone_is_not_sent() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let quotas = Quotas::from(Quota::per_day(100));
    let first = tokio::spawn(check_all(store.clone(), tree(0, [&quotas; 4])));
    tokio::task::yield_now().await;
    let gone: Vec<_> = (1..9)
        .map(|user| tokio::spawn(check_all(store.clone(), tree(user, [&quotas; 4]))))
        .collect();
    let stays = tokio::spawn(check_all(store.clone(), tree(9, [&quotas; 4])));
    for task in &gone {
        task.abort();
    }
    assert!(is_admitted(&first.await.unwrap().unwrap()));
    assert!(is_admitted(&stays.await.unwrap().unwrap()));
    assert_eq!(used(&store, "service", 0, &quotas).await, 2);
}

#[tokio::test]
async fn a_key_that_is_one_level_of_one_check_and_another_level_of_another_is_counted_once_for_each()
 {
    let server = RedisServer::start();
    for (_, algorithm) in algorithms() {
        let store = store_on(&server).prefix(format!("{algorithm:?}"));
        let quotas = Quotas::from(Quota::per_day(100).with_algorithm(algorithm));
        let account = |key: usize, cost| ("account", key.to_string(), quotas.clone(), cost);
        // Each account is the first of three checks, and the second of three others.
        for round in 1..4 {
            let pairs = (0..4).flat_map(|from| (1..4).map(move |to| (from, (from + to) % 4)));
            let checks = pairs.map(|(from, to)| vec![account(from, 2), account(to, 3)]);
            for answers in check_trees(&store, checks).await {
                assert!(is_admitted(&answers.unwrap()));
            }
            for key in 0..4 {
                let used = used(&store, "account", key, &quotas).await;
                assert_eq!(used, 15 * round, "{algorithm:?}");
            }
        }
    }
}

#[tokio::test]
async fn levels_in_several_slots_of_a_cluster_are_an_error_and_charge_nothing() {
    let server = RedisServer::start_cluster();
    let quotas = Quotas::from(Quota::per_day(100));
    let mut store = store_on(&server);
    for round in 0..3 {
        if round < 2 {
            // Not known to be a cluster, so the first call finds out.
            store = store_on(&server);
        }
        let trees = (0..12).map(|user| {
            let mut tree = tree(user, [&quotas; 4]);
            if round > 0 {
                // All begin in one slot.
                tree.reverse();
            }
            tree
        });
        for answers in check_trees(&store, trees).await {
            let error = answers.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("slots"), "{error}");
        }
    }
    assert_eq!(used(&store, "service", 0, &quotas).await, 0);
    // With one tag, all keys are in one slot.
    let store = store
        .fork()
        .hash_tags(HashTags::Shared(std::num::NonZeroU16::MIN));
    for answers in check_trees(&store, (0..12).map(|user| tree(user, [&quotas; 4]))).await {
        assert!(is_admitted(&answers.unwrap()));
    }
    assert_eq!(used(&store, "service", 0, &quotas).await, 12);
}
