//! Runs the examples as separate programs.

#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use support::example::{Example, built};
use support::node::Node;
use support::redis_server::{DeadPort, RedisServer, run};
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

/// A client at this address of this machine.
fn client_at(address: [u8; 4]) -> Client {
    let client = Client::builder().local_address(IpAddr::from(address));
    client.build().expect("a client")
}

async fn statuses_of(request: RequestBuilder, requests: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..requests {
        let request = request.try_clone().expect("a body that can be sent again");
        statuses.push(request.send().await.expect("an answer").status().as_u16());
    }
    statuses
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
    let request = Client::new().get(&url).header("x-api-key", "ada");
    let response = request.send().await.expect("an answer");
    assert_eq!(response.headers()["x-ratelimit-limit"], "5");
    assert_eq!(
        response.text().await.expect("text"),
        "found, with 4 of 5 units left\n"
    );
    for path in ["csv", "%63sv"] {
        let request = Client::new().get(format!("{url}/{path}"));
        let request = request.header("x-api-key", path);
        let response = request.send().await.expect("an answer");
        assert_eq!(
            response.text().await.expect("text"),
            "found, with 1 of 5 units left\n"
        );
    }
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
    // Meanwhile it counts in memory.
    let all = statuses(&url, 11).await;
    assert_eq!(all, [[200; 9].as_slice(), &[429; 2]].concat());
}

/// What a playground answers as JSON.
async fn told(request: RequestBuilder) -> Value {
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.expect("text");
    serde_json::from_str(&text).expect(&text)
}

const LIMIT: &str = "quotas=2/hour&algorithm=gcra&key=ada&cost=1";

#[tokio::test]
async fn the_playground_answers_as_its_limit_does_and_brings_all_of_its_page() {
    let mut example = Example::start("playground", "memory:");
    let url = format!("http://{}", example.address());
    let client = Client::new();
    let request = client.post(format!("{url}/request?{LIMIT}"));
    assert_eq!(
        statuses_of(request.try_clone().expect("no body"), 3).await,
        [200, 200, 429]
    );
    let refused = request.send().await.expect("an answer");
    let wait = refused.headers()["retry-after"].to_str().expect("text");
    let wait: u32 = wait.parse().expect(wait);
    assert!((1_700..=1_800).contains(&wait), "{wait}");
    assert_eq!(
        refused.headers()["ratelimit-policy"],
        "\"playground\";q=2;w=3600"
    );

    // A look costs nothing; after a reset nothing is used.
    let look = client.get(format!("{url}/peek?{LIMIT}"));
    let looked = told(look.try_clone().expect("no body")).await;
    assert_eq!(looked["lanes"][0]["used"], json!([2]));
    assert_eq!(looked["lanes"][0]["held"], 0);
    let reset = client.post(format!("{url}/reset?{LIMIT}"));
    assert_eq!(told(reset).await, json!({ "failure": null }));
    assert_eq!(told(look).await["lanes"][0]["used"], json!([0]));

    let page = reqwest::get(&url).await.expect("an answer");
    let policy = page.headers()["content-security-policy"]
        .to_str()
        .expect("text");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'"),
        "{policy}"
    );
    let html = page.text().await.expect("text");
    let linked = html
        .split('"')
        .filter(|text| text.starts_with('/') && text.contains('.'));
    let linked: Vec<_> = linked.collect();
    assert_eq!(linked, ["/favicon.svg", "/style.css", "/main.js"]);
    for file in linked {
        let file = reqwest::get(format!("{url}{file}"))
            .await
            .expect("an answer");
        assert_eq!(file.status(), 200);
    }
}

#[tokio::test]
async fn the_playground_promises_of_each_algorithm_what_the_guide_does() {
    let mut example = Example::start("playground", "memory:");
    let script = reqwest::get(format!("http://{}/algorithms.js", example.address()));
    let script = script.await.expect("an answer").text().await.expect("text");
    let list = script
        .strip_prefix("export const ALGORITHMS = ")
        .and_then(|list| list.strip_suffix(";\n"))
        .expect(&script);
    let list: Value = serde_json::from_str(list).expect(list);

    // | [`SlidingLog`] | what for | never more than the limit | ..
    let page = include_str!("../../src/guide/algorithms.md");
    let (_, table) = page
        .split_once("<!-- from: promises -->\n")
        .expect("a table");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| row.split('|').map(str::trim).skip(1).collect::<Vec<_>>());
    let mut rows = rows.collect::<Vec<_>>().into_iter();
    assert_eq!(
        rows.next().expect("a head")[2],
        "in any span as long as the window"
    );
    let rows = rows.skip(1).map(|row| {
        let name = row[0].split('`').nth(1).expect(row[0]).to_lowercase();
        // The playground has ten.
        (
            name.replace("(n)", ""),
            row[2].replace("window/n", "window/10"),
        )
    });
    let told = list.as_array().expect("a list").iter().map(|told| {
        let text = |what: &str| told[what].as_str().expect(what).to_owned();
        (
            text("name").replace(' ', "").to_lowercase(),
            text("promise"),
        )
    });
    assert_eq!(told.collect::<Vec<_>>(), rows.collect::<Vec<_>>());
}

#[tokio::test]
async fn the_playground_reports_each_request_of_a_stream_until_it_is_stopped() {
    let mut example = Example::start("playground", "memory:");
    let url = format!("http://{}", example.address());
    let client = Client::new();
    let stream = |id, seconds| {
        let pace = format!("rate=1000&seconds={seconds}&id={id}");
        client.post(format!(
            "{url}/stream?quotas=300/hour&algorithm=gcra&key=ada&cost=2&{pace}"
        ))
    };
    let whole = stream("whole", 1).send().await.expect("an answer");
    let endless = stream("endless", 120).send().await.expect("an answer");
    let again = stream("endless", 120).send().await.expect("an answer");
    assert_eq!(again.status(), 409);
    let whole = whole.text().await.expect("text");
    let stopped = client.post(format!("{url}/stream/stop?id=endless"));
    assert_eq!(stopped.send().await.expect("an answer").status(), 200);
    let endless = endless.text().await.expect("text");

    let mut all = 0;
    for (stream, expected) in [(whole, Some(1_000)), (endless, None)] {
        let lines = stream
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect(line));
        let mut reports: Vec<_> = lines.collect();
        let done = reports.pop().expect("an end")["done"].take();
        let requests = reports
            .iter()
            .flat_map(|report| report["requests"].as_array().expect("a list"));
        let (mut asked, mut by_log) = (0, 0);
        for request in requests {
            asked += 1;
            by_log += request[2].as_u64().expect("bits") & 1;
        }
        assert_eq!(done["asked"], asked);
        assert_eq!(done["admitted"][0], by_log);
        assert!(expected.is_none_or(|expected| expected == asked), "{asked}");
        all += asked;
    }
    let counts = told(client.get(format!("{url}/counts"))).await;
    assert_eq!(counts["asked"], all);
    // Of 300 units, two each; how many of which stream is chance.
    assert_eq!(counts["admitted"][0], 150);
}

#[tokio::test]
async fn the_playground_sends_a_burst_on_both_sides_of_an_edge() {
    let server = RedisServer::start();
    for store in ["memory:".to_owned(), server.url()] {
        let mut example = Example::start("playground", &store);
        let url = format!("http://{}", example.address());
        let client = Client::new();
        let settings = "quotas=10/4s&algorithm=gcra&key=ada&cost=2&id=a";
        let burst = client.post(format!("{url}/edge?{settings}"));
        let (mut reports, done) = streamed(burst).await;
        let wait = reports.remove(0)["edge_in"].as_u64().expect("a time");
        assert!(wait <= 8_000_000, "{wait}");
        let seen: Vec<_> = reports
            .iter()
            .map(|report| report["requests"].as_array().expect("a list").len())
            .collect();
        // Of ten units, at a cost of two.
        assert_eq!(seen, [5, 5]);
        assert_eq!(reports[1]["answers"].as_array().expect("a list").len(), 6);
        assert_eq!(done["asked"], 10);
        let admitted = &done["admitted"];
        // The log admits the limit, the fixed window twice the limit.
        assert_eq!((&admitted[0], &admitted[5]), (&json!(5), &json!(10)));
        for (wrong, why) in [
            ("10/hour", "a window of 1 s to 1 min"),
            ("10/4s, 5/2s", "one quota"),
            ("1/4s", "a limit of 1 to 1,000 requests"),
        ] {
            let settings = format!("quotas={wrong}&algorithm=gcra&key=ada&cost=2&id=a");
            let burst = client.post(format!("{url}/edge?{settings}"));
            assert_eq!(statuses_of(burst, 1).await, [400]);
            let looked = told(client.get(format!("{url}/peek?{settings}"))).await;
            let off = looked["edge_off"].as_str().expect("a reason");
            assert!(off.contains(why), "{off}");
        }
    }
}

#[test]
fn the_playground_records_a_burst_as_one_file_that_names_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("playground.html");
    let recorded = Command::new(built("playground"))
        .arg("--record")
        .arg(&path)
        .env("TOLLGATE_STORE", "memory:")
        .output();
    let recorded = recorded.expect("it runs");
    assert!(recorded.status.success(), "{recorded:?}");
    let page = std::fs::read_to_string(path).expect("a page");
    for attribute in ["src=", "href="] {
        for value in page.split(attribute).skip(1) {
            let is_inside = ["\"/\" ", "\"data:"]
                .iter()
                .any(|start| value.starts_with(start));
            assert!(is_inside, "{attribute}{}", &value[..80]);
        }
    }
    assert!(page.contains("default-src 'none'"));

    let (_, imports) = page
        .split_once("<script type=\"importmap\">")
        .expect("modules");
    let (imports, _) = imports.split_once("</script>").expect("its end");
    let imports: Value = serde_json::from_str(imports).expect(imports);
    let modules = imports["imports"].as_object().expect("modules");
    let text_of = |url: &Value| {
        let url = url.as_str().expect("text");
        let text = url.strip_prefix("data:text/javascript;base64,").expect(url);
        String::from_utf8(STANDARD.decode(text).expect(url)).expect(url)
    };
    for url in modules.values() {
        let text = text_of(url);
        for import in text.split(" from \"").skip(1) {
            let (name, _) = import.split_once('"').expect(import);
            assert!(modules.contains_key(name), "{name}");
        }
    }
    let recording = text_of(&modules["recording.js"]);
    let recording = recording
        .strip_prefix("export const RECORDING = ")
        .and_then(|recording| recording.strip_suffix(";\n"))
        .expect(&recording);
    let recording: Value = serde_json::from_str(recording).expect(recording);
    let bursts = recording["bursts"].as_array().expect("a list");
    let admitted = |algorithm: usize| -> u64 {
        let requests = bursts
            .iter()
            .flat_map(|burst| burst["requests"].as_array().expect("a list"));
        requests
            .map(|request| request[2].as_u64().expect("bits") >> algorithm & 1)
            .sum()
    };
    // The log admits the limit, the fixed window twice the limit.
    assert_eq!([bursts.len() as u64, admitted(0), admitted(5)], [2, 20, 40]);
    let looks = recording["looks"].as_array().expect("a list");
    assert!(looks.len() > 10, "{}", looks.len());
    assert_eq!(looks[0]["lanes"][0]["used"], json!([0]));
}

