//! Request heads for the tests of extractors.

use http::Request;
use http::request::Parts;

pub(super) fn get() -> Parts {
    parts(&[])
}

pub(super) fn parts(headers: &[(&str, &str)]) -> Parts {
    let request = headers
        .iter()
        .fold(Request::get("/"), |request, (name, value)| {
            request.header(*name, *value)
        });
    request.body(()).unwrap().into_parts().0
}
