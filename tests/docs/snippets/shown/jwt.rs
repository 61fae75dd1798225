//! A key from a verified token.

use http::Request;

// page: shown
use http::header::AUTHORIZATION;
use http::request::Parts;
use tollgate::Key;
use tollgate::key::{KeyError, KeyErrorKind, KeyExtractor};

/// Counts by the subject of the bearer token. `verify` checks signature and expiry, and returns the subject,
/// such as `jsonwebtoken::decode::<Claims>(token, &key, &validation).ok()?.claims.sub`.
struct JwtSubject<V>(V);

impl<V> KeyExtractor for JwtSubject<V>
where
    V: Fn(&str) -> Option<String> + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let mut values = parts.headers.get_all(AUTHORIZATION).iter();
        let missing = || KeyError::new(KeyErrorKind::Missing, "no valid bearer token");
        let value = values.next().ok_or_else(missing)?;
        if values.next().is_some() {
            // Otherwise a client could be counted by one token and authenticate with the other.
            let two = "two authorization headers";
            return Err(KeyError::new(KeyErrorKind::Ambiguous, two));
        }
        let token = value
            .to_str()
            .ok()
            .and_then(|value| value.strip_prefix("Bearer "));
        let subject = token
            .and_then(|token| (self.0)(token))
            .ok_or_else(missing)?;
        Ok(Key::from(format!("jwt:{subject}")))
    }
}
// page: end

/// Stands for a signature.
fn verify(token: &str) -> Option<String> {
    token.strip_suffix(".signed").map(str::to_owned)
}

#[test]
fn only_the_subject_of_one_verified_token_is_a_key() {
    let key_of = |tokens: &[&str]| {
        let tokens = tokens.iter();
        let request = tokens.fold(Request::get("/"), |request, token| {
            request.header(AUTHORIZATION, format!("Bearer {token}"))
        });
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        JwtSubject(verify)
            .extract(&parts)
            .map_err(|error| error.kind())
    };
    assert_eq!(key_of(&["ada.signed"]), Ok(Key::from("jwt:ada")));
    assert_eq!(key_of(&["ada.forged"]), Err(KeyErrorKind::Missing));
    assert_eq!(key_of(&[]), Err(KeyErrorKind::Missing));
    assert_eq!(
        key_of(&["ada.signed", "eve.signed"]),
        Err(KeyErrorKind::Ambiguous)
    );
}
