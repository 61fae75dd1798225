//! A login whose handler asks for a second factor while many addresses guess the password of its account.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::Client;
use tollgate::{MemoryStore, RedisStore};

use super::login_limits::Login;
use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use axum::extract::State;
use axum::http::{StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use tollgate::key::{self, KeyExtractor};
use tollgate::{Key, Rejection};

#[derive(serde::Deserialize)]
struct Form {
    account: String,
    password: String,
    code: Option<String>,
}

async fn login(
    State(login): State<Login>,
    parts: Parts,
    Json(form): Json<Form>,
) -> Result<Response, Rejection> {
    // Behind a proxy: `key::client_ip().behind(..)`.
    let Ok(address) = key::peer_ip().extract(&parts) else {
        return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    };
    // `Ada` and `ada ` are one account, so they are one key.
    let account = Key::from(form.account.trim().to_lowercase());
    // 429 with its headers if a limit refuses, 503 if the store fails and the policy is `closed`.
    let attempt = login.attempt(&account, &address).await?.or_reject()?;
    // Before the password: otherwise the answer would tell a guesser that it is right.
    if attempt.is_exceeded() && form.code.as_deref() != Some("314159") {
        return Ok((StatusCode::UNAUTHORIZED, "second factor required").into_response());
    }
    if form.password != "hunter2" {
        return Ok((StatusCode::UNAUTHORIZED, "wrong password").into_response()); // stays charged
    }
    // If the refund fails, the attempt stays charged.
    let _ = login.succeeded(attempt, &account, &address).await;
    Ok("welcome".into_response())
}

fn app(limits: Login) -> Router {
    Router::new()
        .route("/login", post(login))
        .with_state(limits)
}
// page: end

/// A browser at an address of this machine.
struct Browser {
    url: String,
    client: Client,
}

impl Browser {
    fn new(url: &str, at: [u8; 4]) -> Self {
        let client = Client::builder().local_address(IpAddr::from(at)).build();
        Self {
            url: format!("{url}/login"),
            client: client.expect("a client"),
        }
    }

    /// The status, and the text of an answer that is no 429.
    async fn send(&self, account: &str, password: &str, code: Option<&str>) -> (u16, String) {
        let form = serde_json::json!({ "account": account, "password": password, "code": code });
        let request = self.client.post(&self.url);
        let request = request.header("content-type", "application/json");
        let response = request.body(form.to_string()).send().await;
        let response = response.expect("an answer");
        let status = response.status().as_u16();
        if status == 429 {
            let wait = response.headers()["retry-after"].to_str().expect("text");
            let wait: u32 = wait.parse().expect("seconds");
            assert!((600..=900).contains(&wait), "{wait}");
            return (status, String::new());
        }
        (status, response.text().await.expect("text"))
    }

    /// The answers to five wrong passwords, one after the other.
    async fn guess(self, account: &'static str) -> Vec<(u16, String)> {
        let mut answers = Vec::new();
        for guess in 0..5 {
            let password = format!("guess {guess}");
            answers.push(self.send(account, &password, None).await);
        }
        answers
    }
}

fn wrong() -> (u16, String) {
    (401, "wrong password".to_owned())
}

fn asked() -> (u16, String) {
    (401, "second factor required".to_owned())
}

fn welcome() -> (u16, String) {
    (200, "welcome".to_owned())
}

fn refused() -> (u16, String) {
    (429, String::new())
}

/// Serves a login that counts in memory, and one that counts in Redis.
async fn logins(server: &RedisServer) -> [String; 2] {
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    [
        serve(app(Login::new(MemoryStore::new()))).await,
        serve(app(Login::new(redis))).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_500_guesses_from_100_addresses_50_are_decided_by_the_password_alone() {
    let server = RedisServer::start();
    for url in logins(&server).await {
        let guessers = (1..=100).map(|host| Browser::new(&url, [127, 0, 2, host]));
        let guessing = guessers.map(|browser| tokio::spawn(browser.guess("ada")));
        let guessing: Vec<_> = guessing.collect();
        let mut answers = BTreeMap::new();
        for task in guessing {
            for answer in task.await.expect("the answers") {
                *answers.entry(answer).or_insert(0) += 1;
            }
        }
        assert_eq!(answers, BTreeMap::from([(wrong(), 50), (asked(), 450)]));

        // The owner is asked too, and never refused.
        let owner = Browser::new(&url, [127, 0, 3, 1]);
        for _ in 0..10 {
            assert_eq!(owner.send("Ada ", "hunter2", None).await, asked());
            let answer = owner.send("ada", "hunter2", Some("314159")).await;
            assert_eq!(answer, welcome());
        }
        // The second factor alone is not enough, and other accounts need none.
        let answer = owner.send("ada", "guess", Some("314159")).await;
        assert_eq!(answer, wrong());
        assert_eq!(owner.send("grace", "hunter2", None).await, welcome());
        // Each guesser has used up what its address may guess.
        let guesser = Browser::new(&url, [127, 0, 2, 1]);
        assert_eq!(guesser.send("ada", "hunter2", None).await, refused());
    }
}

#[tokio::test]
async fn one_address_guesses_5_passwords_of_an_account_and_20_in_all() {
    let server = RedisServer::start();
    for url in logins(&server).await {
        let guesser = Browser::new(&url, [127, 0, 2, 1]);
        for _ in 0..30 {
            assert_eq!(guesser.send("ada", "hunter2", None).await, welcome());
        }
        for _ in 0..5 {
            assert_eq!(guesser.send("Ada", "guess", None).await, wrong());
        }
        // The account from this address is refused, whoever sends it. The refusal is charged to nothing.
        assert_eq!(guesser.send("ada ", "hunter2", None).await, refused());
        let owner = Browser::new(&url, [127, 0, 3, 1]);
        assert_eq!(owner.send("ada", "hunter2", None).await, welcome());
        // Fifteen more accounts, and the address is refused.
        for account in 0..15 {
            let account = account.to_string();
            assert_eq!(guesser.send(&account, "guess", None).await, wrong());
        }
        assert_eq!(guesser.send("grace", "hunter2", None).await, refused());
        assert_eq!(owner.send("grace", "hunter2", None).await, welcome());
    }
}
