//! Prints a Lua script that runs in Redis, with line numbers: `cargo run --example script -- --numbered`
//!
//! Errors of Redis name a line: `user_script:123:` is line 123. By default it prints the script `log`, which decides
//! checks of sliding logs. Pass the name of another script to print it, such as `gcra`, `mixed`, `refund` or `block`.
//!
//! With `--state`, it prints what is stored under a key, as text:
//! `cargo run --example script -- --state redis://127.0.0.1 'tollgate:v3:{default,ada}:log'`

#[path = "../tests/support/state.rs"]
mod state;

use std::env;
use std::process::ExitCode;

use redis::Commands;
use tollgate::RedisStore;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [option, url, key] = args.as_slice()
        && option == "--state"
    {
        return print_state(url, key);
    }
    let (options, names): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| arg == "--numbered");
    let name = names.first().map_or("log", String::as_str);
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
    match state(url, key) {
        Ok(Some(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!("script: this key holds no count");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("script: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns what is stored under a key, or `None` if it is no count.
fn state(url: &str, key: &str) -> redis::RedisResult<Option<String>> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let kind: String = redis::cmd("TYPE").arg(key).query(&mut connection)?;
    Ok(match kind.as_str() {
        "none" => Some("nothing is stored\n".to_owned()),
        "string" => state::describe(&connection.get::<_, Vec<u8>>(key)?),
        "zset" => {
            let units: Vec<(String, u64)> = connection.zrange_withscores(key, 0, -1)?;
            let lines = units
                .iter()
                .map(|(_, time)| format!("1 unit at {time} us\n"));
            Some(lines.collect())
        }
        _ => None,
    })
}
