//! Keys of requests, and keys without HTTP.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tollgate::key::{KeyError, KeyErrorKind, Reads};
use tollgate::{Key, KeyExtractor, MemoryStore, Quota, RateLimitLayer, key};
use uuid::Uuid;

use super::Done;

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100))
}

#[test]
fn by_address() {
    let _layer = layer().key(key::peer_ip());
    let _networks = layer().key(key::peer_ip().ipv6_prefix(56));
}

/// The guide's page `clients`: tonic inserts the address of the peer, as this connection does.
#[cfg(feature = "grpc")]
#[tokio::test]
async fn by_the_address_that_tonic_inserts() -> Done {
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
fn behind_one_network() -> Done {
    let _layer = layer().key(key::client_ip().behind("10.0.0.0/8"));
    let _checked = layer().key(key::client_ip().behind("10.0.0.0/8").checked()?);
    Ok(())
}

#[test]
fn behind_several_networks() {
    let _array = layer().key(key::client_ip().behind(["10.0.0.0/8", "fd00::/8"]));
    let configured = vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()];
    let _reference = layer().key(key::client_ip().behind(&configured));
    let _vec = layer().key(key::client_ip().behind(configured));
}

#[test]
fn behind_the_networks_of_the_environment() -> Done {
    let networks =
        std::env::var("TRUSTED_PROXIES").unwrap_or_else(|_| "10.0.0.0/8, 192.0.2.7".into());
    let _reference = key::client_ip().behind(&networks).checked()?;
    let _split = key::client_ip().behind(networks.split(',')).checked()?;
    let _layer = layer().key(key::client_ip().behind(networks).checked()?);
    Ok(())
}

#[test]
fn a_wrong_network_is_an_error_at_startup() {
    let error = key::client_ip()
        .behind("10.0.0.0/33")
        .checked()
        .unwrap_err();
    assert!(error.to_string().contains("10.0.0.0/33"), "{error}");
    assert!(key::client_ip().behind("").checked().is_err());
}

#[test]
fn behind_a_number_of_proxies() {
    let _layer = layer().key(key::client_ip().hops(1));
    let _forwarded = layer().key(key::client_ip().hops(2).forwarded().ipv6_prefix(48));
}

#[test]
fn behind_cloudflare() {
    let cloudflare = ["173.245.48.0/20", "2400:cb00::/32"];
    let client = key::client_ip()
        .behind(cloudflare)
        .header("cf-connecting-ip");
    let _layer = layer().key(client);
}

#[test]
fn by_api_key() {
    let _layer = layer().key(key::header("x-api-key"));
    let _or_address = layer().key(key::header("x-api-key").or(key::peer_ip()));
    let _readable = layer().key(key::header("x-tenant-id").plain());
    let _keyed = layer().key(key::header("x-email").secret("s3cret"));
}

#[test]
fn by_header_of_a_string() {
    let name = String::from("x-api-key");
    let _layer = layer().key(key::header(&name));
}

#[test]
fn by_credentials_or_cookie() {
    let _bearer = layer().key(key::authorization());
    let _keyed = layer().key(key::authorization().secret("s3cret"));
    let _session = layer().key(key::cookie("session"));
}

#[derive(Clone)]
struct User {
    id: u64,
    tenant: String,
    uuid: Uuid,
}

#[test]
fn by_user_without_display() {
    let _id = layer().key(key::extension_with(|user: &User| user.id));
    let _tenant = layer().key(key::extension_with(|user: &User| user.tenant.clone()));
    let _uuid = layer().key(key::extension_with(|user: &User| user.uuid).name("user"));
    let email = key::extension_with(|user: &User| user.tenant.clone()).secret("s3cret");
    let _or_address = layer().key(email.or(key::peer_ip()));
}

#[test]
fn by_extension_with_display() {
    let _user = layer().key(key::extension::<Uuid>());
    let _named = layer().key(key::extension::<String>().name("user").secret("s3cret"));
}