#[test]
fn the_playground_says_how_it_is_used() {
    for arguments in [
        &["--record"][..],
        &["--record", "a", "b"],
        &["--recorded", "a"],
    ] {
        let wrong = Command::new(built("playground")).args(arguments).output();
        let wrong = wrong.expect("it runs");
        assert!(!wrong.status.success());
        let told = String::from_utf8_lossy(&wrong.stderr);
        assert!(told.contains("usage: playground [--record FILE]"), "{told}");
    }
}

#[tokio::test]
async fn the_playground_tells_requests_that_redis_did_not_decide() {
    let mut server = RedisServer::start();
    let mut example = Example::start("playground", &server.url());
    let url = format!("http://{}", example.address());
    let send = Client::new().post(format!("{url}/send?{LIMIT}"));
    let sent = told(send.try_clone().expect("no body")).await;
    assert_eq!(sent["requests"][0][4], 0, "{sent}");
    server.kill();
    let sent = told(send).await;
    assert_eq!(sent["requests"][0][4], 0b11_1111, "{sent}");
    assert_eq!(sent["lanes"][0]["source"], "Fallback");
}

#[tokio::test]
async fn the_playground_counts_in_redis_although_a_busy_machine_delays_the_reply() {
    let server = RedisServer::start();
    let mut example = Example::start("playground", &server.url());
    let url = format!("http://{}", example.address());
    let client = Client::new();
    // The first request connects.
    let request = client.post(format!("{url}/request?{LIMIT}"));
    assert_eq!(
        statuses_of(request.try_clone().expect("no body"), 1).await,
        [200]
    );
    run(&mut server.connect(), &["CLIENT", "PAUSE", "300", "ALL"]);
    assert_eq!(statuses_of(request, 1).await, [200]);
    let looked = told(client.get(format!("{url}/peek?{LIMIT}"))).await;
    assert_eq!(looked["lanes"][0]["used"], json!([2]));
}

/// The lanes of a stream's reports: one list of values per report.
async fn streamed(request: RequestBuilder) -> (Vec<Value>, Value) {
    let stream = request.send().await.expect("an answer");
    assert_eq!(stream.status(), 200);
    let stream = stream.text().await.expect("text");
    let lines = stream.lines().map(serde_json::from_str);
    let mut reports: Vec<Value> = lines.collect::<Result<_, _>>().expect(&stream);
    let done = reports.pop().expect("an end")["done"].take();
    (reports, done)
}

/// Returns the requests of a stream that an algorithm decided from memory.
fn from_memory(reports: &[Value], algorithm: usize) -> u64 {
    let requests = reports
        .iter()
        .flat_map(|report| report["requests"].as_array().expect("a list"));
    requests
        .map(|request| request[3].as_u64().expect("bits") >> algorithm & 1)
        .sum()
}

