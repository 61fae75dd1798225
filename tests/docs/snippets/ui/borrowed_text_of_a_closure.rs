//~ lifetime may not live long enough
//~ returning this value requires that `'1` must outlive `'2`

use tollgate::key;

fn main() {
    let _ = key::from_fn(|parts| parts.uri.path());
}