#[test]
fn by_closure_that_returns_text_or_a_number() {
    let _text = layer().key(key::from_fn(|parts| parts.method.as_str().to_owned()));
    let _constant = layer().key(key::from_fn(|_| "everybody"));
    let _number = layer().key(key::from_fn(|parts| parts.uri.path().len()));
    let _option = layer().key(key::from_fn(|parts| parts.uri.port_u16()));
    let _pair = layer().key(key::from_fn(|parts| {
        let user = parts.extensions.get::<User>()?;
        Some((user.tenant.clone(), user.id))
    }));
    let _uuid = layer().key(key::from_fn(|parts| {
        let user = parts.extensions.get::<User>()?;
        Some(Key::from_display(user.uuid))
    }));
}

#[test]
fn by_closure() {
    let _method = layer().key(key::from_fn(|parts| Some(Key::from(parts.method.as_str()))));
    let _query = layer().key(key::from_fn(|parts| parts.uri.query().map(Key::from)));
}

#[test]
fn by_closure_with_an_extension() {
    let by_user = key::from_fn(|parts| {
        let user = parts.extensions.get::<User>()?;
        Some(Key::from(user.id))
    });
    let _layer = layer().key(by_user.or(key::peer_ip()));
}

#[test]
fn by_function() {
    fn by_host(parts: &http::request::Parts) -> Option<Key> {
        parts.uri.host().map(Key::from)
    }
    let _layer = layer().key(key::from_fn(by_host));
}

#[test]
fn by_route_and_everything_together() {
    let _route = layer().key(key::path());
    let _global = layer().key(key::global());
    let _either = layer().key(key::path().or(key::global()));
}

#[test]
fn by_tuples_of_up_to_eight() {
    let _two = layer().key((key::peer_ip(), key::path()));
    let _five = layer().key((
        key::header("x-region"),
        key::header("x-tenant-id"),
        key::header("x-api-key"),
        key::path(),
        key::peer_ip(),
    ));
    let h = || key::header("x-api-key");
    let _eight = layer().key((h(), h(), h(), h(), h(), h(), h(), key::global()));
}

#[test]
fn by_an_extractor_that_is_chosen_at_startup() {
    let by_address = true;
    let key: Box<dyn KeyExtractor> = if by_address {
        Box::new(key::peer_ip())
    } else {
        Box::new(key::header("x-api-key"))
    };
    let _boxed = layer().key(key);
    let shared: Arc<dyn KeyExtractor> = Arc::new(key::global());
    let _shared = layer().key(Arc::clone(&shared));
}

#[test]
fn by_an_extractor_of_your_own() {
    struct ByHost;

    impl KeyExtractor for ByHost {
        fn extract(&self, parts: &http::request::Parts) -> Result<Key, KeyError> {
            let host = parts.uri.host();
            host.map(Key::from)
                .ok_or_else(|| KeyError::new(KeyErrorKind::Missing, "the request has no host"))
        }

        fn reads(&self) -> Reads {
            Reads::nothing()
        }
    }

    let _layer = layer().key(ByHost);
    let _or = layer().key(ByHost.or(key::global()));
}

#[test]
fn keys_of_text() {
    let id = String::from("ada");
    for key in [
        Key::from("ada"),
        Key::from(&id),
        Key::from(id.clone()),
        Key::from(Cow::Borrowed("ada")),
        Key::from(Arc::<str>::from("ada")),
        Key::from(b"ada"),
        id.into(),
    ] {
        assert_eq!(key.as_str(), "ada");
    }
}

#[test]
fn keys_of_numbers() {
    assert_eq!(Key::from(42), Key::from("42"));
    assert_eq!(Key::from(42_u32), Key::from(42_u64));
    assert_eq!(Key::from(42_i64), Key::from(42_u128));
}

#[test]
fn keys_of_uuids() {
    let id = Uuid::from_u128(7);
    assert_eq!(Key::from_display(id), Key::from(id.to_string()));
    assert_eq!(Key::from(id.as_u128()).as_str(), "7");
}

#[test]
fn keys_of_addresses() -> Done {
    let address: IpAddr = "192.0.2.1".parse()?;
    assert_eq!(Key::from(address), key::peer_ip().of(address));
    assert_eq!(Key::from(Ipv4Addr::LOCALHOST).as_str(), "ip=127.0.0.1");
    Ok(())
}

#[test]
fn the_key_of_a_client_for_an_admin_page() {
    let by_key = key::header("x-api-key");
    let joined = by_key.of("1f0c").and(&key::path().of("/search"));
    assert_eq!(Key::from_stored(joined.as_str()), Some(joined));
}
