//! Keys of requests, and keys without HTTP.

use std::borrow::Cow;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use tollgate::{Key, KeyExtractor, MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
use uuid::Uuid;

fn by(key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)).key(key)
}

/// The guide's page `clients`: tonic inserts the address of the peer, as this connection does.
#[cfg(feature = "grpc")]
#[tokio::test]
async fn by_the_address_that_tonic_inserts() -> Result<(), Box<dyn Error>> {
    use tonic::transport::server::Connected;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
    let (connection, _) = listener.accept().await?;
    let request = http::Request::get("/").extension(connection.connect_info());
    let (parts, ()) = request.body(())?.into_parts();
    let address = client.local_addr()?.ip();
    assert_eq!(key::peer_ip().extract(&parts)?, key::peer_ip().of(address));
    Ok(())
}

#[test]
fn names_and_networks_are_text_or_lists_of_a_configuration() {
    let text = String::from("10.0.0.0/8, 192.0.2.7");
    let list = vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()];
    for client in [
        key::client_ip().behind(&text),
        key::client_ip().behind(&list),
        key::client_ip().behind(list),
    ] {
        let _layer = by(client.checked().expect("networks"));
    }
    let header = String::from("x-api-key");
    let _layer = by(key::header(&header));
}

#[derive(Clone)]
struct User {
    id: u64,
    tenant: String,
    uuid: Uuid,
}

#[test]
fn a_closure_or_a_function_returns_a_key_in_any_form() {
    fn by_host(parts: &Parts) -> Option<Key> {
        parts.uri.host().map(Key::from)
    }
    let _number = by(key::from_fn(|parts| parts.uri.path().len()));
    let _option = by(key::from_fn(|parts| parts.uri.port_u16()));
    let _pair = by(key::from_fn(|parts| {
        let user = parts.extensions.get::<User>()?;
        Some((user.tenant.clone(), user.id))
    }));
    let uuid = key::from_fn(|parts| {
        let user = parts.extensions.get::<User>()?;
        Some(Key::from_display(user.uuid))
    });
    let _uuid_or_address = by(uuid.or(key::peer_ip()));
    let _function = by(key::from_fn(by_host));
}

#[test]
fn an_extractor_is_chosen_at_startup() {
    let boxed: Box<dyn KeyExtractor> = Box::new(key::header("x-api-key"));
    let shared: Arc<dyn KeyExtractor> = Arc::new(key::global());
    let _boxed = by(boxed);
    let _shared = by(Arc::clone(&shared));
}

#[tokio::test]
async fn a_limiter_takes_whatever_names_a_client() -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(100));
    let user = String::from("ada");
    let _ = limiter.check(&user).await?;
    let _ = limiter.check(Cow::Borrowed("ada")).await?;
    let _ = limiter.check(Arc::<str>::from("ada")).await?;
    assert_eq!(limiter.peek(user).await?.used(), 3);

    let _ = limiter.check(42).await?;
    let _ = limiter.check(("acme", 42)).await?;
    assert_eq!(limiter.peek(42_u64).await?.used(), 1);

    let address: IpAddr = "192.0.2.1".parse()?;
    let _ = limiter.check(address).await?;
    // The layer counts the same key.
    assert_eq!(limiter.peek(key::peer_ip().of(address)).await?.used(), 1);
    Ok(())
}
