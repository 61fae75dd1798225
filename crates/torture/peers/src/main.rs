//! All contestants of RESULTS.md that are written in Rust. Those in Python and Node are added by `--program`.

mod governor;
mod increx;
mod limitador;
mod redis_cell;
mod textbook;
mod tower_rate_limiter;
mod trypema;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut contestants = tollgate_torture::contestants();
    contestants.extend([governor::entry(), limitador::entry()]);
    contestants.extend(tower_rate_limiter::entries());
    contestants.extend(trypema::entries());
    contestants.push(textbook::entry());
    contestants.extend(redis_cell::entry());
    let increx = increx::entry();
    if increx.is_none() && std::env::args().nth(1).as_deref() != Some("serve") {
        eprintln!(
            "increx is left out: redis-server here does not have INCREX, Redis has it since 8.8"
        );
    }
    contestants.extend(increx);
    tollgate_torture::main(contestants)
}
