//! Clients from npm at a limit: which headers they read and when they retry. The guide has the same table of
//! clients.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;
use tollgate::{Headers, IetfDraft, Key, MemoryStore, Quota, RateLimitLayer, key};

use crate::serve;

/// Several times what the script takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// One request in any 3.5 seconds: a refusal tells clients to wait for 4.
const WINDOW: Duration = Duration::from_millis(3_500);

/// The headers of an answer, by the first part of a path. Without `Retry-After` a client has to read the
/// others.
const FORMS: [(&str, Option<Headers>, bool); 7] = [
    ("default", None, true),
    ("retry-after", Some(Headers::none()), true),
    ("delta", Some(Headers::x_ratelimit().delta_reset()), false),
    ("epoch", Some(Headers::x_ratelimit()), false),
    ("draft-6", Some(Headers::ietf(IetfDraft::Draft06)), false),
    ("draft-7", Some(Headers::ietf(IetfDraft::Draft07)), false),
    ("draft-11", Some(Headers::ietf(IetfDraft::Draft11)), false),
];

/// The forms in the columns of the guide's table.
const FORMS_ALONE: [&str; 6] = [
    "retry-after",
    "delta",
    "epoch",
    "draft-6",
    "draft-7",
    "draft-11",
];

/// What the guide's table says of a client.
fn cells_of(client: &str) -> [String; 6] {
    let page = include_str!("../../src/guide/clients.md");
    let head = format!("| `{client}` ");
    let mut rows = page.lines().filter(|line| line.starts_with(&head));
    let row = rows
        .next()
        .unwrap_or_else(|| panic!("{client} is not in the guide"));
    let cells = row.trim_matches('|').split('|').skip(2);
    let cells: Vec<_> = cells
        .map(|cell| cell.trim().trim_matches('*').to_owned())
        .collect();
    cells.try_into().unwrap_or_else(|_| panic!("{row}"))
}

/// The name of a package without its scope.
fn short(client: &'static str) -> &'static str {
    client.rsplit('/').next().unwrap_or(client)
}

/// When a client asked, and how it was answered.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    status: u16,
}

/// The requests to each path.
type Log = Arc<Mutex<HashMap<String, Vec<Seen>>>>;

async fn note(State(log): State<Log>, request: Request, next: Next) -> Response {
    let (at, path) = (Instant::now(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let mut log = log.lock().unwrap();
    log.entry(path).or_default().push(Seen { at, status });
    response
}

async fn without_retry_after(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().remove("retry-after");
    response
}

/// Each path has a separate limit.
fn limited(headers: Option<Headers>) -> RateLimitLayer {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::new(1, WINDOW))
        .key(key::from_fn(|parts| Some(Key::from(parts.uri.path()))));
    match headers {
        None => layer,
        Some(headers) => layer.headers(headers),
    }
}

fn app(log: &Log) -> Router {
    let mut app = Router::new();
    for (form, headers, has_retry_after) in FORMS {
        let path = format!("/{form}/{{client}}");
        let mut route = Router::new()
            .route(&path, get(|| async { "ok" }))
            .layer(limited(headers));
        if !has_retry_after {
            route = route.layer(middleware::from_fn(without_retry_after));
        }
        app = app.merge(route);
    }
    app.layer(middleware::from_fn_with_state(Arc::clone(log), note))
}

/// The directory with the packages.
pub(crate) fn packages() -> PathBuf {
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../peers-npm");
    let hint = "is not there: `tests/run peers` makes it";
    assert!(packages.exists(), "{} {hint}", packages.display());
    packages
}

/// What came of each of these requests.
async fn ask(requests: &Value) -> Vec<Value> {
    let packages = packages();
    // Node looks for packages beside the script.
    let script = packages.join("clients.mjs");
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("npm/clients.mjs");
    std::fs::copy(original, &script).expect("a copy");
    let mut node = Command::new("node");
    node.arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut node = node.spawn().expect("node runs");
    let mut input = node.stdin.take().expect("a pipe");
    let text = requests.to_string();
    input.write_all(text.as_bytes()).await.expect("it reads");
    drop(input);
    let output = timeout(PATIENCE, node.wait_with_output()).await;
    let output = output.expect("it ends in time").expect("it runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// How a client takes a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// It waits as long as it should, and is admitted.
    AsTold,
    /// It ignores the headers: waits for another time or not at all, and is refused again.
    TooEarly,
    /// It does not ask again.
    Never,
}

impl Takes {
    fn of(seen: &[Seen]) -> Self {
        let [_, refused, rest @ ..] = seen else {
            panic!("one is admitted and one refused: {seen:?}");
        };
        match rest.first() {
            None => Self::Never,
            Some(again) if again.status == 429 => Self::TooEarly,
            Some(again) => {
                let waited = again.at - refused.at;
                assert!(waited < 3 * WINDOW, "{waited:?}");
                Self::AsTold
            }
        }
    }
}

/// What came of one request of a client to each form, by form and client, and what the server saw.
async fn run(clients: &[&str]) -> (HashMap<String, Vec<Seen>>, HashMap<String, Value>) {
    let log = Log::default();
    let address = serve(app(&log)).await;
    let (mut paths, mut requests) = (Vec::new(), Vec::new());
    for (form, ..) in FORMS {
        for name in clients {
            let path = format!("/{form}/{name}");
            let url = format!("http://{address}{path}");
            requests.push(json!({"client": name, "url": url}));
            paths.push(path);
        }
    }
    let answers = ask(&json!(requests)).await;
    let seen = std::mem::take(&mut *log.lock().unwrap());
    (seen, paths.into_iter().zip(answers).collect())
}

#[tokio::test]
async fn clients_from_npm_take_each_form_of_headers_as_the_guide_says() {
    use Takes::{AsTold, Never, TooEarly};

    let clients = [
        ("@octokit/plugin-throttling", AsTold),
        ("@octokit/plugin-retry", TooEarly),
        ("got", AsTold),
        ("ky", AsTold),
        ("axios-retry", AsTold),
    ];
    let (seen, _) = run(&clients.map(|(client, _)| short(client))).await;
    for (client, by_default) in clients {
        let takes = |form: &str| Takes::of(&seen[&format!("/{form}/{}", short(client))]);
        assert_eq!(takes("default"), by_default, "{client}");
        let told = cells_of(client).map(|cell| match cell.as_str() {
            "waits" => AsTold,
            "too early" => TooEarly,
            "no retry" => Never,
            other => panic!("{client}: {other}"),
        });
        assert_eq!(FORMS_ALONE.map(takes), told, "{client}");
    }
    // Seconds from now are a second of 1970 to it, long past.
    let seen = &seen["/delta/plugin-throttling"];
    assert!(seen[2].at - seen[1].at < Duration::from_secs(1), "{seen:?}");
}

#[tokio::test]
async fn ratelimit_header_parser_reads_each_form_but_draft_11() {
    let (_, read) = run(&["ratelimit-header-parser"]).await;
    let told = cells_of("ratelimit-header-parser").map(|cell| match cell.as_str() {
        "reads" => true,
        "fails" | "not read" => false,
        other => panic!("{other}"),
    });
    let forms = FORMS_ALONE.into_iter().zip(told);
    for (form, is_read) in forms.chain([("default", true)]) {
        let read = &read[&format!("/{form}/ratelimit-header-parser")];
        let seconds = read["seconds"].as_f64().unwrap_or_default();
        let is_right =
            read["limit"] == 1 && read["remaining"] == 0 && (2.0..6.0).contains(&seconds);
        assert_eq!(is_right, is_read, "{form}: {read}");
    }
}
