//! Nothing yet: the server is a library.

fn main() {}
