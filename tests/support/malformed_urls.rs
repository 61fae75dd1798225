//! URLs with a password that are malformed in any way.

use proptest::collection::vec;
use proptest::sample::{Index, select};
use proptest::strategy::{Just, Strategy};
use proptest::{prop_oneof, test_runner::TestCaseError};

/// A part of each password. It stands there several times, so that some are whole whatever comes in between.
const SECRET: &str = "zq7";
const PASSWORD: &str = "zq7zq7zq7zq7";

/// What separates the parts of a URL, or is an error in one.
const DELIMITERS: &[u8] = b":/?#@&=+,%[]\\. \t\n";

/// A change of one character of a URL, at any place.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Insert(u8),
    Replace(u8),
    Delete,
    /// With the next character.
    Swap,
    Uppercase,
    /// Cuts off what is before.
    Begin,
    /// Cuts off what is behind.
    End,
}

impl Fault {
    fn apply(self, url: &mut Vec<u8>, place: Index) {
        if url.len() < 2 {
            return;
        }
        let at = place.index(url.len() - 1);
        match self {
            Self::Insert(delimiter) => url.insert(at, delimiter),
            Self::Replace(delimiter) => url[at] = delimiter,
            Self::Delete => drop(url.remove(at)),
            Self::Swap => url.swap(at, at + 1),
            Self::Uppercase => url[at].make_ascii_uppercase(),
            Self::Begin => drop(url.drain(..at)),
            Self::End => url.truncate(at + 1),
        }
    }
}

/// Any URL that was one of these, in which `PASSWORD` stands for a password, and has up to five faults.
pub(crate) fn malformed(urls: &'static [&'static str]) -> impl Strategy<Value = String> {
    let delimiter = select(DELIMITERS);
    let fault = prop_oneof![
        6 => delimiter.clone().prop_map(Fault::Insert),
        6 => delimiter.prop_map(Fault::Replace),
        6 => Just(Fault::Delete),
        3 => Just(Fault::Swap),
        1 => Just(Fault::Uppercase),
        1 => Just(Fault::Begin),
        1 => Just(Fault::End),
    ];
    let faults = vec((fault, proptest::arbitrary::any::<Index>()), 0..6);
    (select(urls), faults).prop_map(|(url, faults)| {
        let mut bytes = url.replace("PASSWORD", PASSWORD).into_bytes();
        for (fault, place) in faults {
            fault.apply(&mut bytes, place);
        }
        String::from_utf8(bytes).expect("ASCII")
    })
}

/// Fails if a text shows a part of the password.
pub(crate) fn hides_password(url: &str, shown: &str) -> Result<(), TestCaseError> {
    if shown.to_ascii_lowercase().contains(SECRET) {
        return Err(TestCaseError::fail(format!("{url:?}: {shown}")));
    }
    Ok(())
}

/// Whether each part of the password still stands in the place of one: before the `@` of the host, or behind the name of a
/// parameter. Elsewhere it is a host or a path, which a store shows.
pub(crate) fn marks_password(url: &str) -> bool {
    let (before_query, query) = url.split_at(url.find('?').unwrap_or(url.len()));
    let behind_user = before_query.rsplit_once('@');
    let address = behind_user.map_or(before_query, |(_, address)| address);
    let shown = [address, query].map(|part| {
        let values = part.split('&');
        let is_password = |value: &&str| value.contains("pass=") || value.contains("password=");
        let others: Vec<_> = values.filter(|value| !is_password(value)).collect();
        others.concat()
    });
    !shown.concat().to_ascii_lowercase().contains(SECRET)
}
