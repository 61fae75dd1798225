//! The examples do what they say, as programs of their own.

mod support;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use support::redis_server::{DeadPort, RedisServer, run};

/// An example that runs, and ends with its test.
struct Example {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Example {
    fn start(name: &str, store: &str) -> Self {
        let mut process = Command::new(built(name))
            .env("TOLLGATE_STORE", store)
            .env("TOLLGATE_ADDR", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the example runs");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line
    }

    /// The address that the first lines tell to try.
    fn address(&mut self) -> String {
        let listening = self.line();
        let address = listening.strip_prefix("Listening on ").expect(&listening);
        let (address, _) = address.split_once(". Try:").expect(&listening);
        assert!(self.line().contains(address) && self.line().contains(address));
        address.to_owned()
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program of an example as its source now stands: `cargo test` builds all examples, but not
/// where only some tests are asked for.
fn built(name: &str) -> PathBuf {
    static BUILD: Once = Once::new();
    let tests = std::env::current_exe().expect("this program");
    // Examples stand beside the directory of the tests, in that of the profile.
    let profile = tests.ancestors().nth(2).expect("a build directory");
    BUILD.call_once(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--examples", "--all-features"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success());
    });
    profile.join("examples").join(name)
}

async fn statuses(url: &str, requests: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..requests {
        let response = reqwest::get(url).await.expect("an answer");
        statuses.push(response.status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn the_router_counts_in_memory_by_itself() {
    let mut example = Example::start("axum", "memory:");
    let address = example.address();
    let statuses = statuses(&format!("http://{address}/"), 12).await;
    assert_eq!(statuses, [[200; 10].as_slice(), &[429; 2]].concat());

    let mut example = Example::start("axum", "memory:");
    let url = format!("http://{}/search", example.address());
    let keyless = reqwest::get(&url).await.expect("an answer");
    assert_eq!(keyless.status(), 400);
    assert!(keyless.text().await.expect("text").contains("x-api-key"));
    let request = reqwest::Client::new().get(&url).header("x-api-key", "ada");
    let response = request.send().await.expect("an answer");
    assert_eq!(response.headers()["x-ratelimit-limit"], "5");
    assert_eq!(
        response.text().await.expect("text"),
        "found, with 4 of 5 units left\n"
    );
}

#[tokio::test]
async fn routers_in_two_processes_share_one_limit_on_one_redis() {
    let server = RedisServer::start();
    let mut examples = [(); 2].map(|()| Example::start("axum", &server.url()));
    let [one, other] = examples.each_mut().map(Example::address);
    let mut all = Vec::new();
    for _ in 0..8 {
        all.extend(statuses(&format!("http://{one}/"), 1).await);
        all.extend(statuses(&format!("http://{other}/"), 1).await);
    }
    assert_eq!(all, [[200; 10].as_slice(), &[429; 6]].concat());
}

#[tokio::test]
async fn the_router_starts_and_answers_while_redis_is_down() {
    let nowhere = DeadPort::new();
    let mut example = Example::start("axum", &nowhere.url());
    let url = format!("http://{}/", example.address());
    let begin = Instant::now();
    let response = reqwest::get(&url).await.expect("an answer");
    assert_eq!(response.status(), 200);
    // The deadline of the store is 100 ms.
    assert!(
        begin.elapsed() < Duration::from_millis(500),
        "{:?}",
        begin.elapsed()
    );
    // It counts by itself meanwhile.
    let all = statuses(&url, 11).await;
    assert_eq!(all, [[200; 9].as_slice(), &[429; 2]].concat());
}

#[test]
fn the_jobs_stop_cleanly_when_the_quota_is_spent() {
    let mut example = Example::start("jobs", "memory:");
    let refused = example.line();
    assert!(
        refused.starts_with("100 units are not to be had, 84 are left, again in 86"),
        "{refused}"
    );
    assert_eq!(
        example.line(),
        "88 searches done, 9416 units used, 84 left\n"
    );
    assert!(example.process.wait().expect("an end").success());
}

#[test]
fn the_client_of_grpc_waits_as_long_as_told_and_is_then_admitted() {
    let mut example = Example::start("grpc", "memory:");
    for left in [2, 1, 0] {
        assert_eq!(example.line(), format!("admitted, {left} left\n"));
    }
    let refused = example.line();
    assert!(refused.starts_with("refused, again in 1.9"), "{refused}");
    assert!(example.line().starts_with("admitted, "));
    assert!(example.process.wait().expect("an end").success());
}

#[test]
fn the_doctor_tells_scripts_by_its_exit_status_what_it_found() {
    let server = RedisServer::start();
    let nowhere = DeadPort::new();
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(built("doctor"));
        command.env_remove("TOLLGATE_STORE").args(arguments);
        let output = command.output().expect("the example runs");
        let said = String::from_utf8([output.stdout, output.stderr].concat()).expect("text");
        (output.status.code().expect("an end of its own"), said)
    };
    // A machine that is busy is slow for once; a server that is unwell is so each time.
    let ends_in = |expected: i32, saying: &str| {
        let mut runs = (0..5).map(|_| doctor(&[&server.url()]));
        runs.any(|(status, said)| status == expected && said.contains(saying))
    };
    assert!(
        ends_in(0, "ok       script"),
        "{:?}",
        doctor(&[&server.url()])
    );

    let policy = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    run(&mut server.connect(), &policy);
    assert!(
        ends_in(1, "warning  eviction"),
        "{:?}",
        doctor(&[&server.url()])
    );

    let (status, said) = doctor(&[&nowhere.url()]);
    assert!(
        status == 2 && said.starts_with("problem  connection"),
        "{said}"
    );

    for arguments in [&[][..], &["memory:"], &["http://user:hunter2@127.0.0.1"]] {
        let (status, said) = doctor(arguments);
        assert_eq!(status, 3, "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}