#[tokio::test]
async fn the_playground_tells_units_held_by_a_lease_from_units_used() {
    let server = RedisServer::start();
    let mut example = Example::start("playground", &server.url());
    let url = format!("http://{}", example.address());
    let client = Client::new();
    // A slow machine takes longer for the stream than it asks for.
    let leased = "quotas=5000/1h&algorithm=sliding-log&key=ada&cost=1&lease=1s";
    let look = || client.get(format!("{url}/peek?{leased}"));
    assert_eq!(
        told(look()).await["lease"],
        json!({ "off": null, "longest": 360_000_000 })
    );

    let stream = client.post(format!("{url}/stream?{leased}&rate=100&seconds=3&id=a"));
    let (reports, done) = streamed(stream).await;
    let looked = told(look()).await;
    assert_eq!(done["asked"], 300);
    for algorithm in 0..6 {
        assert_eq!(done["admitted"][algorithm], 300);
        let from_memory = from_memory(&reports, algorithm);
        assert!(from_memory > 0);
        let sent = looked["lanes"][algorithm]["sent"]
            .as_u64()
            .expect("a count");
        // Each check that was not decided from memory, and a few requests for units.
        let asked = 300 - from_memory;
        assert!(sent > asked && sent < asked + 100, "{sent} of {asked}");
        let held = |report: &Value| report["lanes"][algorithm]["held"].as_u64() > Some(0);
        assert!(reports.iter().any(held));
    }
    // In Redis, the units held are used: both are told apart. A request for units may still be in flight.
    let until = async |holds: fn(&[Value]) -> bool| {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let looked = told(look()).await;
            if holds(looked["lanes"].as_array().expect("a list")) {
                return looked;
            }
            assert!(Instant::now() < patience, "{looked}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    until(|lanes| lanes[0]["used"] == json!([300]) && lanes[0]["used_here"] == 300).await;
    // What is held returns when the lease ends.
    let looked = until(|lanes| {
        lanes.iter().all(|lane| lane["held"] == 0) && lanes[0]["used"] == json!([300])
    });
    let looked = looked.await;
    assert_eq!(looked["lanes"][0]["remaining"], 4_700);

    // A reset takes back the units that are held, too.
    let stream = client.post(format!("{url}/stream?{leased}&rate=400&seconds=1&id=b"));
    let _ = streamed(stream).await;
    let reset = client.post(format!("{url}/reset?{leased}"));
    assert_eq!(told(reset).await, json!({ "failure": null }));
    let looked = told(look()).await;
    for lane in looked["lanes"].as_array().expect("a list") {
        assert_eq!((&lane["used"], &lane["held"]), (&json!([0]), &json!(0)));
    }
}

#[tokio::test]
async fn the_playground_says_why_a_lease_has_no_effect() {
    let server = RedisServer::start();
    for (store, quotas, why) in [
        (
            "memory:".to_owned(),
            "5000/10s",
            Some("A lease needs Redis"),
        ),
        (server.url(), "20/10s", Some("limits of 20 and less")),
        (server.url(), "5000/10s, 20/minute", Some("limits of 20")),
        (server.url(), "5000/100ms", Some("below 500 ms")),
        (server.url(), "21/10s", None),
    ] {
        let mut example = Example::start("playground", &store);
        let url = format!("http://{}", example.address());
        let client = Client::new();
        // Limits are not part of the stored key, so each case has a key of its own.
        let key = quotas.replace(['/', ',', ' '], "-");
        let settings = format!("quotas={quotas}&algorithm=gcra&key={key}&cost=1");
        let look = client.get(format!("{url}/peek?{settings}&lease=1s"));
        let off = told(look).await["lease"]["off"].take();
        let is_told = match why {
            Some(why) => off.as_str().is_some_and(|off| off.contains(why)),
            None => off.is_null(),
        };
        assert!(is_told, "{quotas}: {off}");
        // Without an effect, it counts as without a lease.
        let one = client.post(format!("{url}/request?{settings}&lease=1s"));
        assert_eq!(statuses_of(one, 1).await, [200]);
        let used = told(client.get(format!("{url}/peek?{settings}"))).await;
        let expected = u64::from(why.is_some());
        if !quotas.contains("ms") {
            assert_eq!(used["lanes"][0]["used"][0], expected, "{quotas}");
        }
        let wrong = client.post(format!("{url}/request?{settings}&lease=2s"));
        assert_eq!(statuses_of(wrong, 1).await, [400]);
    }
}

#[tokio::test]
async fn the_playground_keeps_units_for_critical_requests_where_a_limit_has_shares() {
    let server = RedisServer::start();
    for store in ["memory:".to_owned(), server.url()] {
        let mut example = Example::start("playground", &store);
        let url = format!("http://{}", example.address());
        let client = Client::new();
        let settings = "quotas=20/hour&algorithm=gcra&key=ada&cost=1&shares=on";
        // The requests of each share that the log, buckets and the fixed window admit.
        let (mut sent, mut admitted) = ([0; 3], [[0; 3]; 3]);
        for _ in 0..30 {
            let report = told(client.post(format!("{url}/send?{settings}"))).await;
            let request = &report["requests"][0];
            let share = usize::try_from(request[5].as_u64().expect("a share")).expect("an index");
            sent[share] += 1;
            for (algorithm, admitted) in [0, 2, 5].into_iter().zip(&mut admitted) {
                admitted[share] += request[2].as_u64().expect("bits") >> algorithm & 1;
                // What is kept is reported apart from what is used, whoever asked.
                let kept = if algorithm == 5 { 0 } else { 4 - admitted[0] };
                let lane = &report["lanes"][algorithm];
                assert_eq!(lane["used"][0], admitted.iter().sum::<u64>(), "{report}");
                assert_eq!(lane["held"], kept, "{report}");
            }
        }
        assert_eq!(sent, [3, 18, 9]);
        assert_eq!(admitted, [[3, 10, 6], [3, 10, 6], [2, 12, 6]]);

        let look = async |settings: &str| {
            told(client.get(format!(
                "{url}/peek?algorithm=gcra&key=ada&cost=1&{settings}"
            )))
            .await
        };
        let off = look("quotas=5000/hour&shares=on").await["lease"]["off"].take();
        let why = if store == "memory:" {
            "needs Redis"
        } else {
            "with shares"
        };
        assert!(off.as_str().is_some_and(|off| off.contains(why)), "{off}");
        for (wrong, field) in [
            ("quotas=20/hour, 5/minute&shares=on", "quotas"),
            ("quotas=20/hour critical>=4", "quotas"),
            ("quotas=20/hour&shares=3", "shares"),
        ] {
            assert_eq!(look(wrong).await["invalid"]["field"], field, "{wrong}");
        }
    }
}

#[tokio::test]
async fn the_playground_is_for_its_own_page_on_this_machine_and_bounded() {
    let mut example = Example::start("playground", "memory:");
    let url = format!("http://{}", example.address());
    let request = || Client::new().post(format!("{url}/request?{LIMIT}"));
    let own = url.clone();
    for (name, value, status) in [
        ("origin", own.as_str(), 200),
        ("origin", "http://example.com", 403),
        ("origin", "null", 403),
        ("host", "example.com", 403),
        ("host", "localhost:3000", 200),
    ] {
        let answer = request()
            .header(name, value)
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), status, "{name}: {value}");
    }
    for wrong in [
        "quotas=2&algorithm=gcra&key=ada&cost=1",
        "quotas=2/minute&algorithm=token&key=ada&cost=1",
        "quotas=2/minute&algorithm=gcra&key=&cost=1",
        "quotas=2/minute&algorithm=gcra&key=ada&cost=0",
        "quotas=2000000/minute&algorithm=gcra&key=ada&cost=1",
        "",
    ] {
        let request = Client::new().post(format!("{url}/request?{wrong}"));
        assert_eq!(statuses_of(request, 1).await, [400], "{wrong}");
        let pace = Client::new().post(format!("{url}/stream?{LIMIT}&rate=6000&seconds=1&id=a"));
        assert_eq!(statuses_of(pace, 1).await, [400]);
    }
    let mut everywhere = Command::new(built("playground"));
    everywhere
        .env("TOLLGATE_ADDR", "0.0.0.0:0")
        .env("TOLLGATE_STORE", "memory:");
    let output = everywhere.output().expect("the example runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("this machine only"));
}

#[tokio::test]
async fn a_tree_charges_the_user_the_tenant_and_the_service_or_none_of_them() {
    let server = RedisServer::start();
    for store in ["memory:".to_owned(), server.url()] {
        let mut example = Example::start("tree", &store);
        let address = example.address();
        let by = |user: &str, tenant: &str, path: &str| {
            let request = Client::new().get(format!("http://{address}/{path}"));
            request.header("x-user", user).header("x-tenant-id", tenant)
        };
        let text_of = async |request: RequestBuilder| {
            let answer = request.send().await.expect("an answer");
            (answer.status().as_u16(), answer.text().await.expect("text"))
        };
        assert_eq!(
            text_of(by("ada", "initech", "")).await,
            (
                200,
                "user: 4 left\ntenant: 7 left\nservice: 11 left\n".to_owned()
            )
        );
        // Five of ada, and none of those that are refused.
        assert_eq!(
            statuses_of(by("ada", "initech", ""), 9).await,
            [[200; 4].as_slice(), &[429; 5]].concat()
        );
        // An export takes 4 of the 3 units that the tenant has left.
        let (status, text) = text_of(by("bob", "initech", "export")).await;
        assert_eq!(status, 429);
        assert!(text.contains(r#""violated-policies":["tenant"]"#), "{text}");
        // The plan of acme has 100.
        let (status, text) = text_of(by("bob", "acme", "export")).await;
        let left = "user: 4 left\ntenant: 96 left\nservice: 6 left\n";
        assert_eq!((status, &*text), (200, left));
        // Without a tenant, and until the service is full.
        let alone = |user: &str| {
            let request = Client::new().get(format!("http://{address}/"));
            request.header("x-user", user)
        };
        let (status, text) = text_of(alone("eve")).await;
        assert_eq!((status, &*text), (200, "user: 4 left\nservice: 5 left\n"));
        assert_eq!(statuses_of(alone("dan"), 5).await, [200; 5]);
        let full = by("joe", "acme", "").send().await.expect("an answer");
        assert_eq!(full.status(), 429);
        assert_eq!(
            full.headers()["ratelimit-policy"],
            r#""user";q=5;w=60, "tenant";q=100;w=60, "service";q=12;w=60"#
        );
        let limit = full.headers()["ratelimit"].to_str().expect("text");
        assert!(limit.starts_with(r#""service";r=0;t="#), "{limit}");
    }
}

#[test]
fn the_jobs_of_all_regions_stop_cleanly_when_their_searches_are_spent() {
    let mut example = Example::start("jobs", "memory:");
    for _ in 0..8 {
        let refused = example.line();
        assert!(
            refused.starts_with("no searches left, retry in 86"),
            "{refused}"
        );
    }
    // 80 × (100 + 7). The rest is for pages of other jobs.
    assert_eq!(
        example.line(),
        "80 searches in 8 regions, 8560 units used, 940 left\n"
    );
    example.process.wait();
}

#[test]
fn the_jobs_wait_for_a_redis_that_is_started_after_them() {
    let mut server = Node::start(&[]);
    server.kill();
    let mut example = Example::start("jobs", &server.url());
    // Long enough for the circuit breaker to open.
    std::thread::sleep(Duration::from_secs(2));
    assert!(example.process.is_running(), "it waits");
    server.restart();
    for _ in 0..8 {
        let refused = example.line();
        assert!(refused.starts_with("no searches left, "), "{refused}");
    }
    // A search whose reply comes too late is charged twice, so there may be fewer of them. While the circuit breaker
    // is open, pages pass uncounted.
    let done = example.line();
    let (searches, usage) = done.split_once(" searches in 8 regions, ").expect(&done);
    let searches: u32 = searches.parse().expect(&done);
    let (used, _) = usage.split_once(" units used, ").expect(&done);
    let used: u32 = used.parse().expect(&done);
    assert!((1..=80).contains(&searches), "{done}");
    assert!((100 * searches..=9_500).contains(&used), "{done}");
    example.process.wait();
}

#[tokio::test]
async fn plans_in_a_file_are_reloaded_and_a_broken_file_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("plans.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write("acme = \"2/hour\"");
    let path = file.to_str().expect("text");
    let mut example = Example::start_with("hot_reload", "memory:", &[path]);
    let url = format!("http://{}/", example.address());
    let request = Client::new().get(&url).header("x-tenant-id", "acme");
    assert_eq!(
        statuses_of(request.try_clone().expect("no body"), 3).await,
        [200, 200, 429]
    );

    // Asks until a request passes. Refusals cost nothing.
    let passes = async || {
        let begin = Instant::now();
        while statuses_of(request.try_clone().expect("no body"), 1).await != [200] {
            assert!(begin.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // The two used units stay used.
    write("acme = \"3/hour\"");
    passes().await;
    assert_eq!(
        statuses_of(request.try_clone().expect("no body"), 1).await,
        [429]
    );

    write("acme = \"many\"");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(
        statuses_of(request.try_clone().expect("no body"), 1).await,
        [429]
    );
    write("acme = \"4/hour\"");
    passes().await;
}

/// The columns of a line of the example `lease`: calls per 10 000 decisions, admitted, the limit, and the percentage
/// from memory.
fn columns_of_lease(line: &str, title: &str) -> [u64; 4] {
    let columns = line.strip_prefix(title).expect(line);
    let columns: Vec<_> = columns.split_whitespace().collect();
    let [_, calls, admitted, "of", limit, percentage, "%"] = columns[..] else {
        panic!("{line}");
    };
    let calls = calls.strip_prefix("0.").expect(line);
    [calls, admitted, limit, percentage].map(|number| number.parse().expect(line))
}

#[test]
fn two_processes_with_a_lease_ask_redis_less_and_admit_no_more_than_the_limit() {
    let server = RedisServer::start();
    let mut example = Example::start("lease", &server.url());
    assert!(example.line().contains("calls/decision"));
    let [asking, .., none] = columns_of_lease(&example.line(), "without a lease");
    let [leased, .., most] = columns_of_lease(&example.line(), "with a lease");
    assert!(
        none == 0 && most > 50 && leased < asking,
        "{most} %, {leased} of {asking}"
    );
    let [_, admitted, limit, some] = columns_of_lease(&example.line(), "far above the limit");
    assert!(
        some > 0 && (limit * 9 / 10..=limit).contains(&admitted),
        "{admitted} of {limit}, {some} %"
    );
    example.process.wait();
}

#[tokio::test]
async fn each_tenant_has_the_quotas_of_its_plan_and_is_looked_up_once() {
    let mut example = Example::start("per_tenant", "memory:");
    let url = format!("http://{}/", example.address());
    let of = |tenant| Client::new().get(&url).header("x-tenant-id", tenant);
    for (tenant, expected) in [
        ("acme", [200, 200, 200, 200, 200, 429]),
        ("initech", [200, 200, 429, 429, 429, 429]),
        // Exempt.
        ("operations", [200; 6]),
        // Without a plan.
        ("umbrella", [200, 200, 200, 429, 429, 429]),
        // With one that cannot be read.
        ("hooli", [200, 200, 200, 429, 429, 429]),
    ] {
        assert_eq!(statuses_of(of(tenant), 6).await, expected, "{tenant}");
    }
    let acme = of("acme").send().await.expect("an answer");
    assert_eq!(
        acme.headers()["ratelimit-policy"],
        r#""tenants-1m";q=100;w=60, "tenants-10s";q=5;w=10"#
    );
    let exempt = of("operations").send().await.expect("an answer");
    assert!(!exempt.headers().contains_key("x-ratelimit-limit"));
    for tenant in ["acme", "initech", "operations", "umbrella", "hooli"] {
        let asked = format!("SELECT plan FROM tenants WHERE name = '{tenant}'\n");
        assert_eq!(example.line(), asked);
    }
    assert_eq!(
        Client::new()
            .get(&url)
            .send()
            .await
            .expect("an answer")
            .status(),
        400
    );
}

#[tokio::test]
async fn behind_a_proxy_its_clients_are_counted_whatever_they_claim() {
    let mut example = Example::start("behind_proxy", "memory:");
    let url = format!("http://{}/", example.address());
    let forwarded =
        |client: &Client, list: String| client.get(&url).header("x-forwarded-for", list);

    // The proxy appends the address of its client. The client forges another address each time.
    let proxy = client_at([127, 0, 0, 1]);
    let mut spoofing = Vec::new();
    for claimed in 1..=4 {
        let request = forwarded(&proxy, format!("192.0.2.{claimed}, 203.0.113.7"));
        spoofing.extend(statuses_of(request, 1).await);
    }
    assert_eq!(spoofing, [200, 200, 200, 429]);
    let another = forwarded(&proxy, "203.0.113.8".into());
    assert_eq!(statuses_of(another, 1).await, [200]);
    // The forged address has its full limit.
    let claimed = forwarded(&proxy, "192.0.2.1".into());
    assert_eq!(statuses_of(claimed, 1).await, [200]);

    // A client that bypasses the proxy is counted by its own address.
    let direct = client_at([127, 0, 0, 2]);
    let mut spoofing = Vec::new();
    for claimed in 1..=4 {
        let request = forwarded(&direct, format!("198.51.100.{claimed}"));
        spoofing.extend(statuses_of(request, 1).await);
    }
    assert_eq!(spoofing, [200, 200, 200, 429]);
}

#[test]
fn a_network_that_is_none_is_an_error_when_the_service_starts() {
    let mut command = Command::new(built("behind_proxy"));
    let command = command.env("TRUSTED_PROXIES", "10.0.0.0/8, 10.0.0.0/33");
    let output = command.output().expect("the example runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        !output.status.success() && said.contains("10.0.0.0/33"),
        "{said}"
    );
}

#[tokio::test]
async fn only_failed_logins_count_by_address_and_by_account_from_it() {
    let mut example = Example::start("login", "memory:");
    let url = format!("http://{}/login", example.address());
    let attempt = |at: u8, account: &str, password: &str| {
        let form = format!("account={account}&password={password}");
        client_at([127, 0, 0, at]).post(&url).body(form)
    };
    let right = |at| attempt(at, "ada", "hunter2");
    let wrong = |at| attempt(at, "ada", "guess");

    assert_eq!(statuses_of(right(1), 8).await, [200; 8]);
    assert_eq!(statuses_of(wrong(1), 4).await, [401; 4]);
    assert_eq!(statuses_of(right(1), 2).await, [200; 2]);
    // The fifth failure is the last for the account from this address, however it is spelled.
    assert_eq!(statuses_of(attempt(1, "Ada", "guess"), 2).await, [401, 429]);
    assert_eq!(statuses_of(right(1), 1).await, [429]);
    // The owner is not locked out elsewhere.
    assert_eq!(statuses_of(right(2), 1).await, [200]);
    // Seven attempts have failed from the address. Three more for any account, and it is refused.
    let others = statuses_of(attempt(1, "grace", "guess"), 4).await;
    assert_eq!(others, [401, 401, 401, 429]);
    assert_eq!(statuses_of(attempt(2, "grace", "guess"), 1).await, [401]);

    // The headers are of the limit per address.
    let answer = attempt(5, "grace", "guess")
        .send()
        .await
        .expect("an answer");
    let headers = answer.headers();
    assert!(!headers.contains_key("ratelimit-policy"));
    assert_eq!(headers["x-ratelimit-limit"], "10");
    assert_eq!(headers["x-ratelimit-remaining"], "9");
}

#[tokio::test]
async fn above_50_failures_of_an_account_from_anywhere_a_login_asks_for_a_second_factor() {
    let mut example = Example::start("login", "memory:");
    let url = format!("http://{}/login", example.address());
    let attempt = async |at: u8, form: &str| {
        let request = client_at([127, 0, 0, at]).post(&url).body(form.to_owned());
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.text().await.expect("text"))
    };
    let asked = (401, "second factor required\n".to_owned());
    let wrong = (401, "wrong account or password\n".to_owned());
    for address in 1..=10 {
        for _ in 0..5 {
            let answer = attempt(address, "account=ada&password=guess").await;
            assert_eq!(answer, wrong, "{address}");
        }
    }
    for _ in 0..4 {
        let answer = attempt(11, "account=ada&password=guess").await;
        assert_eq!(answer, asked);
    }
    // The owner is asked too, and other accounts are not.
    assert_eq!(attempt(12, "account=ada&password=hunter2").await, asked);
    let answer = attempt(12, "account=Ada&password=hunter2&code=314159").await;
    assert_eq!(answer, (200, "welcome\n".to_owned()));
    let answer = attempt(12, "account=grace&password=guess").await;
    assert_eq!(answer, wrong);
}

#[tokio::test]
async fn a_login_that_claims_to_be_grpc_is_refused_and_counted_like_any_other() {
    let mut example = Example::start("login", "memory:");
    let url = format!("http://{}/login", example.address());
    let guess = |account: &str| {
        let request = client_at([127, 0, 0, 1]).post(&url);
        request.body(format!("account={account}&password=guess"))
    };
    // After five failures, the limit of the account refuses.
    assert_eq!(statuses_of(guess("ada"), 5).await, [401; 5]);
    let disguised = guess("ada").header("content-type", "application/grpc");
    assert_eq!(statuses_of(disguised, 60).await, [429; 60]);
    // Five of them were charged to the address, which is refused by its own limit since.
    let refused = guess("ada").send().await.expect("an answer");
    assert_eq!(refused.headers()["x-ratelimit-remaining"], "0");
    assert_eq!(statuses_of(guess("grace"), 1).await, [429]);
}

#[tokio::test]
async fn a_tenant_is_limited_by_what_its_json_body_asks_for() {
    let mut example = Example::start("json_body", "memory:");
    let url = format!("http://{}/complete", example.address());
    let ask = async |tenant: &str, tokens: u32| {
        let body = format!(r#"{{"tenant": "{tenant}", "max_tokens": {tokens}}}"#);
        let request = Client::new().post(&url).body(body);
        let request = request.header("content-type", "application/json");
        request.send().await.expect("an answer")
    };
    let admitted = ask("acme", 6_000).await;
    assert_eq!(admitted.status(), 200);
    assert_eq!(admitted.headers()["x-ratelimit-remaining"], "4000");
    let refused = ask("acme", 6_000).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(ask("globex", 6_000).await.status(), 200);
    let never = ask("globex", 10_001).await;
    assert_eq!(never.status(), 429);
    assert!(!never.headers().contains_key("retry-after"));
}

/// A plan below the estimate of the example `llm_proxy`, which is 1 000 tokens.
const SMALL_PLAN: &str = "500/minute sliding-buckets:60, 900/day sliding-buckets:24, 4 in-flight";

/// Starts the example `llm_proxy`. Returns its address, too.
fn llm_proxy(store: &str) -> (Example, String) {
    let mut example = Example::start("llm_proxy", store);
    let address = example.address();
    // The last line about what to try.
    example.line();
    (example, address)
}

/// A tenant of the example `llm_proxy`.
struct Tenant<'a> {
    name: &'a str,
    address: &'a str,
}

impl Tenant<'_> {
    /// Asks for an answer of so many tokens. The body has 32 to 35 bytes, if the number has two digits or more, so that the
    /// proxy estimates 8 tokens more than `max_tokens`.
    async fn ask_with(&self, route: &str, tokens: u32, max_tokens: u32) -> reqwest::Response {
        let request = Client::new().post(format!("http://{}{route}", self.address));
        let request = request.header("x-tenant-id", self.name);
        let request = request.header("content-type", "application/json");
        let body = json!({ "max_tokens": max_tokens, "prompt": tokens.to_string() });
        let request = request.body(body.to_string());
        request.send().await.expect("an answer")
    }

    /// Asks for an answer of so many tokens, and reserves 1 000.
    async fn ask(&self, route: &str, tokens: u32) -> reqwest::Response {
        self.ask_with(route, tokens, 992).await
    }

    /// Returns what `GET /rate_limit` shows: the units used per minute, per day, in flight and of the budget.
    async fn used(&self) -> [u64; 4] {
        let request = Client::new().get(format!("http://{}/rate_limit", self.address));
        let status = told(request.header("x-tenant-id", self.name)).await;
        let quotas = status["quotas"].as_array().expect("a list").iter();
        let used: Vec<_> = quotas.filter_map(|quota| quota["used"].as_u64()).collect();
        used.try_into().expect("four quotas")
    }

    /// Waits until these units count. Settlements run in the background.
    async fn until_used(&self, units: [u64; 4]) {
        self.until(|used| used == units).await;
    }

    async fn until_slots(&self, slots: u64) {
        self.until(|[_, _, used, _]| used == slots).await;
    }

    async fn until(&self, is_reached: impl Fn([u64; 4]) -> bool) {
        let begin = Instant::now();
        loop {
            let used = self.used().await;
            if is_reached(used) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "{used:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn changes_to(&self, plan: &str) -> u16 {
        let url = format!("http://{}/plans/{}", self.address, self.name);
        let request = Client::new().put(url).body(plan.to_owned());
        request.send().await.expect("an answer").status().as_u16()
    }
}

/// Returns the limit and the units left that an answer tells.
fn limit_and_left(answer: &reqwest::Response) -> [u32; 2] {
    ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| {
        let number = answer.headers()[name].to_str();
        number.expect("text").parse().expect("a number")
    })
}

// The client must be able to leave while the test reads what the example says.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_charges_what_answers_use_also_to_clients_that_disconnect_or_overrun() {
    let redis = RedisServer::start();
    for store in ["memory:", &redis.url()] {
        let (mut example, address) = llm_proxy(store);
        let tenant = |name| Tenant {
            name,
            address: &address,
        };

        // The headers tell the tokens, not the streams or the money.
        let acme = tenant("acme");
        let answer = acme.ask("/complete", 640).await;
        assert_eq!(limit_and_left(&answer), [10_000, 9_000]);
        let text = answer.text().await.expect("the whole of it");
        assert_eq!(text.split_whitespace().count(), 640);
        assert_eq!(example.line(), "1000 reserved, 640 used\n");
        acme.until_used([640, 640, 0, 64]).await;

        // A client that leaves pays for what was made until then.
        let answer = acme.ask("/complete", 640).await;
        assert_eq!(limit_and_left(&answer), [10_000, 10_000 - 640 - 1_000]);
        drop(answer);
        let settled = example.line();
        let used = settled.strip_prefix("1000 reserved, ").expect(&settled);
        let used: u64 = used.trim_end_matches(" used\n").parse().expect(&settled);
        assert!(used < 640, "{settled}");
        let both = 640 + used;
        acme.until_used([both, both, 0, 64 + used.div_ceil(10)])
            .await;

        // An answer that is longer than the estimate is charged in full.
        let bob = tenant("bob");
        let answer = bob.ask("/complete", 1_700).await;
        answer.text().await.expect("the whole of it");
        assert_eq!(example.line(), "1000 reserved, 1700 used\n");
        bob.until_used([1_700, 1_700, 0, 170]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_at_a_proxy_gets_four_streams_and_batch_jobs_half_of_the_tokens() {
    let redis = RedisServer::start();
    for store in ["memory:", &redis.url()] {
        let (_example, address) = llm_proxy(store);
        let tenant = |name| Tenant {
            name,
            address: &address,
        };

        // Ten at once. An answer of a minute holds its slot until the client leaves.
        let acme = tenant("acme");
        let burst = futures_util::future::join_all((0..10).map(|_| acme.ask("/complete", 60_000)));
        let (streams, refused): (Vec<_>, Vec<_>) = burst
            .await
            .into_iter()
            .partition(|answer| answer.status() == 200);
        assert_eq!((streams.len(), refused.len()), (4, 6));
        for answer in &refused {
            assert_eq!(answer.status(), 429);
            assert!(answer.headers().contains_key("retry-after"));
            // Slots are told where they refuse.
            assert_eq!(limit_and_left(answer), [4, 0]);
        }
        // To look takes no slot.
        assert_eq!(acme.used().await[2], 4);
        assert_eq!(tenant("bob").ask("/complete", 1).await.status(), 200);
        drop(streams);
        acme.until_slots(0).await;

        // Five reservations of batch jobs are half of the tokens. Interactive requests still have the other half.
        let globex = tenant("globex");
        let jobs = globex.ask("/batch", 4_200).await;
        assert_eq!(limit_and_left(&jobs), [10_000, 4_000]);
        jobs.text().await.expect("the whole of it");
        globex.until_used([4_200, 4_200, 0, 420]).await;
        let refused = globex.ask("/batch", 1).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(globex.ask("/complete", 1).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_at_a_proxy_changes_while_it_runs_and_a_small_one_clamps_the_estimate() {
    let (mut example, address) = llm_proxy("memory:");
    let initech = Tenant {
        name: "initech",
        address: &address,
    };
    assert_eq!(initech.changes_to("many/minute").await, 400);
    assert_eq!(initech.changes_to(SMALL_PLAN).await, 204);
    let answer = initech.ask("/complete", 20).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(limit_and_left(&answer), [500, 0]);
    answer.text().await.expect("the whole of it");
    assert_eq!(example.line(), "500 reserved, 20 used\n");
    initech.until_used([20, 20, 0, 2]).await;
    // A clamped estimate needs an empty window.
    let refused = initech.ask("/complete", 20).await;
    assert_eq!(refused.status(), 429);

    let plan = "5000/minute sliding-buckets:60, 9000/day sliding-buckets:24, 4 in-flight";
    assert_eq!(initech.changes_to(plan).await, 204);
    let answer = initech.ask("/complete", 20).await;
    assert_eq!(limit_and_left(&answer), [5_000, 5_000 - 20 - 1_000]);
    let missing = reqwest::get(format!("http://{address}/rate_limit")).await;
    assert_eq!(missing.expect("an answer").status(), 400);
}

#[tokio::test]
async fn an_answer_at_a_proxy_that_uses_more_than_the_plan_has_is_charged_in_full() {
    let (mut example, address) = llm_proxy("memory:");
    let initech = Tenant {
        name: "initech",
        address: &address,
    };
    assert_eq!(initech.changes_to(SMALL_PLAN).await, 204);
    let answer = initech.ask("/complete", 2_000).await;
    assert_eq!(answer.status(), 200);
    answer.text().await.expect("the whole of it");
    assert_eq!(example.line(), "500 reserved, 2000 used\n");
    initech.until_used([2_000, 2_000, 0, 200]).await;
    let refused = initech.ask("/complete", 1).await;
    assert_eq!(refused.status(), 429);
    // Until the bucket of the day has left its window.
    let wait = refused.headers()["retry-after"].to_str().expect("text");
    let wait: u64 = wait.parse().expect("seconds");
    assert!((86_400..=90_000).contains(&wait), "{wait}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_answers_429_while_the_money_of_a_tenant_is_held_and_402_when_it_is_spent() {
    let (_example, address) = llm_proxy("memory:");
    let acme = Tenant {
        name: "acme",
        address: &address,
    };
    let plan = "1000000/minute sliding-buckets:60, 1000000/day sliding-buckets:24, 4 in-flight";
    assert_eq!(acme.changes_to(plan).await, 204);

    // Half a million tokens cost five dollars. While a request holds them, others may wait for what it does not use.
    let running = acme.ask_with("/complete", 60_000, 499_990).await;
    assert_eq!(running.status(), 200);
    let refused = acme.ask("/complete", 640).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    drop(running);
    acme.until_slots(0).await;
    acme.until(|[_, _, _, budget]| budget < 50_000).await;
    let [_, _, _, spent] = acme.used().await;
    assert!(spent > 0);

    // No wait helps a request that may cost more than what is left.
    let refused = acme.ask_with("/complete", 640, 499_990).await;
    assert_eq!(refused.status(), 402);
    assert!(!refused.headers().contains_key("retry-after"));
    assert_eq!(acme.ask("/complete", 20).await.status(), 200);

    let malformed = Client::new().post(format!("http://{address}/complete"));
    let malformed = malformed.header("x-tenant-id", "acme").body("640");
    assert_eq!(malformed.send().await.expect("an answer").status(), 400);
}

/// Opens a socket of a user. The server ends it when the connection is dropped.
fn socket(address: &str, user: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).expect("a connection");
    let request = format!(
        "GET /socket HTTP/1.1\r\nhost: {address}\r\nx-api-key: {user}\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).expect("sent");
    let mut status = String::new();
    BufReader::new(&connection)
        .read_line(&mut status)
        .expect("an answer");
    assert!(status.starts_with("HTTP/1.1 101 "), "{status}");
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sixth_stream_of_a_user_is_refused_until_another_one_ends() {
    let redis = RedisServer::start();
    for store in ["memory:", &redis.url()] {
        let mut example = Example::start("in_flight", store);
        let address = example.address();
        let open = async |user: &str| {
            let stream = Client::new().get(format!("http://{address}/events"));
            let stream = stream.header("x-api-key", user).send().await;
            stream.expect("an answer")
        };
        // The slot of a client that has left returns as soon as the server notices.
        let until_free = async || {
            let begin = Instant::now();
            loop {
                let stream = open("ada").await;
                if stream.status() == 200 {
                    return stream;
                }
                assert_eq!(stream.status(), 429);
                assert!(begin.elapsed() < Duration::from_secs(5));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };

        let mut streams = Vec::new();
        for _ in 0..4 {
            let mut stream = open("ada").await;
            assert_eq!(stream.status(), 200);
            let event = stream.chunk().await.expect("a body").expect("an event");
            assert_eq!(event, "data: word\n\n");
            streams.push(stream);
        }
        let socket = socket(&address, "ada");
        let refused = open("ada").await;
        assert_eq!(refused.status(), 429);
        assert!(refused.headers().contains_key("retry-after"));
        assert_eq!(open("bob").await.status(), 200);

        drop(streams.pop());
        streams.push(until_free().await);
        assert_eq!(open("ada").await.status(), 429);
        drop(socket);
        streams.push(until_free().await);
        assert_eq!(open("ada").await.status(), 429);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_ctrl_c_the_next_process_has_the_slots_of_the_streams() {
    let redis = RedisServer::start();
    let open = async |address: &str| {
        let stream = Client::new().get(format!("http://{address}/events"));
        let stream = stream.header("x-api-key", "ada").send().await;
        let mut stream = stream.expect("an answer");
        assert_eq!(stream.status(), 200);
        let event = stream.chunk().await.expect("a body").expect("an event");
        assert_eq!(event, "data: word\n\n");
        stream
    };
    let mut example = Example::start("in_flight", &redis.url());
    for _ in 0..2 {
        let address = example.address();
        let mut streams = Vec::new();
        for _ in 0..5 {
            streams.push(open(&address).await);
        }
        drop(streams);
        example.process.signal("INT");
        example.process.wait();
        example = Example::start("in_flight", &redis.url());
    }
}

#[test]
fn a_client_that_waits_for_its_turn_is_never_refused_by_its_upstream() {
    let mut example = Example::start("outbound", "memory:");
    let at_once = example.line();
    assert!(
        at_once.starts_with("reqwest alone: 5 answered, 10 rejected, in "),
        "{at_once}"
    );
    // The first request of hyper waits until the window of the others has passed.
    for (client, at_least) in [("reqwest", 2.4), ("hyper", 0.9)] {
        let in_turn = example.line();
        let expected = format!("{client} in turn: 15 answered, 0 rejected, in ");
        let seconds = in_turn.strip_prefix(&expected);
        let seconds = seconds.and_then(|rest| rest.strip_suffix(" s\n"));
        let seconds: f32 = seconds.and_then(|text| text.parse().ok()).expect(&in_turn);
        assert!(seconds >= at_least, "{in_turn}");
    }
    let obeyed = example.line();
    let expected = "paused: 1 refused by the upstream, 1 answered after ";
    assert!(obeyed.starts_with(expected), "{obeyed}");
    example.process.wait();
}

#[test]
fn the_client_of_grpc_waits_as_long_as_told_and_is_then_admitted() {
    let start = Instant::now();
    let mut example = Example::start("grpc", "memory:");
    for left in [2, 1, 0] {
        assert_eq!(example.line(), format!("admitted, {left} left\n"));
    }
    let refused = example.line();
    let wait = refused.strip_prefix("refused, retry in ");
    let wait = wait.and_then(|wait| wait.strip_suffix("s\n")?.parse().ok());
    let wait: f64 = wait.expect(&refused);
    // The first call was charged after the start, and counts for two seconds.
    let least = 2.0 - start.elapsed().as_secs_f64();
    assert!(wait > least && wait <= 2.0, "{refused}, at least {least} s");
    assert!(example.line().starts_with("admitted, "));
    example.process.wait();
}

/// The checks in the metrics of a service, by limiter and outcome.
async fn counted(address: &str) -> BTreeMap<(String, String), u64> {
    let scraped = reqwest::get(format!("http://{address}/metrics")).await;
    let scraped = scraped.expect("an answer");
    let text = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(scraped.headers()["content-type"], text);
    let mut counted = BTreeMap::new();
    for line in scraped.text().await.expect("text").lines() {
        let Some(series) = line.strip_prefix("tollgate_checks_total{") else {
            continue;
        };
        let (labels, number) = series.split_once("} ").expect(line);
        // limiter="…",outcome="…",source="…"
        let values: Vec<_> = labels.split('"').skip(1).step_by(2).collect();
        let count = counted.entry((values[0].into(), values[1].into()));
        *count.or_default() += number.parse::<u64>().expect(line);
    }
    // A series may begin before there is anything to count.
    counted.retain(|_, count| *count > 0);
    counted
}

#[tokio::test]
async fn a_service_to_watch_tells_what_its_clients_saw_and_whom_it_refused() {
    let mut example = Example::start("observability", "memory:");
    let address = example.address();
    let search = Client::new().get(format!("http://{address}/search"));
    let seen = statuses_of(search.header("x-api-key", "ada"), 9).await;
    let refused = seen.iter().filter(|status| **status == 429).count() as u64;
    assert!(refused > 0, "{seen:?}");
    // The dry run rejects no exports.
    let export = Client::new().get(format!("http://{address}/export"));
    let seen = statuses_of(export.header("x-api-key", "ada"), 5).await;
    assert_eq!(seen, [200; 5]);
    for (path, status) in [("/search", 400), ("/", 200), ("/healthz", 200)] {
        let seen = statuses(&format!("http://{address}{path}"), 1).await;
        assert_eq!(seen, [status], "{path}");
    }
    let expected = [
        ("export", "admitted", 3),
        ("export", "would_reject", 2),
        ("search", "admitted", 9 - refused),
        ("search", "no_key", 1),
        ("search", "refused", refused),
        ("site", "admitted", 1),
        ("site", "exempt", 1),
    ];
    let expected =
        expected.map(|(limiter, outcome, count)| ((limiter.into(), outcome.into()), count));
    assert_eq!(counted(&address).await, BTreeMap::from(expected));

    let top_rejected = reqwest::get(format!("http://{address}/refused")).await;
    let top_rejected = top_rejected.expect("an answer").text().await.expect("text");
    let told = format!("=ada was refused {refused} times, or up to 0 fewer\n");
    assert!(top_rejected.ends_with(&told), "{top_rejected}");
}

#[test]
fn the_pictures_of_the_guide_are_as_they_are_drawn() {
    let drawn = tempfile::tempdir().expect("a directory");
    let status = Command::new(built("pictures")).arg(drawn.path()).status();
    assert!(status.expect("a program").success());
    let docs = support::files::root().join("docs");
    for name in ["levels.svg", "costs.svg", "outage.svg", "shares.svg"] {
        let read = |path: &std::path::Path| std::fs::read_to_string(path.join(name)).expect(name);
        assert!(
            read(drawn.path()) == read(&docs),
            "{name}: cargo run --example pictures"
        );
    }
}

/// Sends so many requests of a customer, and returns the statuses.
async fn statuses_for(url: &str, customer: &str, requests: usize) -> Vec<u16> {
    let request = Client::new().get(url);
    let request = request.header("authorization", format!("Bearer {customer}"));
    statuses_of(request, requests).await
}

#[tokio::test]
async fn a_service_to_start_from_limits_customers_and_addresses_and_stops_at_sigterm() {
    let server = RedisServer::start();
    let redis = format!("{}?prefix=service&deadline=30s", server.url());
    for store in ["memory:", &redis] {
        let mut example = Example::start("service", store);
        let address = example.address();
        let metrics = example.line();
        let metrics = metrics
            .strip_prefix("Metrics on ")
            .expect(&metrics)
            .trim_end();
        let url = format!("http://{address}/");

        let seen = statuses_for(&url, "ada", 101).await;
        assert_eq!(seen, [[200; 100].as_slice(), &[429]].concat());
        let exports = format!("{url}export");
        assert_eq!(statuses_for(&exports, "bob", 3).await, [200; 3]);
        // The address has admitted 104: the limit of customers refused the 101st only after that.
        let seen = statuses_for(&url, "grace", 100).await;
        assert_eq!(seen, [200; 100]);
        let seen = statuses_for(&url, "lin", 97).await;
        assert_eq!(seen, [[200; 96].as_slice(), &[429]].concat());
        // It is not limited, and needs no credentials.
        assert_eq!(statuses(&format!("{url}healthz"), 1).await, [200]);

        let expected = [
            ("address", "admitted", 300),
            ("address", "refused", 1),
            ("customer", "admitted", 299),
            ("customer", "refused", 1),
            ("exports", "admitted", 3),
        ];
        let expected =
            expected.map(|(limiter, outcome, count)| ((limiter.into(), outcome.into()), count));
        assert_eq!(counted(metrics).await, BTreeMap::from(expected));
        let hidden = reqwest::get(format!("{url}metrics"))
            .await
            .expect("an answer");
        assert_ne!(hidden.status(), 200);

        example.process.signal("TERM");
        example.process.wait();
    }
}

#[tokio::test]
async fn a_service_to_watch_has_clients_of_its_own_if_it_is_told_to() {
    let arguments = ["--traffic", "500", "--log", "info,tollgate::check=off"];
    let mut example = Example::start_with("observability", "memory:", &arguments);
    let address = example.address();
    let patience = Instant::now() + Duration::from_secs(20);
    let wanted = ["admitted", "refused", "would_reject", "exempt", "no_key"];
    loop {
        let counted = counted(&address).await;
        let there: BTreeSet<&str> = counted.keys().map(|(_, outcome)| &**outcome).collect();
        if there == BTreeSet::from(wanted) {
            return;
        }
        assert!(Instant::now() < patience, "{counted:?}");
    }
}

#[test]
fn the_doctor_tells_scripts_by_its_exit_status_what_it_found() {
    let server = RedisServer::start();
    let nowhere = DeadPort::new();
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(built("tollgate-doctor"));
        command.env_remove("TOLLGATE_STORE").args(arguments);
        let output = command.output().expect("the doctor runs");
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

    // A topic that the user may not read is no proof of health.
    let policy = ["CONFIG", "SET", "maxmemory-policy", "noeviction"];
    run(&mut server.connect(), &policy);
    let rules = ["~*", "+@all", "-info"];
    let user = [&["ACL", "SETUSER", "blind", "on", ">hunter2"][..], &rules].concat();
    run(&mut server.connect(), &user);
    let blind = format!("redis://blind:hunter2@127.0.0.1:{}", server.port());
    for (arguments, expected) in [(vec![&*blind], 0), (vec!["--strict", &blind], 4)] {
        let mut runs = (0..5).map(|_| doctor(&arguments));
        assert!(
            runs.any(|(status, said)| { status == expected && said.contains("unknown  eviction") }),
            "{arguments:?}: {:?}",
            doctor(&arguments)
        );
    }
    let mut runs = (0..5).map(|_| doctor(&["--strict", &server.url()]).0);
    assert!(runs.any(|status| status == 0));

    let wrong = [
        &[][..],
        &["memory:"],
        &["http://user:hunter2@127.0.0.1"],
        &["--string", "redis://127.0.0.1"],
    ];
    for arguments in wrong {
        let (status, said) = doctor(arguments);
        assert_eq!(status, 3, "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn the_script_is_printed_as_redis_gets_it() {
    let printed = |arguments: &[&str]| {
        let mut command = Command::new(built("script"));
        let output = command.args(arguments).output().expect("the example runs");
        let text = String::from_utf8(output.stdout).expect("text");
        output.status.success().then_some(text)
    };
    let script = RedisStore::scripts().next().expect("a script").1;
    assert_eq!(printed(&[]).as_deref(), Some(script));
    let numbered = printed(&["--numbered"]).expect("a script");
    assert_eq!(numbered.lines().count(), script.lines().count());
    for (number, (line, original)) in (1..).zip(numbered.lines().zip(script.lines())) {
        assert_eq!(line, format!("{number:4}  {original}"));
    }
    for (name, text) in RedisStore::scripts() {
        assert_eq!(printed(&[name]).as_deref(), Some(text));
    }
    assert_eq!(printed(&["missing"]), None);
}

#[tokio::test]
async fn the_state_of_a_key_is_printed_as_text() {
    let server = RedisServer::start();
    let counted_by = |algorithm| Quota::per_hour(90).with_algorithm(algorithm);
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets(60),
        Algorithm::SortedSetLog,
        Algorithm::Gcra,
    ];
    let store = RedisStore::open(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store, algorithms.map(counted_by));
    let _ = limiter.check_n("ada", 3).await.expect("an answer");
    let printed = |key: &str| {
        let mut command = Command::new(built("script"));
        command.args(["--state", &server.url(), key]);
        let output = command.output().expect("the example runs");
        let text = String::from_utf8(output.stdout).expect("text");
        output.status.success().then_some(text)
    };
    for (suffix, lines, part) in [
        ("", 2, "window 3600000000 us: gcra, generation "),
        (
            ":log",
            3,
            "longest window 3600000000 us, largest limit 90 in it\n3 units at ",
        ),
        (":buckets:60000000", 4, "\nbuckets, generation "),
        (":set:3600000000", 3, "1 unit at "),
        (":other", 1, "nothing is stored"),
    ] {
        let key = format!("tollgate:v3:{{default,ada}}{suffix}");
        let text = printed(&key).expect(&key);
        assert_eq!(text.lines().count(), lines, "{text}");
        assert!(text.contains(part), "{part} is not in {text}");
    }
    run(&mut server.connect(), &["SET", "somebody", "else's"]);
    assert_eq!(printed("somebody"), None);
    run(&mut server.connect(), &["RPUSH", "list", "x"]);
    assert_eq!(printed("list"), None);
}

/// A key as an operator enters it in the first form of its limiter.
fn entered(values: &[&str]) -> Value {
    json!({ "kind": "entered", "form": 0, "values": values })
}

/// The page of the example `admin`, and its service.
struct Desk {
    service: String,
    page: String,
    token: String,
    _example: Example,
}

impl Desk {
    fn start(store: &str) -> Self {
        let mut example = Example::start("admin", store);
        let service = format!("http://{}", example.address());
        let line = example.line();
        let told = line.trim_end().split_once("http://").expect(&line).1;
        let (page, token) = told.split_once("/ with the token ").expect(&line);
        let (page, token) = (format!("http://{page}"), token.to_owned());
        Self {
            service,
            page,
            token,
            _example: example,
        }
    }

    fn get(&self, client: &Client, path: &str) -> RequestBuilder {
        let url = format!("{}/api/limiters{path}", self.page);
        client.get(url).bearer_auth(&self.token)
    }

    fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        let url = format!("{}/api/limiters{path}", self.page);
        let request = Client::new().post(url).bearer_auth(&self.token);
        let request = request.header("content-type", "application/json");
        request.body(body.to_string())
    }

    async fn tells(&self, request: RequestBuilder) -> Value {
        let answer = request.send().await.expect("an answer");
        let (status, text) = (answer.status(), answer.text().await.expect("text"));
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect(&text)
    }

    /// Changes the key of a client at 127.0.0.1, and returns its status.
    async fn change(&self, what: &Value) -> Value {
        let mut order = json!({ "key": entered(&["127.0.0.1"]) });
        let all = order.as_object_mut().expect("a map");
        all.extend(what.as_object().expect("a map").clone());
        self.tells(self.post("/site/change", &order)).await
    }

    async fn statuses(&self, requests: usize) -> Vec<u16> {
        statuses(&format!("{}/", self.service), requests).await
    }
}

#[tokio::test]
async fn nobody_gets_at_the_keys_without_the_token_and_few_may_guess_it() {
    let desk = Desk::start("memory:");
    let [guest, owner] = [[127, 0, 0, 2], [127, 0, 0, 1]].map(client_at);
    let url = format!("{}/api/limiters", desk.page);
    assert_eq!(desk.token.len(), 32);

    // Requests with the token are not limited.
    assert_eq!(statuses_of(desk.get(&owner, ""), 25).await, [200; 25]);
    assert_eq!(statuses_of(guest.get(&url), 5).await, [401; 5]);
    let wrong = [
        desk.token.to_uppercase() + "0",
        String::new(),
        desk.token[1..].to_owned(),
    ];
    for wrong in wrong {
        assert_eq!(
            statuses_of(guest.get(&url).bearer_auth(wrong), 1).await,
            [401]
        );
    }
    let basic = guest.get(&url).basic_auth("admin", Some(&desk.token));
    assert_eq!(statuses_of(basic, 3).await, [401, 401, 429]);
    // Ten attempts have failed. Now this address is limited, and others are not.
    assert_eq!(statuses_of(desk.get(&guest, ""), 1).await, [429]);
    assert_eq!(statuses_of(desk.get(&owner, ""), 1).await, [200]);

    // A page of another site does not even use up attempts.
    let foreign = || owner.post(format!("{url}/site/change")).body("{}");
    for site in ["cross-site", "same-site"] {
        let request = foreign().header("sec-fetch-site", site);
        assert_eq!(statuses_of(request, 12).await, [403; 12]);
    }
    let own = desk.get(&owner, "").header("sec-fetch-site", "same-origin");
    assert_eq!(statuses_of(own, 1).await, [200]);

    // A site that points its own name to this machine is rejected too.
    let port = desk.page.rsplit_once(':').expect("a port").1;
    for (host, status) in [
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost", 200),
        ("[::1]", 200),
    ] {
        let request = desk
            .get(&owner, "")
            .header("host", format!("{host}:{port}"));
        assert_eq!(statuses_of(request, 1).await, [status], "{host}");
    }
    // The scheme is a word in any case, and spaces around the token are none of it.
    for credentials in ["bearer ", "BEARER  "] {
        let request = owner
            .get(&url)
            .header("authorization", format!("{credentials}{}", desk.token));
        assert_eq!(statuses_of(request, 1).await, [200], "{credentials}");
    }

    // The service does not serve it.
    let there = format!("{}/api/limiters", desk.service);
    assert_eq!(
        statuses_of(owner.get(there).bearer_auth(&desk.token), 1).await,
        [404]
    );
}

#[tokio::test]
async fn an_operator_looks_at_a_key_and_resets_credits_and_blocks() {
    let desk = Desk::start("memory:");
    assert_eq!(
        desk.statuses(12).await,
        [[200; 10].as_slice(), &[429; 2]].concat()
    );
    let key = json!({ "key": entered(&["127.0.0.1"]) });
    let look = || desk.tells(desk.post("/site/peek", &key));
    let standing = look().await;
    assert_eq!(standing["key"], "ip=127.0.0.1");
    assert_eq!(standing["blocked_seconds"], Value::Null);
    let quota = &standing["quotas"][0];
    assert_eq!(quota["quota"], "10/hour");
    assert_eq!(
        (&quota["used"], &quota["remaining"]),
        (&json!(10), &json!(0))
    );
    let returns = quota["returns_in_seconds"].as_f64().expect("a number");
    assert!(returns > 1_800.0 && returns <= 3_600.0, "{returns}");

    let given = desk.change(&json!({ "do": "credit", "units": 2 })).await;
    assert_eq!(given["quotas"][0]["remaining"], 2);
    assert_eq!(desk.statuses(3).await, [200, 200, 429]);
    let reset = desk.change(&json!({ "do": "reset" })).await;
    assert_eq!(reset["quotas"][0]["used"], 0);
    assert_eq!(desk.statuses(1).await, [200]);
    let blocked = desk.change(&json!({ "do": "block", "seconds": 90 })).await;
    let left = blocked["blocked_seconds"].as_f64().expect("a number");
    assert!(left > 80.0 && left <= 90.0, "{left}");
    let refused = reqwest::get(&desk.service).await.expect("an answer");
    assert_eq!(refused.status(), 429);
    let wait = refused.headers()["retry-after"].to_str().expect("text");
    let wait: u64 = wait.parse().expect(wait);
    assert!(wait > 80 && wait <= 90, "{wait}");

    let told = desk.tells(desk.post("/site/view", &json!({}))).await;
    assert_eq!(told["blocked"]["rows"][0]["key"], "ip=127.0.0.1");
    let top_rejected = json!([{ "key": "ip=127.0.0.1", "refused": 4, "error": 0 }]);
    assert_eq!(told["top_rejected"], top_rejected);
    // As the list shows it.
    let order = json!({ "key": { "kind": "stored", "value": "ip=127.0.0.1" }, "do": "unblock" });
    let unblocked = desk.tells(desk.post("/site/change", &order)).await;
    assert_eq!(unblocked["blocked_seconds"], Value::Null);
    assert_eq!(desk.statuses(1).await, [200]);

    let api_key = json!({ "key": entered(&["ada"]) });
    let search = Client::new().get(format!("{}/search", desk.service));
    assert_eq!(
        statuses_of(search.header("x-api-key", "ada"), 2).await,
        [200; 2]
    );
    let standing = desk.tells(desk.post("/search/peek", &api_key)).await;
    assert_eq!(standing["quotas"][1]["used"], 2);
    assert!(!standing["key"].as_str().expect("text").contains("ada"));
}

#[tokio::test]
async fn what_makes_no_sense_is_answered_so_and_changes_nothing() {
    let desk = Desk::start("memory:");
    let ada = entered(&["127.0.0.1"]);
    let stored = |value: &str| json!({ "key": { "kind": "stored", "value": value } });
    for (path, body, status) in [
        ("/site/peek", json!({ "key": entered(&["1.2.3"]) }), 400),
        ("/site/peek", json!({ "key": entered(&[]) }), 400),
        ("/reports/peek", json!({ "key": entered(&["acme"]) }), 400),
        ("/site/peek", stored("a b"), 400),
        (
            "/site/peek",
            json!({ "key": { "kind": "text", "value": "ada" } }),
            422,
        ),
        ("/site/peek", json!({}), 422),
        ("/nowhere/peek", json!({ "key": ada }), 404),
        ("/site/change", json!({ "key": ada, "do": "explode" }), 422),
        ("/site/change", json!({ "key": ada, "do": "credit" }), 422),
        (
            "/site/change",
            json!({ "key": ada, "do": "credit", "units": -1 }),
            422,
        ),
        (
            "/site/change",
            json!({ "key": ada, "do": "block", "seconds": 0.5 }),
            422,
        ),
        (
            "/site/peek",
            json!({ "key": entered(&[&"a".repeat(5_000)]) }),
            413,
        ),
    ] {
        let statuses = statuses_of(desk.post(path, &body), 1).await;
        assert_eq!(statuses, [status], "{path} {body}");
    }
    // What a form of another site could send.
    let order = json!({ "key": ada, "do": "reset" }).to_string();
    let url = format!("{}/api/limiters/site/change", desk.page);
    let simple = Client::new().post(url).bearer_auth(&desk.token).body(order);
    assert_eq!(statuses_of(simple, 1).await, [415]);
}

#[tokio::test]
async fn a_key_is_asked_for_and_made_as_the_limiter_counts_it() {
    let desk = Desk::start("memory:");
    let limiters = desk.tells(desk.get(&Client::new(), "")).await;
    let labels = |limiter: &Value| {
        let fields = limiter["forms"][0].as_array().expect("a list");
        fields.iter().map(|field| field["label"].clone()).collect()
    };
    let labels: Vec<Vec<Value>> = limiters
        .as_array()
        .expect("a list")
        .iter()
        .map(labels)
        .collect();
    let headers = [
        "value of the header x-tenant-id",
        "value of the header x-user-id",
    ];
    let api_key = ["value of the header x-api-key"];
    assert_eq!(
        json!(labels),
        json!([["IP address"], api_key, api_key, headers])
    );

    let report = Client::new().get(format!("{}/reports", desk.service));
    let report = report
        .header("x-tenant-id", "acme")
        .header("x-user-id", "ada");
    assert_eq!(statuses_of(report, 1).await, [200]);
    let key = json!({ "key": entered(&["acme", "ada"]) });
    let status = desk.tells(desk.post("/reports/peek", &key)).await;
    assert_eq!(
        status["key"],
        "header:x-tenant-id=acme,header:x-user-id=ada"
    );
    assert_eq!(status["quotas"][0]["used"], 1);
}

#[tokio::test]
async fn an_operator_sees_who_holds_slots_of_a_key() {
    let desk = Desk::start("memory:");
    let export = Client::new().get(format!("{}/export", desk.service));
    let export = export.header("x-api-key", "ada").send();
    let key = json!({ "key": entered(&["ada"]) });
    let seen = async {
        loop {
            let status = desk.tells(desk.post("/exports/peek", &key)).await;
            let holders = status["holders"].as_array().expect("a list").clone();
            if !holders.is_empty() {
                return holders;
            }
        }
    };
    let holders = tokio::select! {
        holders = seen => holders,
        answer = export => panic!("the export has ended: {answer:?}"),
    };
    assert_eq!((holders.len(), &holders[0]["slots"]), (1, &json!(1)));
    assert_eq!(holders[0]["is_this_process"], true);
    assert_eq!(holders[0]["holder"].as_str().map(str::len), Some(32));
    let other = json!({ "key": entered(&["bob"]) });
    let status = desk.tells(desk.post("/exports/peek", &other)).await;
    assert_eq!(status["holders"], json!([]));
}

#[tokio::test]
async fn a_key_that_nobody_has_is_neither_looked_up_nor_blocked() {
    let desk = Desk::start("memory:");
    let block = |key: Value| json!({ "key": key, "do": "block", "seconds": 600 });
    let stored = |value: &str| block(json!({ "kind": "stored", "value": value }));
    let hashed = "header:x-api-key=~648169584ac95f61920b47c2a9aeaeeb5889044e";
    for (limiter, order, said) in [
        (
            "site",
            block(entered(&["1f0c"])),
            "IP address is not valid: enter one like 192.0.2.1 or 2001:db8::1",
        ),
        ("site", block(entered(&[""])), "IP address is missing"),
        (
            "site",
            stored(hashed),
            "not a key of this limiter, which counts by IP address",
        ),
        (
            "search",
            stored("ip=127.0.0.1"),
            "not a key of this limiter, which counts by value of the header x-api-key",
        ),
        (
            "search",
            block(entered(&["a\nb"])),
            "value of the header x-api-key is not valid: no header can contain control characters",
        ),
        (
            "reports",
            stored("header:x-tenant-id=acme"),
            "not a key of this limiter, which counts by value of the header x-tenant-id and value of the header x-user-id",
        ),
    ] {
        for path in ["peek", "change"] {
            let answer = desk
                .post(&format!("/{limiter}/{path}"), &order)
                .send()
                .await
                .expect("an answer");
            assert_eq!(answer.status(), 400, "{order}");
            assert_eq!(answer.text().await.expect("text"), said);
        }
        let view = desk
            .tells(desk.post(&format!("/{limiter}/view"), &json!({})))
            .await;
        assert_eq!(view["blocked"]["total"], 0, "{order}");
    }
    // One that an earlier version of the service blocked is listed, so it can be unblocked.
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(10))
        .prefix("shop");
    let site = RateLimiter::new(store, "10/hour".parse::<Quota>().expect("a quota")).name("site");
    site.admin()
        .block("ada", Duration::from_secs(600))
        .await
        .expect("Redis answers");
    let desk = Desk::start(&server.url());
    let order = json!({ "key": { "kind": "stored", "value": "ada" }, "do": "unblock" });
    let status = desk.tells(desk.post("/site/change", &order)).await;
    assert_eq!(status["blocked_seconds"], Value::Null);
    assert_eq!(
        statuses_of(desk.post("/site/change", &order), 1).await,
        [400]
    );
    let view = json!({ "key": order["key"] });
    let view = desk.tells(desk.post("/site/view", &view)).await;
    assert_eq!(
        (&view["blocked"]["total"], &view["key"]),
        (&json!(0), &Value::Null)
    );
}

#[tokio::test]
async fn fifty_requests_with_the_token_at_once_all_pass_and_ten_wrong_tokens_do_not() {
    let desk = Desk::start("memory:");
    let at_once = async |request: &RequestBuilder, requests: usize| {
        let sent = (0..requests).map(|_| request.try_clone().expect("no stream").send());
        let mut statuses = Vec::new();
        for answer in futures_util::future::join_all(sent).await {
            statuses.push(answer.expect("an answer").status().as_u16());
        }
        statuses.sort_unstable();
        statuses
    };
    let [owner, guest] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(client_at);
    assert_eq!(at_once(&desk.get(&owner, ""), 50).await, [200; 50]);
    let url = format!("{}/api/limiters", desk.page);
    let wrong = guest.get(url).bearer_auth("x".repeat(32));
    let expected = [[401; 10].as_slice(), &[429; 40]].concat();
    assert_eq!(at_once(&wrong, 50).await, expected);
    // Whoever has guessed too often does not learn whether the next guess is right.
    let limited = desk.get(&guest, "").send().await.expect("an answer");
    assert_eq!(limited.status(), 429);
    let wait = limited.headers()["retry-after"].to_str().expect("text");
    let wait: u64 = wait.parse().expect(wait);
    assert!(wait > 30 && wait <= 61, "{wait}");
    assert_eq!(at_once(&desk.get(&owner, ""), 50).await, [200; 50]);
}

#[tokio::test]
async fn the_page_shows_and_lifts_a_block_after_too_many_refusals() {
    let desk = Desk::start("memory:");
    let statuses = desk.statuses(10 + 100).await;
    assert_eq!(statuses, [[200; 10].as_slice(), &[429; 100]].concat());
    let row = async || {
        let view = desk.tells(desk.post("/site/view", &json!({}))).await;
        view["blocked"]["rows"][0].clone()
    };
    let blocked = row().await;
    assert_eq!(blocked["key"], "ip=127.0.0.1");
    assert_eq!(blocked["reason"], "refused too often, block 1");
    let lifted = desk.change(&json!({ "do": "unblock" })).await;
    assert_eq!(lifted["blocked_seconds"], Value::Null);
    let _ = desk.change(&json!({ "do": "block", "seconds": 90 })).await;
    assert_eq!(row().await["reason"], "operator");
}

#[tokio::test]
async fn blocked_keys_come_in_pages_and_are_searched() {
    let desk = Desk::start("memory:");
    for number in 0..120 {
        let address = format!("192.0.2.{number}");
        let seconds = 1_000 - number;
        let order = json!({ "key": entered(&[&address]), "do": "block", "seconds": seconds });
        let _ = desk.tells(desk.post("/site/change", &order)).await;
    }
    let page = async |search: &str, page: usize| {
        let view = json!({ "blocked": { "search": search, "page": page } });
        let mut view = desk.tells(desk.post("/site/view", &view)).await;
        let keys = view["blocked"]["rows"].as_array().expect("a list").iter();
        let keys: Vec<_> = keys
            .map(|row| row["key"].as_str().expect("text").to_owned())
            .collect();
        view["blocked"]
            .as_object_mut()
            .expect("a map")
            .remove("rows");
        (view["blocked"].clone(), keys)
    };
    let (first, keys) = page("", 0).await;
    assert_eq!(
        first,
        json!({ "total": 120, "found": 120, "page": 0, "pages": 3, "first": 1 })
    );
    let expected: Vec<_> = (0..50)
        .map(|number| format!("ip=192.0.2.{number}"))
        .collect();
    assert_eq!(keys, expected);
    // A page that is gone meanwhile is the last one.
    for number in [2, 3, 999] {
        let (last, keys) = page("", number).await;
        assert_eq!(
            last,
            json!({ "total": 120, "found": 120, "page": 2, "pages": 3, "first": 101 })
        );
        assert_eq!((keys.len(), keys[0].as_str()), (20, "ip=192.0.2.100"));
    }
    let (found, keys) = page(" 2.11", 0).await;
    assert_eq!(
        found,
        json!({ "total": 120, "found": 11, "page": 0, "pages": 1, "first": 1 })
    );
    assert_eq!(keys[0], "ip=192.0.2.11");
    let (none, keys) = page("<script>", 5).await;
    assert_eq!(
        none,
        json!({ "total": 120, "found": 0, "page": 0, "pages": 1, "first": 1 })
    );
    assert!(keys.is_empty());
}

/// Starts the example with these variables, and returns what it says before it ends. Empty if it serves.
fn refusal(variables: &[(&str, &str)]) -> String {
    let mut process = Command::new(built("admin"))
        .envs([
            ("TOLLGATE_STORE", "memory:"),
            ("TOLLGATE_ADDR", "127.0.0.1:0"),
        ])
        .env("TOLLGATE_ADMIN_ADDR", "127.0.0.1:0")
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example runs");
    let mut output = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    if output.any(|line| line.expect("text").contains("Then open the page")) {
        process.kill().expect("it runs");
        let _ = process.wait();
        return String::new();
    }
    let ended = process.wait_with_output().expect("it ended");
    assert!(!ended.status.success());
    String::from_utf8(ended.stderr).expect("text")
}

#[test]
fn a_short_token_and_plain_http_for_others_are_refused_at_the_start() {
    let with_token = |token| refusal(&[("TOLLGATE_ADMIN_TOKEN", token)]);
    let short = with_token("hunter2");
    assert!(
        short.contains("TOLLGATE_ADMIN_TOKEN: the token has 7 characters"),
        "{short}"
    );
    assert!(
        short.contains("at least 16") && !short.contains("hunter2"),
        "{short}"
    );
    assert!(with_token("123456789012345 ").contains("has 15 characters"));
    assert_eq!(with_token("1234567890123456"), "");
    let odd = with_token("1234567890 123456");
    assert!(odd.contains("use letters and digits"), "{odd}");

    let everywhere = ("TOLLGATE_ADMIN_ADDR", "0.0.0.0:0");
    for flag in ["", "1", "deny"] {
        let said = refusal(&[everywhere, ("TOLLGATE_ADMIN_PLAIN_HTTP", flag)]);
        assert!(
            said.contains("refusing to serve plain HTTP on 0.0.0.0:"),
            "{said}"
        );
        assert!(said.contains("TOLLGATE_ADMIN_PLAIN_HTTP=allow"), "{said}");
    }
    assert_eq!(
        refusal(&[everywhere, ("TOLLGATE_ADMIN_PLAIN_HTTP", "allow")]),
        ""
    );
}

#[tokio::test]
async fn what_is_blocked_on_the_page_of_one_process_all_refuse_within_a_second() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| Desk::start(&server.url()));
    assert_eq!(other.statuses(1).await, [200]);
    for (what, status) in [
        (json!({ "do": "block", "seconds": 600 }), 429),
        (json!({ "do": "unblock" }), 200),
    ] {
        let _ = one.change(&what).await;
        assert_eq!(one.statuses(1).await, [status]);
        let begin = Instant::now();
        while other.statuses(1).await != [status] {
            assert!(
                begin.elapsed() < Duration::from_millis(1_300),
                "{:?}",
                begin.elapsed()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let told = other.tells(other.post("/site/view", &json!({}))).await;
        assert_eq!(told["blocked"]["total"], u8::from(status == 429));
    }
}
