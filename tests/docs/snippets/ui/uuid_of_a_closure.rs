use tollgate::key;
use uuid::Uuid;

fn main() {
    let _ = key::from_fn(|_| Uuid::from_u128(7));
}
