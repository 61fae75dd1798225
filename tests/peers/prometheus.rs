//! Prometheus scrapes the example `observability` and evaluates the queries of its dashboard and alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::{Client, Url};
use serde_json::Value;

use crate::support::example::Example;
use crate::support::process::Process;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::watched::{self, list, text_of};

/// Several times what Prometheus takes to start, and to scrape, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Prometheus on a free port of this machine, as the example's settings have it, but in a hurry.
struct Prometheus {
    _process: Process,
    url: String,
    /// Where its settings and series are.
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes `target`.
    async fn start(target: &str) -> Self {
        // A free port may be taken by somebody else before the server has it: then it ends.
        for _ in 0..10 {
            let directory = tempfile::tempdir().expect("a directory");
            configure(directory.path(), target);
            let address = format!("127.0.0.1:{}", free_port());
            let mut process = spawn(directory.path(), &address);
            let url = format!("http://{address}");
            if is_ready(&mut process, &url).await {
                return Self {
                    _process: process,
                    url,
                    _directory: directory,
                };
            }
        }
        panic!("prometheus does not start; is it installed?");
    }

    /// What its API answers; what it does not understand is an error.
    async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let url = format!("{}/api/v1/{path}", self.url);
        let url = Url::parse_with_params(&url, parameters).expect("a URL");
        let answer = reqwest::get(url).await.expect("an answer");
        let answer = answer.text().await.expect("text");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        answer["data"].clone()
    }

    /// Series by the values of these labels.
    async fn ask(&self, expr: &str, labels: &[&str]) -> BTreeMap<Vec<String>, f64> {
        let answer = self.get("query", &[("query", expr)]).await;
        let series = list(&answer, "result").into_iter();
        let series = series.map(|series| {
            let metric = &series["metric"];
            let labels = labels.iter().map(|label| text_of(metric, label).to_owned());
            let value = series["value"][1].as_str().expect("a number as text");
            (labels.collect(), value.parse().expect("a number"))
        });
        series.collect()
    }

    /// Asks until the answer is as wanted.
    async fn comes_to(
        &self,
        expr: &str,
        labels: &[&str],
        is_wanted: impl Fn(&BTreeMap<Vec<String>, f64>) -> bool,
    ) {
        let patience = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(expr, labels).await;
            if is_wanted(&answer) {
                return;
            }
            assert!(Instant::now() < patience, "{expr}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The settings of the example, for another target, and with a glance each fifth of a second.
fn configure(directory: &Path, target: &str) {
    let settings = watched::text("prometheus.yml");
    assert!(settings.contains("127.0.0.1:3000") && settings.contains("interval: 5s"));
    let settings = settings.replace("127.0.0.1:3000", target);
    let settings = settings.replace("interval: 5s", "interval: 200ms");
    fs::write(directory.join("prometheus.yml"), settings).expect("a file");
    let rules = hurried(&watched::text("alerts.yml"));
    fs::write(directory.join("alerts.yml"), rules).expect("a file");
}

/// Rules that sum over windows of two seconds where those of the example sum over windows of five minutes.
fn hurried(rules: &str) -> String {
    let rules = rules.replace("interval: 2m", "interval: 200ms");
    let rules = rules.replace("[30d:5m]", "[1h:2s]");
    rules.replace("[3d:5m]", "[1h:2s]")
}

fn spawn(directory: &Path, address: &str) -> Process {
    let mut prometheus = Command::new("prometheus");
    prometheus
        .arg("--config.file=prometheus.yml")
        .arg("--storage.tsdb.path=series")
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=error")
        .current_dir(directory)
        .stdout(Stdio::null());
    Process::start(&mut prometheus)
}

async fn is_ready(process: &mut Process, url: &str) -> bool {
    let patience = Instant::now() + PATIENCE;
    while Instant::now() < patience && process.is_running() {
        let answer = reqwest::get(format!("{url}/-/ready")).await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

/// The example, and what its clients have seen of it.
struct Service {
    _example: Example,
    address: String,
    /// How often, by limiter and outcome.
    seen: BTreeMap<Vec<String>, u32>,
}

impl Service {
    fn start(store: &str) -> Self {
        let mut example = Example::start("observability", store);
        Self {
            address: example.address(),
            _example: example,
            seen: BTreeMap::new(),
        }
    }

    /// Sends requests, and notes what becomes of them by what they are answered.
    async fn send(&mut self, path: &str, who: Option<&str>, times: u32, limiter: &str) {
        let url = format!("http://{}{path}", self.address);
        let client = Client::new();
        for _ in 0..times {
            let request = client.get(&url);
            let request = who
                .into_iter()
                .fold(request, |request, who| request.header("x-api-key", who));
            let status = request.send().await.expect("an answer").status();
            let outcome = match (status.as_u16(), path) {
                (200, "/healthz") => "exempt",
                (200, _) => "admitted",
                (400, _) => "no_key",
                (429, _) => "refused",
                other => panic!("{other:?}"),
            };
            let seen = vec![limiter.to_owned(), outcome.to_owned()];
            *self.seen.entry(seen).or_default() += 1;
        }
    }

    async fn send_to_all(&mut self) {
        self.send("/", Some("ada"), 22, "site").await;
        self.send("/healthz", None, 3, "site").await;
        self.send("/search", Some("ada"), 9, "search").await;
        self.send("/search", Some("grace"), 2, "search").await;
        self.send("/search", None, 4, "search").await;
        self.send("/export", Some("ada"), 5, "export").await;
    }
}

#[tokio::test]
async fn prometheus_counts_what_clients_saw_and_answers_what_dashboard_and_alerts_ask() {
    let mut redis = RedisServer::start();
    let mut service = Service::start(&redis.url());
    let prometheus = Prometheus::start(&service.address).await;

    service.send_to_all().await;
    // A dry run answers none of its clients otherwise: three in ten seconds are within its limit.
    let of_export = |outcome: &str| vec!["export".to_owned(), outcome.to_owned()];
    service.seen.insert(of_export("admitted"), 3);
    service.seen.insert(of_export("would_reject"), 2);
    let counted = "sum by (limiter, outcome) (tollgate_checks_total) > 0";
    let labels = ["limiter", "outcome"];
    let seen = service.seen.iter();
    let seen = seen.map(|(labels, count)| (labels.clone(), f64::from(*count)));
    let seen: BTreeMap<_, _> = seen.collect();
    prometheus
        .comes_to(counted, &labels, |counted| *counted == seen)
        .await;
    let decided = "sum by (source) (tollgate_checks_total)";
    let all = |counted: &BTreeMap<Vec<String>, f64>| {
        let sources = ["refusal_cache", "memory", "none", "redis"];
        sources
            .iter()
            .all(|source| counted.contains_key(&vec![(*source).to_owned()]))
    };
    prometheus.comes_to(decided, &["source"], all).await;

    // Once more: Prometheus sees an increase only of what it knows already.
    service.send_to_all().await;

    // Then Redis is gone, and this process counts.
    redis.kill();
    service.send_to_all().await;
    // Keys without a remembered refusal, so that enough checks fail to open the circuit breaker.
    for who in 0..10 {
        let who = who.to_string();
        service.send("/search", Some(&who), 1, "search").await;
    }
    let fallback = r#"sum(tollgate_checks_total{source="fallback"})"#;
    prometheus
        .comes_to(fallback, &[], |sum| sum.values().any(|sum| *sum > 0.0))
        .await;

    // Now each panel has something to show, each choice something to choose from.
    let mut queries = watched::of_panels();
    queries.extend(watched::of_choices());
    for query in queries {
        prometheus
            .comes_to(&query.expr, &[], |answer| !answer.is_empty())
            .await;
    }
    for alert in watched::alerts() {
        prometheus.ask(&alert.expr, &[]).await;
    }
    // And somebody will be woken, if it lasts for a minute.
    let alert =
        r#"ALERTS{alertname="TollgateBreakerOpen", alertstate="pending", severity="critical"}"#;
    prometheus
        .comes_to(alert, &[], |alerts| alerts.len() == 1)
        .await;

    // It has read the file of the alerts as these tests do.
    let rules = prometheus.get("rules", &[]).await;
    let groups = list(&rules, "groups");
    let read = groups.iter().flat_map(|group| list(group, "rules"));
    let read: BTreeSet<_> = read
        .map(|rule| {
            (
                text_of(&rule, "name").to_owned(),
                unspaced(text_of(&rule, "query")),
            )
        })
        .collect();
    let alerts = watched::alerts().into_iter();
    let alerts = alerts.map(|alert| (alert.name, unspaced(&alert.expr)));
    let recorded = watched::recorded().into_iter();
    let recorded = recorded.map(|recorded| (recorded.of, unspaced(&hurried(&recorded.expr))));
    assert_eq!(read, alerts.chain(recorded).collect());
}

fn unspaced(expr: &str) -> String {
    expr.split_whitespace().collect()
}

#[tokio::test]
async fn the_linter_of_prometheus_finds_no_fault_in_what_is_scraped() {
    let redis = RedisServer::start();
    let mut service = Service::start(&redis.url());
    service.send_to_all().await;
    let scraped = reqwest::get(format!("http://{}/metrics", service.address)).await;
    let scraped = scraped.expect("an answer").text().await.expect("text");
    assert!(
        scraped.contains("tollgate_batch_checks_bucket"),
        "{scraped}"
    );
    let mut linter = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool comes with prometheus");
    let mut input = linter.stdin.take().expect("a pipe");
    input.write_all(scraped.as_bytes()).expect("it reads");
    drop(input);
    let ran = linter.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.is_empty(), "{said}");
}

#[test]
fn the_alerts_fire_when_they_should() {
    for (what, file) in [
        (["check", "config"], "prometheus.yml"),
        (["check", "rules"], "alerts.yml"),
        (["test", "rules"], "alerts_test.yml"),
    ] {
        let ran = Command::new("promtool")
            .args(what)
            .arg(watched::path(file))
            .output();
        let ran = ran.expect("promtool comes with prometheus");
        let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{what:?} {file}: {said}");
    }
}
