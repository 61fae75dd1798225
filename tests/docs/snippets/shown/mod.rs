//! Code that the guide shows, from `// page: shown` on, and what it does.

mod agent_budget;
mod credits;
mod exempt_network;
mod fair_workers;
mod github;
mod jwt;
mod llm_gateway;
mod login;
mod login_limits;
mod mcp_server;
mod nested_router;
mod password_reset;
mod pods;
mod rate_limit;
mod stack;
mod stream_life;
mod test_of_a_wait;
mod test_of_an_outage;
mod test_of_time;
mod two_stores;
mod upstream_outage;
mod whoami;
