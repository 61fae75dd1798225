//! The response to a refused request, by protocol, as it arrives over HTTP.

use crate::support::served::serve;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use axum::{Router, routing::any};
use tollgate::{Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer, key, problem_json};
use tower::{Layer, ServiceExt, service_fn};

/// One request is admitted; of the next, the first quota has no room and the second has.
fn layer() -> RateLimitLayer {
    let quotas = [
        Quota::per_minute(1).with_name("burst"),
        Quota::per_day(1_000).with_name("daily"),
    ];
    RateLimitLayer::new(MemoryStore::new(), quotas)
        .key(key::global())
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
}

/// Asks twice, and returns what the second request is answered.
async fn refused(
    layer: RateLimitLayer,
    method: Method,
    content_type: &str,
) -> (StatusCode, HeaderMap, Bytes) {
    let app = Router::new().route("/", any(|| async { "ok" }));
    let url = serve(app.layer(layer)).await;
    let ask = async || {
        let request = reqwest::Client::new().request(method.clone(), &url);
        let request = request.header("content-type", content_type);
        request.send().await.unwrap()
    };
    let admitted = ask().await;
    assert_eq!(admitted.status(), StatusCode::OK);
    assert!(!admitted.headers().contains_key("grpc-status"));
    let response = ask().await;
    let (status, headers) = (response.status(), response.headers().clone());
    (status, headers, response.bytes().await.unwrap())
}

fn seconds(headers: &HeaderMap) -> u32 {
    headers["retry-after"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_client_of_http_is_told_the_quota_that_refuses_and_when_it_has_room() {
    let (status, headers, body) = refused(layer(), Method::GET, "application/json").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(body, "rate limit exceeded\n");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(
        headers["ratelimit-policy"],
        r#""burst";q=1;w=60, "daily";q=1000;w=86400"#
    );
    let wait = seconds(&headers);
    assert_eq!(
        headers["ratelimit"],
        format!(r#""burst";r=0;t={wait}"#).as_str()
    );
}

#[tokio::test]
async fn problem_details_are_an_answer_like_any() {
    let (status, headers, body) =
        refused(layer().responder(problem_json()), Method::GET, "text/plain").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["cache-control"], "no-store");
    let wait = seconds(&headers);
    assert_eq!(
        headers["ratelimit"],
        format!(r#""burst";r=0;t={wait}"#).as_str()
    );
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["status"], 429);
    assert_eq!(document["violated-policies"], serde_json::json!(["burst"]));
}

#[tokio::test]
async fn the_status_of_problem_details_is_that_of_the_answer() {
    let layer = layer()
        .status(StatusCode::SERVICE_UNAVAILABLE)
        .responder(problem_json());
    let (status, _, body) = refused(layer, Method::GET, "text/plain").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["status"], 503);
    // The draft's type is that of a 429.
    assert_eq!(document["type"], "about:blank");
    assert_eq!(document["title"], "Service Unavailable");
    assert_eq!(document["violated-policies"], serde_json::json!(["burst"]));
}

#[tokio::test]
async fn a_call_of_grpc_is_answered_in_headers_whatever_the_responder_and_the_status() {
    let layer = layer()
        .grpc()
        .status(StatusCode::FORBIDDEN)
        .responder(problem_json());
    let (status, headers, body) = refused(layer, Method::POST, "application/grpc+proto").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-status"], "8");
    let pushback = headers["grpc-retry-pushback-ms"].to_str().unwrap();
    let pushback: u32 = pushback.parse().unwrap();
    assert_eq!(pushback.div_ceil(1_000), seconds(&headers));
    assert!(body.is_empty());
}

#[tokio::test]
async fn a_client_cannot_choose_to_be_refused_in_the_way_of_grpc() {
    for content_type in ["application/grpc", "application/grpc-web+proto"] {
        let (status, headers, body) = refused(layer(), Method::POST, content_type).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{content_type}");
        assert!(!headers.contains_key("grpc-status"));
        assert_eq!(body, "rate limit exceeded\n");
    }
}

#[tokio::test]
async fn what_is_not_posted_is_no_call_of_grpc() {
    for (method, content_type) in [
        (Method::GET, "application/grpc"),
        (Method::PUT, "application/grpc+proto"),
        (Method::POST, "application/grpcish"),
    ] {
        let (status, headers, _) = refused(layer().grpc(), method, content_type).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(!headers.contains_key("grpc-status"));
    }
}

#[tokio::test]
async fn a_refused_head_has_the_headers_of_a_get_and_no_content() {
    let (_, of_get, body) = refused(layer(), Method::GET, "text/plain").await;
    let (status, mut headers, nothing) = refused(layer(), Method::HEAD, "text/plain").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(nothing.is_empty());
    assert_eq!(headers["content-length"], body.len().to_string().as_str());
    headers.insert("date", of_get["date"].clone());
    assert_eq!(headers.len(), of_get.len(), "{headers:?}");
}

/// `Connection` of a refusal, its lines joined; `-` where there is none.
async fn connection_of(layer: RateLimitLayer, version: Version, head: &[(&str, &str)]) -> String {
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(http_body_util::Empty::<Bytes>::new()))
    }));
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/").version(version);
        let request = head.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let request = request.body(()).unwrap();
        answers.push(service.clone().oneshot(request).await.unwrap());
    }
    // Nothing is said to a request that is admitted: its handler may read the body.
    assert!(!answers[0].headers().contains_key("connection"));
    let lines = answers[1].headers().get_all("connection").iter();
    let lines: Vec<_> = lines.map(|line| line.to_str().unwrap()).collect();
    if lines.is_empty() {
        return "-".to_owned();
    }
    lines.join(", ")
}

