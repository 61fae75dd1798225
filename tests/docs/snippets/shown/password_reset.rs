//! A password reset that tells nobody which accounts exist, and floods no mailbox.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Client;
use tollgate::{MemoryStore, RedisStore};

use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use tollgate::{FailurePolicy, Key, Quota, RateLimitLayer, RateLimiter, Rejection, Store};

async fn reset(
    State((accounts, mailer)): State<(RateLimiter, Mailer)>,
    Json(form): Json<Form>,
) -> Result<StatusCode, Rejection> {
    // Counts names that no account has, too. No answer shows the difference, nor whether a mail is sent.
    let account = Key::from(form.account.trim().to_lowercase());
    if accounts.check(&account).await?.is_allowed() {
        // In the background, as its time would show.
        tokio::spawn(async move { mailer.send(&form.account) });
    }
    Ok(StatusCode::ACCEPTED)
}

fn app(store: impl Store + Clone, mailer: Mailer) -> Router {
    let address = RateLimitLayer::new(store.clone(), Quota::per_hour(10)).name("reset-address");
    let accounts = RateLimiter::new(store, Quota::per_hour(3))
        .name("reset-account")
        .on_failure(FailurePolicy::fall_back());
    Router::new()
        .route("/reset", post(reset).layer(address))
        .with_state((accounts, mailer))
}
// page: end

#[derive(serde::Deserialize)]
struct Form {
    account: String,
}

/// Sends a mail to an account that exists, which is only that of Ada.
#[derive(Clone, Default)]
struct Mailer {
    sent: Arc<Mutex<Vec<String>>>,
}

impl Mailer {
    fn send(&self, account: &str) {
        if account == "ada" {
            self.sent.lock().expect("no panic").push(account.to_owned());
        }
    }

    fn sent(&self) -> usize {
        self.sent.lock().expect("no panic").len()
    }
}

/// Returns the status and the body of the answer, without the headers that count the address.
async fn ask(url: &str, from: u8, account: &str) -> (u16, String) {
    let client = Client::builder().local_address(IpAddr::from([127, 0, 4, from]));
    let client = client.build().expect("a client");
    let form = serde_json::json!({ "account": account });
    let request = client.post(format!("{url}/reset"));
    let request = request.header("content-type", "application/json");
    let answer = request.body(form.to_string()).send().await;
    let answer = answer.expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.text().await.expect("text"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_mails_an_hour_reach_an_account_and_no_answer_tells_which_exist() {
    let server = RedisServer::start();
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    let mailers = [Mailer::default(), Mailer::default()];
    let urls = [
        serve(app(MemoryStore::new(), mailers[0].clone())).await,
        serve(app(redis, mailers[1].clone())).await,
    ];
    for (url, mailer) in urls.iter().zip(&mailers) {
        // From ten addresses, so that only the limit of the account counts.
        for from in 1..=10 {
            let asked = ask(url, from, "ada").await;
            assert_eq!(asked, (202, String::new()));
            assert_eq!(ask(url, from, "nobody").await, asked);
        }
        for _ in 0..1_000 {
            if mailer.sent() >= 3 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(mailer.sent(), 3);

        // One address that tries many names.
        for name in 0..10 {
            assert_eq!(ask(url, 20, &name.to_string()).await.0, 202);
        }
        assert_eq!(ask(url, 20, "ada").await.0, 429);
        assert_eq!(ask(url, 21, "ada").await.0, 202);
        assert_eq!(mailer.sent(), 3);
    }
}
