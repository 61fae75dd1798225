//! Several checks in one call, on a real server: nothing else sends them so yet.

use redis::aio::ConnectionLike;

use super::redis_server::{RedisServer, run};
use super::*;
use crate::decision::QuotaAnswer;
use crate::store::check::Subject;
use crate::{Key, Quota, Quotas};

/// What one call says of checks of a cost each, on keys and quotas: the units used, or an error.
async fn used(
    server: &RedisServer,
    checks: &[(&str, &Quotas, u32)],
) -> Vec<Result<Vec<u32>, ErrorKind>> {
    let limiter = Key::from("l");
    let keys: Vec<Key> = checks.iter().map(|(key, ..)| Key::from(*key)).collect();
    let checks: Vec<Check<'_>> = checks
        .iter()
        .zip(&keys)
        .map(|((_, quotas, cost), key)| Check {
            subject: Subject {
                limiter: &limiter,
                key,
                quotas,
            },
            cost: *cost,
        })
        .collect();
    let call = Call::encode(&Prefix::default(), &checks);
    let expected = call.expected();
    let client = ::redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let command = Scripts::shared().decide.by_text(&call);
    let reply = connection.req_packed_command(&command).await.unwrap();
    let answers = call::decode(reply, &expected).unwrap();
    answers
        .into_iter()
        .map(|answer| {
            let answer = answer.map_err(|error| error.kind())?;
            Ok(answer.quotas().iter().map(QuotaAnswer::used).collect())
        })
        .collect()
}

#[tokio::test]
async fn checks_of_one_call_see_each_other() {
    let server = RedisServer::start();
    let quotas = Quotas::from([Quota::per_hour(5), Quota::per_minute(9)]);
    let check = ("ada", &quotas, 2);
    let answers = used(&server, &[check, check, check, ("bob", &quotas, 1)]).await;
    // The third is refused: neither quota is charged.
    let expected = [[2, 2], [4, 4], [4, 4], [1, 1]];
    assert_eq!(answers, expected.map(|used| Ok(used.to_vec())));
}

#[tokio::test]
async fn a_check_that_fails_leaves_its_neighbours_alone() {
    let server = RedisServer::start();
    run(
        &mut server.connect(),
        &["SET", "tollgate:v1:{l,bob}:log:3600000000", "x"],
    );
    let quotas = Quotas::from(Quota::per_hour(5));
    let checks = ["ada", "bob", "eve"].map(|key| (key, &quotas, 1));
    let answers = used(&server, &checks).await;
    assert_eq!(
        answers,
        [Ok(vec![1]), Err(ErrorKind::Misconfigured), Ok(vec![1])]
    );
}

#[tokio::test]
async fn a_full_server_fails_only_the_checks_that_would_write() {
    let server = RedisServer::start();
    let quotas = Quotas::from(Quota::per_hour(1));
    assert_eq!(used(&server, &[("ada", &quotas, 1)]).await, [Ok(vec![1])]);
    run(&mut server.connect(), &["CONFIG", "SET", "maxmemory", "1"]);
    let answers = used(&server, &["ada", "bob"].map(|key| (key, &quotas, 1))).await;
    assert_eq!(answers, [Ok(vec![1]), Err(ErrorKind::Full)]);
}
