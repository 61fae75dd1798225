//! Prints a Lua script that runs in Redis, with line numbers: `cargo run --example script -- --numbered`
//!
//! Errors of Redis name a line: `user_script:123:` is line 123. By default it prints the script `decide`. Pass
//! `decide_all`, `refund`, `credit`, `block` or `blocked` to print another.

use std::env;
use std::process::ExitCode;

use tollgate::RedisStore;

fn main() -> ExitCode {
    let (options, names): (Vec<_>, Vec<_>) =
        env::args().skip(1).partition(|arg| arg == "--numbered");
    let name = names.first().map_or("decide", String::as_str);
    let Some((_, text)) = RedisStore::scripts().find(|(script, _)| *script == name) else {
        eprintln!("script: no script is named {name}");
        return ExitCode::FAILURE;
    };
    if options.is_empty() {
        print!("{text}");
    } else {
        for (number, line) in (1..).zip(text.lines()) {
            println!("{number:4}  {line}");
        }
    }
    ExitCode::SUCCESS
}
