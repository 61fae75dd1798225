//! Other rate limiters, and tollgate in their place: the code of the guide's page on migrating.
//!
//! The page shows the lines between `page: NAME` and `page: end`; `tests/docs` compares them.

pub mod actix_governor;
pub mod axum_governor;
pub mod governor;
pub mod scripts;
pub mod sorted_set;
pub mod tower_governor;
pub mod tower_limit;
pub mod tower_redis_cell;

#[cfg(test)]
#[expect(dead_code, reason = "other tests need more of it")]
#[path = "../../../tests/support/redis_server.rs"]
mod redis_server;
#[cfg(test)]
mod requests;
