//! Proxies choose a server by the keys of a call, and refuse a script without any.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

use crate::support::redis_server::RedisServer;

/// The commands that a server runs from now on, as MONITOR shows them: each argument in quotes.
fn watch(server: &RedisServer) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream).split(b'\n');
    // Until then, the server does not watch.
    assert!(lines.next().unwrap().unwrap().starts_with(b"+OK"));
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    receiver
}

/// Uses every script of a store.
async fn use_scripts(store: &RedisStore) {
    let quotas = Algorithm::ALL
        .iter()
        .map(|algorithm| Quota::new(9, Duration::from_secs(60)).with_algorithm(*algorithm));
    for quota in quotas.chain([Quota::in_flight(3)]) {
        let limiter = RateLimiter::new(store.clone(), quota.clone()).name(quota.to_string());
        if quota == Quota::in_flight(3) {
            let permit = limiter.acquire("ada").await.unwrap();
            let _ = limiter.admin().status("ada").await.unwrap();
            permit.release().await.unwrap();
            continue;
        }
        let mut decision = limiter.check_n("ada", 2).await.unwrap();
        decision.refund(1).await.unwrap();
        let admin = limiter.admin();
        admin.credit("ada", 1).await.unwrap();
        admin.block("ada", Duration::from_secs(60)).await.unwrap();
        let _ = admin.blocked().await.unwrap();
        admin.unblock("ada").await.unwrap();
    }
    let mixed = [
        Quota::per_hour(9),
        Quota::per_hour(9).with_algorithm(Algorithm::Gcra),
    ];
    let limiter = RateLimiter::new(store.clone(), mixed).name("mixed");
    let _ = limiter.check("ada").await.unwrap();
}

#[tokio::test]
async fn every_call_of_a_script_has_a_key() {
    let mut server = RedisServer::start();
    let commands = watch(&server);
    let store = RedisStore::open(&server.url()).unwrap();
    use_scripts(&store.deadline(Duration::from_secs(10))).await;
    // Ends the list.
    server.kill();
    let (mut hashes, mut texts) = (0, 0);
    for command in commands {
        if let [name @ ("EVALSHA" | "EVAL"), _, keys, ..] = arguments(&command).as_slice() {
            assert_ne!(*keys, "0", "{command}");
            hashes += u32::from(*name == "EVALSHA");
            texts += u32::from(*name == "EVAL");
        }
    }
    println!("{hashes} calls by hash, {texts} by text");
    assert!(
        hashes > 40 && texts > 8,
        "{hashes} calls by hash, {texts} by text"
    );
}

/// The arguments of a command, which MONITOR shows in quotes, with its escapes.
fn arguments(line: &str) -> Vec<&str> {
    let (mut arguments, mut begin, mut is_escaped) = (Vec::new(), None, false);
    for (at, character) in line.char_indices() {
        match (character, begin) {
            _ if is_escaped => is_escaped = false,
            ('\\', _) => is_escaped = true,
            ('"', None) => begin = Some(at + 1),
            ('"', Some(first)) => {
                arguments.push(&line[first..at]);
                begin = None;
            }
            _ => {}
        }
    }
    arguments
}
