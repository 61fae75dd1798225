//! Code that the guide shows, from `// page: shown` on, and what it does.

mod exempt_network;
mod github;
mod jwt;
mod login;
mod login_limits;
mod nested_router;
mod pods;
mod rate_limit;
mod stack;
mod stream;
mod test_of_a_429;
mod test_of_a_wait;
mod test_of_an_outage;
mod test_of_time;
mod whoami;
