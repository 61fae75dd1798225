use tollgate::key;

fn main() {
    let _ = key::from_fn(|parts| parts.uri.path());
}
