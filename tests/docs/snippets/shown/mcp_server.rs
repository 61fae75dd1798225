//! Limits of an MCP server by tool and by user, with the messages of a real client.

use axum::middleware::{from_fn, from_fn_with_state};
use axum::{Router, routing::post};
use reqwest::{Client, RequestBuilder, Response as Answer};
use tollgate::key::{self, KeyExtractor};
use tollgate::{MemoryStore, Quota, RedisStore, Store};

use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use axum::http::{Request, StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, body::Bytes, extract::State, middleware::Next};
use serde_json::{Value, json};
use tollgate::{Key, RateLimiter, Rejection};

async fn limit_tools(
    State([users, tools]): State<[RateLimiter; 2]>,
    Extension(user): Extension<Key>, // from your authentication
    parts: Parts,
    body: Bytes,
    next: Next,
) -> Result<Response, Rejection> {
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    if message.is_array() {
        return Ok(StatusCode::BAD_REQUEST.into_response()); // a batch would hide calls
    }
    if message["method"] == "tools/call" {
        let tool = Key::from(message["params"]["name"].as_str().unwrap_or_default());
        let levels = [users.level(&user), tools.level(user.and(&tool))];
        let call = RateLimiter::check_all(levels).await?;
        if !call.is_allowed() {
            let wait = call.retry_after().map(|wait| wait.as_secs_f64().ceil());
            let wait = json!({ "retry_after": wait });
            let error = json!({ "code": -32029, "message": "rate limit exceeded", "data": wait });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
            return Ok(Json(answer).into_response());
        }
    }
    Ok(next.run(Request::from_parts(parts, body.into())).await)
}
// page: end

/// What the client `mcp` 2.3.0 for Python sends, recorded from it: a session with two calls of a tool.
const SESSION: [&str; 5] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"mcp","version":"0.1.0"}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
    r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"search","arguments":{"query":"limits"}}}"#,
    r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"search","arguments":{"query":"limits"}}}"#,
];

/// A server of tools: it answers with the message that it got.
async fn server(store: impl Store + Clone) -> String {
    let limits = [
        RateLimiter::new(store.clone(), Quota::per_minute(6)).name("mcp-users"),
        RateLimiter::new(store, Quota::per_hour(4)).name("mcp-tools"),
    ];
    let tools = post(|body: Bytes| async { body });
    let limited = tools
        .layer(from_fn_with_state(limits, limit_tools))
        .layer(from_fn(authenticate));
    serve(Router::new().route("/mcp", limited)).await
}

/// Takes each token for that of a user.
async fn authenticate(mut parts: Parts, body: Bytes, next: Next) -> Result<Response, StatusCode> {
    let user = key::authorization().extract(&parts);
    let user = user.map_err(|_| StatusCode::UNAUTHORIZED)?;
    parts.extensions.insert(user);
    Ok(next.run(Request::from_parts(parts, body.into())).await)
}

/// Sends a message with the headers of the client.
async fn send(url: &str, user: &str, message: &str) -> Answer {
    let request: RequestBuilder = Client::new().post(format!("{url}/mcp"));
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2025-11-25")
        .header("authorization", format!("Bearer {user}"));
    let request = request.body(message.to_owned());
    request.send().await.expect("an answer")
}

/// Calls a tool. Returns the error of the answer, which is `null` for a call that reached the server.
async fn call(url: &str, user: &str, tool: &str) -> Value {
    let params = json!({ "name": tool, "arguments": {} });
    let call = json!({ "jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params });
    let answer = send(url, user, &call.to_string()).await;
    assert_eq!(answer.status(), 200);
    let answer: Value = serde_json::from_str(&answer.text().await.expect("text")).expect("JSON");
    assert_eq!(answer["id"], "a");
    answer["error"].clone()
}

async fn servers(redis: &RedisServer) -> [String; 2] {
    let redis = RedisStore::open(&redis.url()).expect("a URL");
    let redis = redis.deadline(std::time::Duration::from_secs(30));
    [server(MemoryStore::new()).await, server(redis).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_mcp_is_told_in_json_rpc_how_long_to_wait() {
    let redis = RedisServer::start();
    for url in servers(&redis).await {
        // Two sessions: only the calls are counted.
        for _ in 0..2 {
            for message in SESSION {
                let answer = send(&url, "ada", message).await;
                assert_eq!(answer.text().await.expect("text"), message);
            }
        }
        let answer = send(&url, "ada", SESSION[3]).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/json");
        let text = answer.text().await.expect("text");
        let answer: Value = serde_json::from_str(&text).expect(&text);
        assert_eq!(
            (&answer["jsonrpc"], &answer["id"]),
            (&json!("2.0"), &json!(3))
        );
        assert_eq!(answer["error"]["code"], -32029, "{answer}");
        let wait = answer["error"]["data"]["retry_after"].as_f64();
        assert!(
            (3_500.0..=3_600.0).contains(&wait.expect(&text)),
            "{answer}"
        );
        // Another user has calls of their own.
        assert_eq!(call(&url, "bob", "search").await, Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_has_its_own_limit_and_a_refused_call_of_it_costs_the_user_nothing() {
    let redis = RedisServer::start();
    for url in servers(&redis).await {
        for _ in 0..4 {
            assert_eq!(call(&url, "ada", "export").await, Value::Null);
        }
        for _ in 0..5 {
            let error = call(&url, "ada", "export").await;
            assert_eq!(error["code"], -32029);
            let wait = error["data"]["retry_after"].as_f64();
            assert!(
                (3_500.0..=3_600.0).contains(&wait.expect("seconds")),
                "{error}"
            );
        }
        for _ in 0..2 {
            assert_eq!(call(&url, "ada", "search").await, Value::Null);
        }
        let error = call(&url, "ada", "search").await;
        let wait = error["data"]["retry_after"].as_f64();
        assert!((1.0..=60.0).contains(&wait.expect("seconds")), "{error}");
    }
}

#[tokio::test]
async fn calls_without_credentials_or_in_a_batch_do_not_pass_uncounted() {
    let url = server(MemoryStore::new()).await;
    let request = Client::new().post(format!("{url}/mcp"));
    let unknown = request.body(SESSION[3]).send().await.expect("an answer");
    assert_eq!(unknown.status(), 401);
    let batch = format!("[{},{}]", SESSION[3], SESSION[4]);
    assert_eq!(send(&url, "ada", &batch).await.status(), 400);
}
