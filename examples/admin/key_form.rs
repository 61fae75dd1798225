//! The form in which an operator names a key of a limiter.
//!
//! A form makes the key in the same way as the extractor of the layer, with its method `of`. So it has to be changed
//! together with the extractor.

use std::net::IpAddr;

use http::HeaderValue;
use tollgate::Key;
use tollgate::key::Header;

/// Makes a key from the values of its fields. The text of the error says what to enter.
pub(crate) struct KeyForm {
    pub(crate) fields: Vec<KeyField>,
    make: Box<MakeFn>,
}

/// One value that an operator enters.
pub(crate) struct KeyField {
    pub(crate) label: String,
    pub(crate) example: &'static str,
}

type MakeFn = dyn Fn(&[String]) -> Result<Key, String> + Send + Sync;

impl KeyForm {
    /// The keys of an extractor of addresses, such as `|address| key::peer_ip().of(address)`.
    pub(crate) fn address(key: impl Fn(IpAddr) -> Key + Send + Sync + 'static) -> Self {
        Self::new("IP address", "192.0.2.1", move |value| {
            let address = value.parse();
            address
                .map(&key)
                .map_err(|_| "enter one like 192.0.2.1 or 2001:db8::1".to_owned())
        })
    }

    /// The keys of an extractor of a header, with its name.
    pub(crate) fn header(name: &str, extractor: Header) -> Self {
        let label = format!("value of the header {name}");
        Self::new(label, "1f0c", move |value| {
            HeaderValue::from_str(value)
                .map(|value| extractor.of(value))
                .map_err(|_| "no header can contain control characters".to_owned())
        })
    }

    /// The keys of one value that is not empty.
    fn new(
        label: impl Into<String>,
        example: &'static str,
        key: impl Fn(&str) -> Result<Key, String> + Send + Sync + 'static,
    ) -> Self {
        let label = label.into();
        let entered = label.clone();
        let make = move |values: &[String]| match values {
            [value] if value.trim().is_empty() => Err(format!("{entered} is missing")),
            [value] => {
                key(value.trim()).map_err(|error| format!("{entered} is not valid: {error}"))
            }
            _ => Err(format!("the key needs one value, not {}", values.len())),
        };
        Self {
            fields: vec![KeyField { label, example }],
            make: Box::new(make),
        }
    }

    /// The joined keys of a tuple of two extractors.
    pub(crate) fn and(mut self, other: Self) -> Self {
        let (first, rest) = (self.fields.len(), other.make);
        self.fields.extend(other.fields);
        let make = self.make;
        self.make = Box::new(move |values| {
            let (left, right) = values.split_at(first.min(values.len()));
            Ok(make(left)?.and(rest(right)?))
        });
        self
    }

    /// Returns the key of these values, one for each field.
    pub(crate) fn key(&self, values: &[String]) -> Result<Key, String> {
        (self.make)(values)
    }

    /// Returns whether a stored key has the tags of this form, such as `ip=`, and so may be one of its keys. A key that
    /// was too long is stored as a hash, without tags.
    pub(crate) fn may_be(&self, key: &Key) -> bool {
        let examples: Vec<_> = self
            .fields
            .iter()
            .map(|field| field.example.to_owned())
            .collect();
        let example = self.key(&examples).expect("examples are valid");
        key.as_str().starts_with('#') || tags(key).eq(tags(&example))
    }
}

/// Returns the tags of the joined keys: the text up to the value. Values contain neither commas nor `=`.
fn tags(key: &Key) -> impl Iterator<Item = &str> {
    let parts = key.as_str().split(',');
    parts.map(|part| part.split_once('=').map_or(part, |(tag, _)| tag))
}
