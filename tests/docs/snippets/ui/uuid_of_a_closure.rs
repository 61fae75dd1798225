//~ `Uuid` is not a key
//~ expected a key or an `Option` of one: text, bytes, a number, an address, or a pair of these
//~ for a UUID, or another type that implements `Display`, write `Key::from_display(value)`

use tollgate::key;
use uuid::Uuid;

fn main() {
    let _ = key::from_fn(|_| Uuid::from_u128(7));
}
