//! Tests of headers that an inner layer or the service has already written.

use http::{HeaderMap, HeaderName};

use super::fixtures::{
    DRAFTS, SECOND, admitted, both, decide, left, lines, refused, write, written,
};
use crate::middleware::headers::{Headers, IetfDraft, Tightness};
use crate::quota::Quota;

#[test]
fn no_list_is_appended_to_a_field_in_another_syntax() {
    // The headers of a service behind a gateway. A dictionary of draft 7 and a list do not parse together.
    let service_fields = [
        ("ratelimit", "limit=100, remaining=42, reset=17"),
        ("ratelimit-policy", "100;w=60"),
    ];
    let mut map = HeaderMap::new();
    for (name, value) in service_fields {
        map.insert(name, value.parse().unwrap());
    }
    for place in [Tightness::Tightest, Tightness::Behind] {
        write(
            &Headers::ietf(IetfDraft::Draft11),
            &refused(),
            place,
            &mut map,
        );
        assert_eq!(
            lines(&map),
            service_fields.map(|(name, value)| format!("{name}: {value}"))
        );
    }
    // Policies without names are not appended to named policies.
    let mut map = HeaderMap::new();
    write(
        &Headers::ietf(IetfDraft::Draft11),
        &admitted(),
        Tightness::Tightest,
        &mut map,
    );
    write(
        &Headers::ietf(IetfDraft::Draft06),
        &refused(),
        Tightness::Behind,
        &mut map,
    );
    assert_eq!(
        lines(&map),
        written(&Headers::ietf(IetfDraft::Draft11), &admitted())
    );
}

/// Headers that the service and then an inner layer have written.
fn written_inside(headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    for name in ["x-ratelimit-limit", "ratelimit-limit"] {
        map.insert(name, "from the service".parse().unwrap());
    }
    let inside = decide([left(Quota::per_second(5), 4, SECOND)]);
    write(headers, &inside, Tightness::Tightest, &mut map);
    map
}

#[test]
fn a_tighter_layer_replaces_single_values_and_appends_to_lists() {
    for draft in DRAFTS {
        let headers = both(draft);
        let mut map = written_inside(&headers);
        let inside = map.clone();
        write(&headers, &refused(), Tightness::Tightest, &mut map);
        let alone = written(&headers, &refused());
        for name in map.keys() {
            let values: Vec<_> = map.get_all(name).iter().collect();
            let [rest @ .., last] = &*values else {
                panic!("{name} has no value");
            };
            if is_list(name, draft) {
                let before: Vec<_> = inside.get_all(name).iter().collect();
                assert_eq!(rest, before, "{draft:?}, {name}");
            } else {
                // A field that this dialect does not have is not changed.
                assert!(rest.is_empty(), "{draft:?}, {name}: {values:?}");
            }
            let is_foreign = name == "ratelimit-limit"
                && matches!(draft, IetfDraft::Draft07 | IetfDraft::Draft11);
            let last = format!("{name}: {}", last.to_str().unwrap());
            assert_eq!(alone.contains(&last), !is_foreign, "{draft:?}, {last}");
        }
    }
}

#[test]
fn a_layer_outside_of_a_tighter_one_only_appends_to_lists() {
    for draft in DRAFTS {
        let headers = both(draft);
        let mut map = written_inside(&headers);
        let inside = map.clone();
        write(&headers, &admitted(), Tightness::Behind, &mut map);
        for name in map.keys() {
            let before = inside.get_all(name).iter().count();
            let lines = map.get_all(name).iter().count();
            let added = usize::from(is_list(name, draft));
            assert_eq!(lines, before + added, "{draft:?}, {name}");
            assert_eq!(map[name], inside[name], "{draft:?}, {name}");
        }
    }
}

fn is_list(name: &HeaderName, draft: IetfDraft) -> bool {
    name == "ratelimit-policy" || name == "ratelimit" && draft == IetfDraft::Draft11
}
