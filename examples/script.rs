//! Prints a Lua script that runs in Redis, with line numbers: `cargo run --example script -- --numbered`
//!
//! Errors of Redis name a line: `user_script:123:` is line 123. By default it prints the script `decide`. Pass
//! `refund`, `credit`, `block` or `blocked` to print another.
//!
//! With `--state`, it prints what is stored for a limiter and a key, as text:
//! `cargo run --example script -- --state redis://127.0.0.1 'tollgate:v2:{default,ada}'`

#[path = "script/state.rs"]
mod state;

use std::env;
use std::process::ExitCode;

use tollgate::RedisStore;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [option, url, key] = args.as_slice()
        && option == "--state"
    {
        return print_state(url, key);
    }
    let (options, names): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| arg == "--numbered");
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

fn print_state(url: &str, key: &str) -> ExitCode {
    let value = redis::Client::open(url)
        .and_then(|client| client.get_connection())
        .and_then(|mut connection| redis::cmd("GET").arg(key).query(&mut connection));
    let value: Option<Vec<u8>> = match value {
        Ok(value) => value,
        Err(error) => {
            eprintln!("script: {error}");
            return ExitCode::FAILURE;
        }
    };
    match value.as_deref().map(state::describe) {
        None => println!("nothing is stored"),
        Some(Some(text)) => print!("{text}"),
        Some(None) => {
            eprintln!("script: this key holds no count");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
