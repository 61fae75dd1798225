//! Code that the guide shows, from `// page: shown` on, and what it does.

mod github;
mod jwt;
mod login;
mod stream;