#[tokio::test]
async fn a_refusal_that_leaves_a_body_unread_announces_the_end_of_the_connection() {
    let length = [("content-length", "1024")];
    let chunked = [("transfer-encoding", "chunked")];
    let waiting = [("content-length", "1024"), ("expect", "100-continue")];
    for (version, head, expected) in [
        (Version::HTTP_11, &length[..], "close"),
        (Version::HTTP_11, &chunked, "close"),
        (Version::HTTP_11, &waiting, "close"),
        (Version::HTTP_10, &length, "close"),
        (Version::HTTP_11, &[], "-"),
        (Version::HTTP_11, &[("content-length", "0")], "-"),
        // Only the stream ends.
        (Version::HTTP_2, &length, "-"),
        (Version::HTTP_3, &length, "-"),
    ] {
        let connection = connection_of(layer(), version, head).await;
        assert_eq!(connection, expected, "{version:?} {head:?}");
    }
    let off = layer().without_connection_close();
    assert_eq!(connection_of(off, Version::HTTP_11, &length).await, "-");
    // Whatever the reason, and however it is answered.
    let keyless = layer().key(key::header("x-api-key"));
    let grpc_web = [length[0], ("content-type", "application/grpc-web")];
    assert_eq!(
        connection_of(layer().grpc(), Version::HTTP_11, &grpc_web).await,
        "close"
    );
    let service = keyless.layer(service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    }));
    let request = Request::post("/").header("content-length", "9").body(());
    let refused = service.oneshot(request.unwrap()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert_eq!(refused.headers()["connection"], "close");
}

#[tokio::test]
async fn options_of_the_connection_that_a_responder_sets_are_kept() {
    for (set, expected) in [
        ("close", "close"),
        ("keep-alive, Close", "keep-alive, Close"),
        ("x-trace", "x-trace, close"),
        ("keep-alive", "keep-alive, close"),
        ("closed", "closed, close"),
    ] {
        let layer = layer().responder(move |_| {
            let response = Response::builder().header("connection", set);
            response.body("slow down").unwrap()
        });
        let length = [("content-length", "1024")];
        assert_eq!(
            connection_of(layer, Version::HTTP_11, &length).await,
            expected
        );
    }
}

/// Sends this on one connection, and returns all that comes back until the server closes it.
async fn sent_on_one_connection(url: &str, text: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    answers
}

#[tokio::test]
async fn an_upload_that_waits_for_leave_is_refused_without_its_body() {
    let app = Router::new().route("/", any(|body: String| async move { body }));
    let url = serve(app.layer(layer())).await;
    let waits = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n";
    let admitted = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody";
    let answers = sent_on_one_connection(&url, &format!("{admitted}{waits}")).await;
    let (admitted, refused) = answers.split_once("HTTP/1.1 429 ").expect(&answers);
    assert!(admitted.starts_with("HTTP/1.1 200 "), "{answers}");
    assert!(!admitted.contains("connection: "), "{answers}");
    assert!(refused.contains("\r\nconnection: close\r\n"), "{answers}");
    assert!(!answers.contains("HTTP/1.1 100 "), "{answers}");
}

/// What a server is given, which may send it as it is.
#[tokio::test]
async fn a_refused_head_is_without_content_before_a_server_sees_it() {
    use http_body::Body as _;

    let own_length = layer().responder(|_| {
        let response = Response::builder().header("content-length", "7");
        response.body("slow down").unwrap()
    });
    for (layer, length) in [(layer(), "20"), (own_length, "7")] {
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, std::convert::Infallible>(Response::new(http_body_util::Empty::<Bytes>::new()))
        }));
        let head = || Request::head("/").body(()).unwrap();
        let _ = service.clone().oneshot(head()).await.unwrap();
        let response = service.oneshot(head()).await.unwrap();
        assert_eq!(response.headers()["content-length"], length);
        assert!(response.body().is_end_stream());
        assert_eq!(response.body().size_hint().exact(), Some(0));
    }
}
